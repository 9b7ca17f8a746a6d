"""Decides if a backup can be made: what belongs to it, its place, and the room there."""

import os
from typing import Final

from storage.errors import StoreError, StoreFull
from storage.tools.file_copy import try_reflink
from storage.tools.store_reader import StoreReader

PARTIAL_SUFFIX: Final = ".partial"
"""Ends the name of the folder in which a backup is made."""
COPIED: Final = frozenset(
    {
        "commitlog", "consumequeue", "consumequeue_ext", "index", "config", "staged", "timerlog", "timerwheel",
        "checkpoint", "abort", "lock", "deletedtopics.json",
    }
)  # fmt: skip
"""Names in a store's folder that a backup copies or replaces."""


class BackupRefused(StoreError):
    """A backup cannot be made as asked; nothing was written."""


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
    needed, found = allocated_bytes(reader), os.statvfs(partial)
    free = found.f_bavail * found.f_frsize
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
