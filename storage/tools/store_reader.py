"""A store folder opened for reading only: its commit log, consume queues and tables, of our broker or an official one.

A broker may have the store open (`find_open_state`). Maps share its memory, so appended messages are visible at once;
a file that the broker deletes stays readable as long as it is mapped. The modules that read the log and the queues are
the broker's own; `ReadOnlyFiles` keeps them from creating or changing anything.
"""

import fcntl
import mmap
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final, Never

from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue, QueueFilePool
from storage.damage import find_next_message
from storage.disk_mapping import DiskMapping, is_in_memory
from storage.errors import CorruptionError, StoreError
from storage.files import DiskFiles
from storage.layout import (
    QUEUE_BLANK_SIZE,
    QUEUE_ENTRY_BYTES,
    QUEUE_HOLE_SIZES,
    mapped_file_name,
    mapped_file_offsets,
)
from storage.log_scan import ScanEnd, scan_log
from storage.queue_set import list_queue_files
from storage.rocksdb import refuse_rocksdb

QueueKey = tuple[str, int]
"""Topic and queue id."""
_MAX_SIZED_QUEUES: Final = 64
"""Queues whose files are looked at to find the size that all of them have."""
_FLOCK: Final = struct.Struct("hhlli")  # struct flock of Linux: type, whence, start, length, pid
_MAX_COMMAND_CHARS: Final = 200


class StoreState(StrEnum):
    """OPEN: a broker has it open. CRASHED: the last run did not close it. CLOSED: it was closed cleanly."""

    OPEN = "open"
    CRASHED = "crashed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class OpenState:
    """The state of a store, with ``pid`` and ``command`` of the broker that has it open.

    They are 0 and empty if the broker runs in another container, or not on Linux.
    """

    state: StoreState
    pid: int = 0
    command: str = ""

    @property
    def may_change(self) -> bool:
        """True while a broker may write to the store."""
        return self.state is StoreState.OPEN

    @property
    def is_end_settled(self) -> bool:
        """True if log and queues are known to end together: no broker writes, and none was killed."""
        return self.state is StoreState.CLOSED


def find_open_state(root: str) -> OpenState:
    """Return the state of the store in ``root``, without locking it.

    A process that has a store open itself must not call this: closing the lock file would release its lock.
    Source: DefaultMessageStore.start and isTempFileExist, 5.4.0: byte 0 of ``lock``, and the file ``abort``.
    """
    try:
        fd = os.open(f"{root}/lock", os.O_RDONLY)
    except FileNotFoundError:
        holder = None
    else:
        try:
            holder = _lock_holder(fd)
        finally:
            os.close(fd)
    if holder is not None:
        return OpenState(StoreState.OPEN, holder, _command_of(holder))
    return OpenState(StoreState.CRASHED if os.path.exists(f"{root}/abort") else StoreState.CLOSED)


def _lock_holder(fd: int) -> int | None:
    """Return the process that holds byte 0 of a lock file, 0 for one that is not visible; None without one."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def _command_of(pid: int) -> str:
    """Return the command line of a process; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:_MAX_COMMAND_CHARS]
    except OSError:
        return ""


class ReadOnlyFiles(DiskFiles):
    """The machine's files, mapped for reading. Every method that would write raises StoreError.

    A file may have another size than expected: the map has what is there, at most ``size_bytes``.
    """

    __slots__ = ()

    def open_mapped(self, path: str, size_bytes: int) -> DiskMapping:
        """Map a file. Raises FileNotFoundError, other OSErrors."""
        fd = os.open(path, os.O_RDONLY)
        try:
            present = min(os.fstat(fd).st_size, size_bytes)
            if not present:  # the system refuses to map an empty file
                empty = DiskMapping(path, mmap.mmap(-1, 1), 0, in_memory=False)
                empty.view = empty.view[:0]
                return empty
            mapped = mmap.mmap(fd, present, access=mmap.ACCESS_READ)
            return DiskMapping(path, mapped, present, is_in_memory(fd))
        finally:
            os.close(fd)

    def flush(self, path: str) -> Never:
        raise _would_write(path)

    def flush_again(self, path: str) -> Never:
        raise _would_write(path)

    def flush_many(self, paths: list[str]) -> Never:
        raise _would_write(*paths[:1])

    def delete(self, path: str) -> Never:
        raise _would_write(path)

    def delete_tree(self, directory: str) -> Never:
        raise _would_write(directory)

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> Never:
        raise _would_write(path)

    def replace_small(self, path: str, data: bytes, backup: str | None) -> Never:
        raise _would_write(path)

    def flush_small(self, path: str) -> Never:
        raise _would_write(path)

    def lock(self, path: str) -> Callable[[], None]:
        raise _would_write(path)


