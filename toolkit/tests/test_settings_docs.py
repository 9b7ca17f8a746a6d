"""Tables and example lines made from declarations."""

import tomllib

import pytest

from toolkit.settings import Setting
from toolkit.settings_docs import (
    choices_of,
    code_cell,
    comment,
    description_of,
    markdown_table,
    range_of,
    toml_value,
)
from toolkit.values import Boolean, Choice, Number, WholeNumber, plain_value


def test_bars_in_cells_are_escaped():
    assert markdown_table(("a", "b"), [("x|y", "")]) == "| a | b |\n| --- | --- |\n| x\\|y |  |\n"


def test_descriptions_name_aliases_and_tags():
    declared = Setting("rows", WholeNumber(), 1, "How many.", ("lines",), tags=("ours", "live"))
    assert description_of(declared) == "How many. Also: `lines`. (ours, live)"
    assert code_cell("") == ""


def test_ranges_and_choices():
    assert choices_of(Setting("mode", Choice(("on", "off")), "on", "")) == "on or off"
    assert range_of(Setting("share", Number(0.0, 1.0), 1.0, "")) == "0..1"
    assert range_of(Setting("size", WholeNumber(1), 1, "")) == "1.."
    assert range_of(Setting("flag", Boolean(), True, "")) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (True, "true"), (2.0, "2"), (0.5, "0.5"), (("a", "b"), "a,b"), (7, "7")]
)
def test_values_as_text(value, text):
    assert plain_value(value) == text


def test_values_as_toml():
    value = {"a": [1, True, 0.5, 'x\n"'], "b:1": {}}
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value


def test_comments_are_wrapped_or_keep_their_lines():
    assert comment("one two three", width_chars=9) == ["# one two", "# three"]
    assert comment("one\n\ntwo\n", width_chars=0) == ["# one", "#", "# two"]
