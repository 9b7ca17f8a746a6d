"""Reads a commit log piece by piece for one slave.

A piece never reaches into another file, and ends between two messages. That costs a look at the size of each message
while a slave is behind, and nothing for the newest bytes, which end with the log. In return a slave that was sent whole
pieces can always go on from where it is: its end is the start of a message, by which the master recognises a slave of
its own log (`LogStarts.refusal`).

A message that is longer than any frame may be has to be cut. The places of such cuts are remembered, so that a slave
that lost its connection there may go on as well.
"""

import mmap
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from codec.constants import MAGIC_BLANK
from gateway.broker.replication.ha_wire import MAX_FRAME_BYTES
from storage.commit_log import CommitLog
from storage.errors import CorruptionError
from storage.files import MappedFile
from storage.layout import BLANK_BYTES, START

MAX_REMEMBERED_CUTS: Final = 256
READ_AHEAD_BYTES: Final = 8 << 20


class LogExpired(Exception):
    """The file with the next bytes has been deleted."""


class LogDamaged(Exception):
    """The log has no message where one should begin."""


class LogStarts:
    """Tells where slaves may begin to copy a log. One for all slaves of a master."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._cuts: OrderedDict[int, int] = OrderedDict()

    def remember_cut(self, offset: int, message_end: int) -> None:
        """Remember that a piece ended inside of a message, which ends at ``message_end``."""
        self._cuts[offset] = message_end
        if len(self._cuts) > MAX_REMEMBERED_CUTS:
            self._cuts.popitem(last=False)

    def message_end(self, offset: int) -> int | None:
        """Return the end of the message that was cut at an offset; None where none was."""
        return self._cuts.get(offset)

    def refusal(self, offset: int) -> str | None:
        """Return why a slave must not get the bytes from an offset on; None if it may.

        The official master serves any offset: from inside a message, and to a slave that is ahead once it has outgrown
        it. Such a slave's log becomes a mixture. With offset 1 slaves of this project ask official masters for the
        whole of a log that begins at 0: with offset 0 they would get its last file only. Byte 0 is always 0.
        """
        log = self._log
        first, end = log.first_base, log.max_offset
        if offset == first or offset == 1 > first:
            return None
        if offset > end:
            return f"its log ends at {offset}, beyond the end of this one at {end}: it has messages of another master"
        if offset < first:
            return f"its log ends at {offset}, and the messages before {first} have been deleted here"
        if offset == end or offset in self._cuts or self.begins_message(offset):
            return None
        return f"no message begins at {offset}, where its log ends: it is not a copy of this one"

    def begins_message(self, offset: int) -> bool:
        """Tell if a message or the marker at the end of a file begins at an offset inside of the log."""
        log = self._log
        start = log.select(offset, BLANK_BYTES)
        if start is None or len(start) < BLANK_BYTES:
            return False
        size, magic = START.unpack_from(start)
        if magic == MAGIC_BLANK:
            return bool(offset + size == log.base_of(offset) + log.file_bytes)
        try:
            return log.message_at(offset) is not None
        except CorruptionError:
            return False


class LogCursor:
    """The position of one slave in the log.

    The cursor keeps the file that it reads mapped, so that a slave gets the whole file even if it is deleted meanwhile.
    """

    __slots__ = ("_announced", "_base", "_log", "_mapped", "_message_end", "_starts", "_view", "offset")

    def __init__(self, log: CommitLog, starts: LogStarts, offset: int) -> None:
        self._log = log
        self._starts = starts
        self._view = memoryview(b"")
        self._mapped: MappedFile | None = None
        self._base = -1
        self._announced = 0  # the end, in the file, of what the system was asked to read
        # The end of a message of which a part has been read; 0 between messages.
        self._message_end = starts.message_end(offset) or 0
        self.offset = offset

    @property
    def is_at_end(self) -> bool:
        """True if there is nothing to read."""
        return self.offset >= self._log.base + self._log.position

    def read(self, max_bytes: int) -> memoryview:
        """Return the next bytes, at most ``max_bytes`` or one message, and go on behind them; none at the end.

        Copy them before the next task has its turn. Raises LogExpired, LogDamaged.
        """
        log, offset = self._log, self.offset
        if self.is_at_end:
            return self._view[:0]
        base = self._base
        if base < 0 or offset >= base + log.file_bytes:
            base = self._open_file(offset)
        file_end = log.file_bytes if base < log.base else log.position
        position = offset - base
        stop = (
            file_end if file_end - position <= max_bytes else self._piece_end(position, max_bytes, file_end)
        )
        self.offset = base + stop
        return self._view[position:stop]

    def _open_file(self, offset: int) -> int:
        log = self._log
        if offset < log.first_base:
            raise LogExpired(f"the messages from {offset} to {log.first_base} have been deleted")
        base = log.base_of(offset)
        self._mapped = log.mapped_file(base)
        self._view, self._base, self._announced = self._mapped.view[:], base, 0
        if offset == 1:
            self._message_end = START.unpack_from(self._view)[0]
        return base

    def _read_ahead(self, position: int) -> None:
        """Ask the system for the next bytes of an old file: a read from the disk would hold up everybody else."""
        buffer = None if self._mapped is None else self._mapped.buffer
        if position + READ_AHEAD_BYTES // 2 < self._announced or not isinstance(buffer, mmap.mmap):
            return
        start = max(self._announced, position - position % mmap.PAGESIZE)
        self._announced = min(start + READ_AHEAD_BYTES, self._log.file_bytes)
        with suppress(ValueError):  # closed, because the file has been deleted
            buffer.madvise(mmap.MADV_WILLNEED, start, self._announced - start)

    def _piece_end(self, position: int, max_bytes: int, file_end: int) -> int:
        """Return the end, in the file, of the last message that fits into a piece; at least of one message."""
        view, stop, unpack_size = self._view, position + max_bytes, START.unpack_from
        end = self._message_end - self._base if self._message_end else position
        self._message_end = 0
        if end <= stop:
            while True:
                size = unpack_size(view, end)[0]
                if size < BLANK_BYTES or end + size > file_end:
                    raise LogDamaged(f"no message begins at {self._base + end}")
                if end + size > stop:
                    break
                end += size
            if end > position:
                return end
            end += size
        # A single message that is longer than the piece.
        if end - position <= MAX_FRAME_BYTES:
            return end
        self._message_end = self._base + end
        self._starts.remember_cut(self._base + position + MAX_FRAME_BYTES, self._message_end)
        return position + MAX_FRAME_BYTES
