"""Copies the timer's files as they were at one moment, while a broker goes on writing to them.

The moment is that of the checkpoint ``config/timercheck``: it says up to which record of the timer log, and up to which
message of the timer topic, the two agree. The log is copied up to there, and slots of the copied wheel that lead to
later records are set back along their chains. A broker on the copy reads the later messages of the timer topic again.
"""

import mmap
from typing import Final

from storage.errors import StoreError
from storage.layout import mapped_file_name, mapped_file_offsets
from storage.timer_checkpoint import POSITION_FIELDS, PROGRESS, PROGRESS_AT, TimerPosition, TimerProgress
from storage.timer_log import MAGIC_DELETE, MAGIC_PART, RECORD
from storage.timer_wheel import SLOT
from storage.tools.file_copy import FileCopier
from storage.tools.store_reader import ReadOnlyFiles

_CHUNK_SLOTS: Final = 2048


def log_end_of(checkpoint: bytes) -> int:
    """Return the position in the timer log up to which a checkpoint file knows it.

    Our broker notes it with every step, the official one with every flush.
    """
    checkpoint = checkpoint.ljust(PROGRESS_AT + PROGRESS.size, b"\0")
    position = TimerPosition(*POSITION_FIELDS.unpack_from(checkpoint))
    copy = checkpoint[POSITION_FIELDS.size : 2 * POSITION_FIELDS.size]
    progress = TimerProgress(*PROGRESS.unpack_from(checkpoint, PROGRESS_AT))
    if copy == checkpoint[: POSITION_FIELDS.size] and any(progress):
        return progress.log_end
    return position.log_position


class TimerCopy:
    """Copies ``timerlog`` and ``timerwheel`` of the store in ``root``, up to position ``end`` of the timer log."""

    def __init__(self, files: ReadOnlyFiles, copier: FileCopier, root: str, target: str, end: int) -> None:
        self._files = files
        self._copier = copier
        self._root = root
        self._target = target
        self._end = end
        self._bases = mapped_file_offsets(files.list(f"{root}/timerlog"))
        self._file_bytes = max((files.size(self._path(base)) or 0 for base in self._bases), default=0)

    def copy(self) -> None:
        """Copy both. Raises StoreError if the broker was stopped meanwhile: its last slots are then rewritten."""
        for base in reversed(self._bases):  # expired files vanish at the other end
            if base < self._end:
                name = mapped_file_name(base)
                inside = min(self._end - base, self._file_bytes)
                try:
                    target = f"{self._target}/timerlog/{name}"
                    self._copier.copy_start(self._path(base), target, inside, self._file_bytes)
                except FileNotFoundError:
                    break
        if self._files.size(f"{self._root}/timerwheel"):
            self._copier.copy_whole(f"{self._root}/timerwheel", f"{self._target}/timerwheel")
            self._settle_wheel(f"{self._target}/timerwheel")

    def _path(self, base: int) -> str:
        return f"{self._root}/timerlog/{mapped_file_name(base)}"

    def _settle_wheel(self, path: str) -> None:
        blank = bytes(_CHUNK_SLOTS * SLOT.size)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as wheel:
            for start in range(0, len(wheel), len(blank)):
                chunk = wheel[start : start + len(blank)]
                if chunk == blank[: len(chunk)]:
                    continue
                for at in range(0, len(chunk) - SLOT.size + 1, SLOT.size):
                    number, first, last, count, magic = SLOT.unpack_from(chunk, at)
                    if number and last >= self._end:
                        last, count = self._walk_back(last, count)
                        first = first if last >= 0 and first < self._end else last
                        SLOT.pack_into(wheel, start + at, number, first, last, count, magic)

    def _walk_back(self, last: int, count: int) -> tuple[int, int]:
        """Return the newest record of a chain that the copy has, -1 without one, and the number of messages then."""
        while last >= self._end:
            base = last // self._file_bytes * self._file_bytes
            with open(self._path(base), "rb") as file:
                file.seek(last - base)
                size, previous, magic, *_ = RECORD.unpack(file.read(RECORD.size).ljust(RECORD.size, b"\0"))
            if size != RECORD.size or magic & MAGIC_PART or previous >= last:
                raise StoreError(
                    "the broker was stopped during the backup and rewrote timer slots; make the backup again"
                )
            count += 1 if magic & MAGIC_DELETE else -1
            last = previous
        return last, count
