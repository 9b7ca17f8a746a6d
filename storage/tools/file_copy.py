"""Copies files so that the copy never changes with its source: by reflink where the file system can, else byte by byte.

Hard links would be quicker, but they are not copies. A store's files are changed in place, even old ones: damaged bytes
are replaced by fillers, the entries of lost messages by holes, and slots of an index that is full by recovery. A
hard-linked file would change with its source, and a broker that opens the copy would change the source. It would also
share every bad sector. A reflink shares disk space only until one of the two files is written.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Final

from storage.disk_mapping import store_full_errors
from storage.files import flush_file_system, fsync_path

_FICLONE: Final = 0x40049409  # ioctl of Linux; Python has no name for it
_CHUNK_BYTES: Final = 1 << 20

Progress = Callable[[int], object]
"""Called with the number of bytes copied since the last call."""


class FileCopier:
    """Copies files; `flush_tree` makes the copies durable.

    Raises StoreFull; FileNotFoundError if the source does not exist, and then there is no copy. Targets must not exist.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def copy_whole(self, source: str, target: str) -> None:
        """Copy a file that does not change meanwhile, or of which any state will do."""
        self._copy(source, target, 0, None)

    def copy_start(self, source: str, target: str, end: int, size_bytes: int) -> None:
        """Copy the bytes before ``end``; up to ``size_bytes`` the copy is a hole."""
        self._copy(source, target, end, size_bytes)

    def write(self, target: str, data: bytes) -> None:
        """Write a small file."""
        with store_full_errors(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as file:
                file.write(data)

    def _copy(self, source: str, target: str, end: int, size_bytes: int | None) -> None:
        from_fd = os.open(source, os.O_RDONLY)
        try:
            with store_full_errors(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                to_fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                try:
                    if size_bytes is None:
                        if not try_reflink(from_fd, to_fd):
                            self._copy_data(from_fd, to_fd)
                    else:
                        os.ftruncate(to_fd, size_bytes)
                        self._copy_range(from_fd, to_fd, 0, end)
                finally:
                    os.close(to_fd)
        finally:
            os.close(from_fd)

    def _copy_data(self, from_fd: int, to_fd: int) -> None:
        """Copy all that was ever written, front to back; holes stay holes."""
        size = os.fstat(from_fd).st_size
        os.ftruncate(to_fd, size)
        position = 0
        while position < size:
            try:
                start = os.lseek(from_fd, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # from here on there is only a hole
                    raise
                return
            position = os.lseek(from_fd, start, os.SEEK_HOLE)
            self._copy_range(from_fd, to_fd, start, position)

    def _copy_range(self, from_fd: int, to_fd: int, start: int, end: int) -> None:
        while start < end:
            data = os.pread(from_fd, min(_CHUNK_BYTES, end - start), start)
            if not data:
                return  # the source is shorter; a missing part is zeros, as a reader of the source finds it
            written = os.pwrite(to_fd, data, start)
            start += written
            self._progress(written)


def try_reflink(from_fd: int, to_fd: int) -> bool:
    """Let a file share the content of another until one of them is written; return False where that is impossible."""
    try:
        fcntl.ioctl(to_fd, _FICLONE, from_fd)
    except OSError:
        return False
    return True


def flush_tree(root: str) -> None:
    """Block until everything below a folder is on the disk.

    All at once where the system can: the backup of 20,000 queues took 101 s file by file, and 29 s this way.
    """
    if flush_file_system([root]):
        return
    for folder, _, names in os.walk(root):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            fsync_path(path)
