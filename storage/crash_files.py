"""A test seam: files in memory that lose what was not flushed, as a power cut does.

Tests open a store on `CrashFiles`, append to it, call `CrashFiles.crash`, and open the result as a store again. The
store cannot tell it from `DiskFiles`; recovery is tested with every mixture of old and new sectors that a disk could
have after a power cut.
"""

import random
from collections.abc import Callable, Iterable
from typing import Self

from storage.disk_mapping import Buffer
from storage.errors import CorruptionError, FlushFailed, StoreFull
from storage.layout import SECTOR_BYTES


class ProcessKilled(BaseException):
    """The simulated end of the process in the middle of its work; see `CrashFiles.operations_left`."""


class CrashMapping:
    """A mapped file that knows which of its content has been flushed.

    ``durable`` is the content at the last flush; None without one, and then a crash may lose the whole file.
    ``written`` is what the disk holds beyond that, because the kernel wrote sectors back by itself; None if nothing.
    ``dropped`` is the content at the last flush that failed, None without one: the kernel takes it for written, so that
    it writes a sector only when it has changed since.
    """

    __slots__ = ("_owner", "buffer", "dropped", "durable", "path", "size_bytes", "view", "written")

    def __init__(self, owner: "CrashFiles", path: str, content: bytes, durable: bytes | None) -> None:
        self._owner = owner
        self.path = path
        self.size_bytes = len(content)
        self.buffer: Buffer = bytearray(content)
        self.durable = durable
        self.written: bytes | None = None
        self.dropped: bytes | None = None
        self.view = memoryview(self.buffer)

    def reserve(self, start: int, end: int) -> None:
        self._owner.reserve(self.path, end)

    def readable_until(self, start: int) -> int:
        return self.size_bytes

    def read_single_pages(self) -> None:
        pass

    def zero_from(self, start: int) -> None:
        self.buffer[start:] = bytes(self.size_bytes - start)

    def close(self) -> None:
        pass

    def on_disk(self) -> bytes:
        """Return the content that a power cut certainly leaves, if it leaves the file."""
        return self.written or self.durable or bytes(self.size_bytes)

    def after_power_cut(self, rng: random.Random) -> bytes:
        """Return a mixture of the sectors on the disk and those in memory, as the kernel may have written them."""
        return _mix(self.writable(), self.on_disk(), rng)

    def writable(self) -> bytes:
        """Return what the disk will hold when the kernel has written all that it takes for changed."""
        if self.dropped is None:
            return bytes(self.buffer)
        sectors = zip(
            _sectors(bytes(self.buffer)), _sectors(self.dropped), _sectors(self.on_disk()), strict=True
        )
        return b"".join(new if new != dropped else old for new, dropped, old in sectors)

    def flush(self) -> None:
        """Write all sectors that the kernel takes for changed."""
        self.durable, self.written = self.writable(), None
        if self.dropped is not None:
            self.dropped = bytes(self.buffer)

    def fail_flush(self, randomness: random.Random) -> None:
        """Write some sectors; the kernel takes the others for written, too."""
        self.written = self.after_power_cut(randomness)
        self.dropped = bytes(self.buffer)

    def after_kill(self, owner: "CrashFiles", randomness: random.Random) -> "CrashMapping":
        """Return the file as the next process may find it: dropped sectors may have been read from the disk again."""
        after = CrashMapping(owner, self.path, bytes(self.buffer), self.durable)
        after.written = self.written
        if self.dropped is None:
            return after
        content, dropped = [], []
        for new, dropped_sector, old in zip(
            _sectors(bytes(self.buffer)), _sectors(self.dropped), _sectors(self.on_disk()), strict=True
        ):
            sector = old if new == dropped_sector and randomness.random() < 0.5 else new
            content.append(sector)
            dropped.append(sector if new == dropped_sector else dropped_sector)
        after.buffer[:] = b"".join(content)
        after.dropped = b"".join(dropped)
        return after

    def reread(self) -> None:
        """Show what is on the disk."""
        self.flush()
        self.buffer[:] = self.on_disk()
        self.dropped = None


