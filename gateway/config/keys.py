"""How a configuration key is declared, and how its text becomes a checked value and back.

It does not know which keys there are (gateway.config.process) nor where values come from (gateway.config.sources).
"""

import os
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

Value = bool | int | float | str
T = TypeVar("T", bool, int, float, str)
C = TypeVar("C")

_LONG_MAX = 2**63 - 1
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Key:
    """One declared key: official (or our own) name, type, bounds (both inclusive) and one line about it."""

    name: str
    default: Value
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    path: bool = False
    live: bool = False
    ours: bool = False
    attribute: str = ""

    @property
    def type_name(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return {bool: "true or false", int: "whole number", float: "number", str: "text"}[type(self.default)]

    @property
    def range_text(self) -> str:
        """Bounds for people, empty when there are none."""
        if self.low is None and self.high is None:
            return ""
        low = "" if self.low is None else format_value(cast(Value, self.low))
        high = "" if self.high is None else format_value(cast(Value, self.high))
        return f"{low}..{high}"

    @property
    def environment(self) -> str:
        """RMQ_GATEWAY_ and the key in upper snake case, without a dotted prefix."""
        return "RMQ_GATEWAY_" + upper_snake(self.name.rsplit(".", 1)[-1])


def key(
    name: str,
    default: T,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    path: bool = False,
    live: bool = False,
    ours: bool = False,
) -> T:
    """Declares a dataclass field that is read from the key `name`.

    `pattern`: what a text must match as a whole; `doc` says it to people. `path`: a leading ~ is the home
    directory. `live`: may be changed while the server runs. `ours`: the official server does not have it.
    """
    declared = Key(name, default, doc, low, high, choices, pattern, path, live, ours)
    made: Any = field(default=default, metadata={"key": declared})
    return made  # type: ignore[no-any-return]


_TABLES: dict[type[Any], dict[str, Key]] = {}


def keys_of(table: type[Any]) -> dict[str, Key]:
    """Declared keys of a configuration dataclass by name, in order of declaration."""
    if table not in _TABLES:
        declared = [(item.name, item.metadata["key"]) for item in fields(table) if "key" in item.metadata]
        _TABLES[table] = {each.name: replace(each, attribute=attribute) for attribute, each in declared}
    return _TABLES[table]


def upper_snake(name: str) -> str:
    """brokerIP1 -> BROKER_IP1."""
    return _WORD_STARTS.sub("_", name).upper()


def parse_value(declared: Key, text: str) -> Value:
    """The value of `text`; ValueError says what is expected.

    Deviation: the official servers silently keep the default for a value they cannot read, and take every
    text but `true` for false; both hide typing errors, so they are refused here.
    """
    value = _convert(declared, text.strip() if not _is_text(declared) else text)
    _check_bounds(declared, value)
    return value


def format_value(value: Value) -> str:
    """A value as it stands in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def values_of(config: Any) -> dict[str, str]:
    """Every key of a configuration with its present value as text."""
    return {
        name: format_value(getattr(config, each.attribute)) for name, each in keys_of(type(config)).items()
    }


def with_values(config: C, values: dict[str, Value]) -> C:
    """A copy of `config` with the given keys (by official name) changed; values are taken as checked."""
    table = keys_of(type(config))
    changed = replace(cast(Any, config), **{table[name].attribute: value for name, value in values.items()})
    return cast(C, changed)


def _is_text(declared: Key) -> bool:
    return isinstance(declared.default, str) and not declared.choices


def _convert(declared: Key, text: str) -> Value:
    if declared.choices:
        return _choice(declared, text)
    if isinstance(declared.default, bool):
        return _boolean(text)
    if isinstance(declared.default, int):
        return _whole(text)
    if isinstance(declared.default, float):
        return _number(text)
    return os.path.expanduser(text) if declared.path else text


def _choice(declared: Key, text: str) -> str:
    for choice in declared.choices:
        if text.lower() == choice.lower():
            return choice
    raise ValueError(f"must be {declared.type_name}")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError("must be a whole number")
    value = int(text)
    if not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        raise ValueError("must fit in 64 bits")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("must be a finite number")
    return value


def _check_bounds(declared: Key, value: Value) -> None:
    if isinstance(value, str):
        if declared.pattern and not re.fullmatch(declared.pattern, value):
            raise ValueError(f"does not fit: {declared.doc}")
        return
    if isinstance(value, bool):
        return
    too_low = declared.low is not None and value < declared.low
    too_high = declared.high is not None and value > declared.high
    if too_low or too_high:
        raise ValueError(f"must be in {declared.range_text}")
