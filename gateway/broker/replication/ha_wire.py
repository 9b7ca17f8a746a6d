"""The wire format of replication (DefaultHA): what a slave reports, and what its master sends.

A slave sends nothing but reports: the physical offset up to which it has the log, 8 bytes. The first report asks for
the bytes from there on; the later ones acknowledge. The master sends frames: the physical offset of the first byte (8
bytes), the number of bytes (4 bytes), and the bytes of the log. A frame without bytes is a heartbeat, whose offset is
that of the next byte. All numbers are big endian. There is no version, and neither side says who it is.

A frame never reaches into another commit log file. Official masters cut frames anywhere, also inside messages; this
project's master ends them between messages. Sources: DefaultHAClient, DefaultHAConnection, 5.4.0.
"""

import struct
from collections.abc import Iterator
from typing import ClassVar, Final

REPORT: Final = struct.Struct(">q")
FRAME_HEAD: Final = struct.Struct(">qi")
LONGEST_HEAD_BYTES: Final = 36
"""Size of the head of a frame of AutoSwitchHA (`auto_switch_wire.py`)."""
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024 - LONGEST_HEAD_BYTES
"""Maximum number of log bytes in a frame: official slaves wait for ever for the rest of a frame that does not fit into
their buffer of 4 MiB."""


class HaWireError(Exception):
    """Bytes that no master or slave sends."""


def encode_report(offset: int) -> bytes:
    """Return a slave's report that it has the log up to a physical offset."""
    return REPORT.pack(offset)


def encode_frame_head(offset: int, size: int) -> bytes:
    """Return the head of a frame with ``size`` bytes of the log, whose first is at a physical offset."""
    return FRAME_HEAD.pack(offset, size)


class ReportReader:
    """Reads the reports of one slave from its bytes."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Return the newest report that is complete with these bytes; None without one.

        Only the last of several reports counts, because each replaces the one before. Raises HaWireError for a
        negative offset.
        """
        if self._rest:
            data = self._rest + data
        whole_bytes = len(data) - len(data) % REPORT.size
        self._rest = data[whole_bytes:]
        if not whole_bytes:
            return None
        offset: int = REPORT.unpack_from(data, whole_bytes - REPORT.size)[0]
        if offset < 0:
            raise HaWireError(f"a report of the negative offset {offset}")
        return offset


class FrameReader:
    """Reads the frames of a master from its bytes, without waiting for whole frames.

    A frame may be as long as the master likes, so its bytes are handed on as they come and never collected.
    """

    __slots__ = ("_head", "_offset", "_remaining_bytes")
    head_layout: ClassVar[struct.Struct] = FRAME_HEAD

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0
        self._remaining_bytes = 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield (physical offset, bytes of the log) for each frame or part of one; no bytes for a heartbeat.

        The parts are slices of ``data``, so they are valid as long as that is. Exhaust the iterator before the next
        call. Raises HaWireError for a head that no master sends.
        """
        view, position, end, head_bytes = memoryview(data), 0, len(data), self.head_layout.size
        while position < end:
            if not self._remaining_bytes:
                head = self._head + view[position : position + head_bytes - len(self._head)]
                position += len(head) - len(self._head)
                if len(head) < head_bytes:
                    self._head = head
                    return
                self._head = b""
                self._offset, self._remaining_bytes = self._read_head(head)
                if not self._remaining_bytes:
                    yield self._offset, view[:0]
                    continue
            part = view[position : position + self._remaining_bytes]
            if not part:
                return
            position += len(part)
            offset = self._offset
            self._offset += len(part)
            self._remaining_bytes -= len(part)
            yield offset, part

    def _read_head(self, head: bytes) -> tuple[int, int]:
        """Return the offset and the size that a head names. Raises HaWireError."""
        offset, size = FRAME_HEAD.unpack(head)
        if offset < 0 or size < 0:
            raise HaWireError(f"a frame of {size} bytes at offset {offset}")
        return offset, size
