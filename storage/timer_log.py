"""The timer log: one record of 52 bytes per waiting message, chained within its slot.

`timer_wheel.py` points to the newest record of each chain.
"""

import logging
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from storage.files import Files, MappedFile, read_written
from storage.layout import mapped_file_name, mapped_file_offsets

log = logging.getLogger(__name__)

RECORD: Final = Struct(">iqiqiqiiq")
MAGIC_DEFAULT, MAGIC_ROLL, MAGIC_DELETE, MAGIC_PART = 1, 2, 4, 8
"""Bits of a record's magic.

DEFAULT: every record. ROLL: the message is due beyond the wheel's span and must be chained again. DELETE: the record
cancels a message. PART (private to this server): the record belongs to a rewritten chain whose last record follows.
"""
BLANK_MAGIC: Final = (0xBBCCDDEE ^ (1880681586 + 8)) - (1 << 32)
"""Ends a file that has no room for another record. Source: TimerLog.BLANK_MAGIC_CODE, 5.4.0."""
_BLANK: Final = Struct(">iqi")
_SIZE_AND_MAGIC: Final = Struct(">i8xi")
_SIZE_BYTES: Final = 4
_RESERVE_BYTES: Final = 1 << 18


class TimerRecord(NamedTuple):
    """One record; ``position`` says where it begins in the log.

    ``due_ms`` is 0 in records of the official broker, where the field is reserved.
    """

    position: int
    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int
    due_ms: int

    @property
    def slot_time_ms(self) -> int:
        """A time within the record's slot."""
        return self.write_ms + self.delay_ms


