"""Loads TOML tables into frozen dataclasses whose fields are declared with `setting`.

Types, ranges and names are checked; errors name the key by its path, such as `target.kind`. A program that renames a
setting lists its old path, and `move_renamed_settings` accepts it until the entry is deleted.
"""

import dataclasses
import re
import tomllib
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from toolkit.settings import REQUIRED, Setting, SettingsError, quote_value, settings_of, without_none
from toolkit.settings_docs import toml_value
from toolkit.suggestions import suggest_name
from toolkit.values import Boolean, Number, Structure, Text, ValueType, WholeNumber

MAX_DEPTH: Final = 64
TOO_DEEP: Final = "a value is nested too deeply"
_VERY_LONG_KEY: Final = re.compile(r"(?<![^\s\[{,])(?:[^\s.=\[{,]+\s*\.\s*){1000}")
"""A dotted key of more than a thousand parts. tomllib remembers every beginning of a key: of 100,000 parts 40 GB."""
Settings = TypeVar("Settings")

_PLAIN: Final[dict[Any, ValueType]] = {bool: Boolean(), int: WholeNumber(), float: Number(), str: Text()}
"""Value types of the elements of lists and maps."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises tomllib.TOMLDecodeError, also for values that are nested too deeply for the parser."""
    if _VERY_LONG_KEY.search(text):
        raise tomllib.TOMLDecodeError(TOO_DEEP)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from None
    # A dotted key of any length is read without recursion, but nothing else could walk such tables.
    level: list[Any] = [tables]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return tables
    raise tomllib.TOMLDecodeError(TOO_DEEP)


def load_table(kind: type[Settings], table: Mapping[str, Any], path: str = "") -> Settings:
    """Return an instance of a settings dataclass from a TOML table; `path` names the table in errors.

    Nested dataclasses, lists of them, `list[str]`, `dict[str, str]`, `str`, `int`, `float`, `bool` and `X | None`
    are understood. Raises SettingsError.
    """
    declared = settings_of(kind)
    for key in table:
        if key not in declared:
            prefix = f"[{path}]: " if path else ""
            raise SettingsError(f'{prefix}unknown setting "{key}"{suggest_name(key, declared)}')
    hints = typing.get_type_hints(kind)
    values = {}
    for name, declaration in declared.items():
        label = f"{path}.{name}" if path else name
        if name in table:
            values[name] = _value(declaration, without_none(hints[name]), table[name], label)
        elif declaration.default is REQUIRED:
            raise SettingsError(f"{label} must be given: {declaration.description}")
    return kind(**values)


def find_old_path(path: str, renamed: Mapping[str, str]) -> str | None:
    """Return the old path in ``renamed`` to which a setting or table belongs; None if it was not renamed."""
    return next((old for old in renamed if path == old or path.startswith(f"{old}.")), None)


def move_renamed_settings(tables: dict[str, Any], renamed: Mapping[str, str]) -> list[str]:
    """Move values of settings and tables with an old name to the new one, and return the old paths.

    ``renamed`` maps old paths, such as `listen.size`, to new ones. ``tables`` is changed. Raises SettingsError if a
    setting has both names.
    """
    moved = []
    for old, new in renamed.items():
        old_parent, _, old_key = old.rpartition(".")
        table = _find_table(tables, old_parent)
        if table is None or old_key not in table:
            continue
        value = table.pop(old_key)
        new_parent, _, new_key = new.rpartition(".")
        table = _find_table(tables, new_parent, create=True)
        if table is None:
            raise SettingsError(f"{new_parent} must be a table")
        present = table.get(new_key)
        if present is None:
            table[new_key] = value
        elif isinstance(present, dict) and isinstance(value, dict) and not present.keys() & value.keys():
            # A file may still have the old table while --set uses the new name, or the other way around.
            present.update(value)
        else:
            raise SettingsError(f"{old} is the old name of {new}: set only {new}")
        moved.append(old)
    return moved


def _find_table(tables: dict[str, Any], path: str, *, create: bool = False) -> dict[str, Any] | None:
    """Return the table at a path; None if there is none, or a value of another type."""
    table: Any = tables
    for name in path.split(".") if path else ():
        if create:
            table.setdefault(name, {})
        table = table.get(name)
        if not isinstance(table, dict):
            return None
    return cast(dict[str, Any], table)


def _value(declared: Setting, hint: Any, value: Any, label: str) -> Any:
    if isinstance(declared.value_type, Structure):
        return _structure(declared, hint, value, label)
    return declared.check(value, label)


def _structure(declared: Setting, hint: Any, value: Any, label: str) -> Any:
    """Check a table, a list or a map, element by element."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise SettingsError(f"{label} must be a table, not {quote_value(value)}")
        return load_table(cast(type[Any], hint), value, label)
    if origin is list:
        if not isinstance(value, list):
            raise SettingsError(f"{label} must be a list{_example(declared)}")
        return [
            _element(declared, arguments[0], element, f"{label}[{index}]")
            for index, element in enumerate(value)
        ]
    if not isinstance(value, Mapping):
        raise SettingsError(f"{label} must be a table{_example(declared)}")
    return {
        str(key): _element(declared, arguments[1], element, f"{label}.{key}")
        for key, element in value.items()
    }


def _element(declared: Setting, hint: Any, value: Any, label: str) -> Any:
    if hint in _PLAIN:
        return Setting(label, _PLAIN[hint], None, "").check(value, label)
    return _structure(declared, hint, value, label)


def _example(declared: Setting) -> str:
    return f", for example {toml_value(declared.example)}" if declared.example else ""
