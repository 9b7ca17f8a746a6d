"""The frames of HTTP/2 (RFC 9113): their kinds, flags and errors, and how those that are sent are written.

Headers are written without compression state (RFC 7541, literal fields that are not indexed): the same
answer has the same bytes on every connection, is encoded once, and no peer can make the process remember anything.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES: Final = 9
MIN_MAX_FRAME_BYTES: Final = 16_384
"""Longest payload that every peer takes; this server takes no longer ones."""
MAX_MAX_FRAME_BYTES: Final = (1 << 24) - 1
MAX_WINDOW_BYTES: Final = (1 << 31) - 1
DEFAULT_WINDOW_BYTES: Final = 65_535
DEFAULT_HEADER_TABLE_BYTES: Final = 4096
EMPTY_TABLE: Final = b"\x20"
"""The beginning of a block of headers after which the receiver's table has no room. Source: RFC 7541, section 6.3."""

Headers = list[tuple[str, str]]


class Kind(IntEnum):
    """Kinds of frames. Others are ignored."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag:
    """Flags of frames."""

    ACK: Final = 0x1
    END_STREAM: Final = 0x1
    END_HEADERS: Final = 0x4
    PADDED: Final = 0x8
    PRIORITY: Final = 0x20


class ErrorCode(IntEnum):
    """Reasons for the end of a stream or connection, as far as they are given here."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    REFUSED_STREAM = 7
    CANCEL = 8


class SettingCode:
    """Settings that a peer may announce."""

    HEADER_TABLE_SIZE: Final = 1
    ENABLE_PUSH: Final = 2
    MAX_CONCURRENT_STREAMS: Final = 3
    INITIAL_WINDOW_SIZE: Final = 4
    MAX_FRAME_SIZE: Final = 5
    MAX_HEADER_LIST_SIZE: Final = 6


_STATIC_NAMES: Final = {
    b":authority": 1,
    b":path": 4,
    b":status": 8,
    b"accept": 19,
    b"allow": 22,
    b"authorization": 23,
    b"content-type": 31,
    b"user-agent": 58,
}
"""Numbers in the static table of the headers' names that are sent. Source: RFC 7541, appendix A."""
_STATUS_200: Final = b"\x88"


def encode_frame(kind: Kind, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame. ``payload`` is no longer than the peer takes."""
    head = (len(payload) << 16 | kind << 8 | flags).to_bytes(5, "big")
    return head + stream_id.to_bytes(4, "big") + payload


def encode_settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(
        number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in values.items()
    )
    return encode_frame(Kind.SETTINGS, 0, 0, payload)


def encode_window_update(stream_id: int, added: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return encode_frame(Kind.WINDOW_UPDATE, 0, stream_id, added.to_bytes(4, "big"))


def encode_reset(stream_id: int, error: int) -> bytes:
    """Return a RST_STREAM frame."""
    return encode_frame(Kind.RST_STREAM, 0, stream_id, error.to_bytes(4, "big"))


def encode_goodbye(last_stream_id: int, error: ErrorCode) -> bytes:
    """Return a GOAWAY frame."""
    return encode_frame(Kind.GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + error.to_bytes(4, "big"))


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a block of headers. Their names are in lower case, names and values ASCII."""
    return encode_fields((name.encode("ascii"), value.encode("ascii")) for name, value in headers)


def encode_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a block of headers, whose values may be any bytes. Their names are in lower case."""
    block = bytearray()
    for name, value in fields:
        if name == b":status" and value == b"200":
            block += _STATUS_200
            continue
        number = _STATIC_NAMES.get(name)
        if number is None:
            block += b"\0"
            _add_text(block, name)
        else:
            _add_number(block, number, 4)
        _add_text(block, value)
    return bytes(block)


def encode_header_frames(stream_id: int, block: bytes, flags: int, max_frame_bytes: int) -> bytes:
    """Return the frames of a block of headers: one, and continuations if it is longer than the peer takes."""
    if len(block) <= max_frame_bytes:
        return encode_frame(Kind.HEADERS, flags | Flag.END_HEADERS, stream_id, block)
    parts = [block[at : at + max_frame_bytes] for at in range(0, len(block), max_frame_bytes)]
    frames = [encode_frame(Kind.HEADERS, flags, stream_id, parts[0])]
    frames += [encode_frame(Kind.CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    frames.append(encode_frame(Kind.CONTINUATION, Flag.END_HEADERS, stream_id, parts[-1]))
    return b"".join(frames)


def _add_text(block: bytearray, text: bytes) -> None:
    _add_number(block, len(text), 7)
    block += text


def _add_number(block: bytearray, number: int, bits: int) -> None:
    """Add a number of which the first byte holds ``bits`` bits. Source: RFC 7541, section 5.1."""
    most = (1 << bits) - 1
    if number < most:
        block.append(number)
        return
    block.append(most)
    number -= most
    while number >= 0x80:
        block.append(number & 0x7F | 0x80)
        number >>= 7
    block.append(number)
