"""A consume queue: one 20-byte entry per message, which points into the commit log.

An entry holds physical offset, size and tags code of its message; the number of the entry is the queue offset. An entry
whose size is `QUEUE_HOLE_SIZE` is a hole: its message was lost (`damage.py`), and reads skip it.

`append.py` writes entries for new messages, `recovery.py` restores missing ones. `queue_set.py` holds all queues.
"""

from collections import OrderedDict
from typing import Final

from storage.disk_mapping import Buffer
from storage.errors import CorruptionError, StoreFull
from storage.files import Files, MappedFile, read_written
from storage.layout import (
    QUEUE_BLANK,
    QUEUE_BLANK_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    QUEUE_HOLE_SIZE,
    mapped_file_name,
)

_EMPTY_ENTRY: Final = bytes(QUEUE_ENTRY_BYTES)
_HOLE: Final = QUEUE_ENTRY.pack(0, QUEUE_HOLE_SIZE, 0)
MIN_RESERVE_BYTES: Final = 4096
"""Disk space that a new queue gets ahead of its entries: one page, 204 entries."""


class QueueFilePool:
    """Keeps at most ``capacity`` consume queue files mapped, and closes the least recently used ones.

    Appends bypass the pool and only set the queue's ``recently_used`` flag. A file whose flag is set when it would be
    closed gets a second chance.
    """

    __slots__ = ("_capacity", "_files", "_open")

    def __init__(self, files: Files, capacity: int) -> None:
        self._files = files
        self._capacity = max(4, capacity)
        self._open: OrderedDict[tuple[ConsumeQueue, int], MappedFile] = OrderedDict()

    def mapped_file(self, queue: "ConsumeQueue", base: int) -> MappedFile:
        """Return the mapped file whose first entry is number ``base``; valid until the next call."""
        key = (queue, base)
        mapped = self._open.get(key)
        if mapped is None:
            self._make_room()
            mapped = self._open[key] = self._files.open_mapped(queue.path(base), queue.file_bytes)
            mapped.read_single_pages()
        else:
            self._open.move_to_end(key)
        return mapped

    def _make_room(self) -> None:
        while len(self._open) >= self._capacity:
            (queue, base), mapped = self._open.popitem(last=False)
            if queue.recently_used and queue.buffer is mapped.buffer:
                queue.recently_used = False
                self._open[queue, base] = mapped
                continue
            queue.detach_file(mapped)
            mapped.close()

    def close_file(self, queue: "ConsumeQueue", base: int) -> None:
        """Close one file because it is about to be deleted."""
        mapped = self._open.pop((queue, base), None)
        if mapped is not None:
            queue.detach_file(mapped)
            mapped.close()

    def close(self) -> None:
        for (queue, _), mapped in self._open.items():
            queue.detach_file(mapped)
            mapped.close()
        self._open.clear()


