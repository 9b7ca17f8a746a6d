"""Configuration changes by request (mqadmin updateNamesrvConfig, updateBrokerConfig) and configuration listings.

The admin processors answer the requests and write the files.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from codec.java_numbers import quoted
from gateway.config.keys import OURS, Value, keys_of, values_of, with_values
from gateway.config.properties_file import PropertiesError, format_properties, parse_properties
from gateway.config.unsupported import UNUSED, UNUSED_REASON, reason_for

C = TypeVar("C")

MAX_UPDATE_CHARS: Final = 64 * 1024
"""Maximum length of an update: several times that of all keys. Parsing 16 MiB would take seconds."""


class ForbiddenKey(ValueError):
    """A key that the black list protects from changes by request."""


@dataclass(frozen=True, slots=True)
class ConfigUpdate(Generic[C]):
    """A changed configuration, and the keys of the update that had no effect: unknown, or read at start only.

    ``refusal`` gives the reason and the remedy for each of these keys; it is empty without any.
    """

    config: C
    without_effect: tuple[str, ...]
    refusal: str = ""


def apply_update(
    config: C, text: str, black_list: Set[str], other_values: Mapping[str, str] = MappingProxyType({})
) -> ConfigUpdate[C]:
    """Return a configuration with the values of a properties text.

    A key with its present value is accepted, even if it cannot be changed. ``other_values`` are the values of listed
    keys that ``config`` does not have.

    Raises ForbiddenKey, PropertiesError, or ValueError for a value that does not fit and for a text that is too long.
    """
    if len(text) > MAX_UPDATE_CHARS:
        raise ValueError(f"the text has {len(text)} characters; at most {MAX_UPDATE_CHARS} are read")
    entries = parse_properties(text)
    for entry in entries:
        if entry.key in black_list:
            raise ForbiddenKey(entry.key)
    declared, listed = keys_of(type(config)), {**other_values, **values_of(config)}
    values: dict[str, Value] = {}
    for entry in entries:
        if entry.key in declared and declared[entry.key].is_live:
            values[entry.key] = declared[entry.key].setting.parse(entry.value, entry.key)
    # A listed value is not parsed: that of a secret key is not the secret.
    ignored = tuple(
        entry.key
        for entry in entries
        if entry.key not in values and listed.get(entry.key) != entry.value.strip()
    )
    return ConfigUpdate(with_values(config, values), ignored, _refusal_of(ignored, set(declared)))


def _refusal_of(names: tuple[str, ...], declared: set[str]) -> str:
    """Return why these keys cannot be changed by request; empty without any."""
    at_start = [name for name in names if name in declared and name not in UNUSED]
    reasons = [f"cannot be changed while the server runs: {', '.join(at_start)}; change the file and restart"]
    reasons = reasons if at_start else []
    for name in names:
        if name in UNUSED or name not in declared:
            reason = UNUSED_REASON if name in UNUSED else reason_for(name) or "is not a key of this server"
            reasons.append(f"{quoted(name)} {reason}")
    return "; ".join(reasons)


def list_values(config: Any, other_values: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the properties text of a configuration's values together with ``other_values``, sorted by key."""
    return format_properties({**other_values, **values_of(config)})


def official_values(*configs: Any) -> dict[str, str]:
    """Return the values of configurations under their official keys; keys that only this server has are left out."""
    return {
        name: text
        for config in configs
        for name, text in values_of(config).items()
        if OURS not in keys_of(type(config))[name].setting.tags
    }


__all__ = [
    "ConfigUpdate",
    "ForbiddenKey",
    "PropertiesError",
    "apply_update",
    "list_values",
    "official_values",
]
