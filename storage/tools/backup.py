"""Copies a store so that a broker can open the copy, while another one goes on writing to the store.

Theory of operation
-------------------
The copy shows the store as if its broker had been stopped at one moment, when the log ended at physical offset E.

1. The records of progress are copied first: checkpoint, offsets of groups, delays and timers, staged batches. So they
   are not ahead of anything that is copied later. At worst a broker on the copy delivers again what was delivered
   during the backup, as after a kill.
2. E is taken. Every message acknowledged before the backup began lies before it.
3. The log is copied up to E, every queue up to its last message before E, and the index likewise. Files are copied from
   the newest to the oldest, because a broker deletes expired ones at the other end: the copy never has a gap.
4. Tables of settings are copied again, with the topics and groups that were created meanwhile. So is the file of
   deleted topics, whose queues the copy lacks, or the broker that opens it deletes.
5. Messages without a queue entry are looked for. Our broker writes the entry with the message, the official one a
   moment later. If one is missing, the copy gets an ``abort`` file, so that the broker that opens it adds the entry.

The copy is made in ``<target>.partial``. That folder is renamed to the target only when everything is on the disk: a
backup that was interrupted is never taken for a whole one.

To restore, copy the target to where the store should be; a broker that opens the target itself would change it.
"""

import contextlib
import mmap
import os
import shutil
import time
from array import array
from dataclasses import dataclass
from typing import Final

from storage.consume_queue import ConsumeQueue
from storage.deleted_topics import FILE_NAME as DELETED_TOPICS
from storage.errors import StoreError, StoreFull
from storage.files import fsync_path
from storage.index import HEADER, list_index_files
from storage.layout import QUEUE_ENTRY_BYTES, mapped_file_name
from storage.log_scan import ScanEnd, scan_log
from storage.queue_set import list_queue_files
from storage.tools.file_copy import FileCopier, Progress, flush_tree, try_reflink
from storage.tools.index_file import IndexView
from storage.tools.store_reader import StoreReader, StoreState
from storage.tools.table_check import Checkpoint
from storage.tools.timer_copy import TimerCopy, log_end_of

PARTIAL_SUFFIX: Final = ".partial"
"""Ends the name of the folder in which a backup is made."""
COPIED: Final = frozenset(
    {
        "commitlog", "consumequeue", "consumequeue_ext", "index", "config", "staged", "timerlog", "timerwheel",
        "checkpoint", "abort", "lock", "deletedtopics.json",
    }
)  # fmt: skip
"""Names in a store's folder that a backup copies or replaces."""
_SETTINGS_TABLES: Final = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerFilter.json",
    "messageRequestMode.json",
)
_UNREPORTED: Final = frozenset(
    {"queueends.json", "topicsbeingdeleted.json", "consumeroffsets.journal", "damaged", "rocksdbstore"}
)
_TRIES: Final = 200
_PAUSE_S: Final = 0.01
"""Wait between two tries: a file that is being replaced is missing, or a message half written, only for a moment."""


class BackupRefused(StoreError):
    """A backup cannot be made as asked; nothing was written."""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """``first_offset`` and ``end_offset``: the part of the log that the copy has. ``bytes``: the number copied.

    ``needs_recovery``: queue entries are missing, and the broker that opens the copy will add them. ``left_out``: names
    in the store's folder that are not copied.
    """

    target: str
    first_offset: int
    end_offset: int
    bytes: int
    needs_recovery: bool
    left_out: list[str]


def back_up(reader: StoreReader, target: str, progress: Progress) -> BackupResult:
    """Copy a store to ``target``, a folder that does not exist yet.

    Raises BackupRefused, StoreFull, CorruptionError for a damaged store, OSError; then there is no target.
    """
    target = os.path.abspath(target)
    check_target(reader.config.root, target)
    partial = target + PARTIAL_SUFFIX
    os.mkdir(partial)
    try:
        check_space(reader, partial)
        result = Backup(reader, partial, progress).run(target)
        flush_tree(partial)
        os.rename(partial, target)
        fsync_path(os.path.dirname(target))
        return result
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_target(root: str, target: str) -> None:
    """Raise BackupRefused unless a backup can be made at ``target``."""
    partial = target + PARTIAL_SUFFIX
    if os.path.lexists(target):
        raise BackupRefused(f"{target} exists already. Name a folder that does not.")
    if os.path.lexists(partial):
        raise BackupRefused(
            f"{partial} exists: another backup to this place is running, or was interrupted. "
            "Delete it in the second case."
        )
    if not os.path.isdir(os.path.dirname(target)):
        raise BackupRefused(f"{os.path.dirname(target)} is not a folder. Create it first.")
    if os.path.commonpath([os.path.realpath(root), os.path.realpath(target)]) == os.path.realpath(root):
        raise BackupRefused(f"{target} is inside the store. Name a place outside, best on another disk.")


