"""The file operations a store needs, on disk (`DiskFiles`) or in memory (`MemoryFiles`).

`crash_files.py` has a third implementation, for tests of recovery.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import threading
from collections.abc import Callable
from typing import Protocol

from storage.disk_mapping import Buffer, DiskMapping, Mapping, is_in_memory, store_full_errors
from storage.errors import CorruptionError, FlushFailed, StoreInUse

NEW_SUFFIX = ".tmp"
"""Suffix of a small file's new content until it replaces the old."""
_MAX_SINGLE_FLUSHES = 32
"""More files are flushed with their file system: a thousand new files took 5.5 s one by one and 0.2 s together."""


class MappedFile(Protocol):
    """A file of fixed size seen as memory."""

    path: str
    size_bytes: int
    buffer: Buffer
    view: memoryview

    def reserve(self, start: int, end: int) -> None:
        """Make sure that bytes [start, end) can be written. Raises StoreFull when the disk cannot hold them."""
        ...

    def zero_from(self, start: int) -> None:
        """Turn everything from ``start`` on to zeros."""
        ...

    def readable_until(self, start: int) -> int:
        """Return the end of the bytes from ``start`` on that may be read; later ones were never written.

        This is the end of the file, except in file systems where even reading takes space: there, reading past it can
        end the process. Ask before reading bytes that may never have been written.
        """
        ...

    def read_single_pages(self) -> None:
        """Read only the touched pages of the file from now on, not their neighbours.

        Reading ahead, the kernel fills 128 KB at the first touch of a hole. With 8,000 queues of a few messages that
        made creating them 15 times and opening the store 35 times as slow, and took 1.6 GB.
        """
        ...

    def close(self) -> None:
        """Close the map. Slices of ``view`` that readers still hold stay readable until they are dropped."""
        ...


def read_written(mapped: MappedFile, start: int, end: int) -> bytes:
    """Return bytes that may never have been written; only zeros if some of them were not."""
    return bytes(end - start if mapped.readable_until(start) < end else mapped.view[start:end])


class Files(Protocol):
    """A tree of files addressed by absolute paths."""

    def open_mapped(self, path: str, size_bytes: int) -> MappedFile:
        """Open a file of exactly ``size_bytes``; a missing one is created (all zeros) with its folders.

        Raises CorruptionError when it exists with another size, StoreFull when it cannot be created.
        """
        ...

    def flush(self, path: str) -> None:
        """Block until everything written to ``path`` is on the disk, or its deletion. Thread safe.

        Raises FlushFailed when the disk refused a part. The system may have dropped that part, and a later call would
        succeed without having written it, so a flush is never tried again.
        """
        ...

    def flush_again(self, path: str) -> None:
        """Block as `flush` does, and keep the file open for the next call. Thread safe.

        For a mapped file that is flushed again and again. Deleting it closes it.
        """
        ...

    def flush_many(self, paths: "list[str]") -> None:
        """Block as `flush` does for each of the paths. Thread safe."""
        ...

    def reread_from_disk(self, directory: str) -> None:
        """Forget what the system caches of all files below a directory, so that they are read from the disk.

        After a failed flush the cache may hold bytes that the disk does not. Nobody may have the files open. Raises
        FlushFailed while the disk still refuses a part of them.
        """
        ...

    def list(self, directory: str) -> list[str]:
        """Return the sorted names inside a directory; none when it does not exist."""
        ...

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None when it does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        ...

    def delete_tree(self, directory: str) -> None:
        """Delete a directory with everything in it, if it exists."""
        ...

    def read_small(self, path: str) -> bytes | None:
        """Return the whole content; None when the file does not exist."""
        ...

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        """Replace the whole content atomically: after a crash a reader finds the old or the new content.

        With ``backup`` the previous content, if there is any, gets that name where the file system has hard links.
        Raises StoreFull, OSError; the file is unchanged then, and the call may be repeated: it writes a new file.
        """
        ...

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        """Replace the whole content without waiting for the disk.

        A process killed here leaves the old or the new content; the new content may still have a name with NEW_SUFFIX.
        Until `flush_small` has returned, a power cut may leave a part of the new content, or nothing. With ``backup``
        the previous file, which should have been flushed, is renamed to that name.
        """
        ...

    def flush_small(self, path: str) -> None:
        """Block until a replaced file, if it exists, is on the disk. Thread safe.

        Raises FlushFailed, OSError; then the file must be replaced again, for the same reason as with `flush`.
        """
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take the lock that keeps other processes out; return a function that releases it. Raises StoreInUse."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when a file was last written to, in ms since 1970; 0 where that is unknown."""
        ...

    def boot_id(self) -> str:
        """Return a text that identifies the present boot of the machine; empty if it is not known."""
        ...

    def disk_used_ratio(self, path: str) -> float:
        """Return the used part of the disk under ``path``, 0.0 to 1.0; 0.0 where there is no disk."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return the bytes that the disk under ``path`` still has room for; many where there is no disk."""
        ...


