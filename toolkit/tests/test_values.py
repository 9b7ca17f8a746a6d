"""Value types: accepted text, accepted typed values, refusals."""

import pytest

from toolkit.values import (
    Addresses,
    Boolean,
    Choice,
    Names,
    Number,
    Text,
    WholeNumber,
    format_number,
    unit_of,
)


@pytest.mark.parametrize(
    ("value_type", "text", "value"),
    [
        (Boolean(), " True", True),
        (WholeNumber(1, 10), " +7 ", 7),
        (WholeNumber(digit_groups=True), "1_000", 1000),
        (Number(0, 1), "2.5e-1", 0.25),
        (Number(0), "inf", float("inf")),
        (Choice(("TAG", "SQL92")), "sql92", "SQL92"),
        (Text(), " as it is ", " as it is "),
        (Text(strip=True), " stripped ", "stripped"),
        (Names(), "a; b,a", ("a", "b")),
        (Addresses(), "a:1;[::1]:2", (("a", 1), ("::1", 2))),
    ],
)
def test_text_is_parsed(value_type, text, value):
    parsed = value_type(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("value_type", "text", "reason"),
    [
        (Boolean(), "yes", "expected true or false"),
        (WholeNumber(), "1_000", "expected a whole number"),
        (WholeNumber(1), "0", "expected a whole number, at least 1"),
        (WholeNumber(None, 9, "bytes"), "10", "expected a whole number of bytes, at most 9"),
        (WholeNumber(), str(2**63), "expected a whole number of 64 bits"),
        (Number(), "nan", "expected a number"),
        (Choice(("a", "b", "c")), "d", 'expected "a", "b" or "c"'),
        (Text(strip=True), " ", "must not be empty"),
        (Text("[0-9]{2}", "two digits"), "1", "expected two digits"),
        (Names(), ",", "expected one or more names separated by commas"),
        (Addresses(), "a:0", "'a:0' is not host:port"),
    ],
)
def test_text_is_refused(value_type, text, reason):
    with pytest.raises(ValueError, match=reason):
        value_type(text)


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (Boolean(), 1),
        (WholeNumber(), True),
        (WholeNumber(), 1.0),
        (Number(), "1"),
        (Number(), False),
        (Choice(("TAG",)), "tag"),
        (Text(), 7),
        (Names(), "a,b"),
    ],
)
def test_typed_values_are_not_converted(value_type, value):
    with pytest.raises(ValueError, match="expected"):
        value_type.check(value)


def test_whole_numbers_are_numbers():
    assert Number().check(2) == 2.0
    assert type(Number().check(2)) is float


def test_names_tell_their_unit():
    assert [unit_of(name) for name in ("hold_ms", "idle_s", "size_bytes", "count")] == [
        "milliseconds", "seconds", "bytes", "",
    ]  # fmt: skip


def test_numbers_are_written_without_needless_fraction():
    assert [format_number(each) for each in (1.0, 0.5, 3, None)] == ["1", "0.5", "3", ""]
