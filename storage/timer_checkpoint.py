"""The timer's checkpoint file: how far its topic was read and its slots delivered; not the reading itself."""

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from storage.files import Files

POSITION_FIELDS: Final = Struct(">7q")
_FILE_BYTES: Final = 4096
_NOW: Final = Struct(">6q")
_NOW_AT: Final = 128


@dataclass(slots=True)
class TimerPosition:
    """What is surely on the disk. Source: TimerCheckpoint, 5.4.0.

    Slots before ``read_ms`` are delivered; messages of the timer topic before ``queue_offset`` are in the
    wheel or delivered; the log is on the disk up to ``log_position``.
    """

    read_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def pack(self) -> bytes:
        """The file's first 56 bytes, which are the answer to GET_TIMER_CHECK_POINT as well."""
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
    """Where everything stands at this moment, on the disk or not.

    Of the slot ``read_ms`` all is delivered up to the record (``due_ms``, ``position``). It holds as long as
    the timer log reaches to ``log_end`` and the commit log to ``commit_end``.
    """

    queue_offset: int
    read_ms: int
    due_ms: int
    position: int
    log_end: int
    commit_end: int


class TimerCheckpoint:
    """A file of 4096 bytes: the official fields, a copy of them, and our own progress after each message.

    The official broker writes the first 56 bytes only. Our progress counts while the copy agrees with them,
    that is while nobody else went on with the store.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._is_reserved = files.size(path) is not None
        self._file = files.open_mapped(path, _FILE_BYTES)
        self.position = TimerPosition(*POSITION_FIELDS.unpack_from(self._file.buffer))

    def load_progress(self) -> TimerProgress | None:
        """What was noted last; None when it does not count."""
        progress = TimerProgress(*_NOW.unpack_from(self._file.buffer, _NOW_AT))
        if (
            self._file.view[: POSITION_FIELDS.size]
            != self._file.view[POSITION_FIELDS.size : 2 * POSITION_FIELDS.size]
        ):
            return None
        return progress if any(progress) else None

    def save_progress(self, *progress: int) -> None:
        """Notes the fields of a TimerProgress so that they survive the end of the process, not of the machine.

        Raises StoreFull.
        """
        if not self._is_reserved:
            self._file.reserve(0, _FILE_BYTES)
            self._is_reserved = True
        _NOW.pack_into(self._file.buffer, _NOW_AT, *progress)

    def write_position(self, position: TimerPosition) -> None:
        """Blocks until a position is on the disk."""
        packed = position.pack()
        self._file.buffer[: 2 * POSITION_FIELDS.size] = packed + packed
        self._files.flush(self._path)
        self.position = position

    def close(self) -> None:
        self._file.close()
