"""The commit log: all messages of a store, in one sequence of memory-mapped files.

Theory of operation
-------------------
The log is a byte sequence cut into files of equal size. A file is named after the physical offset of its first
byte, and a message never spans two files: a message that is too long for the rest of a file goes into the next one,
and a *blank marker* (size to the end of the file, ``MAGIC_BLANK``) fills the gap.

Invariant: bytes below ``base + position`` are whole messages and blank markers; bytes above it are zeros, or
belong to a message that is being written. A writer therefore stores the first eight bytes of a message (size and
magic) last. A process killed in between leaves a size of zero, which ends the log.

Appending takes these steps. Each can fail only before anything visible has changed:

1. `CommitLog.make_room` allocates disk space ahead of the end (``reserve_commit_log_bytes`` at a time), so that a
   full disk is a `StoreFull` error here and not a SIGBUS while writing to the map. It may start a new file.
2. The caller (`storage.append`) writes into ``buffer`` and moves ``position``. It uses the public fields directly,
   because a method call would cost more than the work it does.
3. `CommitLog.flush` makes the appended bytes durable, perhaps in another thread. The page cache survives a killed
   process, so only a power cut loses bytes above ``durable_offset``; `storage.recovery` then finds the end of the log.
   After a flush that failed, `CommitLog.refuse_appends` makes every later append fail in step 1.
"""

import logging
from collections.abc import Callable
from typing import Final

from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.message import MIN_MESSAGE_BYTES
from storage.disk_mapping import Buffer
from storage.errors import CorruptionError, FlushFailed, MessageIllegal
from storage.files import Files, MappedFile
from storage.layout import BLANK_BYTES, LONG, PHYSICAL_OFFSET_AT, START, mapped_file_name

log = logging.getLogger(__name__)

NO_LIMIT: Final = 1 << 62
"""A physical offset after every message."""


def store_timestamp_of(message: memoryview) -> int:
    """Return the store timestamp, in ms, of a stored message."""
    timestamp: int = LONG.unpack_from(message, 68 if message[39] & 0x10 else 56)[0]
    return timestamp