class CrashFiles:
    """Files in memory that can be crashed.

    ``capacity_bytes`` limits what can be reserved, like a disk's size. ``modified`` holds the modification times that
    a test sets. ``unflushed_small`` names the small files that a power cut may truncate. With ``operations_left`` the
    process is killed before the operation after that many: `ProcessKilled` is raised, and by all later ones. A flush
    of a path for which ``flush_fails`` returns True raises FlushFailed, and the kernel forgets what it did not write.
    """

    def __init__(self, capacity_bytes: int = 1 << 62) -> None:
        self.mapped: dict[str, CrashMapping] = {}
        self.small: dict[str, bytes] = {}
        self.unflushed_small: set[str] = set()
        self.modified: dict[str, int] = {}
        self.capacity_bytes = capacity_bytes
        self.operations_left: int | None = None
        self.flush_fails: Callable[[str], bool] = lambda path: False
        self.randomness = random.Random(0)
        self._reserved: dict[str, int] = {}
        # Created and deleted files, in order, that no flush has made durable: the path, and what was deleted there.
        self._pending: list[tuple[str, CrashMapping | bytes | None]] = []
        self._boot = 1

    def reserve(self, path: str, end: int) -> None:
        """Count disk space up to ``end`` of a file. Raises StoreFull when all files together need too much."""
        self._begin_operation()
        before = self._reserved.get(path, 0)
        if end > before:
            if sum(self._reserved.values()) + end - before > self.capacity_bytes:
                raise StoreFull(f"no room for {path}")
            self._reserved[path] = end

    def _begin_operation(self) -> None:
        if self.operations_left is not None:
            if self.operations_left == 0:
                raise ProcessKilled
            self.operations_left -= 1

    def crash(self, rng: random.Random, lose_unflushed: bool = True) -> Self:
        """Return the files as found after a power cut, or after a killed process with ``lose_unflushed`` False.

        After a power cut each unflushed sector is old or new by chance, unflushed small files are truncated, and the
        last files that were created or deleted may be missing, or there again. A killed process loses nothing.

        File systems persist the creation and deletion of files in order: a flushed file proves that all files created
        before it survive as well.
        """
        after = type(self)(self.capacity_bytes)
        after._boot = self._boot + 1 if lose_unflushed else self._boot
        after.small = dict(self.small)
        if not lose_unflushed:
            after.unflushed_small = set(self.unflushed_small)
            after._pending = list(self._pending)
            for path, file in self.mapped.items():
                after.mapped[path] = file.after_kill(after, rng)
            return after
        for path in sorted(self.unflushed_small):
            after.small[path] = self.small[path][: rng.randint(0, len(self.small[path]))]
        mapped = dict(self.mapped)
        # Undo the last creations and deletions, the newest first.
        for path, deleted in reversed(self._pending[rng.randint(0, len(self._pending)) :]):
            if deleted is None:
                mapped.pop(path, None)
            elif isinstance(deleted, CrashMapping):
                mapped[path] = deleted
            else:
                after.small[path] = deleted
        for path, file in mapped.items():
            content = file.after_power_cut(rng)
            after.mapped[path] = CrashMapping(after, path, content, content)
        return after

    def cut_power(self, is_written: Callable[[str], bool]) -> Self:
        """Return the files as found after a power cut, chosen by path instead of by chance as `crash` does.

        The kernel had written all of the mapped files whose path ``is_written`` accepts, and of the others nothing
        since their last flush. Every file that was created exists, with zeros if nothing of it was written. Small files
        are whole.
        """
        after = type(self)(self.capacity_bytes)
        after._boot = self._boot + 1
        after.small = dict(self.small)
        for path, file in self.mapped.items():
            content = file.writable() if is_written(path) else file.on_disk()
            after.mapped[path] = CrashMapping(after, path, content, content)
        return after

    def equals(self, other: "CrashFiles") -> bool:
        """Return True if a kill or a power cut finds the same in both."""
        return (
            self.small == other.small
            and self.mapped.keys() == other.mapped.keys()
            and self._pending == other._pending
            and all(
                file.buffer == other.mapped[path].buffer and file.durable == other.mapped[path].durable
                for path, file in self.mapped.items()
            )
        )

    def settle(self) -> None:
        """Let the kernel write everything, as it does after half a minute."""
        for file in self.mapped.values():
            file.flush()
        self.unflushed_small.clear()
        self._pending.clear()

    def write_back(self, rng: random.Random) -> None:
        """Let the kernel write some sectors of some files, which it may do at any time."""
        for file in self.mapped.values():
            if rng.random() < 0.5:
                file.written = file.after_power_cut(rng)

    def open_mapped(self, path: str, size_bytes: int) -> CrashMapping:
        file = self.mapped.get(path)
        if file is None:
            self._begin_operation()
            file = self.mapped[path] = CrashMapping(self, path, bytes(size_bytes), None)
            self._pending.append((path, None))
        if file.size_bytes != size_bytes:
            raise CorruptionError(path, file.size_bytes, f"expected {size_bytes} bytes")
        return file

    def flush(self, path: str) -> None:
        self._begin_operation()
        file = self.mapped.get(path)
        if file is not None:
            if self.flush_fails(path):
                file.fail_flush(self.randomness)
                raise FlushFailed(f"a flush of {path} to the disk failed", "a flush to the disk failed")
            file.flush()
        self._keep_from(number for number, pending in enumerate(self._pending, 1) if pending[0] == path)

    def _keep_from(self, durable: Iterable[int]) -> None:
        """Let the last of these changes be durable, and all before it."""
        del self._pending[: max(durable, default=0)]

    def flush_again(self, path: str) -> None:
        self.flush(path)

    def flush_many(self, paths: "list[str]") -> None:
        for path in paths:
            self.flush(path)

    def reread_from_disk(self, directory: str) -> None:
        for path, file in self.mapped.items():
            if path.startswith(directory + "/"):
                file.reread()

    def list(self, directory: str) -> list[str]:
        start = directory + "/"
        paths = (*self.mapped, *self.small)
        return sorted({path[len(start) :].split("/", 1)[0] for path in paths if path.startswith(start)})

    def size(self, path: str) -> int | None:
        if path in self.mapped:
            return self.mapped[path].size_bytes
        return len(self.small[path]) if path in self.small else None

    def delete(self, path: str) -> None:
        self._begin_operation()
        for deleted in (self.mapped.pop(path, None), self.small.pop(path, None)):
            if deleted is not None:
                self._pending.append((path, deleted))
        self.unflushed_small.discard(path)
        self._reserved.pop(path, None)

    def delete_tree(self, directory: str) -> None:
        for path in [*self.mapped, *self.small]:
            if path.startswith(directory + "/"):
                self.delete(path)

    def read_small(self, path: str) -> bytes | None:
        return self.small.get(path)

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        self._begin_operation()
        if backup is not None and self.small.get(path):
            self.small[backup] = self.small[path]
        self.small[path] = data
        self.unflushed_small.discard(path)
        # The folder is flushed.
        folder = _folder(path)
        self._keep_from(
            number for number, pending in enumerate(self._pending, 1) if _folder(pending[0]) == folder
        )

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        self._begin_operation()
        if backup is not None:
            self.small[backup] = self.small[path]
        self.small[path] = data
        self.unflushed_small.add(path)

    def flush_small(self, path: str) -> None:
        self.unflushed_small.discard(path)

    def lock(self, path: str) -> Callable[[], None]:
        return lambda: None

    def modified_ms(self, path: str) -> int:
        return self.modified.get(path, 0)

    def boot_id(self) -> str:
        return f"boot {self._boot}"

    def disk_used_ratio(self, path: str) -> float:
        return 0.0

    def free_bytes(self, path: str) -> int:
        return max(0, self.capacity_bytes - sum(self._reserved.values()))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _mix(new: bytes, old: bytes, randomness: random.Random) -> bytes:
    pairs = zip(_sectors(new), _sectors(old), strict=True)
    return b"".join(pair[0 if randomness.random() < 0.5 else 1] for pair in pairs)


def _sectors(content: bytes) -> list[bytes]:
    return [content[start : start + SECTOR_BYTES] for start in range(0, len(content), SECTOR_BYTES)]
