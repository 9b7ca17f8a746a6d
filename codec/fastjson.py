"""JSON bodies in the dialect of the official server, in which integers and objects may be keys.

The typed bodies live in `remoting.bodies`.

Source: RemotingSerializable.encode with fastjson2 2.0.43, and fastjson 1.2 as older clients use it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from codec.errors import JsonError

_MAX_DEPTH = 100
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NAME = re.compile(r"[A-Za-z_$][\w$.\-]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_WORDS = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}
_REFERENCE_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"]([^'\"]*)['\"]\]")


class ObjectKey(tuple[tuple[str, Any], ...]):
    """A map key that was a whole object: its name and value pairs, in order of name.

    `dumps` writes it as an object again.
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


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Parse a body.

    Bare integer keys become int, object keys `ObjectKey`; quoted keys stay text even when they are digits. References
    (``{"$ref":"$.a.b"}``) are replaced by their targets. Numbers with an exponent or a fraction become float. Raises
    JsonError.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _JsonParser(data if isinstance(data, str) else _text(data)).document()
    if "$ref" not in data if isinstance(data, str) else b"$ref" not in bytes(data):
        return value
    return _ReferenceResolver(value).resolved()


def _text(data: bytes | bytearray | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"body is not UTF-8: {error}") from error


class _JsonParser:
    """Recursive descent over one document; ``self._at`` is the index of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value()
        if self._peek():
            raise self._error("unexpected text after the document")
        return value

    def _error(self, reason: str) -> JsonError:
        return JsonError(f"{reason} at character {self._at}")

    def _peek(self) -> str:
        """Skip white space and return the next character, or '' at the end."""
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> bool:
        if self._peek() != wanted:
            return False
        self._at += 1
        return True

    def _value(self) -> Any:
        first = self._peek()
        if first == "{":
            return self._nested(self._object)
        if first == "[":
            return self._nested(self._array)
        if first and first in "\"'":
            return self._string(first)
        return self._number() if first.isdigit() or first == "-" else self._word()

    def _nested(self, parse: Callable[[], Any]) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
        self._at += 1
        value = parse()
        self._depth -= 1
        return value

    def _object(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not self._take("}"):
            key = self._key()
            if not self._take(":"):
                raise self._error("no colon after a key")
            found[key] = self._value()
            if not self._take(",") and self._peek() != "}":
                raise self._error("expected a comma or the end of the object")
        return found

    def _key(self) -> Any:
        first = self._peek()
        if name := _NAME.match(self._text, self._at):
            self._at = name.end()
            return name.group()
        key = self._value()
        if first == "{":
            return self._object_key(key)
        if isinstance(key, list | float):
            raise self._error("an array or a fraction as a key")
        return key

    def _object_key(self, fields: dict[Any, Any]) -> ObjectKey:
        try:
            hash(key := ObjectKey.from_fields(fields))
        except TypeError as error:
            raise self._error("a nested object as a key") from error
        return key

    def _array(self) -> list[Any]:
        found: list[Any] = []
        while not self._take("]"):
            found.append(self._value())
            if not self._take(",") and self._peek() != "]":
                raise self._error("expected a comma or the end of the array")
        return found

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if not match or len(match.group()) > 400:
            raise self._error("not a number")
        self._at = match.end()
        if self._text[self._at : self._at + 1] in ("L", "S", "B", "D", "F"):
            self._at += 1  # Skip the type letter that fastjson adds to the values of untyped maps.
        digits = match.group()
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)

    def _word(self) -> Any:
        match = _NAME.match(self._text, self._at)
        if not match or match.group() not in _WORDS:
            raise self._error("not a value")
        self._at = match.end()
        return _WORDS[match.group()]

    def _string(self, quote: str) -> str:
        self._at += 1
        parts: list[str] = []
        while True:
            plain = _PLAIN[quote].match(self._text, self._at)
            parts.append(plain.group() if plain else "")
            self._at = plain.end() if plain else self._at
            if self._at >= len(self._text):
                raise self._error("unterminated string")
            self._at += 1
            if self._text[self._at - 1] == quote:
                return _joined(parts)
            parts.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        digits = {"u": 4, "x": 2}.get(letter, 0)
        if not digits:
            return _ESCAPES.get(letter, letter)
        code = self._text[self._at : self._at + digits]
        self._at += digits
        try:
            return chr(int(code, 16)) if len(code) == digits else _reject(code)
        except ValueError as error:
            raise self._error("invalid escape") from error


def _reject(code: str) -> str:
    raise ValueError(code)


def _joined(parts: list[str]) -> str:
    """Join the parts of a text; two escapes that are halves of a character become that character, others U+FFFD."""
    text = "".join(parts)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class _ReferenceResolver:
    """Replaces ``{"$ref": path}``. Paths start at the document (``$``), the object (``@``) or its parent (``..``)."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def resolved(self) -> Any:
        return self._walk(self._document, ())

    def _walk(self, value: Any, parents: tuple[Any, ...]) -> Any:
        if len(parents) > _MAX_DEPTH:
            raise JsonError("nested too deeply")
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(path := value.get("$ref"), str):
                return self._target(path, parents)
            for key, item in value.items():
                value[key] = self._walk(item, (*parents, value))
        elif isinstance(value, list):
            value[:] = [self._walk(item, (*parents, value)) for item in value]
        return value

    def _target(self, path: str, parents: tuple[Any, ...]) -> Any:
        if path == "@":
            return parents[-1] if parents else None
        if path == "..":
            return parents[-2] if len(parents) > 1 else None
        if not path.startswith("$"):
            raise JsonError(f"unknown reference {path[:80]!r}")
        target, at = self._document, 1
        while at < len(path):
            step = _REFERENCE_STEP.match(path, at)
            if not step:
                raise JsonError(f"unknown reference {path[:80]!r}")
            target, at = _step(target, step), step.end()
        return target


