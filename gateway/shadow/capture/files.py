"""The folder of capture files: made, listed, deleted; a file that is appended to.

Not responsible for what is in them, nor for which of them go.
"""

import os
from typing import Final, Protocol

SUFFIX: Final = ".rmqcap"


class AppendFile(Protocol):
    """A new file that grows at its end. Everything may raise OSError."""

    def write(self, data: bytes) -> None:
        """Appends all of it, or raises; how much of it is there then is not known."""

    def truncate(self, size_bytes: int) -> None:
        """Cuts what was appended after this size was reached; the next write goes there."""

    def sync(self) -> None:
        """Returns when what was written survives a power cut."""

    def close(self) -> None:
        """Ends; what was written stays."""


class CaptureFolder(Protocol):
    """Where capture files are. Everything may raise OSError."""

    def create(self, name: str) -> AppendFile:
        """A new file; the folder is made if need be. Raises FileExistsError."""

    def sizes(self) -> dict[str, int]:
        """Bytes by name of the capture files there are, oldest first."""

    def delete(self, name: str) -> None:
        """Removes one; nothing happens when it is gone."""

    def free_bytes(self) -> int:
        """Room that is left on the disk."""


class DiskFile:
    """A file of the machine's file system."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class DiskFolder:
    """A folder of the machine's file system."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, name: str) -> DiskFile:
        os.makedirs(self.path, exist_ok=True)
        return DiskFile(os.path.join(self.path, name))

    def sizes(self) -> dict[str, int]:
        found = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    found[entry.name] = entry.stat().st_size
        return dict(sorted(found.items()))

    def delete(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self.path, name))
        except FileNotFoundError:
            return

    def free_bytes(self) -> int:
        os.makedirs(self.path, exist_ok=True)
        room = os.statvfs(self.path)
        return room.f_bavail * room.f_frsize
