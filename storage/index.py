"""Index files: hash tables from a message's keys to physical offsets.

Theory of operation
-------------------
Appending a message does not index it, because indexing costs more than storing and only queries need it.
`MessageIndex` remembers up to where the log is indexed (``next_offset``) and catches up when the broker is idle,
before a query and at an orderly close. Most messages have the layout that stock clients produce; these are parsed by
`index_keys.parse_common_message`, which takes a fraction of the time of `log_scan`. Any other message, and the end of
a log file, take the general path.

A file's header is written after each call of `MessageIndex.index_messages`. A crash before that leaves entries that
the header does not count; the next call overwrites them. After a power cut, files that end later than the
checkpoint's time, or refer to offsets beyond the end of the log, are deleted and built again from the log.
"""

import struct
import time
from collections.abc import Iterator

from codec.hashing import index_hash
from codec.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from storage.clock import Clock
from storage.commit_log import CommitLog
from storage.errors import StoreFull
from storage.files import Files, MappedFile
from storage.index_keys import key_hashes, parse_common_message
from storage.log_scan import ScanEnd, scan_log

_HEADER = struct.Struct(
    ">qqqqii"
)  # begin and end time, begin and end physical offset, slots used, next entry
_ENTRY = struct.Struct(
    ">iqii"
)  # hash, physical offset, seconds since the begin time, previous entry of the slot
_SLOT = struct.Struct(">i")
HEADER_BYTES, SLOT_BYTES, ENTRY_BYTES = 40, 4, 20
_RESERVE_ENTRIES = 65_536
MAX_EXAMINED_ENTRIES = 1_000_000
"""Entries of a hash chain that one search looks at: about half a second. All messages may have the same key."""
EXAMINED_PER_SLICE = 2000
_MAX_SECONDS = 0x7FFFFFFF


