"""Splits received bytes into whole frames and decodes them.

Source: NettyDecoder, 5.4.0.
"""

from codec.command import Command, decode_frame
from codec.constants import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from codec.errors import FrameError

__all__ = ["MAX_FRAME_BYTES", "MAX_HEADER_BYTES", "FrameSplitter", "frame_size", "split_frames"]

_MIN_LENGTH = 4
_LARGE_BYTES = 64 * 1024
"""Missing bytes above which the rest of a frame is received in place instead of being joined from pieces."""


def frame_size(
    buffer: bytes | bytearray | memoryview, position: int, max_frame_bytes: int = MAX_FRAME_BYTES
) -> int:
    """Return the size of the frame at ``position`` in bytes, its length word included; ``position + 4 <=
    len(buffer)``.

    Raises FrameError when that is more than ``max_frame_bytes``, in which the length word counts as in the official
    server, or too little for a frame. Call this before buffering the rest of a frame.
    """
    length = int.from_bytes(buffer[position : position + 4])
    if length < _MIN_LENGTH or length + 4 > max_frame_bytes:
        raise FrameError(f"frame length {length} is not between {_MIN_LENGTH} and {max_frame_bytes - 4}")
    return length + 4


def split_frames(buffer: bytearray, max_frame_bytes: int = MAX_FRAME_BYTES) -> list[Command]:
    """Take the whole frames off the front of ``buffer``; the beginning of the next frame is left in it.

    Raises FrameError for a bad frame; the commands before it are lost with it, since the connection closes.
    """
    commands: list[Command] = []
    position, end = 0, len(buffer)
    while end - position >= 4:
        following = position + frame_size(buffer, position, max_frame_bytes)
        if following > end:
            break
        commands.append(decode_frame(buffer, position + 4, following))
        position = following
    del buffer[:position]
    return commands


class FrameSplitter:
    """Converts received bytes to commands; holds at most one incomplete frame between calls.

    A caller that receives into `rest_buffer` saves large frames all copies but one.
    """

    __slots__ = ("_buffer", "_filled", "_frame", "_max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._frame: bytearray | None = None
        self._filled = 0
        self._max_frame_bytes = max_frame_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._buffer) if self._frame is None else self._filled

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command]:
        """Return the commands that ``data`` completes, in order. Raises FrameError, after which the splitter is
        unusable.
        """
        if self._frame is not None:
            self._buffer += memoryview(self._frame)[: self._filled]
            self._frame = None
        self._buffer += data
        return split_frames(self._buffer, self._max_frame_bytes)

    def rest_buffer(self) -> memoryview | None:
        """Return the memory for the rest of a large frame, to be filled from its beginning and reported to
        `rest_written`.

        None where `feed` is as good. Raises FrameError as `feed` does.
        """
        if self._frame is None:
            held = len(self._buffer)
            if held < 4:
                return None
            size = frame_size(self._buffer, 0, self._max_frame_bytes)
            if size - held < _LARGE_BYTES:
                return None
            self._frame, self._filled = bytearray(size), held
            self._frame[:held] = self._buffer
            self._buffer.clear()
        return memoryview(self._frame)[self._filled :]

    def rest_written(self, count: int) -> list[Command]:
        """Return the command, once ``count`` more bytes complete it. Raises FrameError, after which the splitter is
        unusable.
        """
        frame = self._frame
        assert frame is not None
        self._filled += count
        if self._filled < len(frame):
            return []
        self._frame = None
        return [decode_frame(frame, 4, len(frame))]
