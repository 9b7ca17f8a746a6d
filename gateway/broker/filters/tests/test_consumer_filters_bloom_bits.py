"""Bits of filters, as the official BloomFilter.createByFn(20, 32).generate gives them."""

import pytest

from gateway.broker.filters.consumer_filters import bit_positions


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("", [0, 0, 0]),
        ("g#t", [22, 87, 58]),
        ("group#TopicTest", [71, 51, 81]),
        ("a-long-group-name-of-many-letters#%RETRY%x", [1, 54, 36]),
        ("ü😀#t", [69, 45, 21]),
        ("0123456789abcdef", [11, 47, 60]),
        ("0123456789abcde", [87, 93, 12]),
    ],
)
def test_positions_are_the_official_ones(name: str, positions: list[int]) -> None:
    assert bit_positions(name) == positions
