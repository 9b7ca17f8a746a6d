"""TOML tables become frozen dataclasses: types, ranges and names are checked, and errors name the key.

Not responsible for any particular setting: each part declares its own with `setting`.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Settings = TypeVar("Settings")


class SettingsError(ValueError):
    """A configuration that cannot be used; the text names file or table, key and reason."""


def setting(
    default: Any = dataclasses.MISSING,
    meaning: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    example: Any = None,
) -> Any:
    """A field of a settings dataclass. Without a default the key must be given; the range is inclusive.

    Mutable defaults are given as a function (`list`, `dict`, a dataclass). A secret is text that is never printed.
    ``example`` is what the example file shows where the default tells too little.
    """
    metadata = {"meaning": meaning, "low": low, "high": high, "choices": choices, "secret": secret}
    metadata["example"] = example
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def load(kind: type[Settings], table: Mapping[str, Any], where: str) -> Settings:
    """An instance of a settings dataclass from a TOML table; ``where`` names the table in errors.

    Nested dataclasses, lists of them, `list[str]`, `dict[str, str]`, `str`, `int`, `float`, `bool` and `X | None`
    are understood. Raises SettingsError.
    """
    fields = {each.name: each for each in dataclasses.fields(typing.cast(Any, kind))}
    for key in table:
        if key not in fields:
            raise SettingsError(f"{where}: unknown key {key!r}{_nearest(key, fields)}")
    hints = typing.get_type_hints(kind)
    values = {}
    for name, field in fields.items():
        if name in table:
            if field.metadata.get("secret") and not isinstance(table[name], str):
                raise SettingsError(f"{where}.{name}: str is expected")
            values[name] = _value(hints[name], table[name], f"{where}.{name}")
            _check(field.metadata, values[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SettingsError(f"{where}: {name} must be given ({field.metadata.get('meaning')})")
    return kind(**values)


def _nearest(key: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, fields, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(fields))}"


def _value(kind: Any, given: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _value(next(each for each in arguments if each is not types.NoneType), given, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(given, Mapping):
            raise SettingsError(f"{where}: a table is expected")
        return load(kind, given, where)
    if origin is list and isinstance(given, list):
        return [_value(arguments[0], each, f"{where}[{index}]") for index, each in enumerate(given)]
    if origin is dict and isinstance(given, Mapping):
        return {str(key): _value(arguments[1], each, f"{where}.{key}") for key, each in given.items()}
    if kind is float and type(given) is int:
        return float(given)
    if type(given) is not (origin or kind):
        raise SettingsError(f"{where}: {getattr(kind, '__name__', kind)} is expected, not {given!r}")
    return given


def _check(metadata: Mapping[str, Any], value: Any, where: str) -> None:
    low, high, choices = metadata.get("low"), metadata.get("high"), metadata.get("choices")
    if choices and value not in choices:
        raise SettingsError(f"{where}: {value!r} is none of {', '.join(choices)}")
    if (low is not None and value < low) or (high is not None and value > high):
        raise SettingsError(f"{where}: {value!r} is not between {low} and {high}")
