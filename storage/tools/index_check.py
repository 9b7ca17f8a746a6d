"""Checks the index files: header, every entry against its message, and that the slots lead to all entries."""

from array import array
from collections.abc import Iterator

from codec.java_numbers import I32
from storage.index import ENTRY, ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, list_index_files
from storage.index_keys import key_hashes
from storage.log_scan import ScannedMessage, check_message_at
from storage.tools.findings import Part, StoreFinding, damage, note
from storage.tools.index_file import IndexView
from storage.tools.log_check import LogCheck, Progress
from storage.tools.store_reader import StoreReader

_ENTRIES_PER_READ = 8192
_ALL_KEYS = 1 << 20
_MAX_REPORTED_PER_FILE = 20


class IndexCheck:
    """One pass over all index files; `LogCheck` must have run. ``slots`` is the broker's maxHashSlotNum."""

    def __init__(self, reader: StoreReader, log_check: LogCheck, progress: Progress) -> None:
        self._reader = reader
        self._log_check = log_check
        self._progress = progress
        self._slots = reader.config.index_slots
        self._loaded_offset = (
            -1
        )  # of the message whose hashes are in `_hashes`: entries of one message follow one another
        self._hashes: frozenset[int] = frozenset()
        self._store_ms = 0
        self._problem = ""
        self.files = 0
        self.entries = 0

    def run(self) -> Iterator[StoreFinding]:
        """Check all files, oldest first."""
        for path in list_index_files(self._reader.files, self._reader.config.index_path):
            self.files += 1
            yield from self._limit_findings(path)

    def _limit_findings(self, path: str) -> Iterator[StoreFinding]:
        """Yield the first findings of a file and the number of the others: one wrong slot spoils many entries."""
        left_out = 0
        for count, finding in enumerate(self._check_file(path)):
            if count < _MAX_REPORTED_PER_FILE:
                yield finding
            else:
                left_out += 1
        if left_out:
            yield damage(Part.INDEX, path, 0, f"{left_out} more findings in this file")

    def _check_file(self, path: str) -> Iterator[StoreFinding]:
        try:
            size = self._reader.files.size(path) or 0
            if size < HEADER_BYTES:
                yield self._short_file(path, size)
                return
            mapped = self._reader.files.open_mapped(path, size)
        except FileNotFoundError:
            if self._reader.state.may_change:
                return  # expired meanwhile
            raise
        try:
            index = IndexView(mapped.view, self._slots)
            yield from self._check_header(path, index)
            yield from self._check_entries(path, index)
        except ValueError as error:
            yield damage(
                Part.INDEX, path, size, f"{error}; if the broker has another setting, pass its broker.conf"
            )
        finally:
            mapped.close()

    def _short_file(self, path: str, size: int) -> StoreFinding:
        settled = self._reader.state.is_end_settled
        return (damage if settled else note)(Part.INDEX, path, size, f"the file has only {size} bytes")

    def _check_header(self, path: str, index: IndexView) -> Iterator[StoreFinding]:
        header = index.header
        if not 0 <= header.next_entry <= index.max_entries + 1:
            reason = (
                f"the header counts {header.next_entry} entries, the file has room for {index.max_entries}"
            )
            yield damage(Part.INDEX, path, 36, reason)
        if header.begin_ms > header.end_ms:
            reason = f"its first time, {header.begin_ms}, is after its last, {header.end_ms}"
            yield damage(Part.INDEX, path, 0, reason)

    def _check_entries(self, path: str, index: IndexView) -> Iterator[StoreFinding]:
        """Check every entry, and that following the slots finds each: build the slots again from the entries."""
        heads = array("i", bytes(4 * index.slots))
        end = max(1, min(index.header.next_entry, index.max_entries))
        for start in range(1, end, _ENTRIES_PER_READ):
            stop = min(end, start + _ENTRIES_PER_READ)
            data = index.view[index.entry_position(start) : index.entry_position(stop)]
            # Build the slots again entry by entry: each entry must name the one before it in its slot, which is the
            # slot's newest so far.
            for number, (hashed, physical_offset, seconds, previous) in enumerate(
                ENTRY.iter_unpack(data), start
            ):
                reason = self._check_entry(hashed, physical_offset)
                if not reason and number > 1 and physical_offset == self._loaded_offset:
                    reason = self._check_seconds(index.header.begin_ms, seconds)
                if not reason and previous != heads[hashed % index.slots]:
                    expected = heads[hashed % index.slots]
                    reason = f"it names entry {previous} as the one before in its slot, not {expected}"
                if reason:
                    yield damage(
                        Part.INDEX, path, index.entry_position(number), f"entry {number}: {reason}",
                        bytes=ENTRY_BYTES,
                    )  # fmt: skip
                heads[hashed % index.slots] = number
            self.entries += stop - start
            self._progress((stop - start) * ENTRY_BYTES)
        yield from self._check_slots(path, index, heads, end)

    def _check_slots(
        self, path: str, index: IndexView, heads: "array[int]", end: int
    ) -> Iterator[StoreFinding]:
        values = index.slot_values()
        if values == heads:
            return
        for slot, (value, expected) in enumerate(zip(values, heads, strict=True)):
            if value == expected or (value >= end and not self._reader.state.is_end_settled):
                continue  # an entry that the header does not count yet
            position = HEADER_BYTES + slot * SLOT_BYTES
            reason = f"slot {slot} leads to entry {value}, its newest entry is {expected}"
            yield damage(Part.INDEX, path, position, reason, bytes=SLOT_BYTES)

    def _check_entry(self, hashed: int, physical_offset: int) -> str:
        """Return why an entry is wrong; an empty text if it is right, or its message is gone."""
        log = self._reader.log
        if hashed < 0:
            return f"its hash is negative: {hashed}"
        if 0 <= physical_offset < log.first_base or self._log_check.is_lost(physical_offset):
            return ""
        if physical_offset >= self._log_check.end and not self._reader.state.is_end_settled:
            return ""  # stored since the log was read, or cut off at the next start together with this file
        if physical_offset != self._loaded_offset:
            self._load_message(physical_offset)
        if self._problem:
            return self._problem
        return "" if hashed in self._hashes else f"the message at {physical_offset} has no key with this hash"

    def _check_seconds(self, begin_ms: int, seconds: int) -> str:
        """Return why an entry's time is wrong; an empty text if it is that of its message."""
        expected = (self._store_ms - begin_ms) // 1000 if begin_ms > 0 else 0
        expected = min(max(expected, 0), I32.high)
        return "" if seconds == expected else f"its time is {seconds} s after the first, not {expected} s"

    def _load_message(self, physical_offset: int) -> None:
        """Load the hashes of a message's keys, or set ``_problem`` to the reason why there are none."""
        self._loaded_offset, self._problem, self._hashes = physical_offset, "", frozenset()
        if not 0 <= physical_offset < self._log_check.end:
            self._problem = f"it points to {physical_offset}, which is not in the log"
            return
        message = check_message_at(self._reader.log, physical_offset)
        if isinstance(message, ScannedMessage):
            self._store_ms = message.store_timestamp
            self._hashes = frozenset(key_hashes(message.topic, message.properties, _ALL_KEYS))
        else:
            self._problem = f"no message starts at {physical_offset}: {message.reason or 'nothing is there'}"
