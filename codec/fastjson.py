"""JSON bodies in the dialect of the official server, in which integers and objects may be keys.

The typed bodies live in `remoting.bodies`, the parser of the dialect in `codec.lenient_json`.

Source: RemotingSerializable.encode with fastjson2 2.0.43, and fastjson 1.2 as older clients use it.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from codec.errors import JsonError, JsonSizeError
from codec.json_references import resolve_references
from codec.lenient_json import MAX_DEPTH, ObjectKey, parse_lenient

__all__ = ["MAX_TRUSTED_VALUES", "MAX_VALUES", "ObjectKey", "dumps", "dumps_standard", "loads"]

MAX_VALUES: Final = 100_000
"""Default limit for documents from strangers. Reading them takes up to 0.1 s, whatever they contain."""
MAX_TRUSTED_VALUES: Final = 20_000_000
"""For files of ours, and for answers of the servers that our tools ask."""

LENIENT_BYTES_PER_VALUE: Final = 16
"""A document that is not standard JSON has at most this many bytes per allowed value: 1.6 MB by default, since one
text of 15 MiB takes the parser of the dialect ten times as long as standard JSON."""


def loads(data: bytes | bytearray | memoryview | str, max_values: int = MAX_VALUES) -> Any:
    """Parse a body.

    Bare integer keys become int, object keys `ObjectKey`; quoted keys stay text even when they are digits. References
    (``{"$ref":"$.a.b"}``) are replaced by their targets. Numbers with an exponent or a fraction, or beyond 64 bits,
    become float. Standard JSON may nest 1,024 deep, the dialect and documents with references 100.

    Raises JsonError, and JsonSizeError for more than ``max_values`` values. They are counted as commas and opening
    brackets, so that no document takes long, whatever it contains. The dialect is limited in bytes as well.
    """
    _check_size(data, max_values)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        if len(data) > LENIENT_BYTES_PER_VALUE * max_values:
            raise JsonSizeError(f"{len(data)} bytes that are not standard JSON") from None
        value = parse_lenient(data if isinstance(data, str) else _text(data), max_values)
    if "$ref" not in data if isinstance(data, str) else b"$ref" not in bytes(data):
        return value
    return resolve_references(value, max_values)


def _check_size(data: bytes | bytearray | memoryview | str, max_values: int) -> None:
    """Raise JsonSizeError when the commas and opening brackets exceed the limit; a short document cannot."""
    if len(data) > max_values:
        plain = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
        values = sum(map(plain.count, (b",", b"[", b"{")))
        if values > max_values:
            raise JsonSizeError(f"more than {max_values} values")


def _text(data: bytes | bytearray | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"body is not UTF-8: {error}") from error


def dumps(value: Any) -> bytes:
    """Encode a value as a body, as the official server writes it.

    Keys: text; int (written bare); `ObjectKey`, a tuple of pairs, or an object with ``to_json_key()`` returning a map
    (these are written as objects). Raises JsonError for values that are not JSON.
    """
    return _encode(value, None, 0)


def dumps_standard(value: Any) -> bytes:
    """Encode with all keys as text, for peers that request standard JSON; object keys become JSON text."""
    return _encode(value, orjson.OPT_NON_STR_KEYS, 0)


def _encode(value: Any, option: int | None, depth: int) -> bytes:
    """Encode a value; every part of it without unusual keys in one call of the library."""
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError as error:
        # Its text: a variable that holds the error makes a cycle with this frame, which only the collector frees.
        reason = str(error)
    if depth > MAX_DEPTH:
        raise JsonError("nested too deeply")
    if isinstance(value, Mapping):
        pairs = [
            b"%b:%b" % (_encode_key(key, option), _encode(item, option, depth + 1))
            for key, item in value.items()
        ]
        return b"{%b}" % b",".join(pairs)
    if isinstance(value, list | tuple):
        return b"[%b]" % b",".join([_encode(item, option, depth + 1) for item in value])
    if isinstance(value, str):
        return orjson.dumps(value.encode("utf-8", "replace").decode())
    raise JsonError(f"no JSON for {type(value).__name__}: {reason}")


def _encode_key(key: Any, option: int | None) -> bytes:
    if isinstance(key, str):
        return _encode(str(key), None, 0)
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key if option is None else b'"%d"' % key
    fields = key.to_json_key() if hasattr(key, "to_json_key") else key
    if isinstance(fields, str):
        return _encode(fields, None, 0)
    try:
        text = _encode(dict(fields), option, 0)
    except (TypeError, ValueError) as error:
        raise JsonError(f"no JSON key for {type(key).__name__}") from error
    return text if option is None else _encode(text.decode(), None, 0)