class IndexFile:
    """A hash table on disk: slots that hold the newest entry of their chain, followed by the entries.

    Entry 0 is never used, so a slot of 0 is empty. ``next_entry`` is the number of the next entry to write.
    Source: IndexFile, 5.4.0.
    """

    __slots__ = (
        "_mapped",
        "_reserved",
        "_slots",
        "begin_offset",
        "begin_time",
        "end_offset",
        "end_time",
        "is_closed",
        "max_entries",
        "next_entry",
        "path",
        "slots_used",
    )

    def __init__(self, mapped: MappedFile, slots: int, entries_max: int) -> None:
        self._mapped = mapped
        self._slots = slots
        self.max_entries = entries_max
        self.path = mapped.path
        fields = _HEADER.unpack_from(mapped.buffer)
        self.begin_time, self.end_time, self.begin_offset, self.end_offset, self.slots_used = fields[:5]
        self.next_entry: int = max(1, fields[5])
        self.is_closed = False
        self._reserved = 0

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self.max_entries

    def _entry_at(self, number: int) -> int:
        return HEADER_BYTES + self._slots * SLOT_BYTES + number * ENTRY_BYTES

    def add_key(self, hashed: int, physical_offset: int, timestamp_ms: int) -> None:
        """Add one key's hash; the file must not be full. Raises StoreFull. Source: IndexFile.putKey, 5.4.0."""
        if self.next_entry >= self._reserved:
            self._reserve()
        buffer = self._mapped.buffer
        slot_at = HEADER_BYTES + hashed % self._slots * SLOT_BYTES
        (previous,) = _SLOT.unpack_from(buffer, slot_at)
        if not 0 < previous <= self.next_entry:
            previous = 0
            self.slots_used += 1
        seconds = (timestamp_ms - self.begin_time) // 1000 if self.begin_time > 0 else 0
        seconds = min(max(seconds, 0), _MAX_SECONDS)
        _ENTRY.pack_into(buffer, self._entry_at(self.next_entry), hashed, physical_offset, seconds, previous)
        _SLOT.pack_into(buffer, slot_at, self.next_entry)
        # An offset-preserving append may store an older time after a newer one; the file's end time must never fall.
        self.end_time = max(self.end_time, timestamp_ms)
        if self.next_entry <= 1:
            self.begin_offset, self.begin_time = physical_offset, self.end_time
        self.next_entry += 1
        self.end_offset = physical_offset

    def try_add_keys(self, hashes: list[int], physical_offset: int, timestamp_ms: int) -> bool:
        """Add a message's keys at once; return False, having added none, when `add_key` must check each of them."""
        count, end = self.next_entry, self.next_entry + len(hashes)
        if count <= 1 or self.begin_time <= 0 or end > min(self._reserved, self.max_entries):
            return False
        buffer, slots, entry_at = self._mapped.buffer, self._slots, self._entry_at(count)
        seconds = min(max((timestamp_ms - self.begin_time) // 1000, 0), _MAX_SECONDS)
        for hashed in hashes:
            slot_at = HEADER_BYTES + hashed % slots * SLOT_BYTES
            (previous,) = _SLOT.unpack_from(buffer, slot_at)
            if not 0 < previous <= count:
                previous = 0
                self.slots_used += 1
            _ENTRY.pack_into(buffer, entry_at, hashed, physical_offset, seconds, previous)
            _SLOT.pack_into(buffer, slot_at, count)
            count += 1
            entry_at += ENTRY_BYTES
        self.next_entry = count
        self.end_offset, self.end_time = physical_offset, max(self.end_time, timestamp_ms)
        return True

    def _reserve(self) -> None:
        if self._reserved == 0:
            self._mapped.reserve(0, self._entry_at(0))
        end = min(self.max_entries + 1, self.next_entry + _RESERVE_ENTRIES)
        start_at = self._entry_at(self.next_entry)
        self._mapped.reserve(start_at, min(self._mapped.size_bytes, self._entry_at(end)))
        self._reserved = end

    def write_header(self) -> None:
        """Make the added keys visible to later readers of the file."""
        _HEADER.pack_into(
            self._mapped.buffer,
            0,
            self.begin_time,
            self.end_time,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.next_entry,
        )

    def continue_from(self, other: "IndexFile") -> None:
        """Set the header of a new file behind a full one. Source: IndexFile constructor, 5.4.0."""
        self.begin_offset = self.end_offset = other.end_offset
        self.begin_time = self.end_time = other.end_time

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return True if the file's times overlap [begin_ms, end_ms]. Source: IndexFile.isTimeMatched, 5.4.0."""
        return bool(begin_ms <= self.end_time and end_ms >= self.begin_time)

    def find_offsets(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield physical offsets under a hash, newest first, and None after each EXAMINED_PER_SLICE entries.

        The file may be closed meanwhile. Source: IndexFile.selectPhyOffset, 5.4.0.
        """
        examined = 0
        buffer = self._mapped.buffer
        (number,) = _SLOT.unpack_from(buffer, HEADER_BYTES + hashed % self._slots * SLOT_BYTES)
        while 0 < number < self.next_entry:
            found, physical_offset, seconds, previous = _ENTRY.unpack_from(buffer, self._entry_at(number))
            time_ms = self.begin_time + seconds * 1000
            # Entries hold whole seconds: the message may be up to a second younger than its entry says.
            if found == hashed and begin_ms - 1000 < time_ms <= end_ms:
                yield physical_offset
            if previous >= number or seconds < 0:
                return  # an entry can only point back
            number = previous
            examined += 1
            if examined % EXAMINED_PER_SLICE == 0:
                yield None
            if self.is_closed:
                return

    def close(self) -> None:
        self.is_closed = True
        self._mapped.close()


class MessageIndex:
    """All index files of a store, oldest first."""

    __slots__ = (
        "_clock",
        "_directory",
        "_entries",
        "_files",
        "_log",
        "_max_keys",
        "_slots",
        "files",
        "next_offset",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        log: CommitLog,
        slots: int,
        entries: int,
        clock: Clock,
        max_keys: int,
    ) -> None:
        self._files = files
        self._directory = directory
        self._log = log
        self._slots = slots
        self._entries = entries
        self._clock = clock
        self._max_keys = max_keys
        self.files: list[IndexFile] = []
        self.next_offset = 0  # physical offset of the first message that is not indexed yet

    def load(self, trusted_until_ms: int | None, trusted_end: int = 0) -> None:
        """Open the existing files, and delete those that a crash may have damaged; they are then built again.

        After an orderly end ``trusted_until_ms`` is None. After a crash, files that end later than that time are
        deleted, and so are files that refer to messages from physical offset ``trusted_end`` on (0: unknown).

        Source: IndexService.load, 5.4.0.
        """
        for name in self._files.list(self._directory):
            if not name.isdecimal():
                continue
            path = f"{self._directory}/{name}"
            mapped = self._files.open_mapped(path, self._file_bytes())
            mapped.read_single_pages()
            opened = IndexFile(mapped, self._slots, self._entries)
            beyond = opened.end_offset >= self._log.max_offset and opened.next_entry > 1
            late = opened.end_time > (trusted_until_ms or 0) or 0 < trusted_end <= opened.end_offset
            if beyond or (trusted_until_ms is not None and late):
                opened.close()
                self._files.delete(path)
            else:
                self.files.append(opened)
        self.next_offset = self._log.first_base
        used = [file for file in self.files if file.next_entry > 1]
        if used and used[-1].end_offset >= self._log.first_base:
            message = self._log.message_at(used[-1].end_offset)
            self.next_offset = used[-1].end_offset + (len(message) if message is not None else 0)

    def _file_bytes(self) -> int:
        return HEADER_BYTES + self._slots * SLOT_BYTES + self._entries * ENTRY_BYTES

    @property
    def unindexed_bytes(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return self._log.max_offset - self.next_offset

    def index_messages(self, limit_messages: int) -> int:
        """Index at most ``limit_messages`` from where the last call stopped; return the number of messages read.

        A message with long properties or many keys counts as several: `_extra_cost`.
        """
        self.next_offset = max(self.next_offset, self._log.first_base)
        indexed = 0
        touched: set[IndexFile] = set()
        try:
            while indexed < limit_messages and self.next_offset < self._log.max_offset:
                indexed += self._index_common_messages(limit_messages - indexed, touched)
                if indexed < limit_messages:
                    step = self._index_any_message(touched)
                    if not step:
                        break
                    indexed += step
        finally:
            for file in touched:
                file.write_header()
        return indexed

    def _index_common_messages(self, limit: int, touched: set[IndexFile]) -> int:
        """Index consecutive messages of the common layout in one log file; return how many there were."""
        log, offset = self._log, self.next_offset
        base = offset - (offset - log.first_base) % log.file_bytes
        end = min(log.file_bytes, log.max_offset - base)
        view = log.mapped_file(base).view
        position, indexed = offset - base, 0
        while indexed < limit:
            found = parse_common_message(view, position, offset, end - position)
            if found is None:
                return indexed
            size, sys_flag, stored, topic, properties = found
            if sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                hashes = key_hashes(topic, properties, self._max_keys)
                self._add_keys(hashes, offset, stored, touched)
                indexed += _extra_cost(properties, hashes)
            position += size
            offset += size
            self.next_offset = offset
            indexed += 1
        return indexed

    def _index_any_message(self, touched: set[IndexFile]) -> int:
        """Index the next message, whatever its layout, across a file's end if need be; return 0 at the end of the
        log.
        """
        for item in scan_log(self._log, self.next_offset, self._log.max_offset, check_crc=False):
            if isinstance(item, ScanEnd):
                if item.reason:
                    raise self._log.corruption_error(item.physical_offset, item.reason)
                return 0
            cost = 1
            if item.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                hashes = key_hashes(item.topic, item.properties, self._max_keys)
                self._add_keys(hashes, item.physical_offset, item.store_timestamp, touched)
                cost += _extra_cost(item.properties, hashes)
            self.next_offset = item.physical_offset + item.size
            return cost
        return 0

    def _add_keys(
        self, hashes: list[int], physical_offset: int, store_timestamp: int, touched: set[IndexFile]
    ) -> None:
        files = self.files
        if (
            files
            and files[-1] in touched
            and files[-1].try_add_keys(hashes, physical_offset, store_timestamp)
        ):
            return
        for hashed in hashes:
            if not files or files[-1].is_full:
                self._add_file()
            touched.add(files[-1])
            files[-1].add_key(hashed, physical_offset, store_timestamp)

    def _add_file(self) -> None:
        now_ms = self._clock.now_ms()
        taken = {file.path for file in self.files}
        while (path := f"{self._directory}/{_time_name(now_ms)}") in taken:
            now_ms += 1  # two full files within a millisecond
        mapped = self._files.open_mapped(path, self._file_bytes())
        mapped.read_single_pages()
        try:
            # Reserve before the first read: on a full memory disk even reading a hole kills the process.
            mapped.reserve(0, HEADER_BYTES + self._slots * SLOT_BYTES)
        except StoreFull:
            mapped.close()
            self._files.delete(path)
            raise
        opened = IndexFile(mapped, self._slots, self._entries)
        if self.files:
            opened.continue_from(self.files[-1])
        self.files.append(opened)

    def find_offsets(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, key_type: str = ""
    ) -> list[int]:
        """Return physical offsets of messages that may carry the key, newest first; hashes can collide."""
        found = self.find_offsets_in_slices(topic, key, limit, begin_ms, end_ms, key_type)
        return [offset for offset in found if offset is not None]

    def find_offsets_in_slices(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, key_type: str = ""
    ) -> Iterator[int | None]:
        """Yield what `find_offsets` returns, and None where other tasks may run; the index may change meanwhile.

        With ``key_type`` "T" the key is a tag. Source: IndexService.queryOffset, 5.4.0. Deviation: after
        MAX_EXAMINED_ENTRIES entries the search ends.
        """
        hashed = index_hash(f"{topic}#{key_type}#{key}" if key_type else f"{topic}#{key}")
        found = slices = 0
        if limit <= 0:
            return
        for file in reversed(list(self.files)):
            if file.is_closed:
                return
            if file.next_entry > 1 and file.overlaps(begin_ms, end_ms):
                for physical_offset in file.find_offsets(hashed, begin_ms, end_ms):
                    if physical_offset is None:
                        slices += 1
                        if slices * EXAMINED_PER_SLICE >= MAX_EXAMINED_ENTRIES:
                            return
                        yield None
                    elif physical_offset >= self._log.first_base:
                        found += 1
                        yield physical_offset
                        if found == limit:
                            return
            if file.next_entry > 1 and file.begin_time < begin_ms:
                return

    def delete_before(self, physical_offset: int) -> int:
        """Delete files whose messages are all gone; the last one stays. Return the number deleted.

        Source: IndexService.deleteExpiredFile.
        """
        dropped = 0
        while len(self.files) > 1 and self.files[0].end_offset < physical_offset:
            file = self.files.pop(0)
            file.close()
            self._files.delete(file.path)
            dropped += 1
        return dropped

    def flush(self) -> int:
        """Block until the newest files are on the disk; return the time of the last message in them, in ms."""
        files = self.files[-2:]
        until = files[-1].end_time if files else 0
        for file in files:
            self._files.flush(file.path)
        return until

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()


def _extra_cost(properties: bytes, hashes: list[int]) -> int:
    """Return what indexing a message costs beyond a usual one, in usual messages: 512 bytes or 8 keys count as one."""
    return (len(properties) >> 9) + (len(hashes) >> 3)


def _time_name(now_ms: int) -> str:
    """Format local time to the millisecond as 17 digits. Source: UtilAll.timeMillisToHumanString, 5.4.0."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / 1000)) + f"{now_ms % 1000:03d}"
