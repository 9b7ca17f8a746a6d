"""Parses the JSON dialect of fastjson: bare and single-quoted names, integers and objects as keys, trailing commas.

One regular expression takes a whole token with the comma or colon after it, and a loop with a stack of containers
puts the values in place. Nothing in the expression backtracks, so the time is linear in the length of the text, and
about 0.4 µs per value.

Source: JSONReader of fastjson2 2.0.43, and DefaultJSONParser of fastjson 1.2 as older clients use it.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from codec.errors import JsonError

MAX_DEPTH: Final = 100
MAX_NUMBER_CHARS: Final = 400
"""A longer number is refused; one beyond 64 bits becomes a float, as in standard JSON."""

_TOKEN = re.compile(
    r"""
    [ \t\r\n]*+
    (?: "([^"\\]*+)"
      | (-?[0-9]++)(?![.eE])[LSBDF]?+
      | ([\[{\]}])
      | ( "(?:[^"\\]++|\\.)*+"
        | '(?:[^'\\]++|\\.)*+'
        | [A-Za-z_$][\w$.\-]*+
        | -?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?[LSBDF]?+
        )
    )
    [ \t\r\n]*+
    ([,:])?+
    """,
    re.VERBOSE | re.DOTALL,
)
"""Plain text, an integer (its type letter is skipped), a bracket, or another token; then the separator after it.

The optional parts of a fraction are not possessive: before Python 3.11.5 a possessive part kept the characters of a
text like `0e` that it had matched before it failed. Nothing after them can fail, so this costs no backtracking.
"""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_WORDS = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}
_NO_KEY: Final = object()
_MAX_INTEGER, _MIN_INTEGER = (1 << 64) - 1, -(1 << 63)


class ObjectKey(tuple[tuple[str, Any], ...]):
    """A map key that was a whole object: its name and value pairs, in order of name.

    `fastjson.dumps` writes it as an object again.
    """

    __slots__ = ()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "ObjectKey":
        """Build the key with these fields; their values must be hashable."""
        return cls(sorted(fields.items()))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields by name."""
        return dict(self)


def parse_lenient(text: str, max_escapes: int) -> Any:
    """Parse one document. Raises JsonError, also for more than ``max_escapes`` that standard JSON does not have."""
    scalars = _ScalarReader(max_escapes)
    # The innermost open container, the key whose value comes next, and the same of the containers around it. The
    # document itself is the only element of a list.
    document: list[Any] = []
    container: Any = document
    is_list, key, wants_comma, at = True, _NO_KEY, False, 0
    around: list[tuple[Any, bool, Any]] = []
    next_token = _TOKEN.scanner(text).match  # type: ignore[attr-defined]
    while match := next_token():
        plain, digits, bracket, other, separator = match.groups()
        # Only a closing bracket may follow a value without a comma.
        if wants_comma and (bracket is None or bracket in "[{"):
            raise _error("no comma between two values", at)
        value: Any
        if plain is not None:
            value = plain
        elif digits is not None:
            value = _integer(digits, at)
        elif other is not None:
            value = scalars.read_key(other, at) if key is _NO_KEY and not is_list else scalars.read(other, at)
        elif bracket in "[{":
            if separator or len(around) >= MAX_DEPTH or (bracket == "[" and key is _NO_KEY and not is_list):
                raise _error("a separator after a bracket, an array as a key, or nested too deeply", at)
            around.append((container, is_list, key))
            container, is_list = ([], True) if bracket == "[" else ({}, False)
            key, at = _NO_KEY, match.end()
            continue
        else:
            if not around or is_list is not (bracket == "]") or key is not _NO_KEY:
                raise _error("a closing bracket that nothing opened, or a key without a value", at)
            # The container that ends here becomes a value, or a key, of the one around it.
            value = container
            container, is_list, key = around.pop()
            if key is _NO_KEY and not is_list:
                value = _object_key(value, at)
        # A complete value: an element, the value of a key, or a key whose colon must follow.
        at = match.end()
        if is_list:
            container.append(value)
        elif key is not _NO_KEY:
            container[key], key = value, _NO_KEY
        elif separator == ":" and type(value) is not float:
            key, wants_comma = value, False
            continue
        else:
            raise _error("no colon after a key, or a fraction as a key", at)
        if separator == ":":
            raise _error("a colon after a value", at)
        wants_comma = separator is None
    if around or not wants_comma or len(document) != 1 or at != len(text):
        raise _error("not a JSON document", at)
    return document[0]


def _error(reason: str, at: int) -> JsonError:
    return JsonError(f"{reason} at character {at}")


def _integer(digits: str, at: int) -> int | float:
    if len(digits) < 19:
        return int(digits)
    if len(digits) <= MAX_NUMBER_CHARS:
        number = int(digits)
        return number if _MIN_INTEGER <= number <= _MAX_INTEGER else _fraction(digits, at)
    raise _error("a number that is too long", at)


def _fraction(digits: str, at: int) -> float:
    number = float(digits) if len(digits) <= MAX_NUMBER_CHARS else math.inf
    if math.isinf(number):
        raise _error("a number that is too large", at)
    return number


def _object_key(fields: dict[Any, Any], at: int) -> ObjectKey:
    try:
        hash(key := ObjectKey.from_fields(fields))
    except TypeError as error:
        raise _error("a nested object as a key", at) from error
    return key


class _ScalarReader:
    """Reads the tokens that are neither plain text nor integers; counts the escapes it had to replace one by one."""

    def __init__(self, max_escapes: int) -> None:
        self._escapes_left = max_escapes

    def read(self, token: str, at: int) -> Any:
        first = token[0]
        if first == '"' or first == "'":
            return self._text(token, at)
        if first == "-" or first.isdigit():
            return _fraction(token.rstrip("LSBDF"), at)
        try:
            return _WORDS[token]
        except KeyError:
            raise _error("not a value", at) from None

    def read_key(self, token: str, at: int) -> Any:
        """Read a token before a colon: names need no quotes there, and ``null`` is a name like any other."""
        return token if token[0] not in "\"'-0123456789" else self.read(token, at)

    def _text(self, token: str, at: int) -> str:
        inside = token[1:-1]
        if "\\" not in inside:
            return inside
        if token[0] == '"':
            try:
                standard: str = orjson.loads(token)
                return standard
            except orjson.JSONDecodeError:
                pass
        self._escapes_left -= inside.count("\\")
        if self._escapes_left < 0:
            raise _error("too many escapes that are not standard JSON", at)
        try:
            text = _ESCAPE.sub(_unescape, inside)
        except ValueError:
            raise _error("invalid escape", at) from None
        # Two escapes that are halves of a character become that character, others U+FFFD.
        return (
            text
            if text.isascii()
            else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        )


def _unescape(match: re.Match[str]) -> str:
    """Return the character of an escape. Raises ValueError for u or x without its digits."""
    unicode, latin, letter = match.groups()
    if letter in ("u", "x"):
        raise ValueError(letter)
    return _ESCAPES.get(letter, letter) if letter else chr(int(unicode or latin, 16))
