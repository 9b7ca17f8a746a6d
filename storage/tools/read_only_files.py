"""Files that can only be read: what the store's modules open through them is never created or changed."""

import mmap
import os
from collections.abc import Callable
from typing import Never

from storage.disk_mapping import DiskMapping, is_in_memory
from storage.errors import StoreError
from storage.files import DiskFiles


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
    """Return the end of the last bytes that were ever written to a file behind ``start``; ``start`` if none were.

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
            except OSError:  # nothing but a hole behind
                break
            end = position = os.lseek(fd, position, os.SEEK_HOLE)
        return end
    finally:
        os.close(fd)
