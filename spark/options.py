"""The options of data sources and sinks: declared once each, read without regard to case, refused when unknown.

From the declarations follow parsing, the error that names the nearest option, and the tables of the documentation.
Spark hands options over with names in lower case, which is why their case cannot matter.

Not responsible for what the options of one source are, nor for combinations that make no sense.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark.errors import OptionError

REDACTED: Final = "*********(redacted)"
SPARK_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "header", "mergeschema"})
"""Names Spark itself may put among a source's options, in lower case; they are passed over."""

Reader = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `read` makes a value of its text and raises ValueError with the reason.

    `default` is a value, not a text; `aliases` are other names of the same. A `secret` is never shown.
    """

    name: str
    read: Reader
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    secret: bool = False


def read_options(raw: Mapping[str, str], declared: Iterable[Option], source: str) -> dict[str, Any]:
    """The value of every declared option, by its name. `source` is the data source's name, for errors.

    Raises OptionError for a name that is not declared, a value that cannot be read, or one given by two names.
    """
    table = list(declared)
    by_name = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values = {option.name: option.default for option in table}
    given: dict[str, str] = {}
    for name, text in raw.items():
        option = by_name.get(name.lower())
        if option is None:
            if name.lower() in SPARK_OWN:
                continue
            raise OptionError(_unknown(name, table, source))
        if given.setdefault(option.name, name) != name:
            raise OptionError(
                f"{source}: {given[option.name]} and {name} are the same option, give one of them"
            )
        values[option.name] = _value(option, text, source)
    return values


def shown(raw: Mapping[str, str], declared: Iterable[Option]) -> dict[str, str]:
    """The options as they may be printed: secrets replaced."""
    secrets = {
        name.lower() for option in declared if option.secret for name in (option.name, *option.aliases)
    }
    return {name: REDACTED if name.lower() in secrets else text for name, text in raw.items()}


def _value(option: Option, text: str, source: str) -> Any:
    try:
        return option.read(text)
    except ValueError as error:
        said = REDACTED if option.secret else repr(text)
        raise OptionError(f"{source}: option {option.name}={said}: {error}") from None


def _unknown(name: str, declared: list[Option], source: str) -> str:
    names = {each.lower(): each for option in declared for each in (option.name, *option.aliases)}
    near = difflib.get_close_matches(name.lower(), names, 1, 0.6)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    return f"{source}: there is no option {name}{hint}"


# -- how texts are read -------------------------------------------------------------------------------------------


def text(value: str) -> str:
    """Any text but an empty one."""
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def boolean(value: str) -> bool:
    """`true` or `false`."""
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError("must be true or false")
    return known[value.strip().lower()]


def integer(low: int, high: int | None = None) -> Reader:
    """A whole number of at least `low` and at most `high`, both inclusive."""

    def read(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError("must be a whole number") from None
        if number < low or (high is not None and number > high):
            raise ValueError(f"must be at least {low}" + (f" and at most {high}" if high is not None else ""))
        return number

    return read


def choice(*allowed: str) -> Reader:
    """One of these, in any case."""

    def read(value: str) -> str:
        for each in allowed:
            if value.strip().lower() == each.lower():
                return each
        raise ValueError(f"must be one of {', '.join(allowed)}")

    return read


def names(value: str) -> tuple[str, ...]:
    """Names between commas (or semicolons), each once, in the order given."""
    found = tuple(dict.fromkeys(part.strip() for part in value.replace(";", ",").split(",") if part.strip()))
    if not found:
        raise ValueError("must not be empty")
    return found


def addresses(value: str) -> tuple[tuple[str, int], ...]:
    """`host:port`s between semicolons (or commas); an IPv6 host stands in brackets."""
    found = []
    for part in names(value):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} is not host:port")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)
