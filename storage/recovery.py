"""Brings a store's files into agreement when the store is opened.

Theory of operation
-------------------
**Problem.** The commit log, the consume queues, the index and the checkpoint are separate files that the kernel
writes back in any order. After a killed process all of them are whole (the page cache survives), but queue entries
may be missing. After a power cut any sector that was not flushed holds old or new bytes, and whole files may be
missing.

**Invariant.** The commit log is the truth. A queue entry is right if a message with a valid CRC lies where the entry
points and names that queue and that offset; all other entries are dropped and derived from the log again. Nothing
that was durable is ever cut: if cutting would lose it, opening fails with `CorruptionError` instead.

**Inputs.** If there is an ``abort`` file, the last run did not close the store in order. The file names the boot of the
machine: in the same boot the page cache has survived, and no sector is lost. The checkpoint gives two
limits (`DurableState`): messages stored up to ``safe_timestamp`` are on the disk, in the log and in their queues; and
the queue entries of messages below physical offset ``queued_until`` are on the disk. Messages of deleted topics are in
the log, and are to have no entries (`deleted_topics.py`).

**Steps.**

1. List the log files. A gap between them is damage, as is an end before the checkpoint's offset; an empty last file
   was just created and is removed.
2. Load the queues, and drop queue files behind a gap and those of deleted topics. If any queue misses files, what the
   checkpoint says about queues is ignored, and the log is read from its beginning.
3. Find the end of every queue (`EntrySearch`), and choose where to start reading the log. After an orderly end:
   behind the last message that any queue knows. After a crash: at the last message that the checkpoint vouches for, or
   at the last file that begins with such a message. Earlier, if an entry that should be valid is not.
4. Read the part that the checkpoint covers. An invalid message in it is damage: its queue entries become holes, and it
   is set aside (`damage.py`). If an entry is still invalid, it is itself damaged, and entries from there on are derived
   from the log. Then truncate every queue to the entries of messages before that point.
5. Read the log from there to the first invalid message, append the missing queue entries, and cut the log at that
   point. If entries turn out to be missing from an earlier part of the log, start over from its beginning.
6. Zero the bytes behind the cut and flush. Otherwise the remains of a torn message could be taken for a message once
   new messages reach up to them, or reappear after the next power cut.

A crash during recovery is harmless at every step: queues were only truncated or extended with what the log says, the
``abort`` file is still there, and the checkpoint is rewritten by `MessageStore` only after recovery has finished.
Before entries are derived again that the checkpoint covers, the ``abort`` file is made to say so (`_distrust_queues`).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from codec.constants import MAGIC_V1, MAGIC_V2
from codec.message import MIN_MESSAGE_BYTES
from storage.commit_log import CommitLog, store_timestamp_of
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.damage import find_next_message, is_filler, set_aside, write_filler
from storage.delay_levels import DelayLevels
from storage.deleted_topics import DeletedTopics
from storage.errors import CorruptionError
from storage.files import Files
from storage.layout import (
    HEADER,
    LONG,
    PHYSICAL_OFFSET_AT,
    QUEUE_ENTRY_BYTES,
    QUEUE_HOLE_SIZES,
    SECTOR_BYTES,
    START,
    mapped_file_name,
    mapped_file_offsets,
)
from storage.log_scan import ScanEnd, ScannedMessage, check_message, scan_log
from storage.queue_ends import QueueRanges, delete_queue_ends
from storage.queue_set import QueueSet, list_queue_files
from storage.tags import tags_code_of

NO_LIMIT = 1 << 62


class FoundEntries(NamedTuple):
    """The end of a queue as found in its files.

    ``entries`` is the number of its first invalid entry; ``last_place`` and ``last_size`` are those of the entry before
    it (-1 and 0 if there is none). ``is_end``: there is no entry behind it. ``is_doubtful``: the invalid entry should
    be valid, because it was on the disk with its message.
    """

    entries: int
    last_place: int
    last_size: int
    is_end: bool
    is_doubtful: bool

    @property
    def end_of_last(self) -> int:
        """The physical offset behind the last message; -1 if it is not known."""
        if self.last_place < 0 or self.last_size in QUEUE_HOLE_SIZES:
            return -1
        return self.last_place + self.last_size


class EntrySearch:
    """Searches the queues of a store that was just opened.

    ``queued_until``: the entries of messages below this physical offset were on the disk, with their messages.
    ``crashed``: the last run did not end in order. ``sectors_lost``: with a power cut.
    """

    def __init__(
        self, commit_log: CommitLog, queued_until: int, *, crashed: bool, sectors_lost: bool
    ) -> None:
        self.queued_until = queued_until
        self._log = commit_log
        self._crashed = crashed
        self._sectors_lost = sectors_lost

    def find_entries(self, queue: ConsumeQueue) -> FoundEntries:
        """Find the first entry of a queue that is invalid or, after a crash, that the checkpoint does not cover."""
        before = self.queued_until if self._crashed and self.queued_until else NO_LIMIT
        count = self.find_end(queue, before)
        last = queue.read_entry(count - 1) if count > queue.bases[0] else (-1, 0, 0)
        if count == queue.bases[-1] + queue.file_entries or queue.read_entry(count)[:2] == (0, 0):
            return FoundEntries(count, last[0], last[1], True, False)
        trusted = self.queued_until if self._crashed else NO_LIMIT
        return FoundEntries(count, last[0], last[1], False, queue.read_entry(count)[0] < trusted)

    def find_end(self, queue: ConsumeQueue, before: int) -> int:
        """Return the number of the first entry that is invalid or points to ``before`` or behind it.

        Entries of messages that the checkpoint covers were on the disk, so that looking at the queue's file is enough;
        only the last one is compared with its message. After a power cut entries that were cut off may have reappeared,
        and all that are looked at are compared.
        """
        confirmed = self.queued_until

        def looks_valid(number: int) -> bool:
            place, size, _ = queue.read_entry(number)
            if 0 <= place < confirmed:
                return size > 0 and place < before
            return self._is_valid_entry(queue, number, before, NO_LIMIT)

        if confirmed and not self._sectors_lost:
            end = _find_first_failing(queue, looks_valid)
            if end == queue.bases[0] or self._is_valid_entry(queue, end - 1, before, NO_LIMIT):
                return end
        return self.first_invalid_entry(queue, before, NO_LIMIT)

    def first_invalid_entry(self, queue: ConsumeQueue, before: int, until_ms: int) -> int:
        """Return the number of the first entry that is invalid, or whose message is too late.

        A message is too late if it lies at physical offset ``before`` or behind it, or was stored after ``until_ms``.
        """
        return _find_first_failing(
            queue, lambda number: self._is_valid_entry(queue, number, before, until_ms)
        )

    def _is_valid_entry(self, queue: ConsumeQueue, offset: int, before: int, until_ms: int) -> bool:
        place, size, _ = queue.read_entry(offset)
        if size in QUEUE_HOLE_SIZES:
            return place < before
        if size <= 0 or place < 0 or place >= before:
            return False
        if place < self._log.first_base:
            return True  # its message was deleted by retention
        base = self._log.base_of(place)
        if place + size > base + self._log.file_bytes or base > self._log.base:
            return False
        # A torn header may hold a wrong time, so the whole message is checked where it may be torn. Elsewhere a damaged
        # body does not make its entry invalid.
        check_crc = place >= self.queued_until
        mapped, position = self._log.mapped_file(base), place - base
        if mapped.readable_until(position) < position + size:
            return False
        message = check_message(mapped.view, position, place, check_crc, self._sectors_lost)
        return (
            isinstance(message, ScannedMessage)
            and message.size == size
            and message.topic == queue.topic.encode()
            and message.queue_id == queue.queue_id
            and message.queue_offset == offset
            and message.store_timestamp <= until_ms
        )


def _find_first_failing(queue: ConsumeQueue, is_valid: Callable[[int], bool]) -> int:
    """Return the number of a queue's first entry that fails a test which all entries before it pass."""
    for base in reversed(queue.bases):
        if base != queue.bases[0] and not is_valid(base):
            continue
        # Most queues are short: probing 1, 2, 4… entries from the beginning stays in few pages of the file.
        low, high, step = base, base + queue.file_entries, 1
        while low < high:
            middle = min(low + step - 1, (low + high) // 2)
            if is_valid(middle):
                low, step = middle + 1, 2 * step
            else:
                high, step = middle, queue.file_entries
        return low
    return queue.next_offset


log = logging.getLogger(__name__)

REBUILDING = b"rebuilding queues"
"""Content of the abort file while queue entries that the checkpoint covers are derived from the log."""

# Queues in which a place to start is searched for: those with the latest messages have one just before the checkpoint.
_MAX_SEARCHED_QUEUES = 64


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state that the abort file and the checkpoint report before the other files are read.

    ``crashed``: the last run did not end in order. ``power_cut``: and the machine was started again since, or may have
    been, so that disk sectors can be lost. ``safe_timestamp``: messages stored up to this time, in ms, are on
    the disk even after a power cut. ``queued_until``: the queue entries of messages below this physical offset are on
    the disk; 0 if unknown. ``rebuilding``: the last run ended while it derived such entries from the log.
    ``queue_ends``: ends that queues had reached; no offset before them may be given out again.
    """

    crashed: bool
    power_cut: bool
    safe_timestamp: int
    queued_until: int
    rebuilding: bool = False
    queue_ends: QueueRanges = field(default_factory=QueueRanges)


class Recovery:
    """One run over the files of a store that was just opened. ``run`` may be called once.

    Afterwards ``rebuilt`` is True if the checkpoint no longer describes the queues and has to be written again.
    """

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        commit_log: CommitLog,
        queue_set: QueueSet,
        known: DurableState,
        deleted_topics: DeletedTopics,
    ) -> None:
        self.rebuilt = False
        self._config = config
        self._files = files
        self._log = commit_log
        self._queue_set = queue_set
        self._deleted_topics = deleted_topics
        self._crashed = known.crashed
        self._sectors_lost = known.power_cut
        self._safe_timestamp = known.safe_timestamp
        self._search = EntrySearch(
            commit_log, known.queued_until, crashed=known.crashed, sectors_lost=known.power_cut
        )
        self._confirmed_until = known.queued_until
        # The end of the log at the checkpoint's time. If the clock was set back after that, messages behind this end
        # have earlier timestamps than the checkpoint and are nevertheless not known to be on the disk.
        self._safe_end = known.queued_until or NO_LIMIT
        self._delays = DelayLevels(config.delay_levels)
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._lost_bytes = 0  # of the log, to damage: an upper limit of the messages that queues can lack
        self._found: dict[ConsumeQueue, FoundEntries] = {}
        self._rebuilding = known.rebuilding
        self._queue_ends = known.queue_ends
        self._begun_anew: set[ConsumeQueue] = set()  # queues of topics that were deleted and created again
        self._queue_files_missing = False  # then only the whole log tells what was in them
        # Files with erased entries, and deleted ones: old entries and messages must not come back among new ones.
        self._changed_paths: list[str] = []

    def run(self) -> None:
        """Leave the store ready to append. Raises CorruptionError when messages known to be durable are damaged."""
        bases = self._list_log_files()
        if not bases:
            if self._confirmed_until > self._initial_base():
                raise CorruptionError(
                    self._log.directory,
                    0,
                    f"the commit log is missing: the checkpoint covers it up to {self._confirmed_until}. Restore it, "
                    f"or delete {self._config.checkpoint_path} to begin an empty store",
                )
            # Without messages, queues and index point to nothing. Source: CommitLog.recoverNormally, 5.4.0.
            self._files.delete_tree(self._config.consume_queue_path)
            self._files.delete_tree(self._config.index_path)
            delete_queue_ends(self._files, self._config.root)
            self._log.start_at(self._initial_base(), self._initial_base())
            return
        self._log.first_base = bases[0]
        self._log.base, self._log.position = bases[-1], self._log.file_bytes  # all of it may be read
        if self._confirmed_until > self._log.max_offset:
            missing = self._log.path(self._log.base + self._log.file_bytes)
            raise CorruptionError(
                missing,
                0,
                f"the file is missing: the checkpoint covers the log up to {self._confirmed_until}",
            )
        self._load_queues()
        # An operator who wants the queues to be built again removes their folder.
        folder_removed = "consumequeue" not in self._files.list(self._config.root)
        if folder_removed and self._confirmed_until > self._log.first_base:
            log.warning(
                "queue folder is missing, rebuilding all queues from the commit log",
                extra={"path": self._config.consume_queue_path},
            )
        if self._rebuilding or folder_removed or self._queue_files_missing:
            self._distrust_queues(0)
        start = self._choose_start()
        if not self.rebuilt and self._report_missing_entries():
            self._distrust_queues(0)
            start = self._log.first_base
        behind = self._pass_confirmed(start)
        if self._find_doubtful_end() is not None:
            log.warning(
                "queue entries are damaged, deriving them from the log", extra={"physical_offset": start}
            )
            behind = start
            self._distrust_queues(start)
        self._truncate_queues(max(behind, self._search.queued_until))
        end = self._rebuild_entries(behind)
        if end.physical_offset < self._search.queued_until:
            log.warning("commit log ends before the checkpoint's offset", extra={"end": end.physical_offset})
            self._truncate_queues(end.physical_offset)
        self._truncate_log(bases, end)
        self._log.start_at(bases[0], end.physical_offset)
        self._keep_queue_ends(end.physical_offset)
        if self._crashed:
            self._log.durable_offset = bases[0]  # the bytes that were read may be in the page cache only
        self._files.flush_many(self._changed_paths)

    def _distrust_queues(self, behind: int) -> None:
        """Derive all queue entries of messages from this physical offset on from the log.

        The abort file says so until the checkpoint is true again: after a power cut some of these entries would be
        missing, before others.
        """
        self._files.write_small(self._config.abort_path, REBUILDING)
        self._search.queued_until = behind
        self.rebuilt = True

    def _report_missing_entries(self) -> bool:
        """Return True, after logging it, if queues end before an offset that they had reached."""
        missing = []
        starts_count = self._queue_ends.log_start == self._log.first_base  # nothing has expired since
        for (topic, queue_id), (first, end) in self._queue_ends.ranges.items():
            queue = self._queues.get((topic.encode(), queue_id))
            found = None if queue is None else self._found.get(queue)
            if queue is None or found is None:
                is_whole = end == 0
            else:
                # A doubtful entry is there: it or its message is damaged, which is dealt with later.
                is_whole = found.entries >= end or found.is_doubtful
                is_whole = is_whole and not (starts_count and queue.bases[0] > first)
                is_whole = is_whole and not queue.has_lost_file(self._log.max_offset)
            if not is_whole:
                missing.append(f"{topic}/{queue_id}")
        if missing:
            log.warning(
                "queue files are missing, rebuilding all queues from the commit log",
                extra={"queues": len(missing), "first": missing[0]},
            )
        return bool(missing)

    def _keep_queue_ends(self, log_end: int) -> None:
        """Let every queue go on behind the offsets that it has given out, also if its messages have expired."""
        for (topic, queue_id), (_, end) in self._queue_ends.ranges.items():
            queue = self._queues.get((topic.encode(), queue_id))
            if queue in self._begun_anew:
                continue  # the power cut brought back the ends, although the topic was deleted
            if queue is None or not queue.bases:
                if end > 0:
                    queue = queue or self._queue_set.create(topic, queue_id)
                    queue.restart_at(end)
                    self._queues[topic.encode(), queue_id] = queue
            elif queue.next_offset < end:
                queue.append_holes(end - queue.next_offset, log_end - 1)

    def _initial_base(self) -> int:
        """Return the physical offset at which an empty log begins.

        With ``start_at_second_file`` the log begins as if its first file had expired. Offset-preserving queues can
        begin with blank entries; an official broker that opens the store would take these for messages of the first
        file, if there were one. Source: ConsumeQueue.correctMinOffset, 5.4.0.
        """
        return self._log.file_bytes if self._config.start_at_second_file else 0

    def _list_log_files(self) -> list[int]:
        """Return the first offsets of the log files; their size comes from the files, not from the settings."""
        bases = mapped_file_offsets(self._files.list(self._log.directory))
        while bases and not self._files.size(self._log.path(bases[-1])):
            self._files.delete(self._log.path(bases.pop()))  # the process was killed right after creating it
        if not bases:
            return []
        self._log.file_bytes = self._files.size(self._log.path(bases[0])) or self._log.file_bytes
        for base, following in pairwise(bases):
            if following != base + self._log.file_bytes:
                raise CorruptionError(
                    self._log.path(following), 0, f"the file after offset {base} is missing"
                )
        return bases

    def _load_queues(self) -> None:
        root = self._config.consume_queue_path
        found = {
            (topic, queue_id): offsets for topic, queue_id, offsets in list_queue_files(self._files, root)
        }
        self._use_size_of_files(found)
        for (topic, queue_id), offsets in found.items():
            queue = self._queue_set.create(topic, queue_id)
            queue.bases = self._drop_behind_gap(queue, [offset // QUEUE_ENTRY_BYTES for offset in offsets])
            queue.min_offset = queue.bases[0]
            queue.next_offset = queue.bases[-1] + queue.file_entries
            if self._deleted_topics.has_queue(queue, self._log):
                log.warning("deleting what a crash left of a deleted topic", extra={"queue": queue.directory})
                self._changed_paths += self._queue_set.discard(queue)
                continue
            self._queues[topic.encode(), queue_id] = queue

    def _use_size_of_files(self, found: dict[tuple[str, int], list[int]]) -> None:
        """Keep the size that the queue files have: with another one, their names would not fit their entries.

        Raises CorruptionError for files of different sizes; nothing has been changed then.
        """
        root = self._config.consume_queue_path
        examples: dict[int, str] = {}
        for (topic, queue_id), offsets in found.items():
            for offset in offsets:
                path = f"{root}/{topic}/{queue_id}/{mapped_file_name(offset)}"
                examples.setdefault(self._files.size(path) or 0, path)
        examples.pop(0, None)  # just created when the machine stopped
        if not examples:
            return
        file_bytes, path = examples.popitem()
        wanted = self._config.consume_queue_file_entries * QUEUE_ENTRY_BYTES
        if examples or file_bytes % QUEUE_ENTRY_BYTES:
            others = ", ".join(f"{other} has {size}" for size, other in examples.items())
            raise CorruptionError(
                path,
                0,
                f"a queue file of {file_bytes} bytes{' where ' * bool(others)}{others}; without the folder {root} "
                "all queues are built again from the commit log",
            )
        if file_bytes != wanted:
            log.warning(
                "mappedFileSizeConsumeQueue differs from the files of this store, whose size is kept",
                extra={"configured": wanted, "kept": file_bytes},
            )
            self._queue_set.use_file_bytes(file_bytes)

    def _drop_behind_gap(self, queue: ConsumeQueue, bases: list[int]) -> list[int]:
        """Return the files up to the first missing one; those behind it are deleted and rebuilt from the log."""
        for number, base in enumerate(bases):
            if base != bases[0] + number * queue.file_entries:
                log.warning("consume queue file missing", extra={"queue": queue.directory, "before": base})
                self._queue_files_missing = True
                for lost in bases[number:]:
                    self._files.delete(queue.path(lost))
                return bases[:number]
        return bases

    # -- choosing where to start reading the log --

    def _choose_start(self) -> int:
        """Return the physical offset from which to read the log."""
        if self.rebuilt:
            return self._log.first_base
        self._find_entries()
        start = self._start_after_crash() if self._crashed else self._start_after_clean_end()
        if start is None:
            start = self._last_safe_file()
        doubtful = self._find_doubtful_end()
        if doubtful is not None:
            log.warning("queue entries do not match the commit log, reading it", extra={"from": doubtful})
            start = min(start, doubtful)
        return start

    def _find_doubtful_end(self) -> int | None:
        """Return the end of the last message before an entry that is invalid although the checkpoint covers it, or
        although the last run ended in order; None without such an entry.

        Either the message is damaged, or the entry is.
        """
        ends = [found.end_of_last for found in self._found.values() if found.is_doubtful]
        return max(min(ends), self._log.first_base) if ends else None

    def _find_entries(self) -> None:
        """Find the end of every queue: its first entry that is invalid or, after a crash, that the checkpoint does not
        cover.
        """
        for queue in self._queues.values():
            self._found[queue] = self._search.find_entries(queue)

    def _truncate_queues(self, before: int) -> None:
        for queue in self._queues.values():
            if not queue.bases:
                continue
            found = self._found.pop(queue, None)
            is_end = found is not None and found.is_end
            if found is not None and found.last_place < before:
                count = found.entries
            else:
                count, is_end = self._search.find_end(queue, before), False
            if count == queue.bases[0] and self._log.first_base == 0:
                count = 0  # nothing ever expired, so a queue without a valid entry starts at its beginning
            if not is_end or self._sectors_lost:
                # After a power cut old entries may lie behind empty ones. The zeros are made durable: once the
                # checkpoint covers the places of those entries, they could not be told from valid ones.
                queue.erase_from(count, all_of_file=self._sectors_lost)
                self._changed_paths.append(queue.path_of(count))
            self._changed_paths += queue.truncate_at(count)

    def _start_after_clean_end(self) -> int | None:
        """Return the end of the last message that has a queue entry; None if no queue entry is valid.

        After an orderly end only messages without entries, such as half messages, can follow it.
        """
        start = max((found.end_of_last for found in self._found.values()), default=-1)
        return start if start >= self._log.first_base else None

    def _start_after_crash(self) -> int | None:
        """Return the physical offset of a message with a queue entry that was on the disk, as the checkpoint says, and
        not long before it; None if there is none.
        """
        best = -1
        if self._safe_timestamp > 0:
            by_place = sorted(self._found, key=lambda queue: self._found[queue].last_place, reverse=True)
            for queue in by_place[:_MAX_SEARCHED_QUEUES]:
                count = self._search.first_invalid_entry(queue, self._safe_end, self._safe_timestamp)
                if count > queue.bases[0]:
                    place, size, _ = queue.read_entry(count - 1)
                    best = max(best, place if size not in QUEUE_HOLE_SIZES else -1)
                if count == self._found[queue].entries:
                    break  # it had no later message, and the queues behind it have only earlier ones
        return best if best >= self._log.first_base else None

    def _last_safe_file(self) -> int:
        """Return the last log file that begins with a message known to be on the disk, else the first file.

        Source: CommitLog.recoverAbnormally, 5.4.0.
        """
        for base in reversed(self._log.bases()):
            first = self._first_message_of(base)
            if isinstance(first, ScannedMessage) and self._is_safe(base, first.store_timestamp):
                return base
        return self._log.first_base

    def _first_message_of(self, base: int) -> ScannedMessage | ScanEnd:
        """Return the message at the beginning of a log file, or the reason why none is there."""
        end = base + self._log.file_bytes
        return next(scan_log(self._log, base, end, sectors_lost=self._sectors_lost))

    # -- reading the log --

    def _pass_confirmed(self, start: int) -> int:
        """Read the messages below the checkpoint's offset, and return where the next one starts.

        They were on the disk with their queue entries. One that is invalid is damaged, and set aside.
        """
        offset = start
        damaged = False
        while offset < self._search.queued_until:
            end = self._end_of_messages(offset, self._search.queued_until)
            offset = end.physical_offset
            behind = self._find_message_behind(end) if offset < self._search.queued_until else None
            if behind is not None:
                self._make_holes(offset, behind)
                self._replace_damage(end, behind)
                damaged, offset = True, behind
        if damaged:
            self._find_entries()
        return offset

    def _end_of_messages(self, start: int, end: int) -> ScanEnd:
        """Return where the messages that begin at ``start`` stop being valid, or the limit ``end``."""
        return next(item for item in self._scan(start, end) if isinstance(item, ScanEnd))

    def _make_holes(self, start: int, end: int) -> None:
        """Turn the queue entries of messages in [start, end) into holes, durably.

        Done before the filler is written: behind one, a later recovery would not look for entries that point into it.
        """
        lost = 0
        for queue in self._queues.values():
            numbers = queue.make_holes(start, end, self._search.queued_until)
            self._files.flush_many(sorted({queue.path_of(number) for number in numbers}))
            lost += len(numbers)
        log.error("messages lost to damage of the commit log", extra={"messages": lost})

    def _find_message_behind(self, end: ScanEnd) -> int | None:
        """Return where whole messages continue behind the end of a scan; None if it may be the end of the log.

        After a power cut, only what the checkpoint covers is known to have been whole: at least up to its offset.
        """
        confirmed = end.physical_offset < self._confirmed_until
        if not confirmed and (self._sectors_lost or end.zeros):
            return None
        behind = find_next_message(self._log, end.physical_offset, self._log.max_offset, self._sectors_lost)
        return self._confirmed_until if behind is None and confirmed else behind

    def _replace_damage(self, damage: ScanEnd, end: int) -> None:
        start, reason = damage.physical_offset, damage.reason or "zeros"
        set_aside(self._files, self._config.root, self._log, start, end, reason)
        write_filler(self._files, self._log, start, end)

    def _scan(self, start: int, end: int) -> Iterator[ScannedMessage | ScanEnd]:
        return scan_log(self._log, start, end, self._config.check_crc_on_recover, self._sectors_lost)

    def _rebuild_entries(self, start: int) -> ScanEnd:
        """Read the log from ``start``, append the entries that queues lack, and return where the log ends."""
        offset = start
        self._lost_bytes = 0
        while True:
            for item in self._scan(offset, self._log.max_offset):
                if isinstance(item, ScanEnd):
                    behind = self._find_message_behind(item)
                    if behind is None:
                        return item
                    self._replace_damage(item, behind)
                    offset = item.physical_offset
                elif is_filler(item):
                    self._lost_bytes += item.size
                elif item.physical_offset >= self._search.queued_until and not self._append_entry(
                    item, start == self._log.first_base and self._search.queued_until == 0
                ):
                    log.warning("queue entries missing, rebuilding them from the whole commit log")
                    self._distrust_queues(0)
                    self._truncate_queues(self._log.first_base)
                    return self._rebuild_entries(self._log.first_base)

    def _append_entry(self, message: ScannedMessage, from_beginning: bool) -> bool:
        """Append the queue entry of a message; return False when entries before it are missing.

        With ``from_beginning`` the whole log was read, so what is missing is not in the log: the queue then
        continues behind a gap, and the result is True.
        """
        if not message.has_queue_entry or self._deleted_topics.has_message(message):
            return True
        key = (message.topic, message.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._queue_set.create(message.topic.decode(), message.queue_id)
        if message.queue_offset > queue.next_offset:
            if not from_beginning:
                return False
            self._bridge_gap(queue, message)
        elif message.queue_offset < queue.next_offset:
            # The topic was deleted and created again: the messages of the new topic replace those of the old one.
            self._begun_anew.add(queue)
            queue.erase_from(message.queue_offset, all_of_file=True)
            self._changed_paths += queue.truncate_at(message.queue_offset)
        queue.append_entry(message.physical_offset, message.size, self._tags_code(message))
        return True

    def _bridge_gap(self, queue: ConsumeQueue, message: ScannedMessage) -> None:
        """Let a queue continue with a message although entries before it are missing."""
        missing = message.queue_offset - queue.next_offset
        if queue.bases and missing <= self._lost_bytes // MIN_MESSAGE_BYTES:
            queue.append_holes(missing, message.physical_offset - 1)
            return
        if queue.next_offset > queue.min_offset:
            # An offset-preserving append with ``reset`` began the queue anew, behind what the source had dropped.
            data = {"queue": queue.directory, "end": queue.next_offset, "begin": message.queue_offset}
            log.warning("queue continues behind a gap, earlier messages left out", extra=data)
        queue.restart_at(message.queue_offset)

    def _tags_code(self, message: ScannedMessage) -> int:
        deliver_ms = self._delays.scheduled_deliver_ms(
            message.topic, message.properties, message.store_timestamp
        )
        return tags_code_of(message.properties) if deliver_ms is None else deliver_ms

    # -- cutting the log --

    def _truncate_log(self, bases: list[int], scan_end: ScanEnd) -> None:
        end = scan_end.physical_offset
        self._check_nothing_durable_is_lost(bases, scan_end)
        while bases and bases[-1] > end:
            base = bases.pop()
            self._files.delete(self._log.path(base))
            self._log.close_file(base)
            self._changed_paths.append(self._log.path(base))
        if not scan_end.zeros:
            log.warning(
                "commit log truncated at a torn message",
                extra={"physical_offset": end, "reason": scan_end.reason},
            )
        base = bases[-1]
        if end < base + self._log.file_bytes and (self._crashed or not scan_end.zeros):
            # Old bytes behind the end could be taken for messages once new ones reach up to them. The zeros are
            # flushed, because a power cut could otherwise bring the old bytes back as parts of a torn message.
            self._log.mapped_file(base).zero_from(end - base)
            self._files.flush(self._log.path(base))

    def _check_nothing_durable_is_lost(self, bases: list[int], scan_end: ScanEnd) -> None:
        """Raise CorruptionError when cutting here would lose messages that were durable."""
        end = scan_end.physical_offset
        if not scan_end.zeros and self._was_durable(end):
            raise self._log.corruption_error(end, scan_end.reason)
        for base in bases:
            if base <= end:
                continue
            first = self._first_message_of(base)
            if isinstance(first, ScannedMessage) and self._is_safe(base, first.store_timestamp):
                raise self._log.corruption_error(end, scan_end.reason or "zeros in the middle of the log")

    def _was_durable(self, physical_offset: int) -> bool:
        """Return True if the message that starts here was on the disk before the end.

        Such a message is damaged, not torn.
        """
        base = self._log.base_of(physical_offset)
        position = physical_offset - base
        if self._crashed and position // SECTOR_BYTES != (position + HEADER.size) // SECTOR_BYTES:
            return False  # a header in two disk sectors may itself be torn
        mapped = self._log.mapped_file(base)
        start = mapped.view[position : mapped.readable_until(position)]
        if len(start) < 96 or LONG.unpack_from(start, PHYSICAL_OFFSET_AT)[0] != physical_offset:
            return False
        if START.unpack_from(start)[1] not in (MAGIC_V1, MAGIC_V2):
            return False
        return self._is_safe(physical_offset, store_timestamp_of(start))

    def _is_safe(self, physical_offset: int, store_timestamp: int) -> bool:
        """Return True if a message was certainly on the disk before the end."""
        if not self._crashed:
            return True
        return physical_offset < self._safe_end and 0 < store_timestamp <= self._safe_timestamp