def _would_write(path: str = "") -> StoreError:
    return StoreError(f"a tool that only reads would change {path}")


def end_of_data(path: str, start: int = 0) -> int:
    """Return the end of the last bytes that were ever written to a file after ``start``; ``start`` if none were.

    Space that is reserved but was not written does not count. Where the file system cannot tell, all counts.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        end = min(start, size)
        position = end
        while position < size:
            try:
                position = os.lseek(fd, position, os.SEEK_DATA)
            except OSError:  # from here on there is only a hole
                break
            end = position = os.lseek(fd, position, os.SEEK_HOLE)
        return end
    finally:
        os.close(fd)


class NotAStore(StoreError):
    """The folder holds no commit log."""


class StoreReader:
    """The files of one store.

    ``state`` is taken once, at the beginning. ``bases`` are the physical offsets at which the log's files begin;
    ``missing`` those of files that lie between them but do not exist, and ``spare`` those of files after the last
    message, which the official broker creates ahead. ``config`` has the sizes that the files have.
    Raises NotAStore, RocksDBStore, OSError.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.files = ReadOnlyFiles()
        if not os.path.isdir(config.root):
            raise NotAStore(f"{config.root} is not a folder")
        refuse_rocksdb(self.files, config.root)
        self.state = find_open_state(config.root)
        self.bases = self._list_log_files(config.commit_log_path)
        if not self.bases and not os.path.isdir(config.commit_log_path):
            raise NotAStore(f"{config.root} is not a store: it has no folder {config.commit_log_path}")
        self.config = self._with_sizes_of_files(config)
        file_bytes = self.config.commit_log_file_bytes
        self.log = CommitLog(self.files, config.commit_log_path, file_bytes, 0)
        self.missing: list[int] = []
        self.spare: list[int] = []
        if self.bases:
            self.log.first_base, self.log.base = self.bases[0], self.bases[-1]
            self.log.position = file_bytes  # all of the last file may be read
            # Ask for each file: a listing may leave out files that are created meanwhile, and yet name later ones.
            exists = {base: self.files.size(self.log.path(base)) is not None for base in self.log.bases()}
            self.missing = [base for base, is_there in exists.items() if not is_there]
            self.bases = [base for base, is_there in exists.items() if is_there]
            while len(self.bases) > 1 and self._is_empty(self.bases[-1]):
                self.spare.insert(0, self.bases.pop())
            self.log.base = self.bases[-1]
            self.missing = [base for base in self.missing if base < self.log.base]
        self._pool = QueueFilePool(self.files, self.config.max_open_queue_files)

    def _list_log_files(self, directory: str) -> list[int]:
        bases = mapped_file_offsets(self.files.list(directory))
        while bases and not self.files.size(f"{directory}/{mapped_file_name(bases[-1])}"):
            bases.pop()  # created just before a broker was killed, or by it this moment
        return bases

    def _is_empty(self, base: int) -> bool:
        """Return True if no message was ever written to a file of the log, or none is left of it."""
        try:
            if any(self.log.mapped_file(base).view[:8]):
                return False
            return self.find_message_after(base) is None
        except FileNotFoundError:
            return True

    def _with_sizes_of_files(self, config: StoreConfig) -> StoreConfig:
        """Return the settings with the file sizes that the store has; damaged files are shorter than whole ones."""
        log_paths = [f"{config.commit_log_path}/{mapped_file_name(base)}" for base in self.bases]
        log_sizes = [self.files.size(path) or 0 for path in log_paths]
        queue_sizes: Counter[int] = Counter()
        queues = list_queue_files(self.files, config.consume_queue_path)
        for topic, queue_id, offsets in islice(queues, _MAX_SIZED_QUEUES):
            folder = f"{config.consume_queue_path}/{topic}/{queue_id}"
            queue_sizes.update(
                self.files.size(f"{folder}/{mapped_file_name(offset)}") or 0 for offset in offsets
            )
        usual = [size for size, _ in queue_sizes.most_common() if size and size % QUEUE_ENTRY_BYTES == 0]
        return replace(
            config,
            commit_log_file_bytes=max(log_sizes, default=config.commit_log_file_bytes),
            consume_queue_file_entries=(
                usual[0] // QUEUE_ENTRY_BYTES if usual else config.consume_queue_file_entries
            ),
        )

    # -- queues --

    def queues(self) -> Iterator[ConsumeQueue]:
        """Yield every queue that has files, with the files it has; see `find_ends` for what can be read."""
        for topic, queue_id, offsets in list_queue_files(self.files, self.config.consume_queue_path):
            yield self._queue_of_files(topic, queue_id, offsets)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one queue; None if it has no files."""
        directory = f"{self.config.consume_queue_path}/{topic}/{queue_id}"
        offsets = mapped_file_offsets(self.files.list(directory))
        return self._queue_of_files(topic, queue_id, offsets) if offsets else None

    def _queue_of_files(self, topic: str, queue_id: int, offsets: list[int]) -> ConsumeQueue:
        directory = f"{self.config.consume_queue_path}/{topic}/{queue_id}"
        queue = ConsumeQueue(
            topic, queue_id, directory, self.config.consume_queue_file_entries, 0, self._pool, self.files
        )
        queue.bases = [offset // QUEUE_ENTRY_BYTES for offset in offsets]
        return queue

    def find_ends(self, queue: ConsumeQueue, before: int | None = None) -> None:
        """Set the queue's ``min_offset`` and ``next_offset``, counting entries of messages below offset ``before``.

        Only entries are looked at, by bisection. Raises CorruptionError for files that are missing or of a wrong size,
        FileNotFoundError if a broker has deleted the queue meanwhile.
        """
        self._check_files(queue)
        count = queue.file_entries
        queue.next_offset = queue.bases[0]
        for base in reversed(queue.bases):
            numbers = range(base, base + count)
            inside = bisect_left(numbers, True, key=lambda number: _is_end(queue.read_entry(number), before))
            if inside or base == queue.bases[0]:
                queue.next_offset = base + inside
                break
        queue.min_offset = queue.first_entry_from(self.log.first_base)

    def _check_files(self, queue: ConsumeQueue) -> None:
        if self.state.may_change:
            whole = range(queue.bases[0], queue.bases[-1] + 1, queue.file_entries)
            queue.bases = [base for base in whole if os.path.exists(queue.path(base))]
            if not queue.bases:
                raise FileNotFoundError(queue.directory)
        for number, base in enumerate(queue.bases):
            if base != queue.bases[0] + number * queue.file_entries:
                raise CorruptionError(queue.path(base), 0, "a file before this one is missing")
            size = os.stat(queue.path(base)).st_size
            if size != queue.file_bytes and not (size == 0 and self.state.may_change):
                raise CorruptionError(queue.path(base), size, f"it has {size} bytes, not {queue.file_bytes}")
        if queue.bases and not self.files.size(queue.path(queue.bases[-1])):
            queue.bases.pop()  # being created this moment
        if not queue.bases:
            raise FileNotFoundError(queue.directory)

    # -- messages --

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Return the whole message that starts at a physical offset; None when none does.

        Raises CorruptionError, FileNotFoundError.
        """
        if not self.bases:
            return None
        return self.log.message_at(physical_offset)

    def end_of_last_message(self, queue: ConsumeQueue) -> int:
        """Return the physical offset at which a queue's last message ends, -1 if that cannot be read.

        `find_ends` must have been called. Raises CorruptionError, FileNotFoundError.
        """
        if queue.next_offset <= queue.min_offset:
            return -1
        physical_offset, size, _ = queue.read_entry(queue.next_offset - 1)
        if size in QUEUE_HOLE_SIZES:
            return -1
        message = self.message_at(physical_offset)
        return physical_offset + size if message is not None and len(message) == size else -1

    def find_message_after(self, physical_offset: int) -> int | None:
        """Return where the next whole message after a physical offset starts, in the same file of the log."""
        base = self.log.base_of(physical_offset)
        written = base + end_of_data(self.log.path(base), physical_offset - base)
        limit = min(written, base + self.log.file_bytes)
        return find_next_message(self.log, physical_offset, limit, False)

    def find_log_end(self, known_until: int, *, check_crc: bool) -> ScanEnd:
        """Return where the messages of the last log file end.

        ``known_until``: the end of some message, such as the last one that a queue knows; the search starts there if
        that is in the last file.
        """
        if not self.bases:
            return ScanEnd(0, "", True)
        base = self.bases[-1]
        end = base + self.log.file_bytes
        start = known_until if base <= known_until <= end else base
        return next(item for item in scan_log(self.log, start, end, check_crc) if isinstance(item, ScanEnd))

    def close(self) -> None:
        """Close the maps."""
        self._pool.close()
        self.log.close()


def _is_end(entry: tuple[int, int, int], before: int | None) -> bool:
    physical_offset, size, _ = entry
    if size <= 0:
        return True
    if before is None or (size == QUEUE_BLANK_SIZE and physical_offset == 0):
        return False
    return physical_offset >= before
