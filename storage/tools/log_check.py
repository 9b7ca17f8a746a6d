"""Checks every byte of the commit log, and collects the messages that the queues must hold.

An invalid message does not end the check: it goes on at the next whole message of the same file, or with the next file,
since no message crosses the end of one.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from codec.constants import MAGIC_BLANK
from storage.damage import is_filler
from storage.layout import BLANK_BYTES, START
from storage.log_scan import ScanEnd, ScannedMessage, scan_log
from storage.tools.findings import Part, StoreFinding, damage, note
from storage.tools.store_reader import StoreReader, end_of_data

_REPORTED_BYTES: Final = 1 << 20
"""Progress is reported each time this many more bytes of the log were read."""

Progress = Callable[[int], object]
"""Called with the number of bytes read since the last call."""


@dataclass(slots=True)
class QueueRun:
    """The last sequence of a queue's messages in the log without a gap: queue offsets [first, end).

    A new sequence begins where a topic was deleted and created again, or a queue restarted. Messages before
    ``covered_end`` had their queue entries according to the checkpoint.
    """

    first: int
    end: int
    covered_end: int = 0


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [start, end) of the log that are not whole messages. ``is_missing``: because the file is missing.

    ``message_before`` is where the last whole message before them starts, -1 without one. ``is_end_unknown``: the bytes
    end the log, and ``end`` is only where the last ones were written. ``is_filled``: fillers have replaced them.
    """

    start: int
    end: int
    reason: str
    is_missing: bool = False
    message_before: int = -1
    is_end_unknown: bool = False
    is_filled: bool = False


