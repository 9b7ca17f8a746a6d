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

**Inputs.** If there is an ``abort`` file, the last run did not close the store cleanly. The file names the boot of the
machine: in the same boot the page cache has survived, and no sector is lost. The checkpoint gives two
limits (`DurableState`): messages stored up to ``safe_timestamp`` are on the disk, in the log and in their queues; and
messages below physical offset ``confirm_offset`` are on the disk together with their queue entries. Messages of deleted
topics stay in the log, but must not get entries (`deleted_topics.py`).

**Steps.**

1. List the log files. A gap between them is damage, as is an end before the confirm offset; an empty last file was
   just created and is removed.
2. Load the queues, and drop queue files after a gap and those of deleted topics. If any queue lacks files, what the
   checkpoint says about queues is ignored, and the log is read from its beginning.
3. Find the end of every queue (`EntrySearch`), and choose where to start reading the log. After a clean close: at the
   end of the last message that any queue points to. After a crash: at the last message that the checkpoint vouches for,
   or at the last file that begins with such a message. Earlier, if an entry that should be valid is not.
4. Read the part that the checkpoint covers. An invalid message in it is damage: its queue entries become holes, and it
   is set aside (`damage.py`). If an entry is still invalid, it is itself damaged, and entries from there on are derived
   from the log. Then truncate every queue to the entries of messages before that point.
5. Read the log from there to the first invalid message, append the missing queue entries, and cut the log at that
   point. If entries turn out to be missing from an earlier part of the log, start over from its beginning.
6. Zero the bytes after the cut and flush. Otherwise the remains of a torn message could be taken for a message once
   new messages reach up to them, or reappear after the next power cut.

A crash during recovery is harmless at every step: queues were only truncated or extended with what the log says, the
``abort`` file is still there, and the checkpoint is rewritten by `MessageStore` only after recovery has finished.
Before entries that the checkpoint covers are derived again, the ``abort`` file is made to say so (`_distrust_queues`).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from codec.constants import MAGIC_V1, MAGIC_V2
from storage.commit_log import NO_LIMIT, CommitLog, store_timestamp_of
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.damage import find_next_message, is_filler, set_aside, write_filler
from storage.deleted_topics import DeletedTopics
from storage.dispatch import EntryDispatch
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

log = logging.getLogger(__name__)

REBUILDING = b"rebuilding queues"
"""Content of the abort file while queue entries that the checkpoint covers are derived from the log."""