def flush_file_system(paths: "list[str]") -> bool:
    """Block until everything on the file system of the first existing path is on the disk.

    Return False where that is impossible.
    """
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    fd = _open_first(paths)
    if fd is None:
        return False
    try:
        if syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise flush_failed(f"the file system of {paths[0]}", OSError(number, os.strerror(number)))
    finally:
        os.close(fd)
    return True


def _open_first(paths: "list[str]") -> int | None:
    """Open the first path that exists; another thread may delete files meanwhile."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)
    return None


def _folders_of(path: str) -> list[str]:
    """Return the folders above a file."""
    folders = []
    while (above := os.path.dirname(path)) != path:
        folders.append(above)
        path = above
    return folders


def _link_backup(path: str, backup: str) -> None:
    """Give a file a second name, which replaces an older backup in one step. Empty files are not backed up."""
    with contextlib.suppress(OSError):  # the first write, or a file system without hard links
        if os.stat(path).st_size:
            os.link(path, backup + NEW_SUFFIX)
            os.replace(backup + NEW_SUFFIX, backup)
    with contextlib.suppress(OSError):  # both names are of one file already
        os.unlink(backup + NEW_SUFFIX)


def flush_failed(what: str, error: OSError) -> FlushFailed:
    """Return the error that names the file and the reason."""
    reason = error.strerror or str(error)
    return FlushFailed(
        f"a flush of {what} to the disk failed: {reason}", f"a flush to the disk failed: {reason}"
    )


def fsync_path(path: str) -> None:
    """Block until a file or a directory is on the disk. Raises FlushFailed; OSError when it could not be tried."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        raise flush_failed(path, error) from error
    finally:
        os.close(fd)


