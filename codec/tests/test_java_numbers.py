"""Text becomes a number only if Java could hold it, whatever its length."""

import pytest

from codec.java_numbers import (
    I32,
    I64,
    JavaNumberError,
    parse_integer_or,
    parse_java_float,
    parse_java_integer,
    read_json_integer,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("+7", 7), ("-2147483648", -(1 << 31)), ("2147483647", (1 << 31) - 1), ("007", 7)],
)
def test_a_number_within_the_range_is_returned(text: str, number: int) -> None:
    assert parse_java_integer(text, I32) == number


@pytest.mark.parametrize(
    "text", ["", "-", "+-1", " 1", "1 ", "1_0", "1.0", "1e3", "0x1", "2147483648", "-2147483649", "null", "²"]
)
def test_what_java_refuses_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(JavaNumberError, match="For input string"):
        parse_java_integer(text, I32)


def test_a_long_text_is_refused_unread_and_quoted_in_part() -> None:
    with pytest.raises(JavaNumberError) as refused:
        parse_java_integer("9" * 5_000_000)
    assert len(str(refused.value)) < 200


def test_the_default_stands_for_a_text_that_is_no_number() -> None:
    assert parse_integer_or("12", 3) == 12
    assert parse_integer_or(None, 3) == 3
    assert parse_integer_or("9" * 400, 3) == 3
    assert parse_integer_or(str(1 << 63), 3, I64) == 3


@pytest.mark.parametrize("value", [5, "5", "+5", "05"])
def test_a_whole_number_of_a_json_document_may_be_text(value: object) -> None:
    assert read_json_integer(value, I32) == 5


@pytest.mark.parametrize(
    "value", [None, True, 5.0, float("inf"), 1 << 31, -(1 << 31) - 1, "", "x", "9" * 5000, [5], {}, 10**400]
)
def test_what_is_no_integer_of_a_json_document(value: object) -> None:
    with pytest.raises(JavaNumberError) as refused:
        read_json_integer(value, I32)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("text", "number"), [("1.5", 1.5), ("-1e3", -1000.0), ("7", 7.0), ("1e308", 1e308)])
def test_a_finite_fraction_is_returned(text: str, number: float) -> None:
    assert parse_java_float(text) == number


@pytest.mark.parametrize(
    "text", ["", "x", "NaN", "Infinity", "-inf", "1e309", "1_0.5", "9" * 400, "0." + "1" * 10**6]
)
def test_a_fraction_that_no_field_can_use_is_refused(text: str) -> None:
    with pytest.raises(JavaNumberError, match="For input string") as refused:
        parse_java_float(text)
    assert len(str(refused.value)) < 200
