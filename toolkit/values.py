"""Value types of settings: each parses text, checks values that are typed already, and describes itself.

Text comes from properties files, the environment, command lines and Spark options; typed values come from TOML.
Text is parsed leniently (surrounding blanks and the case of choices do not matter), typed values are not converted.
A refused value raises ValueError. Its text is a phrase that error messages put in brackets, such as
`expected a whole number from 1 to 10`.
"""

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

Parser = Callable[[str], Any]
"""Makes a value of its text. Every ValueType is one; a plain function serves where no type fits."""

_MIN_LONG: Final = -(2**63)
_MAX_LONG: Final = 2**63 - 1


class ValueType:
    """Base of all value types. Calling it parses a text.

    Only types with parameters are dataclasses: servers import this module at each start.
    """

    def __call__(self, text: str) -> Any:
        """Return the value of a text. Raises ValueError."""
        raise NotImplementedError

    def check(self, value: Any) -> Any:
        """Return a value that is typed already, as TOML has it. Raises ValueError."""
        raise NotImplementedError

    @property
    def expected(self) -> str:
        """The accepted values as a noun phrase: `a whole number from 1 to 10`."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """The accepted values as the cell of a table: `1..10`, `true or false`."""
        raise NotImplementedError

    def _refuse(self) -> ValueError:
        return ValueError(f"expected {self.expected}")


class Boolean(ValueType):
    """`true` or `false`; any other text is refused."""

    def __call__(self, text: str) -> bool:
        folded = text.strip().lower()
        if folded not in ("true", "false"):
            raise self._refuse()
        return folded == "true"

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._refuse()
        return value

    @property
    def expected(self) -> str:
        return "true or false"

    @property
    def summary(self) -> str:
        return self.expected


@dataclass(frozen=True, repr=False)
class _Bounded(ValueType):
    """A number within inclusive bounds; `unit` is a plural noun for messages."""

    low: float | None = None
    high: float | None = None
    unit: str = ""

    @property
    def expected(self) -> str:
        noun = f"a {self._noun} of {self.unit}" if self.unit else f"a {self._noun}"
        low, high = format_number(self.low), format_number(self.high)
        if low and high:
            return f"{noun} from {low} to {high}"
        if low:
            return f"{noun}, at least {low}"
        return f"{noun}, at most {high}" if high else noun

    @property
    def summary(self) -> str:
        if self.low is None and self.high is None:
            return self._noun
        return f"{format_number(self.low)}..{format_number(self.high)}"

    @property
    def _noun(self) -> str:
        raise NotImplementedError

    def _within_bounds(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True, repr=False)
class WholeNumber(_Bounded):
    """A whole number of at most 64 bits. `digit_groups` also accepts `1_000` in text, as Python and TOML do."""

    digit_groups: bool = False

    def __call__(self, text: str) -> int:
        digits = text.strip().replace("_", "") if self.digit_groups else text.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", digits):
            raise self._refuse()
        return self.check(int(digits))

    def check(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not self._within_bounds(value):
            raise self._refuse()
        if not _MIN_LONG <= value <= _MAX_LONG:
            raise ValueError("expected a whole number of 64 bits")
        return value

    def clamp(self, value: int) -> int:
        """Return the accepted number that is nearest to ``value``."""
        if self.low is not None and value < self.low:
            return math.ceil(self.low)
        return math.floor(self.high) if self.high is not None and value > self.high else value

    @property
    def _noun(self) -> str:
        return "whole number"


class Number(_Bounded):
    """A number, possibly with a fraction. Infinity is accepted within the bounds, NaN never."""

    def __call__(self, text: str) -> float:
        try:
            return self.check(float(text))
        except ValueError:
            raise self._refuse() from None

    def check(self, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
            raise self._refuse()
        if not self._within_bounds(value):
            raise self._refuse()
        return float(value)

    @property
    def _noun(self) -> str:
        return "number"


@dataclass(frozen=True, repr=False)
class Choice(ValueType):
    """One of some words; text may write it in any case."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> str:
        folded = text.strip().lower()
        for word in self.words:
            if folded == word.lower():
                return word
        raise self._refuse()

    def check(self, value: Any) -> str:
        if value not in self.words:
            raise self._refuse()
        return str(value)

    @property
    def expected(self) -> str:
        quoted = [f'"{word}"' for word in self.words]
        return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)

    @property
    def summary(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True, repr=False)
class Text(ValueType):
    """Any text.

    `pattern` is a regular expression the whole text must match, described to people by `meaning`. `strip` removes
    surrounding blanks and then refuses an empty text. `is_path` expands a leading `~` to the home directory.
    """

    pattern: str = ""
    meaning: str = ""
    strip: bool = False
    is_path: bool = False

    def __call__(self, text: str) -> str:
        if self.strip:
            text = text.strip()
            if not text:
                raise ValueError("must not be empty")
        return self.check(text)

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or (self.pattern and not re.fullmatch(self.pattern, value)):
            raise self._refuse()
        return os.path.expanduser(value) if self.is_path else value

    @property
    def expected(self) -> str:
        return self.meaning or "text"

    @property
    def summary(self) -> str:
        return "text"


class Names(ValueType):
    """A list of distinct names: in text separated by commas or semicolons, duplicates removed, order kept."""

    def __call__(self, text: str) -> tuple[str, ...]:
        parts = (part.strip() for part in text.replace(";", ",").split(","))
        return self.check(tuple(dict.fromkeys(part for part in parts if part)))

    def check(self, value: Any) -> tuple[str, ...]:
        if (
            not value
            or not isinstance(value, list | tuple)
            or not all(isinstance(name, str) for name in value)
        ):
            raise self._refuse()
        return tuple(value)

    @property
    def expected(self) -> str:
        return "one or more names separated by commas"

    @property
    def summary(self) -> str:
        return "names"


class Addresses(ValueType):
    """Host and port pairs: in text `host:port` separated by semicolons or commas, IPv6 hosts in brackets."""

    def __call__(self, text: str) -> tuple[tuple[str, int], ...]:
        return self.check(Names()(text))

    def check(self, value: Any) -> tuple[tuple[str, int], ...]:
        return tuple(self._address(part) for part in Names().check(value))

    def _address(self, text: str) -> tuple[str, int]:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not host:port")
        return host.strip("[]"), int(port)

    @property
    def expected(self) -> str:
        return "host:port addresses separated by semicolons"

    @property
    def summary(self) -> str:
        return "addresses"


class Structure(ValueType):
    """A table or list. It has no text form; the loader of the file checks its elements one by one."""

    def __call__(self, text: str) -> Any:
        raise self._refuse()

    def check(self, value: Any) -> Any:
        return value

    @property
    def expected(self) -> str:
        return "a table or list"

    @property
    def summary(self) -> str:
        return self.expected


_UNITS: Final = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_minutes": "minutes",
    "_hours": "hours",
    "_days": "days",
    "_bytes": "bytes",
    "_mib": "MiB",
}


def unit_of(name: str) -> str:
    """Return the unit that a snake-case name ends with, as a plural noun; empty when it names none."""
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def format_number(number: float | None) -> str:
    """Return a number without a needless fraction; empty for None."""
    if number is None:
        return ""
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


def plain_value(value: Any) -> str:
    """Return a value as properties files and Spark options have it; empty for None, commas between elements."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ",".join(plain_value(element) for element in value)
    return str(value)