class LogCheck:
    """One pass over the commit log. The attributes are complete once `run` has been exhausted.

    ``end``: the physical offset at which the log ends. ``damaged``: the ranges that `repair` must replace.
    ``torn_end``: bytes after the end that are not a whole message, as a crash leaves them. ``filled``: ranges whose
    damaged bytes were replaced by fillers before.
    """

    def __init__(self, reader: StoreReader, confirm_offset: int, progress: Progress) -> None:
        self._reader = reader
        self._log = reader.log
        self._confirm_offset = confirm_offset
        self._progress = progress
        self._lost_starts: list[
            int
        ] = []  # of ranges without readable messages: damage, fillers, ends of files
        self._lost_ends: list[int] = []
        self.queues: dict[tuple[bytes, int], QueueRun] = {}
        self.messages = 0
        self.fillers = 0
        self.first_store_ms = 0
        self.last_store_ms = 0
        self.end = reader.bases[0] if reader.bases else 0
        self.damaged: list[DamagedRange] = []
        self.torn_end: DamagedRange | None = None
        self.filled: list[DamagedRange] = []
        self._last_message = -1

    def run(self) -> Iterator[StoreFinding]:
        """Read the whole log; yield damage in the order of its physical offset."""
        bases = self._log.bases() if self._reader.bases else []
        for base in bases:
            if base in self._reader.missing:
                self.end = base + self._log.file_bytes
                yield self._add_damage(DamagedRange(base, self.end, "the file is missing", is_missing=True))
            else:
                yield from self._check_file(base, is_last=base == bases[-1])
        if self.end < self._confirm_offset:
            reason = f"the log ends here, but the checkpoint covers it up to {self._confirm_offset}"
            is_missing = self.end == (bases[-1] + self._log.file_bytes if bases else 0)
            yield self._add_damage(DamagedRange(self.end, self._confirm_offset, reason, is_missing))

    def is_lost(self, physical_offset: int) -> bool:
        """Return True if a physical offset lies in damaged bytes, or in those that replaced damaged ones."""
        number = bisect_right(self._lost_starts, physical_offset) - 1
        return number >= 0 and physical_offset < self._lost_ends[number]

    def _check_file(self, base: int, *, is_last: bool) -> Iterator[StoreFinding]:
        path = self._log.path(base)
        file_end = base + self._log.file_bytes
        size = self._reader.files.size(path) or 0
        if size != self._log.file_bytes:
            yield damage(Part.LOG, path, size, f"the file has {size} bytes, not {self._log.file_bytes}")
        offset = base
        while offset < file_end:
            stop = self._read_messages(offset, file_end)
            self.end = stop.physical_offset
            if stop.physical_offset >= file_end:
                return
            next_message = self._reader.find_message_after(stop.physical_offset)
            if next_message is None and is_last:
                yield from self._check_tail(stop, path, base)
                return
            offset = file_end if next_message is None else next_message
            yield self._add_damage(DamagedRange(self.end, offset, stop.reason or "zeros"))
            self.end = offset

    def _read_messages(self, start: int, end: int) -> ScanEnd:
        """Read messages until one is invalid; return where that is."""
        reported = start
        for item in scan_log(self._log, start, end):
            if isinstance(item, ScanEnd):
                self._progress(item.physical_offset - reported)
                return item
            self._count(item)
            if item.physical_offset - reported > _REPORTED_BYTES:
                self._progress(item.physical_offset - reported)
                reported = item.physical_offset
        raise AssertionError("a scan ends with its end")

    def _count(self, message: ScannedMessage) -> None:
        if is_filler(message):
            self.fillers += 1
            self._add_filler(message)
            self._add_lost(message.physical_offset, message.physical_offset + message.size)
            return
        self._last_message = message.physical_offset
        self.messages += 1
        self.last_store_ms = message.store_timestamp
        self.first_store_ms = self.first_store_ms or message.store_timestamp
        if not message.has_queue_entry:
            return
        run = self.queues.get((message.topic, message.queue_id))
        if run is None:
            run = self.queues[message.topic, message.queue_id] = QueueRun(0, -1)
        if message.queue_offset != run.end:
            run.first = message.queue_offset
        run.end = message.queue_offset + 1
        if message.physical_offset < self._confirm_offset:
            run.covered_end = run.end

    def _check_tail(self, stop: ScanEnd, path: str, base: int) -> Iterator[StoreFinding]:
        """Judge the bytes after the last whole message: zeros, a message that a crash tore, or damage."""
        if stop.zeros or self._reader.state.may_change:
            return  # zeros, or a message that is being written this moment
        end = max(base + end_of_data(path, stop.physical_offset - base), stop.physical_offset + 1)
        self.torn_end = DamagedRange(
            stop.physical_offset,
            end,
            stop.reason,
            message_before=self._last_message,
            is_end_unknown=True,
        )
        if stop.physical_offset < self._confirm_offset:
            return  # `run` reports it
        position, size = stop.physical_offset - base, end - stop.physical_offset
        if self._reader.state.is_end_settled:
            yield damage(Part.LOG, path, position, stop.reason, bytes=size)
        else:
            reason = f"the log ends in a torn message, which the next start cuts off: {stop.reason}"
            yield note(Part.LOG, path, position, reason, bytes=size)

    def _add_filler(self, filler: ScannedMessage) -> None:
        """Add a filler to the range that it continues. The marker of a file that follows may replace messages too."""
        start, end = filler.physical_offset, filler.physical_offset + filler.size
        base = self._log.base_of(start)
        position, view = end - base, self._log.mapped_file(base).view
        if position + BLANK_BYTES <= len(view) and START.unpack_from(view, position)[1] == MAGIC_BLANK:
            end = base + self._log.file_bytes
        before = self._last_message
        if self.filled and self.filled[-1].end == start:
            start, before = self.filled[-1].start, self.filled.pop().message_before
        reason = "it was replaced by fillers"
        self.filled.append(DamagedRange(start, end, reason, message_before=before, is_filled=True))

    def _add_damage(self, damaged: DamagedRange) -> StoreFinding:
        damaged = replace(damaged, message_before=self._last_message)
        self.damaged.append(damaged)
        self._add_lost(damaged.start, damaged.end)
        base = self._log.base_of(damaged.start)
        size = damaged.end - damaged.start
        return damage(Part.LOG, self._log.path(base), damaged.start - base, damaged.reason, bytes=size)

    def _add_lost(self, start: int, end: int) -> None:
        self._lost_starts.append(start)
        self._lost_ends.append(end)