# Queues in which a message to start at is searched for: those with the latest messages have one just before the
# checkpoint.
_MAX_SEARCHED_QUEUES = 64


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state that the abort file and the checkpoint report before the other files are read.

    ``crashed``: the last run did not close the store cleanly. ``power_cut``: it crashed, and the machine was, or may
    have been, started again since, so that disk sectors can be lost. ``safe_timestamp``: messages stored up to this
    time, in ms, are on the disk even after a power cut. ``confirm_offset``: messages below this physical offset are on
    the disk together with their queue entries; 0 if unknown. ``confirmed_until``: messages below this physical offset
    were confirmed, if that matters (`confirmed_store.py`). ``rebuilding``: the last run ended while it derived such
    entries from the log. ``queue_ranges``: the offsets that queues had reached; none may be given out again.
    """

    crashed: bool
    power_cut: bool
    safe_timestamp: int
    confirm_offset: int
    confirmed_until: int = 0
    rebuilding: bool = False
    queue_ranges: QueueRanges = field(default_factory=QueueRanges)


class QueueEnd(NamedTuple):
    """The end of a queue as its files show it.

    ``entries`` is the number of the first invalid entry. ``last_physical_offset`` and ``last_size`` are those of the
    entry before it (-1 and 0 if there is none). ``is_end``: no other entry follows. ``is_doubtful``: the invalid entry
    should be valid, because it was on the disk with its message.
    """

    entries: int
    last_physical_offset: int
    last_size: int
    is_end: bool
    is_doubtful: bool

    @property
    def end_of_last(self) -> int:
        """The physical offset at which the last message ends; -1 if it is not known."""
        if self.last_physical_offset < 0 or self.last_size in QUEUE_HOLE_SIZES:
            return -1
        return self.last_physical_offset + self.last_size


class EntrySearch:
    """Finds where the entries of a queue stop being valid, by bisection.

    ``trusted_until``: the entries of messages below this physical offset were on the disk, with their messages. It is
    the checkpoint's confirm offset, or less if recovery has found a reason not to trust all of these entries.
    ``crashed``: the last run did not close the store cleanly. ``sectors_lost``: it ended in a power cut.
    """

    def __init__(
        self, commit_log: CommitLog, trusted_until: int, *, crashed: bool, sectors_lost: bool
    ) -> None:
        self.trusted_until = trusted_until
        self._log = commit_log
        self._crashed = crashed
        self._sectors_lost = sectors_lost

    def find_queue_end(self, queue: ConsumeQueue) -> QueueEnd:
        """Find the first entry of a queue that is invalid or, after a crash, that the checkpoint does not cover."""
        before = NO_LIMIT
        if self._crashed and self.trusted_until:
            # Entries of deleted messages count even if the checkpoint does not cover them, as where an earlier version
            # deleted the log file: the log cannot tell any more how far the queue had come.
            before = max(self.trusted_until, self._log.first_base)
        count = self.find_end(queue, before)
        last = queue.read_entry(count - 1) if count > queue.bases[0] else (-1, 0, 0)
        if count == queue.bases[-1] + queue.file_entries or queue.read_entry(count)[:2] == (0, 0):
            return QueueEnd(count, last[0], last[1], True, False)
        # After a clean close every entry was on the disk; after a crash only those that the checkpoint covers.
        trusted = self.trusted_until if self._crashed else NO_LIMIT
        return QueueEnd(count, last[0], last[1], False, queue.read_entry(count)[0] < trusted)

    def find_end(self, queue: ConsumeQueue, before: int) -> int:
        """Return the number of the first entry that is invalid or points to physical offset ``before`` or higher.

        Entries of messages that the checkpoint covers were on the disk, so that looking at the queue's file is enough;
        only the last one is compared with its message. After a power cut entries that were cut off may have reappeared,
        and all that are looked at are compared.
        """
        trusted_until = self.trusted_until

        def looks_valid(number: int) -> bool:
            physical_offset, size, _ = queue.read_entry(number)
            if 0 <= physical_offset < trusted_until:
                return size > 0 and physical_offset < before
            return self._is_valid_entry(queue, number, before, NO_LIMIT)

        if trusted_until and not self._sectors_lost:
            end = _find_first_failing(queue, looks_valid)
            if end == queue.bases[0] or self._is_valid_entry(queue, end - 1, before, NO_LIMIT):
                return end
        return self.first_invalid_entry(queue, before, NO_LIMIT)

    def first_invalid_entry(self, queue: ConsumeQueue, before: int, until_ms: int) -> int:
        """Return the number of the first entry that is invalid, or whose message is too late.

        A message is too late if it lies at physical offset ``before`` or higher, or was stored after ``until_ms``.
        """
        return _find_first_failing(
            queue, lambda number: self._is_valid_entry(queue, number, before, until_ms)
        )

    def _is_valid_entry(self, queue: ConsumeQueue, offset: int, before: int, until_ms: int) -> bool:
        """Return True if the message that an entry points to is there, belongs to it, and is not too late."""
        physical_offset, size, _ = queue.read_entry(offset)
        if size in QUEUE_HOLE_SIZES:
            return physical_offset < before
        if size <= 0 or physical_offset < 0 or physical_offset >= before:
            return False
        if physical_offset < self._log.first_base:
            return True  # its message was deleted by retention
        base = self._log.base_of(physical_offset)
        if physical_offset + size > base + self._log.file_bytes or base > self._log.base:
            return False
        # A torn header may hold a wrong time, so the whole message is checked where it may be torn. Elsewhere a damaged
        # body does not make its entry invalid.
        check_crc = physical_offset >= self.trusted_until
        mapped, position = self._log.mapped_file(base), physical_offset - base
        # On a file system in memory, reading a page that was never written can end the process.
        if mapped.readable_until(position) < position + size:
            return False
        message = check_message(mapped.view, position, physical_offset, check_crc, self._sectors_lost)
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


class Recovery:
    """One run over the files of a store that was just opened. ``run`` may be called once.

    Afterwards ``rebuilt`` is True if the checkpoint no longer describes the queues and has to be written again.
    Messages from ``dispatched_until`` on have got no entries, because they are not confirmed; ``tail_ends`` are the
    offsets that the next messages of their queues get.
    """

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        commit_log: CommitLog,
        queue_set: QueueSet,
        durable: DurableState,
        deleted_topics: DeletedTopics,
    ) -> None:
        self.rebuilt = False
        self.dispatched_until = NO_LIMIT
        self.tail_ends: dict[tuple[str, int], int] = {}
        self._config = config
        self._files = files
        self._log = commit_log
        self._queue_set = queue_set
        self._deleted_topics = deleted_topics
        self._crashed = durable.crashed
        self._sectors_lost = durable.power_cut
        self._safe_timestamp = durable.safe_timestamp
        self._confirm_offset = durable.confirm_offset
        self._search = EntrySearch(
            commit_log, durable.confirm_offset, crashed=durable.crashed, sectors_lost=durable.power_cut
        )
        self._dispatch = EntryDispatch(config, queue_set, deleted_topics)
        self._queues = self._dispatch.queues
        self._ends: dict[ConsumeQueue, QueueEnd] = {}
        self._confirmed_until = durable.confirmed_until
        self._readable_limit = NO_LIMIT
        self._rebuilding = durable.rebuilding
        self._queue_ranges = durable.queue_ranges
        self._queue_files_missing = False  # then only the whole log tells what was in them
        # Files with erased entries, and deleted ones: old entries and messages must not come back among new ones.
        self._changed_paths = self._dispatch.changed_paths

    def run(self) -> None:
        """Leave the store ready to append. Raises CorruptionError when messages known to be durable are damaged."""
        # Step 1: the log files. A log that ends before the confirm offset has lost some.
        bases = self._list_log_files()
        if not bases:
            if self._confirm_offset > self._initial_base():
                raise CorruptionError(
                    self._log.directory,
                    0,
                    f"the commit log is missing: the checkpoint covers it up to {self._confirm_offset}. Restore it, "
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
        if self._confirm_offset > self._log.max_offset:
            missing = self._log.path(self._log.base + self._log.file_bytes)
            raise CorruptionError(
                missing,
                0,
                f"the file is missing: the checkpoint covers the log up to {self._confirm_offset}",
            )
        # Step 2: the queue files.
        self._load_queues()
        # An operator who wants the queues to be built again removes their folder.
        folder_removed = "consumequeue" not in self._files.list(self._config.root)
        if folder_removed and self._confirm_offset > self._log.first_base:
            log.warning(
                "queue folder is missing, rebuilding all queues from the commit log",
                extra={"path": self._config.consume_queue_path},
            )
        # The checkpoint still covers entries that are gone with their files, or that the last run had not yet written.
        if self._rebuilding or folder_removed or self._queue_files_missing:
            self._distrust_queues(0)
        # Step 3: where to start reading. A queue that lacks its last files looks like a shorter one, so its end is
        # compared with the one that it had when the store was closed.
        start = self._choose_start()
        if not self.rebuilt and self._report_missing_entries():
            self._distrust_queues(0)
            start = self._log.first_base
        if self._config.awaits_confirmation and not self._config.log_is_confirmed:
            self._readable_limit = max(self._confirmed_until, self._end_of_entries())
        # Step 4: the part that the checkpoint covers. An entry that is doubtful although its message is whole is
        # itself damaged; the log tells what it was.
        rebuild_start = self._check_confirmed_part(start)
        if self._find_doubtful_end() is not None:
            log.warning(
                "queue entries are damaged, deriving them from the log", extra={"physical_offset": start}
            )
            rebuild_start = start
            self._distrust_queues(start)
        # Step 5: the rest of the log. The entries of the messages that are read now are dropped first, even valid ones,
        # because all of these messages get their entries from the log.
        self._truncate_queues(max(rebuild_start, self._search.trusted_until))
        log_end = self._rebuild_entries(rebuild_start)
        if log_end.physical_offset < self._search.trusted_until:
            log.warning(
                "commit log ends before the checkpoint's offset", extra={"end": log_end.physical_offset}
            )
            self._truncate_queues(log_end.physical_offset)
        # Step 6: the cut.
        self._truncate_log(bases, log_end)
        self._log.start_at(bases[0], log_end.physical_offset)
        self._restore_queue_ends(log_end.physical_offset)
        if self._crashed:
            self._log.durable_offset = bases[0]  # the bytes that were read may be in the page cache only
        self._files.flush_many(self._changed_paths)

    def _distrust_queues(self, start: int) -> None:
        """Derive all queue entries of messages from physical offset ``start`` on from the log.

        The abort file says so until the checkpoint is true again: after a power cut some of these entries would be
        missing, and later ones not.
        """
        self._files.write_small(self._config.abort_path, REBUILDING)
        self._search.trusted_until = start
        self.rebuilt = True

    def _report_missing_entries(self) -> bool:
        """Return True, after logging it, if queues end before an offset that they had reached."""
        missing = []
        nothing_expired = self._queue_ranges.log_start == self._log.first_base
        for (topic, queue_id), (first_offset, end_offset) in self._queue_ranges.ranges.items():
            queue = self._queues.get((topic.encode(), queue_id))
            queue_end = None if queue is None else self._ends.get(queue)
            # A power cut may have taken any later entries, which the log has.
            durable_end = end_offset if self._sectors_lost else NO_LIMIT
            if queue is None or queue_end is None:
                is_whole = end_offset == 0
            else:
                # A doubtful entry is there: it or its message is damaged, which is dealt with later.
                is_whole = queue_end.entries >= end_offset or queue_end.is_doubtful
                # Ends are read while messages are appended: they may be ahead of the checkpoint written with them.
                is_whole = (
                    is_whole or self._search.first_invalid_entry(queue, NO_LIMIT, NO_LIMIT) >= end_offset
                )
                is_whole = is_whole and not (nothing_expired and queue.bases[0] > first_offset)
                is_whole = is_whole and not queue.has_lost_file(self._log.max_offset, durable_end)
            if not is_whole:
                missing.append(f"{topic}/{queue_id}")
        if missing:
            log.warning(
                "queue files are missing, rebuilding all queues from the commit log",
                extra={"queues": len(missing), "first": missing[0]},
            )
        return bool(missing)

    def _restore_queue_ends(self, log_end: int) -> None:
        """Let every queue continue after the offsets that it has given out, even if their messages have expired."""
        for (topic, queue_id), (_, end_offset) in self._queue_ranges.ranges.items():
            queue = self._queues.get((topic.encode(), queue_id))
            if queue in self._dispatch.restarted_queues:
                continue  # the power cut brought back the file of ends, although the topic was deleted
            if queue is None or not queue.bases:
                if end_offset > 0:
                    queue = queue or self._queue_set.create(topic, queue_id)
                    queue.restart_at(end_offset)
                    self._queues[topic.encode(), queue_id] = queue
            elif queue.next_offset < end_offset:
                expired_until = self._log.first_base
                if (
                    expired_until > self._initial_base()
                    and queue.first_entry_from(expired_until) == queue.next_offset
                ):
                    queue.restart_at(end_offset)  # holes would be readable: the first offset would go back
                else:
                    queue.append_holes(end_offset - queue.next_offset, log_end - 1)

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
        """Create a queue for each folder of queue files; `_truncate_queues` finds its end."""
        root = self._config.consume_queue_path
        queue_files = {
            (topic, queue_id): offsets for topic, queue_id, offsets in list_queue_files(self._files, root)
        }
        self._use_size_of_files(queue_files)
        for (topic, queue_id), offsets in queue_files.items():
            queue = self._queue_set.create(topic, queue_id)
            queue.bases = self._drop_files_after_gap(
                queue, [offset // QUEUE_ENTRY_BYTES for offset in offsets]
            )
            queue.min_offset = queue.bases[0]
            queue.next_offset = queue.bases[-1] + queue.file_entries
            if self._deleted_topics.has_queue(queue, self._log):
                log.warning("deleting what a crash left of a deleted topic", extra={"queue": queue.directory})
                self._changed_paths += self._queue_set.discard(queue)
                continue
            self._queues[topic.encode(), queue_id] = queue

    def _use_size_of_files(self, queue_files: dict[tuple[str, int], list[int]]) -> None:
        """Keep the size that the queue files have: with another one, their names would not fit their entries.

        Raises CorruptionError for files of different sizes; nothing has been changed then.
        """
        root = self._config.consume_queue_path
        example_paths: dict[int, str] = {}  # one file of each size
        for (topic, queue_id), offsets in queue_files.items():
            for offset in offsets:
                path = f"{root}/{topic}/{queue_id}/{mapped_file_name(offset)}"
                example_paths.setdefault(self._files.size(path) or 0, path)
        example_paths.pop(0, None)  # just created when the machine stopped
        if not example_paths:
            return
        file_bytes, path = example_paths.popitem()
        configured_bytes = self._config.consume_queue_file_entries * QUEUE_ENTRY_BYTES
        if example_paths or file_bytes % QUEUE_ENTRY_BYTES:
            other_sizes = ", ".join(f"{other_path} has {size}" for size, other_path in example_paths.items())
            raise CorruptionError(
                path,
                0,
                f"a queue file of {file_bytes} bytes{' where ' * bool(other_sizes)}{other_sizes}; without the folder "
                f"{root} all queues are built again from the commit log",
            )
        if file_bytes != configured_bytes:
            log.warning(
                "mappedFileSizeConsumeQueue differs from the files of this store, whose size is kept",
                extra={"configured": configured_bytes, "kept": file_bytes},
            )
            self._queue_set.use_file_bytes(file_bytes)

    def _drop_files_after_gap(self, queue: ConsumeQueue, bases: list[int]) -> list[int]:
        """Return the files before the first missing one; those after it are deleted and rebuilt from the log."""
        for number, base in enumerate(bases):
            if base != bases[0] + number * queue.file_entries:
                log.warning("consume queue file missing", extra={"queue": queue.directory, "before": base})
                self._queue_files_missing = True
                for later_base in bases[number:]:
                    self._files.delete(queue.path(later_base))
                return bases[:number]
        return bases

    # -- choosing where to start reading the log --

    def _choose_start(self) -> int:
        """Return the physical offset from which to read the log."""
        if self.rebuilt:
            return self._log.first_base
        self._find_queue_ends()
        start = self._start_after_crash() if self._crashed else self._start_after_clean_close()
        if start is None:
            start = self._last_safe_file()
        doubtful_end = self._find_doubtful_end()
        if doubtful_end is not None:
            log.warning("queue entries do not match the commit log, reading it", extra={"from": doubtful_end})
            start = min(start, doubtful_end)
        return start

    def _find_doubtful_end(self) -> int | None:
        """Return the end of the last message before an entry that is invalid although the checkpoint covers it, or
        although the store was closed cleanly; None without such an entry.

        Either the message is damaged, or the entry is.
        """
        ends = [queue_end.end_of_last for queue_end in self._ends.values() if queue_end.is_doubtful]
        return max(min(ends), self._log.first_base) if ends else None

    def _find_queue_ends(self) -> None:
        """Find the end of every queue: its first entry that is invalid or, after a crash, that the checkpoint does not
        cover.
        """
        for queue in self._queues.values():
            self._ends[queue] = self._search.find_queue_end(queue)

    def _truncate_queues(self, before: int) -> None:
        """Drop the entries of all messages from physical offset ``before`` on, and the invalid ones."""
        for queue in self._queues.values():
            if not queue.bases:
                continue
            queue_end = self._ends.pop(queue, None)
            is_end = queue_end is not None and queue_end.is_end
            # An end that was found before is still right if all entries up to it stay.
            if queue_end is not None and queue_end.last_physical_offset < before:
                count = queue_end.entries
            else:
                count, is_end = self._search.find_end(queue, before), False
            if count == queue.bases[0] and self._log.first_base == 0:
                count = 0  # nothing ever expired, so a queue without a valid entry starts at its beginning
            if not is_end or self._sectors_lost:
                # After a power cut old entries may follow empty ones. The zeros are made durable: once the checkpoint
                # covers the messages that those entries point to, they could not be told from valid ones.
                queue.erase_from(count, all_of_file=self._sectors_lost)
                self._changed_paths.append(queue.path_of(count))
            self._changed_paths += queue.truncate_at(count)

    def _start_after_clean_close(self) -> int | None:
        """Return the end of the last message that has a queue entry; None if no queue entry is valid.

        After a clean close only messages without entries, such as half messages, can follow it.
        """
        start = max((queue_end.end_of_last for queue_end in self._ends.values()), default=-1)
        return start if start >= self._log.first_base else None

    def _start_after_crash(self) -> int | None:
        """Return the physical offset of a message that was on the disk with its queue entry, as the checkpoint says;
        None if there is none. It is the latest one that the queues with the latest messages have.
        """
        best = -1
        if self._safe_timestamp > 0:
            latest_first = sorted(
                self._ends, key=lambda queue: self._ends[queue].last_physical_offset, reverse=True
            )
            for queue in latest_first[:_MAX_SEARCHED_QUEUES]:
                count = self._search.first_invalid_entry(queue, self._confirm_limit, self._safe_timestamp)
                if count > queue.bases[0]:
                    physical_offset, size, _ = queue.read_entry(count - 1)
                    best = max(best, physical_offset if size not in QUEUE_HOLE_SIZES else -1)
                if count == self._ends[queue].entries:
                    break  # it had no later message, and the queues after it have only earlier ones
        return best if best >= self._log.first_base else None

    def _last_safe_file(self) -> int:
        """Return the last log file that begins with a message known to be on the disk, else the first file.

        After a clean close all messages are on the disk, but a store whose entries are built later may lack some.
        Source: CommitLog.recoverAbnormally, 5.4.0.
        """
        for base in reversed(self._log.bases()):
            if not self._crashed and base > self._confirm_offset:
                continue
            first = self._first_message_of(base)
            if isinstance(first, ScannedMessage) and self._is_safe(base, first.store_timestamp):
                return base
        return self._log.first_base

    def _first_message_of(self, base: int) -> ScannedMessage | ScanEnd:
        """Return the message at the beginning of a log file, or the reason why none is there."""
        end = base + self._log.file_bytes
        return next(scan_log(self._log, base, end, sectors_lost=self._sectors_lost))

    # -- reading the log --

    def _check_confirmed_part(self, start: int) -> int:
        """Read the messages below the checkpoint's offset, and return where the next one starts.

        They were on the disk with their queue entries. One that is invalid is damaged, and set aside.
        """
        offset = start
        damaged = False
        while offset < self._search.trusted_until:
            end = self._end_of_messages(offset, self._search.trusted_until)
            offset = end.physical_offset
            next_message = self._find_message_after(end) if offset < self._search.trusted_until else None
            if next_message is not None:
                # Holes before the filler: if a crash comes between the two, the damage is still in the log and leads
                # the next recovery here. It would read across a filler without looking for entries that point into it.
                self._make_holes(offset, next_message)
                self._replace_damage(end, next_message)
                damaged, offset = True, next_message
        if damaged:
            self._find_queue_ends()  # the entries that were doubtful because of the damage are holes now
        return offset

    def _end_of_messages(self, start: int, end: int) -> ScanEnd:
        """Return where the messages that begin at ``start`` stop being valid, or the limit ``end``."""
        return next(item for item in self._scan(start, end) if isinstance(item, ScanEnd))

    def _make_holes(self, start: int, end: int) -> None:
        """Turn the queue entries of messages in [start, end) into holes, durably."""
        lost = 0
        for queue in self._queues.values():
            numbers = queue.make_holes(start, end, self._search.trusted_until)
            self._files.flush_many(sorted({queue.path_of(number) for number in numbers}))
            lost += len(numbers)
        log.error("messages lost to damage of the commit log", extra={"messages": lost})

    def _find_message_after(self, end: ScanEnd) -> int | None:
        """Return where whole messages continue after the end of a scan; None if it may be the end of the log.

        After a power cut, only what the checkpoint covers is known to have been whole: at least up to its offset.
        """
        confirmed = end.physical_offset < self._confirm_offset
        if not confirmed and (self._sectors_lost or end.zeros):
            return None
        start = find_next_message(self._log, end.physical_offset, self._log.max_offset, self._sectors_lost)
        return self._confirm_offset if start is None and confirmed else start

    def _replace_damage(self, damage: ScanEnd, end: int) -> None:
        start, reason = damage.physical_offset, damage.reason or "zeros"
        set_aside(self._files, self._config.root, self._log, start, end, reason)
        write_filler(self._files, self._log, start, end)

    def _scan(self, start: int, end: int) -> Iterator[ScannedMessage | ScanEnd]:
        return scan_log(self._log, start, end, self._config.check_crc_on_recover, self._sectors_lost)

    def _rebuild_entries(self, start: int) -> ScanEnd:
        """Read the log from ``start``, append the entries that queues lack, and return where the log ends."""
        offset = start
        self._dispatch.lost_bytes = 0
        self.dispatched_until = NO_LIMIT
        self.tail_ends.clear()
        readable_end = start  # the end of the last message before the first that is not confirmed
        while True:
            for item in self._scan(offset, self._log.max_offset):
                if isinstance(item, ScanEnd):
                    # The log ends here, unless whole messages follow: a killed process leaves nothing after the message
                    # that it was writing, so this one is damaged, not torn.
                    next_message = self._find_message_after(item)
                    if next_message is None:
                        if item.physical_offset > self._readable_limit:
                            self.dispatched_until = readable_end
                        return item
                    # No holes yet: `EntryDispatch` appends them when the next message of a queue shows how many it
                    # lacks.
                    self._replace_damage(item, next_message)
                    offset = item.physical_offset
                    continue
                item_end = item.physical_offset + item.size
                if item_end > self._readable_limit:
                    self._note_unconfirmed(item)
                    continue
                readable_end = item_end
                if is_filler(item):
                    self._dispatch.lost_bytes += item.size
                elif item.physical_offset >= self._search.trusted_until and not self._dispatch.append_entry(
                    item, start == self._log.first_base and self._search.trusted_until == 0
                ):
                    # A queue lacks entries that the checkpoint covers, so nothing that it says of queues is relied on.
                    log.warning("queue entries missing, rebuilding them from the whole commit log")
                    self._distrust_queues(0)
                    self._truncate_queues(self._log.first_base)
                    return self._rebuild_entries(self._log.first_base)

    def _end_of_entries(self) -> int:
        """Return the end of the last message that has an entry: an entry is built when its message is confirmed."""
        end = 0
        for queue in self._queues.values():
            count = self._search.find_end(queue, NO_LIMIT) if queue.bases else 0
            if queue.bases and count > queue.bases[0]:
                physical_offset, size, _ = queue.read_entry(count - 1)
                end = max(end, physical_offset + (0 if size in QUEUE_HOLE_SIZES else size))
        return end

    def _note_unconfirmed(self, message: ScannedMessage) -> None:
        """Note the offset of a message that gets no entry yet."""
        if not is_filler(message) and self._dispatch.needs_entry(message):
            queue = self._dispatch.find_queue(message)
            if queue is not None:
                self.tail_ends[queue.topic, queue.queue_id] = message.queue_offset + 1

    # -- cutting the log --

    def _truncate_log(self, bases: list[int], log_end: ScanEnd) -> None:
        """Delete the log files after the end, and erase the rest of the last one."""
        end = log_end.physical_offset
        self._check_nothing_durable_is_lost(bases, log_end)
        while bases and bases[-1] > end:
            base = bases.pop()
            self._files.delete(self._log.path(base))
            self._log.close_file(base)
            self._changed_paths.append(self._log.path(base))
        if not log_end.zeros:
            log.warning(
                "commit log truncated at a torn message",
                extra={"physical_offset": end, "reason": log_end.reason},
            )
        base = bases[-1]
        if end < base + self._log.file_bytes and (self._crashed or not log_end.zeros):
            # Old bytes after the end could be taken for messages once new ones reach up to them. The zeros are
            # flushed, because a power cut could otherwise bring the old bytes back as parts of a torn message.
            self._log.mapped_file(base).zero_from(end - base)
            self._files.flush(self._log.path(base))

    def _check_nothing_durable_is_lost(self, bases: list[int], log_end: ScanEnd) -> None:
        """Raise CorruptionError when cutting here would lose messages that were durable."""
        end = log_end.physical_offset
        if not log_end.zeros and self._was_durable(end):
            raise self._log.corruption_error(end, log_end.reason)
        for base in bases:
            if base <= end:
                continue
            first = self._first_message_of(base)
            if isinstance(first, ScannedMessage) and self._is_safe(base, first.store_timestamp):
                raise self._log.corruption_error(end, log_end.reason or "zeros in the middle of the log")

    def _was_durable(self, physical_offset: int) -> bool:
        """Return True if the message that starts here was on the disk before the last run ended.

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
        """Return True if a message was certainly on the disk before the last run ended."""
        if not self._crashed:
            return True
        return physical_offset < self._confirm_limit and 0 < store_timestamp <= self._safe_timestamp

    @property
    def _confirm_limit(self) -> int:
        """The confirm offset, or no limit if it is unknown.

        The time alone is not enough: if the clock was set back after the checkpoint, later messages have earlier
        timestamps than it, and are nevertheless not known to be on the disk.
        """
        return self._confirm_offset or NO_LIMIT
