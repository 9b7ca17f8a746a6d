"""The folder of capture files: create, list and delete files, and append to one.

The protocols are the seam for tests. `rotation.py` decides which files are written and deleted.
"""

import os
from typing import Final, Protocol

from toolkit.private_files import make_private_directories

SUFFIX: Final = ".rmqcap"
FILE_MODE: Final = 0o640
"""The group may read, because Spark often runs as another account. It reaches the files only if the operator lets it
into their folder.
"""


class AppendFile(Protocol):
    """A new file that grows at its end. Every method may raise OSError."""

    def write(self, data: bytes) -> None:
        """Append all of the data. If it raises, an unknown part of it was appended."""

    def truncate(self, size_bytes: int) -> None:
        """Remove everything appended after the file had this size; the next write continues there."""

    def sync(self) -> None:
        """Return once everything written survives a power failure."""

    def close(self) -> None:
        """Close the file; everything written stays."""


class CaptureFolder(Protocol):
    """The folder of the capture files. Every method may raise OSError."""

    def create(self, name: str) -> AppendFile:
        """Create a file, and the folder if it does not exist. Raises FileExistsError."""

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each capture file by name, oldest first."""

    def delete(self, name: str) -> None:
        """Delete a file; do nothing when it does not exist."""

    def free_bytes(self) -> int:
        """Return the free space of the disk."""


class DiskFile:
    """A file of the operating system."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, FILE_MODE)

    def write(self, data: bytes) -> None:
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(self._fd, unwritten) :]

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class DiskFolder:
    """A folder of the operating system. If it is missing, it is created as its owner's alone."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, name: str) -> DiskFile:
        make_private_directories(self.path)
        return DiskFile(os.path.join(self.path, name))

    def sizes(self) -> dict[str, int]:
        sizes = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat().st_size
        return dict(sorted(sizes.items()))

    def delete(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self.path, name))
        except FileNotFoundError:
            return

    def free_bytes(self) -> int:
        make_private_directories(self.path)
        room = os.statvfs(self.path)
        return room.f_bavail * room.f_frsize
