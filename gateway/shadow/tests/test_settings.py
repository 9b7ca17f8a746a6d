"""Settings name what is wrong with them: the table, the key, and the nearest right one."""

from dataclasses import dataclass

import pytest

from gateway.shadow.settings import SettingsError, load, setting


@dataclass(frozen=True)
class Part:
    size: int = setting(4, "how many", low=1, high=9)


@dataclass(frozen=True)
class Whole:
    name: str = setting(meaning="what it is called")
    rate: float = setting(1.0, "per second")
    mode: str = setting("off", "what it does", choices=("off", "on"))
    file: str | None = setting(None, "where")
    part: Part = setting(Part, "a part")
    parts: list[Part] = setting(list, "more parts")
    names: dict[str, str] = setting(dict, "by name")


def test_everything_given():
    table = {"name": "n", "rate": 2, "part": {"size": 5}, "parts": [{}, {"size": 1}], "names": {"a": "b"}}
    assert load(Whole, table, "top") == Whole("n", 2.0, "off", None, Part(5), [Part(4), Part(1)], {"a": "b"})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "top: name must be given"),
        ({"name": "n", "rat": 1}, "top: unknown key 'rat'; did you mean 'rate'"),
        ({"name": 7}, "top.name: str is expected, not 7"),
        ({"name": "n", "mode": "of"}, "top.mode: 'of' is none of off, on"),
        ({"name": "n", "part": {"size": 10}}, "top.part.size: 10 is not between 1 and 9"),
        ({"name": "n", "part": {"size": True}}, "top.part.size: int is expected"),
        ({"name": "n", "part": 3}, "top.part: a table is expected"),
        ({"name": "n", "parts": [{"sise": 1}]}, r"top.parts\[0\]: unknown key 'sise'"),
    ],
)
def test_what_is_wrong_is_named(table, words):
    with pytest.raises(SettingsError, match=words):
        load(Whole, table, "top")
