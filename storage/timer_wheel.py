"""The timer wheel file: for each slot of time, the first and the newest record of its chain in the timer log.

The records themselves are in `timer_log.py`.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from storage.files import Files, MappedFile, read_written

SLOT: Final = Struct(">qqqii")  # time in units of the precision, first record, last record, count, magic
DEFAULT_WHEEL_SLOTS: Final = 7 * 86_400 * 2
"""Slots of the file, whatever the precision. Source: TimerMessageStore.TIMER_WHEEL_TTL_DAY, TimerWheel, 5.4.0."""
_CHUNK_SLOTS: Final = 2048
_CHUNK_BYTES: Final = _CHUNK_SLOTS * SLOT.size
_PAGE_BYTES: Final = 4096
"""Smallest page of a file system, so that none is skipped."""


class WheelSlot(NamedTuple):
    """One slot: messages due from ``time_ms`` on; -1 stands for no record."""

    time_ms: int
    first: int
    last: int
    messages: int


class TimerWheel:
    """A ring of slots: slot number (time / precision) is stored at its remainder modulo the ring's size.

    Source: TimerWheel, Slot, 5.4.0.

    The file is created with its first slot; disk space is reserved chunk by chunk, so that a full disk is StoreFull.
    """

    def __init__(self, files: Files, path: str, precision_ms: int, slots: int = DEFAULT_WHEEL_SLOTS) -> None:
        self._files = files
        self._path = path
        self._slots = slots
        self._precision_ms = precision_ms
        self._reserved: set[int] = set()
        self._file: MappedFile | None = None
        if files.size(path):
            self._file = self._open()
        self.has_misplaced_slots = (
            False  # known when all slots were read: these are not the bytes of a timer wheel
        )

    def _open(self) -> MappedFile:
        return self._files.open_mapped(self._path, self._slots * SLOT.size)

    def find_slot(self, time_ms: int) -> WheelSlot | None:
        """Return the slot of a time; None if its position in the ring is empty or holds another time."""
        if self._file is None:
            return None
        number = time_ms // self._precision_ms
        at = number % self._slots * SLOT.size
        slot_number, first, last, count, _ = SLOT.unpack(read_written(self._file, at, at + SLOT.size))
        return WheelSlot(number * self._precision_ms, first, last, count) if slot_number == number else None

    def write_slot(self, slot: WheelSlot) -> None:
        """Replace the slot at its position in the ring. Raises StoreFull; then nothing has changed."""
        file = self.make_room(slot.time_ms)
        number = slot.time_ms // self._precision_ms
        at = number % self._slots * SLOT.size
        SLOT.pack_into(file.buffer, at, number, slot.first, slot.last, slot.messages, 0)

    def make_room(self, time_ms: int) -> MappedFile:
        """Get disk space for the slot of a time. Raises StoreFull."""
        chunk = time_ms // self._precision_ms % self._slots // _CHUNK_SLOTS
        if self._file is not None and chunk in self._reserved:
            return self._file
        file = self._file = self._file or self._open()
        file.reserve(chunk * _CHUNK_BYTES, min(file.size_bytes, (chunk + 1) * _CHUNK_BYTES))
        self._reserved.add(chunk)
        return file

    def used_slots(self) -> Iterator[WheelSlot]:
        """Yield every slot in the file, in no particular order, even delivered ones that were not overwritten yet."""
        if self._file is None:
            return
        size, blank, at = self._file.size_bytes, bytes(_CHUNK_BYTES), 0
        while at < size:
            # In a file system in memory a page that was never written must not be read. It is skipped as a whole.
            end = min(at + _CHUNK_BYTES, size, self._file.readable_until(at))
            if end <= at:
                at += _PAGE_BYTES
                continue
            chunk = bytes(self._file.view[at:end])
            first_index, at = at // SLOT.size, end
            if chunk == blank[: len(chunk)]:
                continue
            for index, (number, first, last, count, _) in enumerate(SLOT.iter_unpack(chunk), first_index):
                if number and number % self._slots != index:
                    self.has_misplaced_slots = True
                elif number:
                    yield WheelSlot(number * self._precision_ms, first, last, count)

    def clear(self) -> None:
        """Remove all slots."""
        if self._file is not None:
            self._file.zero_from(0)
            self._reserved.clear()
        self.has_misplaced_slots = False

    def flush(self) -> None:
        """Block until the slots are on the disk. Thread safe."""
        if self._file is not None:
            self._files.flush(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