class TimerLog:
    """Files of equal size, each named after the position of its first byte. Source: TimerLog, 5.4.0.

    ``end`` is the position of the next record. Call `recover` once after construction; it finds the end.
    ``file_bytes`` is the size that the files have, whatever the settings say.
    """

    def __init__(self, files: Files, directory: str, file_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self.file_bytes = file_bytes
        self._mapped: dict[int, MappedFile] = {}
        self._bases = mapped_file_offsets(files.list(directory))
        if self._bases and (size := files.size(self._path(self._bases[0]))) and size != file_bytes:
            extra = {"configured": file_bytes, "kept": size}
            log.warning(
                "mappedFileSizeTimerLog differs from the files of this store, whose size is kept", extra=extra
            )
            self.file_bytes = size
        self._reserved = 0
        self._flushed = 0
        self.end = 0

    @property
    def first(self) -> int:
        """The position of the first byte still stored."""
        return self._bases[0] if self._bases else self.end

    def _path(self, base: int) -> str:
        return f"{self._directory}/{mapped_file_name(base)}"

    def _file(self, base: int) -> MappedFile:
        mapped = self._mapped.get(base)
        if mapped is None:
            mapped = self._mapped[base] = self._files.open_mapped(self._path(base), self.file_bytes)
        return mapped

    def make_room(self) -> int:
        """Get disk space for one more record, in a new file when this one is at its end; return its position.

        Raises StoreFull; then nothing has changed.
        """
        base = self.end // self.file_bytes * self.file_bytes
        if self.end + RECORD.size + _BLANK.size > base + self.file_bytes:
            base = self._roll(base)
        if self.end + RECORD.size + _BLANK.size > self._reserved:
            self._reserve(base, self.end - base + RECORD.size + _BLANK.size)
        return self.end

    def append(self, record: TimerRecord) -> None:
        """Write a record at the position that `make_room` returned.

        Its size is written last: a process killed in between leaves a size of zero, which ends the log.
        """
        base = record.position // self.file_bytes * self.file_bytes
        buffer, at, packed = (
            self._mapped[base].buffer,
            record.position - base,
            RECORD.pack(RECORD.size, *record[1:]),
        )
        buffer[at + _SIZE_BYTES : at + RECORD.size] = packed[_SIZE_BYTES:]
        buffer[at : at + _SIZE_BYTES] = packed[:_SIZE_BYTES]
        self.end = record.position + RECORD.size

    def set_magic(self, position: int, magic: int) -> None:
        """Replace the magic of a record, of which one byte changes. The next `flush` makes that durable."""
        base = position // self.file_bytes * self.file_bytes
        buffer = self._file(base).buffer
        RECORD.pack_into(
            buffer, position - base, RECORD.size, *self._unpack(position)._replace(magic=magic)[1:]
        )
        self._flushed = min(self._flushed, position)

    def _roll(self, base: int) -> int:
        """End the written file and return where the next begins."""
        following = base + self.file_bytes
        # First, because it may fail. Right after opening, no space for the blank record is reserved yet.
        self._file(base).reserve(self.end - base, self.end - base + _BLANK.size)
        self._reserve(following, RECORD.size)
        _BLANK.pack_into(self._file(base).buffer, self.end - base, following - self.end, 0, BLANK_MAGIC)
        self.end = following
        return following

    def _reserve(self, base: int, until: int) -> None:
        file = self._file(base)
        start = max(0, self._reserved - base)
        end = min(self.file_bytes, until + _RESERVE_BYTES)
        file.reserve(start, end)
        self._reserved = base + end
        if base not in self._bases:
            self._bases.append(base)

    def record_at(self, position: int) -> TimerRecord | None:
        """Return the record at a position; None where the log holds none."""
        if not self.first <= position <= self.end - RECORD.size:
            return None
        base = position // self.file_bytes * self.file_bytes
        if position - base + RECORD.size > self.file_bytes:
            return None  # a blank record ends the file, and may be shorter than others
        size, *fields = RECORD.unpack_from(self._file(base).buffer, position - base)
        record = TimerRecord(position, *fields)
        return record if size == RECORD.size and record.magic != BLANK_MAGIC else None

    def chain_from(self, position: int) -> Iterator[TimerRecord]:
        """Yield records of a slot, newest first, as far as the log still holds them."""
        while (record := self.record_at(position)) is not None:
            yield record
            if record.previous >= position:
                return
            position = record.previous

    # -- opening -------------------------------------------------------------------------------------------

    def recover(self, start: int, durable_until: int, is_whole: Callable[[TimerRecord], bool]) -> None:
        """Find the last valid record from ``start`` on, set ``end`` to its end, and zero everything after it.

        Records from ``durable_until`` on may be torn, or name messages that the commit log lost with them in a power
        cut; ``is_whole`` tells. Source: TimerMessageStore.recoverAndRevise, 5.4.0.
        """
        self._flushed = self._record_boundary(start)
        for end in self._record_ends(self._flushed):
            if end - RECORD.size >= durable_until and not self._is_whole_before(end, is_whole):
                break
            self.end = end
        for base in [base for base in self._bases if base > self.end]:
            self._bases.remove(base)
            self._files.delete(self._path(base))
        base = self.end // self.file_bytes * self.file_bytes
        if base in self._bases:
            file = self._file(base)
            # Records after lost ones would be taken for new ones as soon as the log reaches up to them. The zeros are
            # flushed, because a power cut could bring these records back.
            file.zero_from(self.end - base)
            self._files.flush(self._path(base))
        self._reserved = self.end

    def _is_whole_before(self, end: int, is_whole: Callable[[TimerRecord], bool]) -> bool:
        """Return False if the record that ends here is not whole; a blank at the end of a file is."""
        position = end - RECORD.size
        return end % self.file_bytes == 0 or is_whole(self._unpack(position))

    def _unpack(self, position: int) -> TimerRecord:
        base = position // self.file_bytes * self.file_bytes
        return TimerRecord(position, *RECORD.unpack_from(self._file(base).buffer, position - base)[1:])

    def _record_boundary(self, start: int) -> int:
        """Return the end of a record at or before a position, in a file that exists."""
        bases = [base for base in self._bases if base <= start]
        if not bases:
            return self.first
        inside = min(start - bases[-1], self.file_bytes) // RECORD.size * RECORD.size
        if inside and self._size_and_magic(bases[-1], inside - RECORD.size)[0] != RECORD.size:
            return bases[-1]  # No record ends here: scan the whole file.
        return bases[-1] + inside

    def _size_and_magic(self, base: int, at: int) -> tuple[int, int]:
        """Return the first and the third field of what may be a record or a blank; zeros if nothing was written."""
        size, magic = _SIZE_AND_MAGIC.unpack(read_written(self._file(base), at, at + _SIZE_AND_MAGIC.size))
        return size, magic

    def _record_ends(self, position: int) -> Iterator[int]:
        """Yield the ends of valid records from a position on, that position first."""
        yield position
        while (base := position // self.file_bytes * self.file_bytes) in self._bases:
            at = position - base
            if at + _BLANK.size > self.file_bytes:
                position = base + self.file_bytes
                continue
            size, magic = self._size_and_magic(base, at)
            if magic == BLANK_MAGIC:
                position = base + self.file_bytes
            elif size == RECORD.size and 0 <= magic <= 15 and at + RECORD.size <= self.file_bytes:
                position += RECORD.size
            else:
                return
            yield position

    def records_from(self, start: int) -> Iterator[TimerRecord]:
        """Yield every record from a position on, oldest first. Valid after `recover`."""
        position = self._record_boundary(start)
        while position < self.end:
            record = self.record_at(position)
            if record is None:
                position = (position // self.file_bytes + 1) * self.file_bytes
            else:
                yield record
                position += RECORD.size

    # -- flushing and deleting -----------------------------------------------------------------------------

    def flush(self) -> int:
        """Block until all records written before the call are on the disk; return where they end.

        Thread safe beside one appending thread.
        """
        target = self.end
        if target > self._flushed:
            for base in list(self._bases):
                if base < target and base + self.file_bytes > self._flushed:
                    self._files.flush(self._path(base))
            self._flushed = target
        return target

    def delete_expired_files(self, min_physical_offset: int) -> int:
        """Delete files whose messages are all deleted from the commit log; return the number of files.

        Source: MappedFileQueue.deleteExpiredFileByOffsetForTimerLog, 5.4.0.
        """
        deleted = 0
        inside = (self.file_bytes - _BLANK.size) // RECORD.size * RECORD.size - RECORD.size
        while len(self._bases) > 1:
            last = self.record_at(self._bases[0] + inside)
            if last is None or last.physical_offset >= min_physical_offset:
                break
            base = self._bases.pop(0)
            self._files.delete(self._path(base))
            mapped = self._mapped.pop(base, None)
            if mapped is not None:
                mapped.close()
            deleted += 1
        return deleted

    def close(self) -> None:
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()