class ConsumeQueue:
    """The entries of one queue of a topic: [min_offset, next_offset) are readable.

    As in the commit log, the writer's fields are public for the hot path in `append.py`.
    """

    __slots__ = (
        "_files",
        "_pool",
        "_reserve_bytes",
        "bases",
        "buffer",
        "directory",
        "expired_before",
        "file_bytes",
        "file_entries",
        "flushed_offset",
        "limit",
        "min_offset",
        "next_offset",
        "position",
        "queue_id",
        "recently_used",
        "topic",
        "topic_part",
        "write_base",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: str,
        file_entries: int,
        reserve_bytes: int,
        pool: QueueFilePool,
        files: Files,
    ) -> None:
        encoded = topic.encode()
        self.topic = topic
        self.queue_id = queue_id
        # The topic as it stands in a message: its length in one byte, or in two for long names (layout V2).
        self.topic_part = (
            bytes((len(encoded),)) + encoded
            if len(encoded) <= 127
            else len(encoded).to_bytes(2, "big") + encoded
        )
        self.directory = directory
        self.file_entries = file_entries
        self.file_bytes = file_entries * QUEUE_ENTRY_BYTES
        self.bases: list[int] = []  # first entry number of every file, ascending
        self.min_offset = 0
        self.expired_before = 0  # physical offset up to which `delete_before` has hidden entries
        self.next_offset = 0
        self.flushed_offset = 0
        self.position = 0
        self.limit = 0
        self.buffer: Buffer = b""  # type: ignore[assignment]
        self.write_base = (
            -1
        )  # number of the first entry of the file that `buffer` maps; -1 while none is open
        self.recently_used = False
        self._reserve_bytes = reserve_bytes
        self._pool = pool
        self._files = files

    def path(self, base: int) -> str:
        return f"{self.directory}/{mapped_file_name(base * QUEUE_ENTRY_BYTES)}"

    def path_of(self, offset: int) -> str:
        """Return the path of the file that holds the entry with number ``offset``."""
        return self.path(offset - offset % self.file_entries)

    def detach_file(self, mapped: MappedFile) -> None:
        """Forget the written file because the pool closes it; the next append opens it again."""
        if self.buffer is mapped.buffer:
            self.buffer = b""  # type: ignore[assignment]
            self.limit = 0
            self.write_base = -1

    def make_room(self) -> None:
        """Open the file for the next entry and get disk space for it and for later ones. Raises StoreFull."""
        base = self.next_offset - self.next_offset % self.file_entries
        mapped = self._pool.mapped_file(self, base)
        position = (self.next_offset - base) * QUEUE_ENTRY_BYTES
        end = self._get_space(mapped, position, 0)
        if not self.bases or self.bases[-1] < base:
            self.bases.append(base)
        self.buffer, self.write_base, self.recently_used = mapped.buffer, base, True
        self.position, self.limit = position, end

    def make_room_for(self, size: int) -> None:
        """Get disk space for ``size`` bytes of entries, which may reach into the next file. Raises StoreFull."""
        if self.position >= self.limit:
            self.make_room()
        over, base = self.position + size - self.file_bytes, self.write_base
        while over > 0:
            base += self.file_entries
            following = self._files.open_mapped(self.path(base), self.file_bytes)
            try:
                following.reserve(0, self._reserved_end(0, min(over, self.file_bytes)))
            finally:
                following.close()
            over -= self.file_bytes
        if self.position + size > self.limit:
            mapped = self._pool.mapped_file(self, self.write_base)
            self.limit = self._get_space(mapped, self.position, size)

    def _reserved_end(self, position: int, size: int) -> int:
        """Return the end of the disk space to get for ``size`` bytes of entries at ``position`` and for later ones.

        The space for later ones grows with the queue: at 64 KiB each, 40,000 queues of a few messages took 2.6 GB. It
        holds whole entries, so that no entry begins within it and ends outside.
        """
        ahead = min(self._reserve_bytes, max(MIN_RESERVE_BYTES, position))
        entries = max(1, ahead // QUEUE_ENTRY_BYTES)
        return min(self.file_bytes, position + size + entries * QUEUE_ENTRY_BYTES)

    def _get_space(self, mapped: MappedFile, position: int, size: int) -> int:
        """Get disk space for ``size`` bytes of entries at ``position`` and for later ones; return its end.

        On a full disk only for these and one more: a store that was killed on it builds entries whose space is there,
        while that for later ones may not be. Raises StoreFull.
        """
        end = self._reserved_end(position, size)
        try:
            mapped.reserve(position, end)
        except StoreFull:
            end = min(self.file_bytes, position + size + QUEUE_ENTRY_BYTES)
            mapped.reserve(position, end)
        return end

    def restart_at(self, offset: int) -> None:
        """Drop all entries and make ``offset`` the first one.

        Source: ConsumeQueue.fillPreBlank, 5.4.0: earlier entries of the file are filled, since the official broker
        takes a zero entry for the end.
        """
        self.delete_files()
        self.next_offset = self.min_offset = self.flushed_offset = offset
        self.make_room()
        if self.position:
            self._pool.mapped_file(self, self.write_base).reserve(0, self.position)
            self.buffer[: self.position] = QUEUE_BLANK * (self.position // QUEUE_ENTRY_BYTES)
            self.flushed_offset = self.write_base

    def delete_files(self) -> None:
        """Delete all files."""
        while self.bases:
            base = self.bases.pop()
            self._pool.close_file(self, base)
            self._files.delete(self.path(base))
        self.position = self.limit = 0

    def truncate_at(self, count: int) -> list[str]:
        """Drop all entries from number ``count`` on; the next entry gets that number. Return the deleted files.

        In the file that keeps some entries, the caller must have erased the others (`erase_from`).
        """
        deleted = []
        keep = count - count % self.file_entries
        while self.bases and self.bases[-1] > keep:
            base = self.bases.pop()
            self._pool.close_file(self, base)
            self._files.delete(self.path(base))
            deleted.append(self.path(base))
        self.next_offset = count
        self.min_offset = min(self.min_offset, count)
        self.flushed_offset = min(self.flushed_offset, count)
        self.position = self.limit = 0
        return deleted

    def erase_from(self, count: int, *, all_of_file: bool) -> None:
        """Turn entry number ``count`` and the following ones into zeros, up to the first that is empty.

        With ``all_of_file`` up to the end of the file, since a power cut may leave entries after empty ones.
        """
        base = count - count % self.file_entries
        if base not in self.bases:
            return
        mapped = self._pool.mapped_file(self, base)
        position = (count - base) * QUEUE_ENTRY_BYTES
        if all_of_file:
            mapped.zero_from(position)
        end = mapped.readable_until(position) - QUEUE_ENTRY_BYTES
        while position <= end and QUEUE_ENTRY.unpack_from(mapped.buffer, position)[:2] != (0, 0):
            mapped.buffer[position : position + QUEUE_ENTRY_BYTES] = _EMPTY_ENTRY
            position += QUEUE_ENTRY_BYTES

    def first_entry_from(self, physical_offset: int) -> int:
        """Return the first entry whose message starts at or after ``physical_offset``; next_offset if none does."""
        low, high = self.bases[0] if self.bases else self.next_offset, self.next_offset
        while low < high:
            middle = (low + high) // 2
            entry_offset, size, _ = self.read_entry(middle)
            if entry_offset < physical_offset or (size == QUEUE_BLANK_SIZE and entry_offset == 0):
                low = middle + 1
            else:
                high = middle
        return low

    def has_lost_file(self, log_end: int, before: int) -> bool:
        """Return True if a file before the last one begins or ends with an entry that no message can have.

        Only files of entries below number ``before`` are looked at.
        """
        for base in self.bases[:-1]:
            if base + self.file_entries > before:
                break
            for number in (base, base + self.file_entries - 1):
                physical_offset, size, _ = self.read_entry(number)
                if size <= 0 or not 0 <= physical_offset <= log_end:
                    return True
        return False

    def make_holes(self, start: int, end: int, trusted_until: int) -> range:
        """Turn the entries of messages in [start, end) of the log into holes, which reads skip; return their numbers.

        Only recovery may call this, before it has found next_offset. Entries of messages below ``trusted_until`` are in
        the file, whatever follows them.
        """
        self.next_offset = self.count_before(trusted_until)
        number = first = self.first_entry_from(start)
        while number < self.next_offset and self.read_entry(number)[0] < end:
            base = number - number % self.file_entries
            size_at = (number - base) * QUEUE_ENTRY_BYTES + 8
            mapped = self._pool.mapped_file(self, base)
            mapped.buffer[size_at : size_at + 12] = _HOLE[8:]
            number += 1
        self.next_offset = self.bases[-1] + self.file_entries
        return range(first, number)

    def count_before(self, physical_offset: int) -> int:
        """Return the number of the first entry that is empty or points to ``physical_offset`` or higher."""
        low, high = self.bases[0], self.bases[-1] + self.file_entries
        while low < high:
            middle = (low + high) // 2
            entry_offset, size, _ = self.read_entry(middle)
            if size > 0 and entry_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def first_physical_offset(self) -> int | None:
        """Return the physical offset in the queue's first entry, which may be a hole; None if it has no entry."""
        first = self.bases[0] if self.bases else self.next_offset
        if first < self.next_offset:
            physical_offset, size, _ = self.read_entry(first)
            if size > 0 and size != QUEUE_BLANK_SIZE:
                return physical_offset
            # The queue began in the middle of a file: a search, because there may be 300,000 entries before that.
            first = self.first_entry_from(1)
        return self.read_entry(first)[0] if first < self.next_offset else None

    def append_holes(self, count: int, physical_offset: int) -> None:
        """Append entries for messages that were lost at ``physical_offset``."""
        for _ in range(count):
            self.append_entry(physical_offset, QUEUE_HOLE_SIZE, 0)

    def delete_before(self, physical_offset: int) -> None:
        """Delete files whose messages all lie before ``physical_offset``, and move min_offset to the first one that
        does not.

        The last file stays, so that offsets continue. Source: ConsumeQueue.deleteExpiredFile, correctMinOffset,
        5.4.0.
        """
        while len(self.bases) > 1 and self.read_entry(self.bases[1] - 1)[0] < physical_offset:
            base = self.bases.pop(0)
            self._pool.close_file(self, base)
            self._files.delete(self.path(base))
        self.min_offset = self.first_entry_from(physical_offset)
        self.expired_before = physical_offset

    def append_entry(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Append the entry of the message at ``physical_offset``."""
        if self.position >= self.limit:
            self.make_room()
        QUEUE_ENTRY.pack_into(self.buffer, self.position, physical_offset, size, tags_code)
        self.position += QUEUE_ENTRY_BYTES
        self.next_offset += 1

    def append_entries(self, entries: bytes) -> None:
        """Append encoded entries, across the end of a file if need be."""
        start = 0
        while start < len(entries):
            if self.position >= self.limit:
                self.make_room()
            count = min(len(entries) - start, self.limit - self.position)
            self.buffer[self.position : self.position + count] = entries[start : start + count]
            self.position += count
            self.next_offset += count // QUEUE_ENTRY_BYTES
            start += count

    def read_entries(self, offset: int, count: int) -> bytes:
        """Return encoded entries [offset, offset + count), at most to the end of their file."""
        base = offset - offset % self.file_entries
        start = (offset - base) * QUEUE_ENTRY_BYTES
        end = min(self.file_bytes, start + count * QUEUE_ENTRY_BYTES)
        if base == self.write_base:
            return bytes(self.buffer[start:end])
        return read_written(self._pool.mapped_file(self, base), start, end)

    def read_entry(self, offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of one message."""
        return QUEUE_ENTRY.unpack(self.read_entries(offset, 1))

    def corruption_error(self, offset: int, reason: str) -> CorruptionError:
        """Build the error that names the file of entry ``offset`` and the byte in it."""
        base = offset - offset % self.file_entries
        return CorruptionError(self.path(base), (offset - base) * QUEUE_ENTRY_BYTES, reason)

    def unflushed_paths(self) -> list[str]:
        """Return the paths of the files with entries that are not flushed yet."""
        first = max(self.flushed_offset, self.min_offset)
        first -= first % self.file_entries
        return [self.path(base) for base in range(first, self.next_offset, self.file_entries)]
