"""Patterns of candidate searches exclude exactly the numbers for which a comparison fails."""

import re
from operator import ge, gt, le, lt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.broker.filters.sql92.candidates import _except_numbers, _plain_numbers_failing

SIGNS = {"<": lt, "<=": le, ">": gt, ">=": ge}


def is_candidate(sign: str, number: int, value: str) -> bool:
    pattern = re.compile(b"n\x01" + _except_numbers(_plain_numbers_failing(sign, number)))
    return pattern.match(f"n\x01{value}\x02".encode()) is not None


@pytest.mark.parametrize("sign", SIGNS)
def test_every_small_number(sign: str) -> None:
    for number in (-5, -1, 0, 1, 9, 10, 11, 98, 99, 100, 101, 109, 110, 199, 200, 999, 1000):
        found = {value for value in range(1200) if is_candidate(sign, number, str(value))}
        assert found == {value for value in range(1200) if SIGNS[sign](value, number)}


@given(
    st.sampled_from(sorted(SIGNS)),
    st.integers(-(10**10), 10**10),
    st.integers(0, 999_999_999),
    st.integers(0, 4),
)
def test_numbers_of_up_to_nine_digits(sign: str, number: int, value: int, zeros: int) -> None:
    text = "0" * zeros + str(value)
    # longer ones are looked at, whatever they are
    assert is_candidate(sign, number, text) == (len(text) > 9 or SIGNS[sign](value, number))


@pytest.mark.parametrize("value", ["", "x", "-7", "+7", "1.5", "7 ", "0x7", "\u0667"])
def test_anything_else_is_looked_at(value: str) -> None:
    assert all(is_candidate(sign, 50, value) for sign in SIGNS)
