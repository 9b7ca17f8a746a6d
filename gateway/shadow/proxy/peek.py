"""Whole frames out of a stream, and the code, opaque and flag of a header without decoding all of it.

Not responsible for what a frame means. What cannot be read here is left to the upstream to judge.
"""

import re
from struct import Struct
from typing import Final, NamedTuple

from codec.command import decode_frame
from codec.constants import MAX_FRAME_BYTES, SERIALIZE_BINARY
from codec.errors import FrameError

UNKNOWN: Final = -1
"""Instead of a code: the header is none that could be read. No peer uses it."""
HEADER_AT: Final = 8
"""Where a header begins: after the length word, and the word of serialise type and header length."""
HEADER_BYTES: Final = 0xFFFFFF
"""The part of that second word that is a length."""

_MEMO_ENTRIES: Final = 4096
_START_BYTES: Final = 15  # {"code":200050,
START: Final = slice(HEADER_AT, HEADER_AT + _START_BYTES)
"""Where the bytes are that may tell the code of the first frame of some data."""
_BINARY_HEAD = Struct(">hBhii")
_BINARY_BYTES: Final = 21
_START = re.compile(rb'\{"code":([0-9]{1,6})[,}]')
OPAQUE: Final = re.compile(rb'"opaque":(-?[0-9]{1,10})[,}]')
_FLAG = re.compile(rb'"flag":([0-9]{1,9})[,}]')
_CODE = re.compile(rb'"code":([0-9]{1,6}),')
# What follows the header fields where names are in alphabetical order, as in what Java writes.
_TAIL = re.compile(rb'"flag":([0-9]{1,9}),"language":"[A-Z_]*","opaque":(-?[0-9]{1,10}),"')
_WORD_AT = Struct(">I").unpack_from
_WORDS_AT = Struct(">II").unpack_from
_MIN_LENGTH: Final = 4
_codes: dict[bytes, int] = {}


class Head(NamedTuple):
    """What tells a frame from others on its connection."""

    code: int
    opaque: int
    flag: int


def telling_start(data: bytes) -> bytes | None:
    """The first bytes of the header of the frame that ``data`` begins with, if they are known to tell its code."""
    begin = data[START]
    return begin if begin in _codes and not data[4] else None


def header_end(data: bytes, start: int) -> int:
    """Where the header of the frame at ``start`` ends, by its own word; may lie beyond the frame."""
    return int(start + HEADER_AT + (_WORD_AT(data, start + 4)[0] & HEADER_BYTES))


def is_bare(data: bytes) -> bool:
    """Whether this is one whole frame without a body."""
    size = len(data)
    if size < HEADER_AT:
        return False
    length, header = _WORDS_AT(data)
    return bool(length == size - 4 and HEADER_AT + (header & HEADER_BYTES) == size)


def code_of(data: bytes, start: int, stop: int) -> int:
    """The code of the frame in ``data[start:stop]``; UNKNOWN when it has none that can be read.

    Most clients write the code first, so that the first bytes of a header, known from an earlier frame, tell it.
    """
    if data[start + 4] == SERIALIZE_BINARY and stop - start >= HEADER_AT + _BINARY_BYTES:
        return int.from_bytes(data[start + HEADER_AT : start + HEADER_AT + 2], signed=True)
    begin = data[start + HEADER_AT : start + HEADER_AT + _START_BYTES]
    known = _codes.get(begin)
    return _read_code(data, start, stop, begin) if known is None else known


def _read_code(data: bytes, start: int, stop: int, begin: bytes) -> int:
    match = _START.match(begin)
    if match is None or data[start + 4]:
        head = _decoded(data, start, stop)
        return UNKNOWN if head is None else head.code
    code = int(match[1])
    if len(_codes) < _MEMO_ENTRIES:
        _codes[begin] = code
    return code


def head_of(data: bytes, start: int, stop: int) -> Head | None:
    """Code, opaque and flag of the frame in ``data[start:stop]``; None when they cannot be read."""
    if data[start + 4] == SERIALIZE_BINARY:
        return _binary_head(data, start, stop)
    end = header_end(data, start)
    flag_at = data.rfind(b'"flag":', start, end)
    tail = _TAIL.match(data, flag_at, end) if flag_at > 0 and end <= stop else None
    if tail is None:
        return _spread_head(data, start, stop, end)
    code = code_of(data, start, stop) if data.startswith(b'{"code":', start + HEADER_AT) else None
    if code is None:
        before = _CODE.match(data, data.rfind(b'"code":', start, flag_at), flag_at)
        if before is None or before.end() != flag_at:
            return _decoded(data, start, stop)
        code = int(before[1])
    return Head(code, int(tail[2]), int(tail[1]))


def _spread_head(data: bytes, start: int, stop: int, end: int) -> Head | None:
    """The same of headers in another order, such as those of Go and Node clients."""
    code = _START.match(data, start + HEADER_AT, end)
    opaque, flag = OPAQUE.search(data, start, end), _FLAG.search(data, start, end)
    if end > stop or code is None or opaque is None or flag is None:
        return _decoded(data, start, stop)
    # Header fields may have these names as well.
    again = data.rfind(b'"opaque"', start, end) != opaque.start()
    if again or data.rfind(b'"flag"', start, end) != flag.start():
        return _decoded(data, start, stop)
    return Head(int(code[1]), int(opaque[1]), int(flag[1]))


def _binary_head(data: bytes, start: int, stop: int) -> Head | None:
    if stop - start < HEADER_AT + _BINARY_BYTES:
        return None
    code, _, _, opaque, flag = _BINARY_HEAD.unpack_from(data, start + HEADER_AT)
    return Head(code, opaque, flag)


def _decoded(data: bytes, start: int, stop: int) -> Head | None:
    try:
        command = decode_frame(data, start + 4, stop)
    except FrameError:
        return None
    return Head(command.code, command.opaque, command.flag)


class Cutter:
    """Cuts a stream of bytes into whole frames; holds at most one unfinished frame.

    `problem` is the reason for which nothing after the frames returned last can be cut: a length that no frame of
    at most ``frame_bytes`` (length word included) has, as officially.
    """

    __slots__ = ("_frame_bytes", "_wanted_bytes", "kept", "problem")

    def __init__(self, frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._frame_bytes = frame_bytes
        self.kept = bytearray()
        """Bytes of the frame that is not whole yet."""
        self._wanted_bytes = 4
        self.problem: str | None = None

    def cut(self, data: bytes) -> tuple[bytes, list[int]]:
        """Bytes that begin with a frame, and where each whole frame in them ends; what follows the last is kept."""
        kept = self.kept
        if kept:
            kept += data
            if len(kept) < self._wanted_bytes:
                return b"", []
            data = bytes(kept)
            kept.clear()
        stops: list[int] = []
        position, end, wanted = 0, len(data), 4
        while end - position >= 4:
            length = _WORD_AT(data, position)[0]
            if not _MIN_LENGTH <= length <= self._frame_bytes - 4:
                self.problem = (
                    f"frame length {length} is not between {_MIN_LENGTH} and {self._frame_bytes - 4}"
                )
                return data, stops
            wanted = length + 4
            if position + wanted > end:
                break
            position += wanted
            stops.append(position)
            wanted = 4
        self._wanted_bytes = wanted
        if position < end:
            kept += memoryview(data)[position:]
        return data, stops
