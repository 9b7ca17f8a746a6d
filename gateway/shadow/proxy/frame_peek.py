"""Read the code, opaque and flag of a frame's header without decoding the rest of it.

Decoding a header costs several times as much as forwarding its frame. Regular expressions find the three numbers in
the headers that known clients write; a header in any other form is decoded. If even that fails, the frame is passed
on unread, and the upstream judges it.
"""

import re
from struct import Struct
from typing import Final, NamedTuple

from codec.command import decode_frame
from codec.constants import MAX_HEADER_BYTES, SERIALIZE_BINARY
from codec.errors import FrameError

UNKNOWN: Final = -1
"""Stands for the code of a header that cannot be read. No peer uses it."""
HEADER_AT: Final = 8
"""Offset of the header: after the length prefix, and the word with serialization type and header length."""
HEADER_LENGTH_MASK: Final = 0xFFFFFF
"""The bits of that second word that hold the header length."""

_MAX_KNOWN_STARTS: Final = 4096
_START_BYTES: Final = 15  # {"code":200050,
HEADER_START: Final = slice(HEADER_AT, HEADER_AT + _START_BYTES)
"""The bytes that tell the code of the first frame in a buffer if its header begins with the code."""
_BINARY_HEAD = Struct(">hBhii")
_BINARY_HEAD_BYTES: Final = 21
_CODE_AT_START = re.compile(rb'\{"code":([0-9]{1,6})[,}]')
OPAQUE_PATTERN: Final = re.compile(rb'"opaque":(-?[0-9]{1,10})[,}]')
_CODE = re.compile(rb'"code":([0-9]{1,6}),')
_FLAG = re.compile(rb'"flag":([0-9]{1,9})[,}]')
# The part after the header fields when names are in alphabetical order, as Java writes them.
_TAIL = re.compile(rb'"flag":([0-9]{1,9}),"language":"[A-Z_]*","opaque":(-?[0-9]{1,10}),"')
_WORD_AT = Struct(">I").unpack_from
_code_by_start: dict[bytes, int] = {}
"""Codes by the first bytes of a header. Bounded, as the bytes come from clients."""


class FrameHead(NamedTuple):
    """The header values that identify a frame on its connection."""

    code: int
    opaque: int
    flag: int


def find_plain_start(data: bytes) -> bytes | None:
    """Return the first header bytes of the frame that ``data`` begins with, if they are known to tell its code."""
    start = data[HEADER_START]
    return start if start in _code_by_start and not data[4] else None


def find_header_end(data: bytes, start: int) -> int:
    """Return the end of the header of the frame at ``start`` by its own length; may lie beyond the frame."""
    return int(start + HEADER_AT + (_WORD_AT(data, start + 4)[0] & HEADER_LENGTH_MASK))


def peek_code(data: bytes, start: int, end: int) -> int:
    """Return the code of the frame in ``data[start:end]``, UNKNOWN if it cannot be read.

    Most clients write the code first, so the first bytes of a header usually tell it, once they have been seen.
    """
    if data[start + 4] == SERIALIZE_BINARY and end - start >= HEADER_AT + _BINARY_HEAD_BYTES:
        return int.from_bytes(data[start + HEADER_AT : start + HEADER_AT + 2], signed=True)
    header_start = data[start + HEADER_AT : start + HEADER_AT + _START_BYTES]
    code = _code_by_start.get(header_start)
    return _parse_code(data, start, end, header_start) if code is None else code


def _parse_code(data: bytes, start: int, end: int, header_start: bytes) -> int:
    match = _CODE_AT_START.match(header_start)
    if match is None or data[start + 4]:
        head = _decode_head(data, start, end)
        return UNKNOWN if head is None else head.code
    code = int(match[1])
    if len(_code_by_start) < _MAX_KNOWN_STARTS:
        _code_by_start[header_start] = code
    return code


def peek_head(data: bytes, start: int, end: int, code: int | None = None) -> FrameHead | None:
    """Return code, opaque and flag of the frame in ``data[start:end]``, None if they cannot be read.

    A caller that has the frame's code from `peek_code` saves time by passing it.
    """
    if data[start + 4] == SERIALIZE_BINARY:
        return _peek_binary_head(data, start, end)
    header_end = start + HEADER_AT + (_WORD_AT(data, start + 4)[0] & HEADER_LENGTH_MASK)
    if header_end - start > MAX_HEADER_BYTES:
        return None  # as the decoder does: no broker accepts such a header, and searching it takes long
    flag_at = data.rfind(b'"flag":', start, header_end)
    tail = _TAIL.match(data, flag_at, header_end) if flag_at > 0 and header_end <= end else None
    if tail is None:
        return _peek_unordered_head(data, start, end, header_end)
    if code is None and data.startswith(b'{"code":', start + HEADER_AT):
        code = peek_code(data, start, end)
    if code is None:
        # Answers often have the code after the header fields.
        before_flag = _CODE.match(data, data.rfind(b'"code":', start, flag_at), flag_at)
        if before_flag is None or before_flag.end() != flag_at:
            return _decode_head(data, start, end)
        code = int(before_flag[1])
    return FrameHead(code, int(tail[2]), int(tail[1]))


def _peek_unordered_head(data: bytes, start: int, end: int, header_end: int) -> FrameHead | None:
    """Read a header whose names have another order, as Go and Node clients write it."""
    code = _CODE_AT_START.match(data, start + HEADER_AT, header_end)
    opaque, flag = OPAQUE_PATTERN.search(data, start, header_end), _FLAG.search(data, start, header_end)
    if header_end > end or code is None or opaque is None or flag is None:
        return _decode_head(data, start, end)
    # Header fields may have these names as well, also where the header itself lacks the value.
    ext_at = data.find(b'"extFields"', start, header_end)
    if 0 < ext_at < max(opaque.start(), flag.start()) and data.find(b"}", ext_at, header_end) > min(
        match.start() for match in (opaque, flag) if match.start() > ext_at
    ):
        return _decode_head(data, start, end)
    repeated = data.rfind(b'"opaque"', start, header_end) != opaque.start()
    if repeated or data.rfind(b'"flag"', start, header_end) != flag.start():
        return _decode_head(data, start, end)
    return FrameHead(int(code[1]), int(opaque[1]), int(flag[1]))


def _peek_binary_head(data: bytes, start: int, end: int) -> FrameHead | None:
    if end - start < HEADER_AT + _BINARY_HEAD_BYTES:
        return None
    code, _, _, opaque, flag = _BINARY_HEAD.unpack_from(data, start + HEADER_AT)
    return FrameHead(code, opaque, flag)


def _decode_head(data: bytes, start: int, end: int) -> FrameHead | None:
    try:
        command = decode_frame(data, start + 4, end)
    except FrameError:
        return None
    return FrameHead(command.code, command.opaque, command.flag)
