"""The parts of an index file, read without `storage.index`, which opens files for writing and deletes damaged ones."""

import sys
from array import array
from bisect import bisect_left
from typing import NamedTuple

from storage.index import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES


class IndexHeader(NamedTuple):
    """Times in ms, physical offsets, slots in use, and the number of the next entry."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_entry: int


class IndexEntry(NamedTuple):
    """Hash, physical offset, seconds since the file's first time, number of the entry before in the same slot."""

    hashed: int
    physical_offset: int
    seconds: int
    previous: int


class IndexView:
    """An index file in memory. ``slots`` is the setting maxHashSlotNum of the broker that made it.

    Raises ValueError if a file of this size cannot have that many slots.
    """

    def __init__(self, view: memoryview, slots: int) -> None:
        self.entries_at = HEADER_BYTES + slots * SLOT_BYTES
        room = len(view) - self.entries_at
        if room < 0 or room % ENTRY_BYTES:
            raise ValueError(f"a file of {len(view)} bytes does not have {slots} slots (maxHashSlotNum)")
        self.view = view
        self.slots = slots
        self.max_entries = room // ENTRY_BYTES
        self.header = IndexHeader(*HEADER.unpack_from(view))

    def entry_position(self, number: int) -> int:
        """Return the byte at which an entry starts."""
        return self.entries_at + number * ENTRY_BYTES

    def entry(self, number: int) -> IndexEntry:
        """Return an entry by its number, from 1."""
        return IndexEntry(*ENTRY.unpack_from(self.view, self.entry_position(number)))

    def slot_values(self) -> "array[int]":
        """Return the numbers of the newest entries of all slots."""
        values = array("i", self.view[HEADER_BYTES : self.entries_at].tobytes())
        if sys.byteorder == "little":
            values.byteswap()
        return values

    def write_slots(self, values: "array[int]") -> None:
        """Replace the numbers that `slot_values` returns."""
        stored = array("i", values)
        if sys.byteorder == "little":
            stored.byteswap()
        self.view[HEADER_BYTES : self.entries_at] = stored.tobytes()

    def first_entry_from(self, physical_offset: int) -> int:
        """Return the number of the first counted entry of a message at or after a physical offset."""
        numbers = range(1, max(1, min(self.header.next_entry, self.max_entries)))
        key = physical_offset
        return 1 + bisect_left(numbers, key, key=lambda number: self.entry(number).physical_offset)
