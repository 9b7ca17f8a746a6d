"""Loads TOML tables into frozen dataclasses whose fields are declared with `setting`.

Types, ranges and names are checked; errors name the key by its path, such as `target.kind`.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from toolkit.settings import REQUIRED, Setting, SettingsError, quote_value, settings_of, without_none
from toolkit.settings_docs import toml_value
from toolkit.suggestions import suggest_name
from toolkit.values import Boolean, Number, Structure, Text, ValueType, WholeNumber

Settings = TypeVar("Settings")

_PLAIN: Final[dict[Any, ValueType]] = {bool: Boolean(), int: WholeNumber(), float: Number(), str: Text()}
"""Value types of the elements of lists and maps."""


def load_table(kind: type[Settings], table: Mapping[str, Any], path: str = "") -> Settings:
    """Return an instance of a settings dataclass from a TOML table; `path` names the table in errors.

    Nested dataclasses, lists of them, `list[str]`, `dict[str, str]`, `str`, `int`, `float`, `bool` and `X | None`
    are understood. Raises SettingsError.
    """
    declared = settings_of(kind)
    for key in table:
        if key not in declared:
            place = f"[{path}]: " if path else ""
            raise SettingsError(f'{place}unknown setting "{key}"{suggest_name(key, declared)}')
    hints = typing.get_type_hints(kind)
    values = {}
    for name, each in declared.items():
        label = f"{path}.{name}" if path else name
        if name in table:
            values[name] = _value(each, without_none(hints[name]), table[name], label)
        elif each.default is REQUIRED:
            raise SettingsError(f"{label} must be given: {each.description}")
    return kind(**values)


def _value(declared: Setting, hint: Any, given: Any, label: str) -> Any:
    if isinstance(declared.value_type, Structure):
        return _structure(declared, hint, given, label)
    return declared.check(given, label)


def _structure(declared: Setting, hint: Any, given: Any, label: str) -> Any:
    """Check a table, a list or a map, element by element."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(given, Mapping):
            raise SettingsError(f"{label} must be a table, not {quote_value(given)}")
        return load_table(cast(type[Any], hint), given, label)
    if origin is list:
        if not isinstance(given, list):
            raise SettingsError(f"{label} must be a list{_example(declared)}")
        return [
            _element(declared, arguments[0], each, f"{label}[{index}]") for index, each in enumerate(given)
        ]
    if not isinstance(given, Mapping):
        raise SettingsError(f"{label} must be a table{_example(declared)}")
    return {str(key): _element(declared, arguments[1], each, f"{label}.{key}") for key, each in given.items()}


def _element(declared: Setting, hint: Any, given: Any, label: str) -> Any:
    if hint in _PLAIN:
        return Setting(label, _PLAIN[hint], None, "").check(given, label)
    return _structure(declared, hint, given, label)


def _example(declared: Setting) -> str:
    return f", for example {toml_value(declared.example)}" if declared.example else ""
