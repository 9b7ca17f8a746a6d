"""Makes a copied index file consistent that a broker was writing to while it was copied.

An entry is written before the slot that leads to it, and both before the header counts it. The copy was made front to
back: header, slots, entries. So every entry that a copied slot leads to is in the copy, perhaps not counted. Here such
slots are set back to the newest entry that counts, and entries that do not count are erased.
"""

import mmap
import os
from array import array

from storage.index import HEADER
from storage.tools.index_file import IndexView


def settle_index_copy(path: str, slots: int, log_end: int) -> bool:
    """Cut a copied index file to the entries of messages before physical offset ``log_end``.

    Return False if it has none, and is to be left out. Raises ValueError if it cannot have that many slots.
    """
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), size) as buffer, memoryview(buffer) as view:
            index = IndexView(view, slots)
            end = min(index.header.next_entry, index.first_entry_behind(log_end))
            if end <= 1:
                return False
            values = index.slot_values()
            _set_slots_back(index, values, end)
            header = index.header._replace(
                end_offset=index.entry(end - 1).physical_offset,
                slots_used=slots - values.count(0),
                next_entry=end,
            )
            erased_from = index.entry_position(end)
            index.write_slots(values)
            HEADER.pack_into(buffer, 0, *header)
            del index
        os.ftruncate(file.fileno(), erased_from)
        os.ftruncate(file.fileno(), size)
    return True


def _set_slots_back(index: IndexView, values: "array[int]", end: int) -> None:
    """Let slots that lead to entry ``end`` or behind it lead to the newest entry of theirs before."""
    if max(values) < end:
        return
    for slot, value in enumerate(values):
        while value >= end:
            previous = index.entry(value).previous
            value = previous if previous < value else 0  # an entry can only point back
        values[slot] = max(value, 0)