class DiskFiles:
    """Files on the machine's file systems.

    ``small_file_mode`` are the permissions of new small files. If other users may not read them, a directory that is
    created for one is private to its owner as well.
    """

    __slots__ = (
        "_deletions",
        "_descriptors_lock",
        "_directories_lock",
        "_new_directories",
        "_open_descriptors",
        "_small_directory_mode",
        "_small_file_mode",
    )

    def __init__(self, small_file_mode: int = 0o666) -> None:
        self._small_file_mode = small_file_mode
        self._small_directory_mode = 0o777 if small_file_mode & 0o077 else 0o700
        self._new_directories: set[str] = set()  # directories whose new entries a power cut could still lose
        self._directories_lock = threading.Lock()
        # Of the file that `flush_again` flushed last, by path. A flush takes its descriptor out, so that no other
        # thread closes it meanwhile, and puts it back unless a file was deleted since.
        self._open_descriptors: dict[str, int] = {}
        self._deletions = 0
        self._descriptors_lock = threading.Lock()

    def __del__(self) -> None:
        for fd in self._open_descriptors.values():
            os.close(fd)

    def _take_descriptor(self, path: str) -> tuple[int, int]:
        """Return the descriptor of an open file, -1 if it is not open, and the number of deletions so far."""
        with self._descriptors_lock:
            return self._open_descriptors.pop(path, -1), self._deletions

    def _keep_descriptor(self, path: str, fd: int, deletions: int) -> None:
        """Keep one file open; ``deletions`` is their number when it was opened or taken."""
        with self._descriptors_lock:
            superseded = list(self._open_descriptors.values())
            self._open_descriptors.clear()
            if deletions == self._deletions:
                self._open_descriptors[path] = fd
            else:
                superseded.append(fd)
        for descriptor in superseded:
            os.close(descriptor)

    def _close_deleted(self) -> None:
        """Close what is open, after a deletion: a later file of the same name must not be taken for the deleted one."""
        with self._descriptors_lock:
            self._deletions += 1
            descriptors = list(self._open_descriptors.values())
            self._open_descriptors.clear()
        for descriptor in descriptors:
            os.close(descriptor)

    def open_mapped(self, path: str, size_bytes: int) -> DiskMapping:
        with store_full_errors(path):
            fd, access = self._open(path)
            try:
                size = os.fstat(fd).st_size
                if size == 0:
                    os.ftruncate(fd, size_bytes)
                    parent = os.path.dirname(path)
                    self._new_directories |= {parent, os.path.dirname(parent)}
                elif size != size_bytes:
                    raise CorruptionError(path, size, f"the file has {size} bytes, expected {size_bytes}")
                buffer = mmap.mmap(fd, size_bytes, access=access)
                return DiskMapping(path, buffer, size_bytes, is_in_memory(fd))
            finally:
                os.close(fd)

    def _open(self, path: str) -> tuple[int, int]:
        """Open a file, created if it is missing, and remember the folders that get new folders.

        Return its descriptor and the access of its map. A file of a file system that was made read-only, as Linux does
        after an error of the disk, is opened for reading: its messages can still be consumed.
        """
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o644), mmap.ACCESS_WRITE
        except FileNotFoundError:
            directory = parent = os.path.dirname(path)
            while not os.path.isdir(parent):
                parent = os.path.dirname(parent)
                self._new_directories.add(parent)
            os.makedirs(directory, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o644), mmap.ACCESS_WRITE
        except OSError as error:
            if error.errno != errno.EROFS or not self.size(path):
                raise
            return os.open(path, os.O_RDONLY), mmap.ACCESS_READ

    def flush(self, path: str) -> None:
        # By path and not through the map: mmap.flush holds the interpreter lock, fdatasync does not.
        try:
            # Reading is enough for a flush, and still possible when an error of the disk made the file system
            # read-only: the flush then fails, as it must, instead of being tried again and again.
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._flush_deletion(path)
            return
        try:
            self._flush_descriptor(fd, path)
        finally:
            os.close(fd)

    def flush_again(self, path: str) -> None:
        fd, deletions = self._take_descriptor(path)
        if fd < 0:
            try:
                fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                self._flush_deletion(path)
                return
        try:
            self._flush_descriptor(fd, path)
        finally:
            self._keep_descriptor(path, fd, deletions)

    def _flush_descriptor(self, fd: int, path: str) -> None:
        try:
            os.fdatasync(fd)
            # Linux may report success for bytes that are lost, when a file system shuts itself down while it flushes
            # them. A read of nothing costs 0.5 us and tells: files that are down cannot be read.
            os.pread(fd, 0, 0)
        except OSError as error:
            raise flush_failed(path, error) from error
        if self._new_directories:
            # Only its own folders: a flush of the commit log does not wait for those of thousands of new queues.
            self._flush_directories(self._new_directories.intersection(_folders_of(path)))

    def _flush_deletion(self, path: str) -> None:
        for folder in _folders_of(path):
            with contextlib.suppress(FileNotFoundError):
                self._flush_directory(folder)
                return

    def _flush_directories(self, directories: set[str]) -> None:
        # One thread at a time, so that no thread takes a folder for durable while another still flushes it.
        with self._directories_lock:
            for directory in directories:
                # Discard it before flushing: a file created in it meanwhile adds the folder again.
                self._new_directories.discard(directory)
                try:
                    self._flush_directory(directory)
                except FileNotFoundError:
                    pass
                except (OSError, FlushFailed):
                    self._new_directories.add(directory)
                    raise

    def flush_many(self, paths: "list[str]") -> None:
        new = set(self._new_directories)
        if len(paths) + len(new) > _MAX_SINGLE_FLUSHES and flush_file_system(paths):
            self._new_directories -= new
            return
        for path in paths:
            self.flush(path)
        self._flush_directories(new & self._new_directories)

    def reread_from_disk(self, directory: str) -> None:
        for folder, _, names in os.walk(directory):
            for name in names:
                path = f"{folder}/{name}"
                fd = os.open(path, os.O_RDONLY)
                try:
                    # Pages that wait to be written cannot be forgotten.
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                except OSError as error:
                    raise flush_failed(path, error) from error
                finally:
                    os.close(fd)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._close_deleted()

    def delete_tree(self, directory: str) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self._close_deleted()

    def read_small(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, IsADirectoryError):
            return None

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        with store_full_errors(path):
            new = self._write_new_small(path, data, wait=True)
            if backup is not None:
                _link_backup(path, backup)
            os.replace(new, path)
            self._flush_directory(os.path.dirname(path))

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        with store_full_errors(path):
            new = self._write_new_small(path, data, wait=False)
            # Move the old file away first: ext4 waits for the disk when a rename replaces a file (auto_da_alloc).
            with contextlib.suppress(FileNotFoundError):
                if backup is None:
                    os.unlink(path)
                else:
                    os.replace(path, backup)
            os.replace(new, path)

    def flush_small(self, path: str) -> None:
        try:
            fsync_path(path)
        except FileNotFoundError:
            return
        self._flush_directory(os.path.dirname(path))

    def _write_new_small(self, path: str, data: bytes, *, wait: bool) -> str:
        os.makedirs(os.path.dirname(path), self._small_directory_mode, exist_ok=True)
        new = path + NEW_SUFFIX
        try:
            with open(new, "wb", opener=self._open_small) as file:
                file.write(data)
                if wait:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            # The next try begins with a file of its own, of which no page has failed.
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        return new

    def _open_small(self, path: str, flags: int) -> int:
        return os.open(path, flags, self._small_file_mode)

    def _flush_directory(self, directory: str) -> None:
        fsync_path(directory)

    def lock(self, path: str) -> Callable[[], None]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # The same byte, and the same kind of lock, that the official broker takes.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            raise StoreInUse(f"another process has {os.path.dirname(path)} open") from error
        os.pwrite(fd, b"lock", 0)
        return lambda: os.close(fd)

    def modified_ms(self, path: str) -> int:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return 0

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return file.read().strip()
        except OSError:  # another system than Linux, or a sandbox
            return ""

    def disk_used_ratio(self, path: str) -> float:
        usage = shutil.disk_usage(_existing(path))
        return 1.0 - usage.free / usage.total if usage.total else 0.0

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(_existing(path)).free