def check_space(reader: StoreReader, partial: str) -> None:
    """Raise StoreFull if the copy does not fit; a file system with reflinks needs no room for it."""
    if reader.bases and _can_reflink(reader.log.path(reader.bases[-1]), f"{partial}/reflink"):
        return
    needed, disk = allocated_bytes(reader), os.statvfs(partial)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise StoreFull(
            f"the copy needs {needed:,} bytes, but {os.path.dirname(partial)} has only {free:,} free"
        )


def _can_reflink(source: str, probe: str) -> bool:
    with open(source, "rb") as original, open(probe, "wb") as copy:
        possible = try_reflink(original.fileno(), copy.fileno())
    os.unlink(probe)
    return possible


def allocated_bytes(reader: StoreReader) -> int:
    """Return the disk space of the files that a backup copies."""
    config = reader.config
    root = config.root
    folders = [config.commit_log_path, *(f"{root}/{name}" for name in sorted(COPIED - {"commitlog"}))]
    return sum(_disk_bytes(folder) for folder in folders)


def _disk_bytes(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(f"{folder}/{name}").st_blocks * 512
            except FileNotFoundError:
                continue  # deleted meanwhile
    if os.path.isfile(path):
        total += os.stat(path).st_blocks * 512
    return total


class Backup:
    """One backup, made in the folder ``partial``."""

    def __init__(self, reader: StoreReader, partial: str, progress: Progress) -> None:
        self._reader = reader
        self._files = reader.files
        self._config = reader.config
        self._partial = partial
        self._report = progress
        self._copier = FileCopier(self._count)
        self._checkpoint = Checkpoint(reader.files, reader.config.checkpoint_path)
        self._bytes = 0
        self._end = 0

    def _count(self, copied: int) -> None:
        self._bytes += copied
        self._report(copied)

    def run(self, target: str) -> BackupResult:
        """Copy everything, in the order that the theory of operation gives."""
        root = self._config.root
        timer_end = self._copy_tables()
        self._copy_staged()
        known_until = self._find_last_queued_end()
        self._end = self._find_end(known_until)
        first = self._copy_log()
        covered = self._copy_queues()
        self._copy_settings()
        self._copy_index()
        if timer_end is not None:
            TimerCopy(self._files, self._copier, root, self._partial, timer_end).copy()
        needs_recovery = self._mark_if_incomplete(max(covered, first))
        if self._checkpoint.file_bytes:
            confirm_offset = min(self._checkpoint.confirm_offset, covered if needs_recovery else self._end)
            self._copier.write(f"{self._partial}/checkpoint", self._checkpoint.encode(max(confirm_offset, 0)))
        left_out = [name for name in self._files.list(root) if name not in COPIED | _UNREPORTED]
        return BackupResult(target, first, self._end, self._bytes, needs_recovery, left_out)

    # -- tables --

    def _copy_tables(self) -> int | None:
        """Copy the tables; return where the timer log ends in the copy, None if the store has no timer."""
        directory = self._config.config_path
        timer_end = None
        for name in self._files.list(directory):
            path = f"{directory}/{name}"
            if name.endswith((".bak", ".tmp")) or not os.path.isfile(path):
                continue
            content = self._read_replaced(path)
            if name == "timercheck":
                content = self._read_steady(path)
                timer_end = log_end_of(content)
            self._copier.write(f"{self._partial}/config/{name}", content)
        return timer_end

    def _copy_settings(self) -> None:
        for name in _SETTINGS_TABLES:
            if self._files.size(f"{self._config.config_path}/{name}"):
                content = self._read_replaced(f"{self._config.config_path}/{name}")
                copy = f"{self._partial}/config/{name}"
                if os.path.exists(copy):
                    os.unlink(copy)
                self._copier.write(copy, content)
        if self._files.size(f"{self._config.root}/{DELETED_TOPICS}"):
            content = self._read_replaced(f"{self._config.root}/{DELETED_TOPICS}")
            self._copier.write(f"{self._partial}/{DELETED_TOPICS}", content)

    def _read_replaced(self, path: str) -> bytes:
        """Read a file that a broker replaces: it moves the old one away before the new one gets its name."""
        for _ in range(_TRIES):
            content = self._files.read_small(path)
            if content is not None:
                return content
            time.sleep(_PAUSE_S)
        return self._files.read_small(path + ".bak") or b""

    def _read_steady(self, path: str) -> bytes:
        """Read a file whose fields a broker changes in place, between two changes."""
        content = self._files.read_small(path) or b""
        for _ in range(_TRIES):
            again = self._files.read_small(path) or b""
            if again == content:
                return content
            content = again
        return content

    def _copy_staged(self) -> None:
        """Copy the staged batches as they are at one moment: none of their files may be replaced meanwhile."""
        folder = f"{self._config.root}/staged"
        for _ in range(_TRIES):
            before = _file_marks(folder)
            if not before:
                return
            try:
                for path in before:
                    self._copier.copy_whole(path, self._partial + path.removeprefix(self._config.root))
            except FileNotFoundError:
                pass
            if _file_marks(folder) == before:
                return
            shutil.rmtree(f"{self._partial}/staged", ignore_errors=True)
            time.sleep(_PAUSE_S)
        raise StoreError(
            f"{folder} changes all the time; make the backup when no batches are being published"
        )

    # -- the log --

    def _find_last_queued_end(self) -> int:
        """Return the end of the last message that a queue points to, from which the end of the log is searched."""
        best = -1
        limit = self._reader.log.max_offset  # the broker may have started a new file
        for queue in self._reader.queues():
            try:
                self._reader.find_ends(queue, before=limit)
            except FileNotFoundError:
                continue  # deleted meanwhile
            best = max(best, self._reader.end_of_last_message(queue))
        return best

    def _find_end(self, known_until: int) -> int:
        """Return E. Raises StoreError if the log is damaged in its last file."""
        if not self._reader.bases:
            return 0
        stop = self._reader.find_log_end(known_until, check_crc=True)
        if self._reader.state.may_change:
            # The last message may be only partly there: its writer copies it front to back.
            time.sleep(_PAUSE_S)
            stop = stop if stop.zeros else self._reader.find_log_end(known_until, check_crc=True)
        if not self._is_log_end(stop):
            reason = f"{stop.reason or 'zeros'}; run `store repair` before a backup"
            raise self._reader.log.corruption_error(stop.physical_offset, reason)
        return stop.physical_offset

    def _is_log_end(self, stop: ScanEnd) -> bool:
        """Return False if messages end because of damage."""
        log, base = self._reader.log, self._reader.bases[-1]
        if stop.physical_offset < self._checkpoint.confirm_offset:
            return False
        if stop.zeros or stop.physical_offset == base + log.file_bytes:
            return True
        next_message = self._reader.find_message_after(stop.physical_offset)
        return next_message is None and not self._reader.state.is_end_settled

    def _copy_log(self) -> int:
        """Copy the log up to E; return its first physical offset in the copy."""
        log = self._reader.log
        first = self._end
        for base in reversed(self._reader.bases):
            if base > self._end:
                continue
            target = f"{self._partial}/commitlog/{mapped_file_name(base)}"
            try:
                if self._end < base + log.file_bytes:
                    self._copier.copy_start(log.path(base), target, max(0, self._end - base), log.file_bytes)
                else:
                    self._copier.copy_whole(log.path(base), target)
            except FileNotFoundError:
                break  # expired meanwhile, with all older ones
            first = base
        return first

    # -- queues and index --

    def _copy_queues(self) -> int:
        """Copy all queues up to E; return the end of the last message that one of them knows."""
        covered = -1
        names = list(list_queue_files(self._files, self._config.consume_queue_path))
        for topic, queue_id, _ in names:
            for _ in range(_TRIES):
                queue = self._reader.queue(topic, queue_id)
                if queue is None:
                    break  # deleted meanwhile
                try:
                    covered = max(covered, self._copy_queue(queue))
                    break
                except FileNotFoundError:  # its oldest file, or all of them: look again
                    shutil.rmtree(f"{self._partial}/consumequeue/{topic}/{queue_id}", ignore_errors=True)
            else:
                raise StoreError(f"files of queue {queue_id} of {topic} vanish all the time")
        os.makedirs(f"{self._partial}/consumequeue", exist_ok=True)
        extensions = f"{self._config.root}/consumequeue_ext"
        for path in _file_marks(extensions):
            with contextlib.suppress(FileNotFoundError):  # expired meanwhile
                self._copier.copy_whole(path, self._partial + path.removeprefix(self._config.root))
        return covered

    def _copy_queue(self, queue: ConsumeQueue) -> int:
        """Copy one queue; return the end of its last message, -1 without one. Raises FileNotFoundError."""
        self._reader.find_ends(queue, before=self._end)
        if queue.next_offset == 0:
            return -1
        for base in queue.bases:
            # An empty first file tells where the queue goes on: its earlier messages have expired.
            if base >= queue.next_offset and base != queue.bases[0]:
                continue
            source = queue.path(base)
            target = (
                f"{self._partial}/consumequeue/{queue.topic}/{queue.queue_id}/{source.rpartition('/')[2]}"
            )
            entries = queue.next_offset - base
            if entries < queue.file_entries:
                self._copier.copy_start(source, target, entries * QUEUE_ENTRY_BYTES, queue.file_bytes)
            else:
                self._copier.copy_whole(source, target)
        return self._reader.end_of_last_message(queue)

    def _copy_index(self) -> None:
        for path in list_index_files(self._files, self._config.index_path):
            copy = f"{self._partial}/index/{path.rpartition('/')[2]}"
            try:
                self._copier.copy_whole(path, copy)
            except FileNotFoundError:
                continue  # expired meanwhile
            try:
                if not settle_index_copy(copy, self._config.index_slots, self._end):
                    os.unlink(copy)
            except ValueError as error:
                raise StoreError(f"{path}: {error}; pass the broker's broker.conf with -c") from error

    def _mark_if_incomplete(self, covered: int) -> bool:
        """Write an abort file if a message before E has no queue entry; return True then.

        All messages before ``covered`` have entries; a message starts there, or the log ends.
        """
        state = self._reader.state.state
        if state is StoreState.CRASHED:
            self._copier.write(
                f"{self._partial}/abort", self._files.read_small(self._config.abort_path) or b""
            )
            return True
        if not self._reader.bases:
            return False
        later_messages = scan_log(self._reader.log, covered, self._end, check_crc=False)
        missing = any(not isinstance(item, ScanEnd) and item.has_queue_entry for item in later_messages)
        if missing:
            self._copier.write(f"{self._partial}/abort", b"")
        return missing


def _file_marks(folder: str) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and time of change of all files below a folder: any change of one changes its mark."""
    marks = {}
    for directory, _, names in os.walk(folder):
        for name in names:
            path = f"{directory}/{name}"
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            marks[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return marks


def settle_index_copy(path: str, slots: int, log_end: int) -> bool:
    """Cut a copied index file to the entries of messages before physical offset ``log_end``.

    The broker may have written to the file while it was copied. It writes an entry before the slot that leads to it,
    and both before the header that counts it; the copy was made front to back: header, slots, entries. So every entry
    that a copied slot leads to is in the copy, perhaps not counted. Such slots are set back to the newest entry that
    counts, and entries that do not count are erased.

    Return False if it has none, and is to be left out. Raises ValueError if it cannot have that many slots.
    """
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), size) as buffer, memoryview(buffer) as view:
            index = IndexView(view, slots)
            end = min(index.header.next_entry, index.first_entry_from(log_end))
            if end <= 1:
                return False
            values = index.slot_values()
            _set_slots_back(index, values, end)
            header = index.header._replace(
                end_offset=index.entry(end - 1).physical_offset,
                slots_used=slots - values.count(0),
                next_entry=end,
            )
            erased_from = index.entry_position(end)
            index.write_slots(values)
            HEADER.pack_into(buffer, 0, *header)
            del index
        os.ftruncate(file.fileno(), erased_from)
        os.ftruncate(file.fileno(), size)
    return True


def _set_slots_back(index: IndexView, values: "array[int]", end: int) -> None:
    """Let slots that lead to entry ``end`` or a later one lead to the newest of their entries before ``end``."""
    if max(values) < end:
        return
    for slot, value in enumerate(values):
        while value >= end:
            previous = index.entry(value).previous
            value = previous if previous < value else 0  # an entry can only point back
        values[slot] = max(value, 0)
