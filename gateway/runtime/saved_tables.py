"""Reads and writes the content of table files so that a bad entry costs only that entry.

A file that is not JSON at all is refused by `ConfigFile.load`, which names it. Within a readable file, an entry that
cannot be parsed is logged and left out, and all others load. When a table is written, a value that JSON cannot hold is
logged and left out as well: otherwise the whole table could never be saved again.
"""

import logging
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from codec import fastjson
from codec.errors import JsonError
from codec.java_numbers import quoted
from remoting.bodies.queues import DataVersion
from remoting.errors import RequestError

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

MAX_LOGGED_ENTRIES: Final = 20
"""Maximum number of refused entries of a table that are logged one by one; the rest is logged as a number."""
ENTRY_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RequestError)
_HUGE_NUMBER: Final = re.compile(rb"(?<=[:,\[{])\s*+-?(?:\d{65,}+[\d.eE+-]*+|\d[\d.]*+[eE]\+?\d{3,}+)")
_UNWRITABLE: Final = object()


def load_table(content: bytes) -> dict[str, Any]:
    """Parse a table file. Raises ValueError when it is not a JSON object.

    A number too large for the parser becomes a text, so that only its own entry is refused.
    """
    try:
        value = fastjson.loads(content, fastjson.MAX_TRUSTED_VALUES)
    except JsonError:
        without = _HUGE_NUMBER.sub(b'"a number that is too large"', content)
        if without == content:
            raise
        value = fastjson.loads(without, fastjson.MAX_TRUSTED_VALUES)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def parse_entries(table: str, saved: object, parse: Callable[[Any, Any], tuple[K, V]]) -> dict[K, V]:
    """Return the parsed entries of a saved map, without those for which ``parse(key, value)`` raises.

    ``table`` names the map in the log. Raises ValueError when ``saved`` is not a map; null is an empty one.
    """
    if saved is None:
        return {}
    if not isinstance(saved, dict):
        raise ValueError(f"{table} is not a JSON object")
    entries: dict[K, V] = {}
    left_out = 0
    for key, value in saved.items():
        try:
            parsed_key, parsed = parse(key, value)
        except ENTRY_ERRORS as error:
            left_out += 1
            if left_out <= MAX_LOGGED_ENTRIES:
                extra = {"table": table, "entry": quoted(str(key)), "reason": quoted(str(error))}
                log.error("entry of a table file cannot be read and is left out", extra=extra)
        else:
            entries[parsed_key] = parsed
    if left_out > MAX_LOGGED_ENTRIES:
        log.error("entries of a table file left out", extra={"table": table, "entries": left_out})
    return entries


def parse_name(key: object) -> str:
    """Return a key that is a name. Raises ValueError for any other key, such as a number."""
    if not isinstance(key, str) or not key:
        raise ValueError("its key is not a name")
    return key


def parse_version(saved: object) -> DataVersion | None:
    """Return the version of a table; None when there is none, or it cannot be read."""
    try:
        return None if saved is None else DataVersion.from_value(saved)
    except ENTRY_ERRORS as error:
        log.error("version of a table file cannot be read", extra={"reason": quoted(str(error))})
        return None


def dump_table(table: str, value: dict[str, Any]) -> bytes:
    """Encode the content of a table file, without values that JSON cannot hold."""
    try:
        return fastjson.dumps(value)
    except JsonError as error:
        extra = {"table": table, "reason": quoted(str(error))}
        log.error("table has values that cannot be written, they are left out", extra=extra)
        return fastjson.dumps(_without_unwritable(value))


def _without_unwritable(value: Any) -> Any:
    """Return the part of a value that can be written, or _UNWRITABLE. A list is left out as a whole."""
    try:
        fastjson.dumps(value)
    except JsonError:
        if not isinstance(value, dict):
            return _UNWRITABLE
        parts = {key: _without_unwritable(item) for key, item in value.items()}
        return {key: item for key, item in parts.items() if item is not _UNWRITABLE}
    return value
