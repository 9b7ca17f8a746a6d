"""Changes of configuration by request (mqadmin updateNamesrvConfig, updateBrokerConfig) and its listing.

It does not answer requests nor write files: the processors do.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.config.keys import Value, keys_of, parse_value, values_of, with_values
from gateway.config.properties_file import PropertiesError, format_properties, parse_properties

C = TypeVar("C")


class ForbiddenKey(ValueError):
    """A key of the black list."""


@dataclass(frozen=True, slots=True)
class Update(Generic[C]):
    """The configuration after the change, and keys without effect: unknown, or read at start only."""

    config: C
    without_effect: tuple[str, ...]


def updated(config: C, text: str, black_list: set[str]) -> Update[C]:
    """Applies properties text to a configuration.

    Raises ForbiddenKey, PropertiesError, or ValueError for a value that does not fit; nothing changes then.
    """
    entries = parse_properties(text)
    for entry in entries:
        if entry.key in black_list:
            raise ForbiddenKey(entry.key)
    declared = keys_of(type(config))
    values: dict[str, Value] = {}
    for entry in entries:
        if entry.key in declared and declared[entry.key].live:
            values[entry.key] = _value(config, entry.key, entry.value)
    ignored = tuple(entry.key for entry in entries if entry.key not in values)
    return Update(with_values(config, values), ignored)


def _value(config: Any, name: str, text: str) -> Value:
    try:
        return parse_value(keys_of(type(config))[name], text)
    except ValueError as problem:
        raise ValueError(f"{name}={text!r} {problem}") from problem


def listing(*configs: Any) -> str:
    """Properties text of all values of some configurations, sorted by key."""
    return format_properties({name: text for config in configs for name, text in values_of(config).items()})


__all__ = ["ForbiddenKey", "PropertiesError", "Update", "listing", "updated"]