def _existing(path: str) -> str:
    """Return the path, or the first folder above it that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or "/"
    return path


class MemoryMapping(Mapping):
    """An anonymous map: its pages cost memory only once they are written."""

    __slots__ = ()

    def reserve(self, start: int, end: int) -> None:
        pass

    def readable_until(self, start: int) -> int:
        return self.size_bytes

    def read_single_pages(self) -> None:
        pass

    def zero_from(self, start: int) -> None:
        step = 1 << 20
        for position in range(start, self.size_bytes, step):
            end = min(position + step, self.size_bytes)
            if bytes(self.view[position:end]).strip(b"\0"):  # zeros that were never written take no memory
                self.buffer[position:end] = bytes(end - position)


class MemoryFiles:
    """Files that live as long as this object: for tests, and for stores that persist nothing."""

    __slots__ = ("_mapped", "_small")

    def __init__(self) -> None:
        self._mapped: dict[str, MemoryMapping] = {}
        self._small: dict[str, bytes] = {}

    def open_mapped(self, path: str, size_bytes: int) -> "MemoryMapping":
        mapped = self._mapped.get(path)
        if mapped is None:
            # The system merges private maps; a process may have only 65,530 shared ones.
            buffer = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            buffer.madvise(mmap.MADV_NOHUGEPAGE)
            mapped = self._mapped[path] = _InMemoryFile(path, buffer, size_bytes)
        if mapped.size_bytes != size_bytes:
            raise CorruptionError(
                path, mapped.size_bytes, f"the file has {mapped.size_bytes} bytes, expected {size_bytes}"
            )
        return mapped

    def flush(self, path: str) -> None:
        pass

    def flush_again(self, path: str) -> None:
        pass

    def flush_many(self, paths: "list[str]") -> None:
        pass

    def reread_from_disk(self, directory: str) -> None:
        pass

    def list(self, directory: str) -> list[str]:
        start = directory + "/"
        names = {
            path[len(start) :].split("/", 1)[0]
            for path in (*self._mapped, *self._small)
            if path.startswith(start)
        }
        return sorted(names)

    def size(self, path: str) -> int | None:
        mapped = self._mapped.get(path)
        if mapped is not None:
            return mapped.size_bytes
        small = self._small.get(path)
        return None if small is None else len(small)

    def delete(self, path: str) -> None:
        mapped = self._mapped.pop(path, None)
        if mapped is not None:
            Mapping.close(mapped)
        self._small.pop(path, None)

    def delete_tree(self, directory: str) -> None:
        for path in [*self._mapped, *self._small]:
            if path.startswith(directory + "/"):
                self.delete(path)

    def read_small(self, path: str) -> bytes | None:
        return self._small.get(path)

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        if backup is not None and self._small.get(path):
            self._small[backup] = self._small[path]
        self._small[path] = bytes(data)

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        if backup is not None and path in self._small:
            self._small[backup] = self._small[path]
        self._small[path] = bytes(data)

    def flush_small(self, path: str) -> None:
        pass

    def lock(self, path: str) -> Callable[[], None]:
        return lambda: None

    def modified_ms(self, path: str) -> int:
        return 0

    def boot_id(self) -> str:
        return "memory"

    def disk_used_ratio(self, path: str) -> float:
        return 0.0

    def free_bytes(self, path: str) -> int:
        return 1 << 62


class _InMemoryFile(MemoryMapping):
    """A map that is the only copy of its file; closing it does nothing, so the content is kept."""

    __slots__ = ()

    def close(self) -> None:
        pass
