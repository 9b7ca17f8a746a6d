"""Property tests of the dialect's parser; its grammar is tested in test_fastjson."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.errors import JsonError
from codec.lenient_json import ObjectKey, parse_lenient

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
SPACE = st.sampled_from(["", " ", "\t\r\n"])
PIECES = st.sampled_from(
    [
        *"{}[],:'\"\\-0 aLe.",
        '"a"',
        "'b'",
        "{0:1}",
        "{{}:1}",
        "null",
        "1e9",
        "\\u00e9",
        "\\x4",
        "\\ud83d",
        "9" * 25,
    ]
)


@given(VALUES, SPACE)
def test_standard_json_means_the_same(value, space):
    text = json.dumps(value, separators=(f"{space},{space}", f"{space}:{space}"))
    assert parse_lenient(space + text + space, 1000) == value


@given(st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=20))
def test_any_text_is_a_value_or_an_error(text):
    with suppress(JsonError):
        parse_lenient(text, 5)


@pytest.mark.parametrize(
    "unit", ["[", "{", "{0:", "'", "\\", '"a', "1", "-", "1e", " ", "a", "{{", "[0,", ":"]
)
def test_long_text_that_is_no_document_is_refused(unit):
    """Backtracking would take 10^10 steps here."""
    with pytest.raises(JsonError):
        parse_lenient(unit * 100_000, 1000)


@pytest.mark.parametrize(
    "text", ["0e", "1e+", "1.", "1.e5", "-1.5e", "{a:2E-}", "[0.,1]", "'\\u12'", "'\\x1'"]
)
def test_a_number_or_an_escape_that_lacks_digits_is_refused(text):
    with pytest.raises(JsonError):
        parse_lenient(text, 10)


def test_values_nest_100_deep():
    assert parse_lenient("[" * 100 + "]" * 100, 0)
    with pytest.raises(JsonError, match="nested too deeply"):
        parse_lenient("[" * 101 + "]" * 101, 0)


def test_an_object_key_has_its_fields_in_order():
    key = ObjectKey.from_fields({"b": 1, "a": "x"})
    assert list(key) == [("a", "x"), ("b", 1)]
    assert key.fields == {"a": "x", "b": 1}
