"""Errors in settings name the table, the key, and the nearest right one."""

import tomllib
from dataclasses import dataclass

import pytest

from toolkit.settings import SettingsError, setting
from toolkit.toml_tables import find_old_path, load_table, move_renamed_settings, parse_toml


@dataclass(frozen=True)
class Part:
    size: int = setting(4, "how many", low=1, high=9)


@dataclass(frozen=True)
class Whole:
    name: str = setting(description="what it is called")
    rate: float = setting(1.0, "per second")
    mode: str = setting("off", "what it does", choices=("off", "on"))
    file: str | None = setting(None, "where")
    part: Part = setting(Part, "a part")
    parts: list[Part] = setting(list, "more parts")
    names: dict[str, str] = setting(dict, "by name")


def test_everything_given():
    table = {"name": "n", "rate": 2, "part": {"size": 5}, "parts": [{}, {"size": 1}], "names": {"a": "b"}}
    assert load_table(Whole, table, "top") == Whole(
        "n", 2.0, "off", None, Part(5), [Part(4), Part(1)], {"a": "b"}
    )


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "top.name must be given: what it is called"),
        ({"name": "n", "rat": 1}, r'\[top\]: unknown setting "rat"; did you mean "rate"\?'),
        ({"name": 7}, r"top.name: invalid value 7 \(expected text\)"),
        ({"name": "n", "mode": "of"}, r'top.mode: invalid value "of" \(expected "off" or "on"\)'),
        (
            {"name": "n", "part": {"size": 10}},
            r"top.part.size: invalid value 10 \(expected a whole number from 1 to 9\)",
        ),
        (
            {"name": "n", "part": {"size": True}},
            r"top.part.size: invalid value true \(expected a whole number",
        ),
        ({"name": "n", "part": 3}, "top.part must be a table, not 3"),
        (
            {"name": "n", "parts": [{"sise": 1}]},
            r'\[top.parts\[0\]\]: unknown setting "sise"; did you mean "size"',
        ),
    ],
)
def test_errors_name_setting_and_expectation(table, words):
    with pytest.raises(SettingsError, match=words):
        load_table(Whole, table, "top")


RENAMED = {"piece": "part", "whole.parts.width": "whole.size"}


@pytest.mark.parametrize(
    ("path", "old"),
    [
        ("piece", "piece"),
        ("piece.size", "piece"),
        ("pieces", None),
        ("whole.parts.width", "whole.parts.width"),
        ("whole.parts", None),
    ],
)
def test_the_old_path_of_a_renamed_setting(path, old):
    assert find_old_path(path, RENAMED) == old


@pytest.mark.parametrize(
    ("tables", "moved", "result"),
    [
        ({}, [], {}),
        ({"part": {"size": 1}}, [], {"part": {"size": 1}}),
        ({"piece": {"size": 1}}, ["piece"], {"part": {"size": 1}}),
        ({"piece": {"size": 1}, "part": {"name": "n"}}, ["piece"], {"part": {"size": 1, "name": "n"}}),
        ({"whole": {"parts": {"width": 3}}}, ["whole.parts.width"], {"whole": {"parts": {}, "size": 3}}),
        ({"whole": {"parts": 7}}, [], {"whole": {"parts": 7}}),
    ],
)
def test_values_under_old_names_move_to_the_new_ones(tables, moved, result):
    assert move_renamed_settings(tables, RENAMED) == moved
    assert tables == result


@pytest.mark.parametrize(
    "tables",
    [
        {"piece": {"size": 1}, "part": {"size": 1}},
        {"piece": {"size": 1}, "part": 2},
    ],
)
def test_a_setting_with_both_names_is_refused(tables):
    with pytest.raises(SettingsError, match="piece is the old name of part: set only part"):
        move_renamed_settings(tables, RENAMED)


def test_a_new_table_that_is_not_a_table_is_refused():
    with pytest.raises(SettingsError, match="top must be a table"):
        move_renamed_settings({"old": 1, "top": 2}, {"old": "top.new"})


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "a = " + "[" * 100_000,
        "a = " + "{b = " * 100_000,
        "a." * 1_000 + "b = 1",
        "a." * 100_000 + "b = 1",
        "x = 1\n  '\".b' . " + "a . " * 100_000 + "b = 1",
        "[[" + "a." * 100_000 + "b]]",
        "a = {" + "a." * 100_000 + "b = 1}",
        "a = {b = 1, " + "a." * 100_000 + "b = 1}",
    ],
    ids=range(9),
)
def test_torn_and_deeply_nested_files_are_one_kind_of_error(text):
    """The latter ended in the traceback of a RecursionError; a long dotted key took gigabytes, 40 for 100,000 parts."""
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text)


def test_text_with_many_dots_is_not_a_long_key():
    text = "a." * 900
    assert parse_toml(f"k = '{text}'\nl = 3.14") == {"k": text, "l": 3.14}
    assert parse_toml("k = '" + "1, 2.5 . " * 5_000 + "'")["k"].startswith("1, 2.5")
