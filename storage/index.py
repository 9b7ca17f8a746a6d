"""Index files: hash tables from a message's keys to physical offsets.

Theory of operation
-------------------
Appending a message does not index it, because indexing costs more than storing and only queries need it.
`MessageIndex` remembers up to where the log is indexed (``next_offset``) and follows in small steps
(`gateway.broker.messages.index_builder`), at once when the broker is idle and at a clean close. Messages that are not
indexed yet are searched by their bytes (`storage.unindexed_search`). Most messages have the layout that stock clients
produce; these are parsed by `index_keys.parse_common_message`, which takes a fraction of the time of `log_scan`. Any
other message, and the end of a log file, take the general path.

A file's header is written at the end of each call of `MessageIndex.index_messages`. A process killed before that
leaves slots that lead to entries which the header does not count, and the older entries of these slots could no longer
be found. Such files are deleted and built again from the log (`MessageIndex.load`). After a power cut, so are files
that may have changed since the checkpoint.

An official broker that opens the store after a crash deletes index files that end after the checkpoint's index time,
and indexes only messages stored after the checkpoint's other times. So the index time is raised before a file's header
is written (``announce_end``), and `MessageStore.write_checkpoint` keeps the other times within ``indexed_until_ms``.
"""

import logging
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterator

from codec.constants import MAGIC_V1, MAGIC_V2
from codec.hashing import index_hash
from codec.message import MIN_MESSAGE_BYTES
from codec.native import native_module
from codec.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from storage.clock import Clock
from storage.commit_log import CommitLog, store_timestamp_of
from storage.errors import StoreFull
from storage.files import Files, MappedFile
from storage.index_keys import key_hashes, parse_common_message
from storage.layout import START
from storage.log_scan import ScanEnd, ScannedMessage, scan_log

log = logging.getLogger(__name__)

# Begin and end time, begin and end physical offset, slots used, next entry.
HEADER = struct.Struct(">qqqqii")
# Hash, physical offset, seconds since the begin time, previous entry of the slot.
ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
HEADER_BYTES, SLOT_BYTES, ENTRY_BYTES = HEADER.size, _SLOT.size, ENTRY.size
_RESERVE_ENTRIES = 65_536
MAX_EXAMINED_ENTRIES = 1_000_000
"""Maximum number of entries that one search looks at, which takes half a second: all messages may have one key."""
EXAMINED_PER_SLICE = 2000
_MAX_SECONDS = 0x7FFFFFFF


