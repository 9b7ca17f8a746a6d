"""A memory map of a file on disk that never ends the process with SIGBUS because the disk is full.

Theory of operation
-------------------
A mapped file is sparse: it has its full size from the beginning, and disk space only where it was written. When a
process touches a page of the map for which there is no space, the system ends it with SIGBUS, which cannot be caught.
So the space is obtained before:

- Before bytes are written, `DiskMapping.reserve` allocates space for them, and for all that the system may write
  together with them (`MAX_FOLIO_BYTES`). A full disk is then `StoreFull`.
- Reading a page that was never written yields zeros and takes no room on a disk. In a file system in memory (tmpfs) it
  does take a page. Readers of bytes that may never have been written, which are those that open a store, first ask
  `DiskMapping.readable_until`.

A file system that copies on write (btrfs, a snapshot below the file system) needs room even where a file was allocated,
and a disk that cannot read a page ends the process as well; `gateway/runtime/process.py` has the place printed then.
"""

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from functools import lru_cache

from storage.errors import StoreFull, StoreUnwritable

# A writable buffer. bytearray serves tests that simulate crashes.
Buffer = mmap.mmap | bytearray

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWRITABLE_ERRNOS = (
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ENODEV,
    errno.ENXIO,
    errno.ESTALE,
)
"""Errors of a disk or a file system that takes no bytes at all."""
NO_DESCRIPTOR_ERRNOS = (errno.EMFILE, errno.ENFILE)
MAX_FOLIO_BYTES = 2 << 20
"""Linux caches a mapped file in units (folios) of up to this size, aligned to it, and gets disk space for all of a unit
when one byte of it is written."""
_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")


@contextlib.contextmanager
def store_full_errors(path: str) -> Iterator[None]:
    """Turn the errors of a full disk into StoreFull, and those of a disk that takes no bytes into StoreUnwritable.

    A broker refuses the request with either. Any other error, such as a missing file, stays what it is.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise StoreFull(f"no room on disk for {path}", "no room on disk") from error
        if error.errno in UNWRITABLE_ERRNOS + NO_DESCRIPTOR_ERRNOS:
            text = os.strerror(error.errno)
            raise StoreUnwritable(
                f"{path} cannot be written: {text}", f"the disk cannot be written: {text}"
            ) from error
        raise


def is_in_memory(fd: int) -> bool:
    """Return True if the file is in a file system in which even reading a hole takes room."""
    return _is_device_in_memory(os.fstat(fd).st_dev)


@lru_cache(maxsize=64)
def _is_device_in_memory(device: int) -> bool:
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                mount, _, file_system = line.partition(" - ")
                if mount.split()[2] == number:
                    return file_system.split()[0] in _IN_MEMORY
    except OSError:  # another system than Linux, or a sandbox
        pass
    return False


class Mapping:
    """A shared memory map of one file."""

    __slots__ = ("buffer", "path", "size_bytes", "view")

    def __init__(self, path: str, buffer: mmap.mmap, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.buffer: Buffer = buffer
        self.view = memoryview(buffer)

    def close(self) -> None:
        self.view.release()
        # Readers may still hold slices; the map is then closed when the last slice is dropped.
        with contextlib.suppress(BufferError):
            self.buffer.close()  # type: ignore[union-attr]


class DiskMapping(Mapping):
    """A mapped file on disk, sparse until reserved. ``in_memory``: see `is_in_memory`."""

    __slots__ = ("_in_memory", "_unit_bytes")

    def __init__(self, path: str, buffer: mmap.mmap, size_bytes: int, in_memory: bool) -> None:
        super().__init__(path, buffer, size_bytes)
        self._in_memory = in_memory
        self._unit_bytes = MAX_FOLIO_BYTES

    def reserve(self, start: int, end: int) -> None:
        start -= start % self._unit_bytes
        end = min(self.size_bytes, end + -end % self._unit_bytes)
        with store_full_errors(self.path):
            fd = os.open(self.path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, start, end - start)
            finally:
                os.close(fd)

    def readable_until(self, start: int) -> int:
        if not self._in_memory or start >= self.size_bytes:
            return self.size_bytes
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return os.lseek(fd, start, os.SEEK_HOLE)
        finally:
            os.close(fd)

    def read_single_pages(self) -> None:
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.madvise(mmap.MADV_RANDOM)
            self._unit_bytes = mmap.PAGESIZE

    def zero_from(self, start: int) -> None:
        page_end = min(self.size_bytes, start + -start % mmap.PAGESIZE)
        if self._has_data_from(page_end):
            # Shrinking and growing again takes about 2 ms. The map stays valid because it is not accessed in between.
            os.truncate(self.path, start)
            os.truncate(self.path, self.size_bytes)
        elif self.readable_until(start) > start and any(self.view[start:page_end]):
            self.buffer[start:page_end] = bytes(page_end - start)

    def _has_data_from(self, start: int) -> bool:
        """Return False if the file is a hole from ``start`` on."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        finally:
            os.close(fd)
        return True