class CommitLog:
    """The commit log's files. Only the last one is written; its state is in the public fields, for the hot path.

    ``base`` is the physical offset of the written file's first byte, ``position`` the end of the messages in it, and
    ``first_base`` the physical offset of the oldest file. ``buffer`` is the written file's memory. Up to ``limit``
    disk space is reserved, and a blank marker fits after it. Up to ``durable_offset`` the log is on the disk.
    Up to ``queued_until`` the log has whole messages that have got their places in queues. It is one field, written
    last, because flushes and checkpoints in other threads read it. Where entries are built later, from the log
    (`storage.log_dispatch`), ``dispatched_until`` is how far that has come; otherwise it is `NO_LIMIT`.
    ``after_roll`` is called each time writing moves to a new file; the store removes old files there when it
    keeps a bounded number of bytes.
    """

    __slots__ = (
        "_after_roll",
        "_failure",
        "_files",
        "_mapped",
        "_reserve_bytes",
        "base",
        "buffer",
        "directory",
        "dispatched_until",
        "durable_offset",
        "file_bytes",
        "first_base",
        "limit",
        "position",
        "queued_until",
        "reserved",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        file_bytes: int,
        reserve_bytes: int,
        after_roll: Callable[[], object] = lambda: None,
    ) -> None:
        self._files = files
        self._reserve_bytes = reserve_bytes
        self._after_roll = after_roll
        self._mapped: dict[int, MappedFile] = {}  # by base offset, opened on first use
        self._failure: FlushFailed | None = None
        self.directory = directory
        self.file_bytes = file_bytes
        self.first_base = 0
        self.base = 0
        self.position = 0
        self.limit = 0
        self.reserved = 0
        self.durable_offset = 0
        self.queued_until = 0
        self.dispatched_until = NO_LIMIT
        self.buffer: Buffer = bytearray()

    @property
    def max_offset(self) -> int:
        """The physical offset one past the last byte."""
        return self.base + self.position

    @property
    def readable_until(self) -> int:
        """The physical offset below which all messages have their queue entries. A checkpoint covers no more."""
        return min(self.queued_until, self.dispatched_until)

    def path(self, base: int) -> str:
        """Return the path of the file that starts at a physical offset."""
        return f"{self.directory}/{mapped_file_name(base)}"

    def base_of(self, physical_offset: int) -> int:
        """Return the physical offset of the first byte of the file that holds ``physical_offset``.

        The hot path (`select`, `storage.queue_read`) calculates it in place: a call would cost more than the work.
        """
        return physical_offset - (physical_offset - self.first_base) % self.file_bytes

    def bases(self) -> list[int]:
        """Return the first physical offset of every file, ascending."""
        return list(range(self.first_base, self.base + 1, self.file_bytes))

    def start_at(self, first_base: int, end: int) -> None:
        """Continue writing at physical offset ``end``; the file that holds it becomes the written one."""
        self.first_base = first_base
        self.base = self.base_of(end)
        self.position = end - self.base
        self.buffer = self.mapped_file(self.base).buffer
        self.reserved = self.position
        self.limit = 0
        self.durable_offset = self.queued_until = end
        if self.dispatched_until != NO_LIMIT:
            self.dispatched_until = end

    def mapped_file(self, base: int) -> MappedFile:
        """Return the file that starts at ``base``, opened on first use."""
        mapped = self._mapped.get(base)
        if mapped is None:
            mapped = self._mapped[base] = self._files.open_mapped(self.path(base), self.file_bytes)
        return mapped

    def make_room(self, size: int) -> None:
        """Get disk space for ``size`` more bytes, in a new file when this one is at its end.

        Raises StoreFull, and then nothing has changed; MessageIllegal when no file is long enough.
        """
        # First, because after a failed flush the file system may be read-only, and reserving fails with another error.
        self._check_failure()
        if size + BLANK_BYTES > self.file_bytes:
            raise MessageIllegal(f"{size} bytes do not fit into a commit log file of {self.file_bytes}")
        if self.position + size + BLANK_BYTES > self.file_bytes:
            self._roll(size)
        if self.position + size > self.limit:
            self._reserve(self.mapped_file(self.base), self.position, size)
        # Once more, because another thread may have refused appends while the limit was raised.
        self._check_failure()

    def _check_failure(self) -> None:
        if self._failure is not None:
            self.limit = 0
            raise FlushFailed(str(self._failure), self._failure.reason)

    def refuse_appends(self, failure: FlushFailed) -> None:
        """Take no more messages: every append raises FlushFailed from now on. Any thread may call this."""
        self._failure = failure
        self.limit = 0  # so that the next append calls `make_room`

    def probe_room(self, size: int) -> None:
        """Check that there is disk space for ``size`` more bytes, as `make_room` does. Raises StoreFull.

        Nothing changes but the reserved space, so that it may be tried again and again.
        """
        if self.position + size + BLANK_BYTES <= self.file_bytes:
            self._reserve(self.mapped_file(self.base), self.position, size)
        else:
            self.mapped_file(self.base + self.file_bytes).reserve(0, min(size + BLANK_BYTES, self.file_bytes))
        if self._failure is not None:
            self.limit = 0

    def _reserve(self, mapped: MappedFile, position: int, size: int) -> None:
        end = min(self.file_bytes, position + size + BLANK_BYTES + self._reserve_bytes)
        start = min(self.reserved, position) if mapped.buffer is self.buffer else 0
        mapped.reserve(start, end)
        self.reserved = end
        self.limit = end - BLANK_BYTES

    def _roll(self, size: int) -> None:
        """End the written file with a blank marker and continue in the next.

        Source: CommitLog.DefaultAppendMessageCallback.doAppend, 5.4.0 (END_OF_FILE).
        """
        self._end_file(START.pack(self.file_bytes - self.position, MAGIC_BLANK), size)
        self.queued_until = self.base
        self._after_roll()

    def copy_end_of_file(self, blank: memoryview) -> None:
        """End the written file with another broker's blank marker and the bytes after it, and continue in the next.

        ``queued_until`` stays, which the caller moves. Raises StoreFull, FlushFailed; then nothing has changed.
        """
        self._check_failure()
        self._end_file(blank, 0)
        self._after_roll()

    def _end_file(self, blank: bytes | memoryview, size: int) -> None:
        position, base = self.position, self.base + self.file_bytes
        mapped = self.mapped_file(base)
        # First, because it may fail. Right after opening, no space for the marker is reserved yet.
        self.mapped_file(self.base).reserve(position, position + len(blank))
        self._reserve(mapped, 0, size)
        if len(blank) > BLANK_BYTES:
            self.buffer[position + BLANK_BYTES : position + len(blank)] = blank[BLANK_BYTES:]
        self.buffer[position : position + BLANK_BYTES] = blank[:BLANK_BYTES]
        # In this order: a flush in another thread that reads the fields in between sees an end that is too low,
        # never one that is too high.
        self.position = 0
        self.buffer = mapped.buffer
        self.base = base

    def select(self, physical_offset: int, size: int) -> memoryview | None:
        """Return ``size`` bytes from a physical offset on, without copying; None if the log does not hold them all."""
        if physical_offset < self.first_base or physical_offset + size > self.base + self.position:
            return None
        position = (physical_offset - self.first_base) % self.file_bytes
        return self.mapped_file(physical_offset - position).view[position : position + size]

    def file_containing(self, physical_offset: int) -> tuple[memoryview, int, int]:
        """Return the file that holds a physical offset: its bytes, and the physical offsets of its first byte and of
        the end of its messages.
        """
        base = self.base_of(physical_offset)
        return self.mapped_file(base).view, base, min(base + self.file_bytes, self.base + self.position)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Return the whole message that starts at an offset; None when no message starts there.

        Raises CorruptionError when the message's start is valid but its size does not fit.
        """
        start = self.select(physical_offset, PHYSICAL_OFFSET_AT + 8)
        if start is None or len(start) < PHYSICAL_OFFSET_AT + 8:
            return None
        size, magic = START.unpack_from(start)
        if (
            magic not in (MAGIC_V1, MAGIC_V2)
            or size < MIN_MESSAGE_BYTES
            or LONG.unpack_from(start, PHYSICAL_OFFSET_AT)[0] != physical_offset
        ):
            return None
        message = self.select(physical_offset, size)
        if message is None or len(message) != size:
            raise self.corruption_error(physical_offset, f"a message of {size} bytes does not fit")
        return message

    def first_store_timestamp(self, physical_offset: int) -> int | None:
        """Return the store timestamp, in ms, of the first message from a message's offset on; None without one.

        Fillers, which stand for damaged messages (`damage.py`), have no time and are skipped.
        """
        while physical_offset < self.max_offset:
            message = self.message_at(physical_offset)
            if message is None:  # the marker at the end of a file
                physical_offset = self.base_of(physical_offset) + self.file_bytes
            elif (time_ms := store_timestamp_of(message)) > 0:
                return time_ms
            else:
                physical_offset += len(message)
        return None

    def corruption_error(self, physical_offset: int, reason: str) -> CorruptionError:
        """Build the error that names the damaged file and the byte in it."""
        base = self.base_of(physical_offset)
        return CorruptionError(self.path(base), physical_offset - base, reason)

    def flush(self) -> int:
        """Block until all bytes appended before the call are on the disk; return the physical offset at their end.

        May run in one thread while another thread appends.
        """
        # One field instead of base and position: another thread could start a new file between reading the two.
        target = self.queued_until
        start = max(self.durable_offset, self.first_base)
        base = self.base_of(start)
        if target > start:
            while base < target:
                self._files.flush_again(self.path(base))
                base += self.file_bytes
        if target > self.durable_offset:
            self.durable_offset = target
        return self.durable_offset

    def close_file(self, base: int) -> None:
        """Close the map of a file that was deleted."""
        mapped = self._mapped.pop(base, None)
        if mapped is not None:
            mapped.close()

    def delete_first(self) -> None:
        """Delete the oldest file. The caller makes sure that it is not the written one."""
        base = self.first_base
        self.first_base = base + self.file_bytes
        self._files.delete(self.path(base))
        self.close_file(base)
        log.info("commit log file deleted", extra={"physical_offset": base})

    def close(self) -> None:
        """Close all files."""
        self.buffer = bytearray()
        self.limit = 0
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()
