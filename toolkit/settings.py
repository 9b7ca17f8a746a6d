"""Declared settings: each configuration key is declared once, and everything else follows from the declaration.

A `Setting` has a name, a value type (`toolkit.values`) with its range or choices, a default and a description.
Parsing, error messages, suggestions, redaction, example files and reference tables (`toolkit.settings_docs`) are
derived from it. Adapters decide where values come from (properties files, TOML tables, Spark options), which source
takes precedence, and which keys exist: `gateway/config/keys.py`, `toolkit/toml_tables.py`, `spark/options.py`.
"""

import dataclasses
import os
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.values import (
    Boolean,
    Choice,
    Number,
    Parser,
    Structure,
    Text,
    ValueType,
    WholeNumber,
    unit_of,
)

REDACTED: Final = "*********(redacted)"


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""The default of a setting that the user must set."""


class SettingsError(ValueError):
    """A configuration that cannot be used. The text names the setting, its value, and the expected values."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting.

    `default` is a value, not a text. `aliases` are other names of the same setting. A `secret` is never printed.
    `example` is shown by example files where the default says too little. `tags` are notes that documentation puts in
    brackets after the description; adapters give them a meaning.
    """

    name: str
    value_type: Parser
    default: Any
    description: str
    aliases: tuple[str, ...] = ()
    secret: bool = False
    example: Any = None
    tags: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def default_value(self) -> Any:
        """The default as the program uses it, with `~` expanded in paths: it depends on the present environment."""
        is_path = isinstance(self.value_type, Text) and self.value_type.is_path
        return self.value_type(self.default) if is_path else self.default

    def parse(self, text: str, label: str) -> Any:
        """Return the value of a text; `label` names the setting in errors. Raises SettingsError."""
        try:
            return self.value_type(text)
        except ValueError as error:
            raise self._error(text, label, error) from None

    def check(self, value: Any, label: str) -> Any:
        """Return a value that is typed already, as TOML has it. Raises SettingsError."""
        if not isinstance(self.value_type, ValueType):
            raise TypeError(f"{self.name} can only be read from text")
        try:
            return self.value_type.check(value)
        except ValueError as error:
            raise self._error(value, label, error) from None

    def _error(self, value: Any, label: str, error: ValueError) -> SettingsError:
        shown = REDACTED if self.secret else quote_value(value)
        return SettingsError(f"{label}: invalid value {shown} ({error})")


def quote_value(value: Any) -> str:
    """Return a value as error messages show it: text in double quotes, true and false in lower case."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def redact(texts: Mapping[str, str], declared: Iterable[Setting]) -> dict[str, str]:
    """Return texts by setting name, in any case, with those of secrets replaced."""
    secrets = {name.lower() for declaration in declared if declaration.secret for name in declaration.names}
    return {name: REDACTED if name.lower() in secrets else text for name, text in texts.items()}


# -- settings as fields of dataclasses ----------------------------------------------------------------------------

_METADATA: Final = "setting"


@dataclass(frozen=True, slots=True)
class _Declaration:
    """The arguments of `setting`, until the field's name and type hint complete them."""

    name: str
    default: Any
    description: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    pattern: str
    is_path: bool
    secret: bool
    example: Any
    tags: tuple[str, ...]


def setting(
    default: Any = REQUIRED,
    description: str = "",
    *,
    name: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    is_path: bool = False,
    secret: bool = False,
    example: Any = None,
    tags: tuple[str, ...] = (),
) -> Any:
    """Declare a dataclass field as a setting, as `dataclasses.field` does for plain fields.

    The field's type hint gives the value type, its name the unit.

    The range is inclusive. `pattern` must match the whole text. `is_path` expands a leading `~`. A mutable default
    is passed as a function (`list`, `dict`, a dataclass). `name` is the name that users write, if it differs from the
    field's.
    """
    declaration = _Declaration(
        name, default, description, low, high, choices, pattern, is_path, secret, example, tags
    )
    options: dict[str, Any] = {"metadata": {_METADATA: declaration}, "repr": not secret}
    if default is REQUIRED:
        return dataclasses.field(**options)
    if callable(default):
        return dataclasses.field(default_factory=default, **options)
    if is_path and default.startswith("~"):
        return dataclasses.field(default_factory=lambda: os.path.expanduser(default), **options)
    return dataclasses.field(default=default, **options)


_KNOWN_SETTINGS: dict[type[Any], dict[str, Setting]] = {}


def settings_of(kind: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by field name, in order of declaration."""
    if kind not in _KNOWN_SETTINGS:
        hints = typing.get_type_hints(kind)
        _KNOWN_SETTINGS[kind] = {
            field.name: _complete(field.name, hints[field.name], field.metadata[_METADATA])
            for field in dataclasses.fields(kind)
            if _METADATA in field.metadata
        }
    return _KNOWN_SETTINGS[kind]


def _complete(field: str, hint: Any, declared: _Declaration) -> Setting:
    return Setting(
        declared.name or field,
        _value_type(field, without_none(hint), declared),
        declared.default,
        declared.description,
        secret=declared.secret,
        example=declared.example,
        tags=declared.tags,
    )


def _value_type(field: str, hint: Any, declared: _Declaration) -> ValueType:
    if hint is bool:
        return Boolean()
    if hint is int:
        return WholeNumber(declared.low, declared.high, unit_of(field))
    if hint is float:
        return Number(declared.low, declared.high, unit_of(field))
    if declared.choices:
        return Choice(declared.choices)
    if hint is str:
        return Text(
            declared.pattern, declared.description if declared.pattern else "", is_path=declared.is_path
        )
    return Structure()


def without_none(hint: Any) -> Any:
    """Return `X` for the type hint `X | None`, and any other hint as it is."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(argument for argument in typing.get_args(hint) if argument is not types.NoneType)
    return hint