def _step(value: Any, step: re.Match[str]) -> Any:
    name = step.group(1) or step.group(3) or step.group(2)
    if isinstance(value, list):
        return value[int(name)] if name.isdigit() and int(name) < len(value) else None
    if not isinstance(value, dict):
        return None
    return value[name] if name in value else value.get(int(name)) if name.isdigit() else None


def dumps(value: Any) -> bytes:
    """Encode a value as a body, as the official server writes it.

    Keys: text; int (written bare); `ObjectKey`, a tuple of pairs, or an object with ``to_json_key()`` returning a map
    (these are written as objects). Raises JsonError for values that are not JSON.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return "".join(_written(value, 0)).encode("utf-8", "replace")


def dumps_standard(value: Any) -> bytes:
    """Encode with all keys as text, for peers that request standard JSON; object keys become JSON text."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return "".join(_written(value, 0, standard=True)).encode("utf-8", "replace")


def _written(value: Any, depth: int, standard: bool = False) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise JsonError("nested too deeply")
    if isinstance(value, Mapping):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield ("," if number else "") + _written_key(key, standard) + ":"
            yield from _written(item, depth + 1, standard)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for number, item in enumerate(value):
            yield "," if number else ""
            yield from _written(item, depth + 1, standard)
        yield "]"
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise JsonError(f"no JSON for {type(value).__name__}: {error}") from error


def _written_key(key: Any, standard: bool) -> str:
    if isinstance(key, str):
        return _scalar(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return f'"{int(key)}"' if standard else str(int(key))
    fields = key.to_json_key() if hasattr(key, "to_json_key") else key
    if isinstance(fields, str):
        return _scalar(fields)
    try:
        text = "".join(_written(dict(fields), 0, standard))
    except (TypeError, ValueError) as error:
        raise JsonError(f"no JSON key for {type(key).__name__}") from error
    return _scalar(text) if standard else text
