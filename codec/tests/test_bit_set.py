import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.bit_set import decode_bit_set


def encode(number: int, size: int | None = None) -> str:
    return base64.b64encode(number.to_bytes(size or (number.bit_length() + 7) // 8, "little")).decode()


@given(st.sets(st.integers(0, 300), max_size=40), st.integers(0, 5))
def test_the_set_bits_are_returned_in_order(bits: set[int], zeros: int) -> None:
    text = encode(sum(1 << bit for bit in bits), 38 + zeros)
    assert decode_bit_set(text, 40) == sorted(bits)


def test_the_empty_text_has_no_bits() -> None:
    assert decode_bit_set("", 0) == []


@pytest.mark.parametrize("text", ["AQ", "AQ==AQ==", "é", "A Q=", "\ud800", "-_8="])
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_bit_set(text, 10)


def test_more_bits_than_allowed_are_refused_and_zeros_cost_nothing() -> None:
    """A bit set of 400 kB took over 100 s: each of its bits copied all the others."""
    megabytes = 6 << 20
    assert decode_bit_set(base64.b64encode(bytes(megabytes) + b"\x81").decode(), 2) == [
        8 * megabytes,
        8 * megabytes + 7,
    ]
    with pytest.raises(ValueError, match="more than 32 bits"):
        decode_bit_set(base64.b64encode(b"\xff" * megabytes).decode(), 32)
