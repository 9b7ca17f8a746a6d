"""Options of data sources and sinks: settings declared with `toolkit.settings`, read regardless of case.

Spark passes on option names in lower case, so case cannot matter. Each source declares its own options. Parsing, errors
that suggest the nearest name, and the tables of the documentation are derived from the declarations.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from spark.errors import OptionError
from toolkit.settings import REDACTED, Setting, SettingsError, redact
from toolkit.suggestions import suggest_name
from toolkit.values import Addresses, Boolean, Choice, Names, Text, WholeNumber
from toolkit.values import Parser as Reader

__all__ = [
    "REDACTED",
    "Option",
    "Reader",
    "addresses",
    "boolean",
    "choice",
    "integer",
    "names",
    "parse_time_ms",
    "read_options",
    "redact",
    "text",
]

Option = Setting
"""An option of a data source, or a key of a pipeline's TOML table."""

SPARK_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "header", "mergeschema"})
"""Names, in lower case, that Spark itself may put among a source's options; they are ignored."""

text: Final = Text(strip=True)
boolean: Final = Boolean()
names: Final = Names()
addresses: Final = Addresses()


def integer(low: int, high: int | None = None) -> WholeNumber:
    """Return the type of a whole number within inclusive bounds."""
    return WholeNumber(low, high, digit_groups=True)


def choice(*words: str) -> Choice:
    """Return the type of one of these words, in any case."""
    return Choice(words)


def read_options(raw: Mapping[str, str], declared: Iterable[Option], source: str) -> dict[str, Any]:
    """Return the value of every declared option by name. Error texts begin with `source`, the data source's name.

    Raises OptionError for an undeclared name, a value that cannot be parsed, and an option set under two of its names.
    """
    table = list(declared)
    by_name = {name.lower(): option for option in table for name in option.names}
    values = {option.name: option.default for option in table}
    spellings: dict[str, str] = {}
    for name, value in raw.items():
        option = by_name.get(name.lower())
        if option is None:
            if name.lower() in SPARK_OWN:
                continue
            near = suggest_name(
                name, (spelling for option in table for spelling in option.names), list_all=False
            )
            raise OptionError(f'{source}: unknown option "{name}"{near}')
        if spellings.setdefault(option.name, name) != name:
            raise OptionError(
                f"{source}: {spellings[option.name]} and {name} are the same option: set only one of them"
            )
        values[option.name] = _parse(option, value, source)
    return values


def _parse(option: Option, value: str, source: str) -> Any:
    try:
        return option.parse(value, f"{source}: option {option.name}")
    except SettingsError as error:
        raise OptionError(str(error)) from None


def parse_time_ms(value: str) -> int:
    """Parse ms since 1970 or an ISO 8601 time, which is UTC unless it names a time zone."""
    text = value.strip()
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be ms since 1970 or a time such as 2026-11-01T00:00:00Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
