"""The variants of a valid request: fields that are missing or wrong, damaged bodies, and unusual headers."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

from codec.constants import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_BINARY
from compat_tests.malformed.valid_requests import EMPTY_TOPIC, GROUP, TOPIC, ValidRequest
from remoting.declare import without_optional

OPAQUE: Final = 7
VALID: Final = "valid"
NOT_NUMBERS: Final = ("x", "-1", "99999999999999999999")
"""Values of number fields: no number, one below every range, and one above the range of Java's long."""
TOO_LARGE_INT: Final = "9999999999"
EXISTING: Final = (TOPIC, EMPTY_TOPIC, GROUP)
"""Names of things that exist, in whose place those of things that do not exist are sent."""
LEFT_OUT: Final = {
    (14, "consumerGroup", None),
    (103, "brokerName", None),
    (103, "brokerAddr", None),
    (103, "clusterName", None),
}
"""Variants (code, field, value) that are not sent. The official answer to the first depends on what other variants left
behind; the others make the official namesrv fail for everybody, for example in `clusterList`."""
BAD_JSON: Final = {
    "no body": b"",
    "cut body": b'{"a":',
    "empty body": b"{}",
    "list body": b"[]",
    "text body": b'"x"',
    "null body": b"null",
    "binary body": b"\xff\xfe\x00",
}
BAD_BYTES: Final = {"no body": b"", "binary body": b"\xff\xfe\x00"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One request to send. ``is_silent``: its header asks for no answer."""

    name: str
    frame: bytes
    is_silent: bool = False
    has_opaque: bool = True


def variants_of(request: ValidRequest, *, valid_only: bool = False) -> Iterator[Variant]:
    """Yield the valid request and all its variants; their names are unique."""
    yield Variant(VALID, _frame(request.code, request.ext, request.body))
    if valid_only:
        return
    for name, value in _wrong_fields(request):
        if (request.code, name, value) in LEFT_OUT:
            continue
        ext = {key: text for key, text in request.ext.items() if key != name or value is not None}
        label = f"without {name}" if value is None else f"{name}={value}"
        yield Variant(
            label, _frame(request.code, {**ext, name: value} if value is not None else ext, request.body)
        )
    yield from unknown_names(request)
    bodies = BAD_JSON if request.has_json_body else BAD_BYTES if request.body else {}
    for label, body in bodies.items():
        yield Variant(label, _frame(request.code, request.ext, body))
    yield from _unusual_headers(request)


def _wrong_fields(request: ValidRequest) -> Iterator[tuple[str, str | None]]:
    """Yield the fields of a request with their wrong values; None stands for a field that is missing."""
    for name in request.ext:
        yield name, None
        kind, _ = without_optional(request.fields[name].type)
        if get_origin(kind) is Annotated:
            limits: Any = get_args(kind)[1]
            yield from ((name, text) for text in NOT_NUMBERS)
            if limits.high < int(TOO_LARGE_INT):
                yield name, TOO_LARGE_INT
        elif kind is bool:
            yield name, "maybe"
        else:
            yield name, ""


def unknown_names(request: ValidRequest) -> Iterator[Variant]:
    """Yield requests about a topic or group that does not exist. Its name is the code's own, as some create it."""
    unknown = f"malformed_unknown_{request.code}"
    for name, value in request.ext.items():
        if value in EXISTING:
            yield Variant(
                f"unknown {name}", _frame(request.code, {**request.ext, name: unknown}, request.body)
            )
    for value in EXISTING if request.has_json_body else ():
        body = request.body.replace(f'"{value}"'.encode(), f'"{unknown}"'.encode())
        if body != request.body:
            yield Variant(f"body with another name than {value}", _frame(request.code, request.ext, body))


def _unusual_headers(request: ValidRequest) -> Iterator[Variant]:
    """Yield variants of the header as a whole."""
    code, ext, body = request.code, request.ext, request.body
    yield Variant("no opaque", _json_frame(_header(code, ext, opaque=None), body), has_opaque=False)
    if ext:
        yield Variant("empty header", _frame(code, {}, body))
        yield Variant("no header fields", _json_frame(_header(code, None), body))
        yield Variant("null fields", _frame(code, dict.fromkeys(ext), body))
    yield Variant("oneway", _json_frame(_header(code, ext, flag=FLAG_ONEWAY), body), is_silent=True)
    yield Variant("answer", _json_frame(_header(code, ext, flag=FLAG_RESPONSE), body), is_silent=True)
    yield Variant("unknown flag", _json_frame(_header(code, ext, flag=1 << 20), body))
    yield Variant("binary header", _binary_frame(code, ext, body))


def damaged_headers(code: int, ext: dict[str, str]) -> Iterator[Variant]:
    """Yield requests whose header is damaged whatever its code; ``ext`` are the fields of a valid request."""
    whole = _header(code, ext)
    changes: dict[str, dict[str, Any]] = {
        "code is text": {"code": "x"},
        "code is a number in text": {"code": str(code)},
        "code is null": {"code": None},
        "code beyond 16 bits": {"code": 1 << 17},
        "negative code": {"code": -1},
        "opaque is text": {"opaque": "x"},
        "opaque is null": {"opaque": None},
        "opaque beyond 32 bits": {"opaque": 1 << 40},
        "flag is text": {"flag": "x"},
        "flag is null": {"flag": None},
        "version is text": {"version": "x"},
        "version is null": {"version": None},
        "unknown language": {"language": "COBOL"},
        "language is a number": {"language": 3},
        "fields are a list": {"extFields": []},
        "fields are text": {"extFields": "x"},
        "field values are numbers": {"extFields": {name: 1 for name in ext}},
        "field values are objects": {"extFields": {name: {"a": 1} for name in ext}},
        "unknown parts": {"another": 1},
        "a remark": {"remark": "hello"},
        "unknown serialisation": {"serializeTypeCurrentRPC": "XML"},
    }
    for name, change in changes.items():
        yield Variant(name, _json_frame({**whole, **change}, b""), has_opaque="opaque" not in change)
    for part in ("code", "flag", "language", "version", "serializeTypeCurrentRPC"):
        yield Variant(f"no {part}", _json_frame({key: whole[key] for key in whole if key != part}, b""))
    # Not an empty object: the official server answers that in some runs and is silent in others.
    texts = {
        "header is a list": b"[1]",
        "header is text": b'"x"',
        "header is null": b"null",
        "header is empty": b"",
        "header is cut": b'{"code":',
        "header is binary": b"\xff\xfe\x00\x01",
    }
    for name, text in texts.items():
        yield Variant(name, _joined(text, b""), has_opaque=False)
    valid = json.dumps(whole).encode()
    yield Variant("unknown serialisation in the length", _joined(valid, b"", kind=7))
    yield Variant("JSON declared as binary", _joined(valid, b"", kind=1), has_opaque=False)
    yield Variant("header longer than the frame", struct.pack(">II", 20, 5000) + b"x" * 16, has_opaque=False)
    yield Variant("frame of four bytes", struct.pack(">II", 4, 0), has_opaque=False)
    yield Variant("frame of no bytes", struct.pack(">I", 0), has_opaque=False)
    yield Variant("negative length", struct.pack(">iI", -5, 4) + b"x" * 16, has_opaque=False)
    yield Variant("length over 16 MiB", struct.pack(">II", (16 << 20) + 1, 4) + b"x" * 16, has_opaque=False)


def _header(
    code: int, ext: dict[str, Any] | None, *, flag: int = 0, opaque: int | None = OPAQUE
) -> dict[str, Any]:
    header: dict[str, Any] = {"code": code, "flag": flag, "language": "JAVA", "version": 501}
    header["serializeTypeCurrentRPC"] = "JSON"
    if opaque is not None:
        header["opaque"] = opaque
    if ext is not None:
        header["extFields"] = ext
    return header


def _frame(code: int, ext: dict[str, Any], body: bytes) -> bytes:
    return _json_frame(_header(code, ext), body)


def probe_frame(opaque: int) -> bytes:
    """Return a request that every server refuses at once, because it knows no such code."""
    return _json_frame(_header(29_999, {}, opaque=opaque), b"")


def _json_frame(header: dict[str, Any], body: bytes) -> bytes:
    return _joined(json.dumps(header).encode(), body)


def _binary_frame(code: int, ext: dict[str, str], body: bytes) -> bytes:
    pairs = ((name.encode(), value.encode()) for name, value in ext.items())
    fields = b"".join(struct.pack(">H", len(n)) + n + struct.pack(">I", len(v)) + v for n, v in pairs)
    # Codes beyond 16 bits lose their upper half in this form, on both sides.
    head = struct.pack(">HBHiii", code & 0xFFFF, 0, 501, OPAQUE, 0, 0)
    return _joined(head + struct.pack(">I", len(fields)) + fields, body, kind=SERIALIZE_BINARY)


def _joined(header: bytes, body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body
