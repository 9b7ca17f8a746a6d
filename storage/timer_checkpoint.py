"""The timer's checkpoint file: up to where the timer topic has been read and slots have been delivered."""

from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from storage.errors import StoreFull
from storage.files import Files, read_written

POSITION_FIELDS: Final = Struct(">7q")
_FILE_BYTES: Final = 4096
PROGRESS: Final = Struct(">6q")
PROGRESS_AT: Final = 128
_PROGRESS_PARTS: Final = ((0, 16), (24, 32), (16, 24), (32, 48))
"""Bytes of the progress in the order in which they are written."""


@dataclass(slots=True)
class TimerPosition:
    """The progress that is certainly on the disk. Source: TimerCheckpoint, 5.4.0.

    Slots before ``read_ms`` are delivered; messages of the timer topic before ``queue_offset`` are in the wheel or
    delivered; the timer log is on the disk up to ``log_position``.
    """

    read_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def pack(self) -> bytes:
        """Return the file's first 56 bytes, which are also the answer to GET_TIMER_CHECK_POINT."""
        return POSITION_FIELDS.pack(
            self.read_ms,
            self.log_position,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.timestamp,
            self.counter,
        )


class TimerProgress(NamedTuple):
    """The progress at this moment, on the disk or not.

    Slot ``read_ms`` is delivered up to the record (``due_ms``, ``position``). The progress is valid as long as the
    timer log reaches to ``log_end`` and the commit log to ``commit_end``.
    """

    queue_offset: int
    read_ms: int
    due_ms: int
    position: int
    log_end: int
    commit_end: int


class TimerCheckpoint:
    """A file of 4096 bytes: the official fields, a copy of them, and this server's progress after each message.

    The official broker writes the first 56 bytes only. The progress counts while the copy agrees with them, that is
    while no other server has used the store.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._is_reserved = False
        self._file = files.open_mapped(path, _FILE_BYTES)
        # Early, so that the first progress can be saved even if the disk fills up. A store on a full disk still opens.
        with suppress(StoreFull):
            self._reserve()
        self.position = TimerPosition(*POSITION_FIELDS.unpack(self._read(0, POSITION_FIELDS.size)))

    def _read(self, start: int, end: int) -> bytes:
        return read_written(self._file, start, end)

    def load_progress(self) -> TimerProgress | None:
        """Return the progress saved last; None when there is none or another server has used the store since."""
        size = POSITION_FIELDS.size
        progress = TimerProgress(*PROGRESS.unpack(self._read(PROGRESS_AT, PROGRESS_AT + PROGRESS.size)))
        if self._read(0, size) != self._read(size, 2 * size):
            return None
        return progress if any(progress) else None

    def _reserve(self) -> None:
        if not self._is_reserved:
            self._file.reserve(0, _FILE_BYTES)
            self._is_reserved = True

    def save_progress(self, *progress: int) -> None:
        """Save the fields of a TimerProgress so that they survive a killed process, but not a power cut.

        A process may be killed between any two fields. A new time with an old position would count messages of that
        time as delivered that are not, so the position is written before the time. The queue offset is written before
        the end of the timer log, so that no message is chained twice. Raises StoreFull.
        """
        self._reserve()
        packed = PROGRESS.pack(*progress)
        for start, end in _PROGRESS_PARTS:
            self._file.buffer[PROGRESS_AT + start : PROGRESS_AT + end] = packed[start:end]

    def write_position(self, position: TimerPosition) -> None:
        """Block until a position is on the disk."""
        packed = position.pack()
        self._file.buffer[: 2 * POSITION_FIELDS.size] = packed + packed
        self._files.flush(self._path)
        self.position = position

    def close(self) -> None:
        self._file.close()
