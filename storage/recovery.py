"""Brings a store's files into agreement when it is opened; not opening files for use, not flushing.

The commit log is the truth. Consume queues are checked against it, cut where they disagree and continued
from it.
"""

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

from codec.constants import MAGIC_V1, MAGIC_V2
from codec.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.delay_levels import DelayLevels
from storage.errors import CorruptionError
from storage.files import Files
from storage.layout import HEADER, LONG, PHYSICAL_OFFSET_AT, QUEUE_ENTRY_BYTES, START, mapped_file_offsets
from storage.log_scan import ScanEnd, ScannedMessage, check_message, scan_log
from storage.tags import tags_code_of

if TYPE_CHECKING:
    from storage.store import MessageStore

log = logging.getLogger(__name__)

_BLANK_SIZE = 0x7FFFFFFF


class Recovery:
    """One run over the files of a store that was just opened."""

    def __init__(self, store: "MessageStore", crashed: bool, safe_timestamp: int, queued_until: int) -> None:
        self.store = store
        self.files: Files = store.files
        self.log: CommitLog = store.commit_log
        self.crashed = crashed
        self.safe_timestamp = safe_timestamp  # up to here everything is on the disk, even after a power cut
        self.queued_until = queued_until  # the entries of messages below are in their queues, on the disk
        # Where the log ended when the time was noted. Messages behind it may be older than that by a clock set back.
        self.safe_end = queued_until or 1 << 62
        self.delays = DelayLevels(store.config.delay_levels)
        self.queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self.incomplete = False  # a queue misses files: only the whole log tells what was in them
        self.rebuilt = False  # what the checkpoint says about queues on the disk is no longer true

    def run(self) -> None:
        """Leaves the store ready to append. Raises CorruptionError when messages known to be durable are
        damaged."""
        bases = self._log_files()
        if not bases:
            # Without messages the queues say nothing. Source: CommitLog.recoverNormally, 5.4.0.
            self.files.delete_tree(self.store.config.consume_queue_path)
            self.files.delete_tree(self.store.config.index_path)
            self.log.start_at(self._first_base(), self._first_base())
            return
        self.log.first_base = bases[0]
        self.log.base, self.log.position = bases[-1], self.log.file_bytes  # all of it may be looked at
        self._load_queues()
        if self.incomplete or "consumequeue" not in self.files.list(self.store.config.root):
            self._rebuild()  # queues were taken away for being built again
        stop = self._redo(self._start_offset())
        if stop.physical_offset < self.queued_until:
            log.warning("the log ends before what the checkpoint says", extra={"end": stop.physical_offset})
            self._cut_queues(stop.physical_offset)
        self._truncate(bases, stop)
        self.log.start_at(bases[0], stop.physical_offset)
        if self.crashed:
            self.log.durable_offset = bases[0]  # what was found may be in the page cache only
        for queue in self.queues.values():
            queue.delete_before(self.log.first_base)

    def _rebuild(self) -> None:
        self.queued_until = 0
        self.rebuilt = True

    def _first_base(self) -> int:
        """Where an empty log begins.

        With ``start_at_second_file`` as if its first file had expired: an official broker, which goes on with a store
        whose queues begin at some offset, takes their blank entries for messages of that file then, and not for
        the first ones there are. Source: ConsumeQueue.correctMinOffset, 5.4.0.
        """
        return self.log.file_bytes if self.store.config.start_at_second_file else 0

    def _log_files(self) -> list[int]:
        """First offsets of the commit log's files; their size is taken from the files, not from the
        settings."""
        bases = mapped_file_offsets(self.files.list(self.log.directory))
        while bases and not self.files.size(self.log.path(bases[-1])):
            self.files.delete(self.log.path(bases.pop()))  # created, then nothing more: a crash right there
        if not bases:
            return []
        self.log.file_bytes = self.files.size(self.log.path(bases[0])) or self.log.file_bytes
        for base, following in pairwise(bases):
            if following != base + self.log.file_bytes:
                raise CorruptionError(self.log.path(following), 0, f"the file after offset {base} is missing")
        return bases

    def _load_queues(self) -> None:
        root = self.store.config.consume_queue_path
        for topic in self.files.list(root):
            for name in self.files.list(f"{root}/{topic}"):
                offsets = mapped_file_offsets(self.files.list(f"{root}/{topic}/{name}"))
                if not name.isdecimal() or not offsets:
                    continue
                queue = self.store.create_queue(topic, int(name))
                queue.bases = self._without_gaps(queue, [offset // QUEUE_ENTRY_BYTES for offset in offsets])
                queue.min_offset = queue.bases[0]
                queue.next_offset = queue.bases[-1] + queue.file_entries
                self.queues[topic.encode(), int(name)] = queue

    def _without_gaps(self, queue: ConsumeQueue, bases: list[int]) -> list[int]:
        """Files up to the first missing one; those behind it are dropped and come again from the log."""
        for number, base in enumerate(bases):
            if base != bases[0] + number * queue.file_entries:
                log.warning("a queue file is missing", extra={"queue": queue.directory, "before": base})
                self.incomplete = True
                for lost in bases[number:]:
                    self.files.delete(queue.path(lost))
                return bases[:number]
        return bases

    # Where to start reading the log

    def _start_offset(self) -> int:
        """The message to read the log from; every queue is cut to the entries of messages before it."""
        start = self._safe_start() if self.crashed else self._clean_start()
        if self.incomplete and not self.crashed:
            start = self.log.first_base
        if start is None:
            start = self._file_start()
        self._cut_queues(max(start, self.queued_until))
        return start

    def _cut_queues(self, before: int) -> None:
        for queue in self.queues.values():
            if not queue.bases:
                continue
            count = self._count(queue, before, 1 << 62)
            if count == queue.bases[0] and self.log.first_base == 0:
                count = 0  # nothing ever expired, so a queue without a right entry starts at its beginning
            queue.truncate_at(count)

    def _clean_start(self) -> int | None:
        """After an orderly end: one past the last message any queue knows, which only hidden messages
        follow."""
        start, doubtful = -1, -1
        for queue in self.queues.values():
            count = self._count(queue, 1 << 62, 1 << 62)
            place, size, _ = queue.read_entry(count - 1) if count > queue.bases[0] else (-1, 0, 0)
            end = place + size if place >= 0 and size != _BLANK_SIZE else self.log.first_base
            start = max(start, end)
            if count < queue.bases[-1] + queue.file_entries and queue.read_entry(count)[:2] != (0, 0):
                log.warning(
                    "queue entries do not match the log, reading it again", extra={"queue": queue.directory}
                )
                doubtful = end if doubtful < 0 else min(doubtful, end)
        if doubtful >= 0:
            return max(doubtful, self.log.first_base)
        return start if start >= self.log.first_base else None

    def _safe_start(self) -> int | None:
        """After a crash: the last message in any queue that the checkpoint says was on the disk."""
        best = -1
        if self.safe_timestamp > 0:
            for queue in self.queues.values():
                count = self._count(queue, self.safe_end, self.safe_timestamp)
                if count > queue.bases[0]:
                    place, size, _ = queue.read_entry(count - 1)
                    best = max(best, place if size != _BLANK_SIZE else -1)
        return best if best >= self.log.first_base else None

    def _file_start(self) -> int:
        """The last file to begin with a message that was surely on the disk; else the first file.

        Source: CommitLog.recoverAbnormally, 5.4.0.
        """
        for base in reversed(self.log.bases()):
            first = next(scan_log(self.log, base, base + self.log.file_bytes))
            if isinstance(first, ScannedMessage) and self._is_safe(base, first.store_timestamp):
                return base
        return self.log.first_base

    def _count(self, queue: ConsumeQueue, before: int, until_ms: int) -> int:
        """Number of the first entry that is not right, or whose message is at `before` or later, or after
        `until_ms`."""
        for base in reversed(queue.bases):
            if base != queue.bases[0] and not self._is_right(queue, base, before, until_ms):
                continue
            low, high = base, base + queue.file_entries
            while low < high:
                middle = (low + high) // 2
                if self._is_right(queue, middle, before, until_ms):
                    low = middle + 1
                else:
                    high = middle
            return low
        return queue.next_offset

    def _is_right(self, queue: ConsumeQueue, offset: int, before: int, until_ms: int) -> bool:
        place, size, _ = queue.read_entry(offset)
        if size == _BLANK_SIZE and place == 0:
            return True
        if size <= 0 or place < 0 or place >= before:
            return False
        if place < self.log.first_base:
            return True  # its message is gone by retention
        base = place - (place - self.log.first_base) % self.log.file_bytes
        if place + size > base + self.log.file_bytes or base > self.log.base:
            return False
        # All of the message is checked: a torn header may hold a wrong time.
        message = check_message(self.log.mapped_file(base).view, place - base, place, True)
        return (
            isinstance(message, ScannedMessage)
            and message.size == size
            and message.queue_id == queue.queue_id
            and message.queue_offset == offset
            and message.store_timestamp <= until_ms
        )

    # Reading the log

    def _redo(self, start: int) -> ScanEnd:
        """Reads the log from `start`, adds what the queues lack, and says where the log ends."""
        check_crc = self.store.config.check_crc_on_recover
        for item in scan_log(self.log, start, self.log.max_offset, check_crc):
            if isinstance(item, ScanEnd):
                return item
            if item.physical_offset < self.queued_until:
                continue
            if not self._dispatch(item, start == self.log.first_base and self.queued_until == 0):
                log.warning("queue files lack entries, rebuilding them from the whole log")
                start = self.log.first_base
                self._rebuild()
                self._cut_queues(start)
                return self._redo(start)
        raise AssertionError("a scan ends with a Stop")

    def _dispatch(self, message: ScannedMessage, whole: bool) -> bool:
        """Adds the entry of a message; False when entries before it are missing and the log may have them.

        With `whole` the log was read from its start: what is missing is not there.
        """
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            return True
        key = (message.topic, message.queue_id)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = self.store.create_queue(message.topic.decode(), message.queue_id)
        if message.queue_offset > queue.next_offset:
            if not whole:
                return False
            if queue.next_offset > queue.min_offset:
                # A queue with another broker's offsets was begun anew behind what that one had dropped.
                data = {"queue": queue.directory, "end": queue.next_offset, "begin": message.queue_offset}
                log.warning("a queue goes on behind a gap: what was before it is left out", extra=data)
            queue.restart_at(message.queue_offset)
        elif message.queue_offset < queue.next_offset:
            # The topic was deleted and created again: its newer life counts.
            queue.truncate_at(message.queue_offset)
        queue.append_entry(message.physical_offset, message.size, self._tags_code(message))
        return True

    def _tags_code(self, message: ScannedMessage) -> int:
        deliver_ms = self.delays.scheduled_deliver_ms(
            message.topic, message.properties, message.store_timestamp
        )
        return tags_code_of(message.properties) if deliver_ms is None else deliver_ms

    # Cutting what is not valid

    def _truncate(self, bases: list[int], stop: ScanEnd) -> None:
        end = stop.physical_offset
        self._check_loss(bases, stop)
        while bases and bases[-1] > end:
            base = bases.pop()
            self.files.delete(self.log.path(base))
            self.log.close_file(base)
        if not stop.zeros:
            log.warning(
                "the commit log ends in a torn message, cut",
                extra={"physical_offset": end, "reason": stop.reason},
            )
        base = bases[-1]
        if end < base + self.log.file_bytes and (self.crashed or not stop.zeros):
            # Old bytes behind the end could pass for messages once new ones reach up to them, or, if the zeros were
            # lost in the next crash, for parts of a torn one.
            self.log.mapped_file(base).zero_from(end - base)
            self.files.flush(self.log.path(base))

    def _check_loss(self, bases: list[int], stop: ScanEnd) -> None:
        """Raises CorruptionError when cutting here would lose messages that were durable."""
        if not stop.zeros and self._was_durable(stop.physical_offset):
            raise self.log.corruption_error(stop.physical_offset, stop.reason)
        for base in bases:
            if base <= stop.physical_offset:
                continue
            first = next(scan_log(self.log, base, base + self.log.file_bytes))
            if isinstance(first, ScannedMessage) and self._is_safe(base, first.store_timestamp):
                raise self.log.corruption_error(
                    stop.physical_offset, stop.reason or "zeros in the middle of the log"
                )

    def _was_durable(self, physical_offset: int) -> bool:
        """Whether a message starts here that was on the disk before the end, so that it is damaged and not
        torn."""
        base = physical_offset - (physical_offset - self.log.first_base) % self.log.file_bytes
        position = physical_offset - base
        if self.crashed and position // 512 != (position + HEADER.size) // 512:
            return False  # a header in two disk sectors may itself be torn
        start = self.log.mapped_file(base).view[position:]
        if len(start) < 96 or LONG.unpack_from(start, PHYSICAL_OFFSET_AT)[0] != physical_offset:
            return False
        if START.unpack_from(start)[1] not in (MAGIC_V1, MAGIC_V2):
            return False
        return self._is_safe(physical_offset, store_timestamp_of(start))

    def _is_safe(self, physical_offset: int, store_timestamp: int) -> bool:
        """Whether a message was surely on the disk before the end."""
        if not self.crashed:
            return True
        return physical_offset < self.safe_end and 0 < store_timestamp <= self.safe_timestamp


def store_timestamp_of(message: memoryview) -> int:
    """Store timestamp in ms of a stored message."""
    timestamp: int = LONG.unpack_from(message, 68 if message[39] & 0x10 else 56)[0]
    return timestamp
