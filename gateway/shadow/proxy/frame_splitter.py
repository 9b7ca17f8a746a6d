"""Split a byte stream into frames without decoding them."""

from struct import Struct
from typing import Final

from codec.constants import MAX_FRAME_BYTES

MIN_LENGTH: Final = 4
"""Smallest value of a length prefix: the frame then has an empty header and no body."""
_WORD_AT = Struct(">I").unpack_from


class RawFrameSplitter:
    """Finds the frame boundaries in a stream. Holds at most one unfinished frame.

    `error` is set when a length prefix is invalid: below 4, or of a frame that is larger than ``max_frame_bytes``
    together with its prefix (the default is the official limit). Nothing after such a prefix can be split.
    """

    __slots__ = ("_max_frame_bytes", "_needed_bytes", "error", "unfinished")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self.unfinished = bytearray()
        """Received bytes of the frame that is not complete yet."""
        self._needed_bytes = 4
        self.error: str | None = None

    def split(self, data: bytes) -> tuple[bytes, list[int]]:
        """Return bytes that begin with a frame, and the end of each complete frame in them.

        Bytes after the last end are kept as `unfinished` for the next call.
        """
        unfinished = self.unfinished
        if unfinished:
            unfinished += data
            if len(unfinished) < self._needed_bytes:
                return b"", []
            data = bytes(unfinished)
            unfinished.clear()
        ends: list[int] = []
        position, available, needed = 0, len(data), 4
        while available - position >= 4:
            length = _WORD_AT(data, position)[0]
            if not MIN_LENGTH <= length <= self._max_frame_bytes - 4:
                self.error = (
                    f"frame length {length} is not between {MIN_LENGTH} and {self._max_frame_bytes - 4}"
                )
                return data, ends
            needed = length + 4
            if position + needed > available:
                break
            position += needed
            ends.append(position)
            needed = 4
        self._needed_bytes = needed
        if position < available:
            unfinished += memoryview(data)[position:]
        return data, ends
