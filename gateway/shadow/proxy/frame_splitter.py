"""Split a byte stream into frames without decoding them."""

from collections.abc import Callable
from struct import Struct
from typing import Final

from codec.constants import MAX_FRAME_BYTES

MIN_LENGTH: Final = 4
"""Smallest value of a length prefix: the frame then has an empty header and no body."""
ALL_FRAMES: Final = -1
LARGE_FRAME_BYTES: Final = 256 * 1024
_WORD_AT = Struct(">I").unpack_from


def ignore_growth(size: int) -> None:
    """Ignore that an unfinished frame grew."""


class RawFrameSplitter:
    """Finds the frame boundaries in a stream. Holds at most one unfinished frame.

    `error` is set when a length prefix is invalid: below 4, or of a frame that is larger than ``max_frame_bytes``
    together with its prefix (the default is the official limit). Nothing after such a prefix can be split.

    ``on_large_input`` is called with the bytes added to an unfinished frame of more than `LARGE_FRAME_BYTES`, and with
    0 when such a frame is complete.
    """

    __slots__ = ("_max_frame_bytes", "_needed_bytes", "_on_large_input", "error", "has_more", "unfinished")

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        on_large_input: Callable[[int], None] = ignore_growth,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._on_large_input = on_large_input
        self.unfinished = bytearray()
        """Received bytes of the frame that is not complete yet."""
        self._needed_bytes = 4
        self.has_more = False
        """True after `split` returned ``max_frames`` and more are left: call it again, with no bytes."""
        self.error: str | None = None

    def split(self, data: bytes, max_frames: int = ALL_FRAMES) -> tuple[bytes, list[int]]:
        """Return bytes that begin with a frame, and the end of each complete frame in them, up to ``max_frames``.

        Bytes after the last end are kept as `unfinished` for the next call.
        """
        self.has_more = False
        unfinished = self.unfinished
        if unfinished:
            unfinished += data
            is_large = len(unfinished) > LARGE_FRAME_BYTES
            # The length is known since the first 4 bytes: a large frame is not looked through again at every read.
            if len(unfinished) < self._needed_bytes:
                if is_large:
                    self._on_large_input(len(data))
                return b"", []
            # A copy, because the buffer is used again for the next unfinished frame.
            data = bytes(unfinished)
            unfinished.clear()
            if is_large:
                self._on_large_input(0)
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
            if len(ends) == max_frames:
                self.has_more = position < available
                break
        self._needed_bytes = needed
        # The begin of the next frame, or the frames after the last one that this turn may handle.
        if position < available:
            unfinished += memoryview(data)[position:]
        return data, ends

    def release(self) -> None:
        """Free the unfinished frame: nothing more is split."""
        self.unfinished = bytearray()
        self.has_more = False
        self._on_large_input = ignore_growth