def list_index_files(files: Files, directory: str) -> list[str]:
    """Return the paths of all index files, oldest first; they are named after the time of their creation."""
    return [f"{directory}/{name}" for name in files.list(directory) if name.isdecimal()]


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
        fields = HEADER.unpack_from(mapped.buffer)
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
        ENTRY.pack_into(buffer, self._entry_at(self.next_entry), hashed, physical_offset, seconds, previous)
        _SLOT.pack_into(buffer, slot_at, self.next_entry)
        # An offset-preserving append may store an older time after a newer one; the file's end time must never fall.
        self.end_time = max(self.end_time, timestamp_ms)
        if self.next_entry <= 1:
            self.begin_offset, self.begin_time = physical_offset, self.end_time
        self.next_entry += 1
        self.end_offset = physical_offset

    @property
    def has_begun(self) -> bool:
        """True from the first key on, which sets the time that entries count from."""
        return self.next_entry > 1 and self.begin_time > 0

    def try_add_keys(self, hashes: list[int], physical_offset: int, timestamp_ms: int) -> bool:
        """Add a message's keys at once; return False, having added none, when `add_key` must check each of them."""
        count, end = self.next_entry, self.next_entry + len(hashes)
        if not self.has_begun or end > min(self._reserved, self.max_entries):
            return False
        buffer, slots, entry_at = self._mapped.buffer, self._slots, self._entry_at(count)
        seconds = min(max((timestamp_ms - self.begin_time) // 1000, 0), _MAX_SECONDS)
        for hashed in hashes:
            slot_at = HEADER_BYTES + hashed % slots * SLOT_BYTES
            (previous,) = _SLOT.unpack_from(buffer, slot_at)
            if not 0 < previous <= count:
                previous = 0
                self.slots_used += 1
            ENTRY.pack_into(buffer, entry_at, hashed, physical_offset, seconds, previous)
            _SLOT.pack_into(buffer, slot_at, count)
            count += 1
            entry_at += ENTRY_BYTES
        self.next_entry = count
        self.end_offset, self.end_time = physical_offset, max(self.end_time, timestamp_ms)
        return True

    def add_messages(
        self,
        index_messages: Callable[..., tuple[int, ...]],
        view: memoryview,
        position: int,
        end: int,
        physical_offset: int,
        limit: int,
        max_keys: int,
    ) -> tuple[int, int]:
        """Add the keys of consecutive messages by the C extension's function, as far as it and the file go.

        Call it only if the file `has_begun`. Return the number of messages, in which large ones count as several, and
        their bytes.
        """
        indexed, size, self.next_entry, self.end_time, self.slots_used, self.end_offset = index_messages(
            view,
            position,
            end,
            physical_offset,
            limit,
            max_keys,
            self._mapped.buffer,
            self._slots,
            self.next_entry,
            min(self._reserved, self.max_entries),
            self.begin_time,
            self.end_time,
            self.slots_used,
            self.end_offset,
        )
        return indexed, size

    def _reserve(self) -> None:
        if self._reserved == 0:
            self._mapped.reserve(0, self._entry_at(0))
        end = min(self.max_entries + 1, self.next_entry + _RESERVE_ENTRIES)
        start_at = self._entry_at(self.next_entry)
        self._mapped.reserve(start_at, min(self._mapped.size_bytes, self._entry_at(end)))
        self._reserved = end

    @property
    def is_unfinished(self) -> bool:
        """True if a slot leads to an entry that the header does not count. Takes 0.1 s for five million slots."""
        slots = array("i", self._mapped.view[HEADER_BYTES : self._entry_at(0)].tobytes())
        if sys.byteorder == "little":
            slots.byteswap()
        return max(slots) >= self.next_entry

    def count_keys_at(self, physical_offset: int) -> int:
        """Return the number of keys of one message among the newest entries."""
        number = self.next_entry
        while (
            number > 1
            and ENTRY.unpack_from(self._mapped.buffer, self._entry_at(number - 1))[1] == physical_offset
        ):
            number -= 1
        return self.next_entry - number

    def write_header(self) -> None:
        """Make the added keys visible to whoever opens the file later."""
        HEADER.pack_into(
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
        """Set the header of a new file that follows a full one. Source: IndexFile constructor, 5.4.0."""
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
            entry_hash, physical_offset, seconds, previous = ENTRY.unpack_from(buffer, self._entry_at(number))
            time_ms = self.begin_time + seconds * 1000
            # Entries hold whole seconds: the message may be up to a second younger than its entry says.
            if entry_hash == hashed and begin_ms - 1000 < time_ms <= end_ms:
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
        "_announce_end",
        "_clock",
        "_directory",
        "_end_time",
        "_entries",
        "_files",
        "_index_natively",
        "_log",
        "_max_keys",
        "_slots",
        "_unflushed",
        "files",
        "indexed_until_ms",
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
        announce_end: Callable[[int], None],
    ) -> None:
        """``announce_end`` is called with the new end time, in ms, before headers say that the index ends there."""
        self._files = files
        self._directory = directory
        self._log = log
        self._slots = slots
        self._entries = entries
        self._clock = clock
        self._max_keys = max_keys
        self._announce_end = announce_end
        native = native_module()
        self._index_natively: Callable[..., tuple[int, ...]] | None = (
            None if native is None else native.index_messages
        )
        self.files: list[IndexFile] = []
        # Physical offset of the first message that is not indexed yet, or not all of its keys.
        self.next_offset = 0
        # All messages stored up to this time, in ms, were indexed when the last step ended.
        self.indexed_until_ms = 0
        self._unflushed: set[IndexFile] = set()
        self._end_time = 0  # of the last message in the files, in ms, when their headers were written

    def load(self, *, crashed: bool, unchanged_before_ms: int | None) -> None:
        """Open the existing files, and delete those that a crash may have damaged; they are then built again.

        After a power cut, files whose last message is not older than ``unchanged_before_ms`` may have changed since the
        checkpoint; otherwise it is None.
        Raises StoreFull where even reading them takes room. Source: IndexService.load, 5.4.0.
        """
        self._delete_files_of_other_sizes()
        for path in list_index_files(self._files, self._directory):
            mapped = self._map_file(path)
            if mapped.readable_until(0) < (used := HEADER_BYTES + self._slots * SLOT_BYTES):
                mapped.reserve(0, used)
            self.files.append(IndexFile(mapped, self._slots, self._entries))
        while self.files and self._may_be_damaged(self.files[-1], crashed, unchanged_before_ms):
            file = self.files.pop()
            file.close()
            self._files.delete(file.path)
        if crashed:
            self._unflushed = set(self.files)
        self._end_time = self.files[-1].end_time if self.files else 0
        self.next_offset = self._log.first_base
        if self.files and self.files[-1].end_offset >= self._log.first_base:
            self.next_offset = self._end_of_message(self.files[-1].end_offset)
        self._announce_end(self._end_time)
        self._note_indexed_time()

    def begin_anew(self, physical_offset: int) -> list[str]:
        """Delete all files, and continue at the new beginning of an empty log; return the paths of the files."""
        paths = [file.path for file in self.files]
        self._unflushed.clear()
        self.close()
        for path in paths:
            self._files.delete(path)
        self.next_offset = physical_offset
        self._note_indexed_time()
        return paths

    def _note_indexed_time(self) -> None:
        """Set ``indexed_until_ms``, unless the next message cannot be read, as at the end of a log file."""
        # Not at the end of what is readable: messages that are not confirmed yet are older than now.
        if self.next_offset >= self._log.max_offset:
            self.indexed_until_ms = self._clock.now_ms() - 1
            return
        message = self._log.select(self.next_offset, MIN_MESSAGE_BYTES)
        if message is not None and START.unpack_from(message)[1] in (MAGIC_V1, MAGIC_V2):
            self.indexed_until_ms = store_timestamp_of(message) - 1

    def _may_be_damaged(self, file: IndexFile, crashed: bool, unchanged_before_ms: int | None) -> bool:
        if file.next_entry <= 1 or file.end_offset >= self._log.max_offset:
            return True
        if unchanged_before_ms is not None and file.end_time >= unchanged_before_ms:
            return True
        return crashed and file.is_unfinished

    def _end_of_message(self, physical_offset: int) -> int:
        """Return where indexing continues after a message of which the files have at least one key.

        That is the end of the message, or its start if not all of its keys are indexed: the file that held the others
        may have been deleted.
        """
        item = next(scan_log(self._log, physical_offset, self._log.max_offset, check_crc=False))
        if isinstance(item, ScanEnd) or self._missing_keys(item):
            return physical_offset
        return physical_offset + item.size

    def _missing_keys(self, message: ScannedMessage) -> list[int]:
        """Return the hashes of a message's keys that the newest entries do not hold."""
        indexed = 0
        for file in reversed(self.files):
            count = file.count_keys_at(message.physical_offset)
            indexed += count
            if count < file.next_entry - 1:
                break
        return key_hashes(message.topic, message.properties, self._max_keys)[indexed:]

    @property
    def _file_bytes(self) -> int:
        return HEADER_BYTES + self._slots * SLOT_BYTES + self._entries * ENTRY_BYTES

    def _delete_files_of_other_sizes(self) -> None:
        """Delete the index if maxHashSlotNum or maxIndexNum were changed, so that it is built again from the log.

        A file does not say how many slots it has, and searching it with another number finds nothing.
        """
        sizes = {path: self._files.size(path) for path in list_index_files(self._files, self._directory)}
        if all(size in (0, self._file_bytes) for size in sizes.values()):
            return
        extra = {"path": self._directory, "files": len(sizes), "file_bytes": self._file_bytes}
        log.warning(
            "index files have another size than maxHashSlotNum and maxIndexNum say, building the index again",
            extra=extra,
        )
        for path in sizes:
            self._files.delete(path)

    def _map_file(self, path: str) -> MappedFile:
        mapped = self._files.open_mapped(path, self._file_bytes)
        mapped.read_single_pages()
        return mapped

    @property
    def unindexed_bytes(self) -> int:
        """Bytes of the log that can be indexed and are not yet: only messages with queue entries can."""
        return max(0, self._log.readable_until - self.next_offset)

    def index_messages(self, limit_messages: int, cost_in_python: int = 1) -> int:
        """Index at most ``limit_messages`` from where the last call stopped; return the number of messages read.

        A message with long properties or many keys counts as several: `_extra_cost`. One that the C extension leaves to
        Python counts as ``cost_in_python``.
        """
        self.next_offset = max(self.next_offset, self._log.first_base)
        indexed = 0
        touched: set[IndexFile] = set()
        try:
            if self.files and self.files[-1].end_offset == self.next_offset:
                indexed = self._index_rest_of_message(touched)
            while indexed < limit_messages and self.next_offset < self._log.readable_until:
                indexed += self._index_common_messages(limit_messages - indexed, cost_in_python, touched)
                if indexed < limit_messages:
                    step = self._index_any_message(touched)
                    if not step:
                        break
                    indexed += step
        finally:
            self._publish(touched)
            self._note_indexed_time()
        return indexed

    def _publish(self, touched: set[IndexFile]) -> None:
        """Write the headers of changed files, oldest first: `load` looks for unfinished files from the newest on."""
        if touched:
            self._announce_end(self.files[-1].end_time)
        for file in self.files:
            if file in touched:
                file.write_header()
        self._unflushed |= touched
        self._end_time = self.files[-1].end_time if self.files else 0

    def _index_rest_of_message(self, touched: set[IndexFile]) -> int:
        """Index the keys of the next message that are not indexed yet, because the disk was full or a file was lost."""
        item = next(scan_log(self._log, self.next_offset, self._log.max_offset, check_crc=False))
        if isinstance(item, ScanEnd) or item.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return 0
        self._add_keys(self._missing_keys(item), item.physical_offset, item.store_timestamp, touched)
        self.next_offset = item.physical_offset + item.size
        return 1

    def _index_common_messages(self, limit: int, cost_in_python: int, touched: set[IndexFile]) -> int:
        """Index consecutive messages of the common layout in one log file; return how many there were."""
        log, offset = self._log, self.next_offset
        base = log.base_of(offset)
        end = min(log.file_bytes, log.readable_until - base)
        view = log.mapped_file(base).view
        position, indexed = offset - base, 0
        while indexed < limit:
            cost, file = 1, self._file_for_extension(touched)
            if self._index_natively is not None and file is not None:
                count, size = file.add_messages(
                    self._index_natively, view, position, end, offset, limit - indexed, self._max_keys
                )
                position += size
                self.next_offset = offset = offset + size
                indexed += count
                if indexed >= limit:
                    return indexed
                cost = cost_in_python
            message = parse_common_message(view, position, offset, end - position)
            if message is None:
                return indexed
            size, sys_flag, stored, topic, properties = message
            if sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                hashes = key_hashes(topic, properties, self._max_keys)
                self._add_keys(hashes, offset, stored, touched)
                indexed += _extra_cost(properties, hashes)
            position += size
            offset += size
            self.next_offset = offset
            indexed += cost
        return indexed

    def _file_for_extension(self, touched: set[IndexFile]) -> IndexFile | None:
        """Return the file to which the C extension may add keys: its times have begun, and its header will change."""
        file = self.files[-1] if self.files and self._index_natively is not None else None
        return file if file in touched and file is not None and file.has_begun else None

    def _index_any_message(self, touched: set[IndexFile]) -> int:
        """Index the next message, whatever its layout, across a file's end if need be; return 0 at the end of the
        log.
        """
        for item in scan_log(self._log, self.next_offset, self._log.readable_until, check_crc=False):
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
        used_paths = {file.path for file in self.files}
        while (path := f"{self._directory}/{_time_name(now_ms)}") in used_paths:
            now_ms += 1  # two full files within a millisecond
        mapped = self._map_file(path)
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
        offsets = self.find_offsets_in_slices(topic, key, limit, begin_ms, end_ms, key_type)
        return [offset for offset in offsets if offset is not None]

    def find_offsets_in_slices(
        self,
        topic: str,
        key: str,
        limit: int,
        begin_ms: int,
        end_ms: int,
        key_type: str = "",
        before: int = sys.maxsize,
    ) -> Iterator[int | None]:
        """Yield what `find_offsets` returns, and None where other tasks may run; the index may change meanwhile.

        With ``key_type`` "T" the key is a tag. Messages from physical offset ``before`` on are left out.
        Source: IndexService.queryOffset, 5.4.0. Deviation: after MAX_EXAMINED_ENTRIES entries the search ends.
        """
        hashed = index_hash(f"{topic}#{key_type}#{key}" if key_type else f"{topic}#{key}")
        count = slices = 0
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
                    elif self._log.first_base <= physical_offset < before:
                        count += 1
                        yield physical_offset
                        if count == limit:
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
            self._unflushed.discard(file)
            file.close()
            self._files.delete(file.path)
            dropped += 1
        return dropped

    def flush(self) -> int:
        """Block until the files are on the disk; return the time of the last message in them, in ms. Thread safe."""
        until = self._end_time
        for file in list(self._unflushed):
            # Discard it before flushing: a file that changes meanwhile is added again.
            self._unflushed.discard(file)
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
