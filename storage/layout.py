"""Struct forms of the stored layouts, for the hot paths.

`codec.layouts` declares the same layouts as a specification; messages are decoded into values by `codec.message`.
"""

import struct

from codec.java_numbers import parse_integer_or
from codec.message import HEADER as HEADER
from codec.message import MAX_PROPERTIES_BYTES as MAX_PROPERTIES_BYTES
from codec.message import PHYSICAL_OFFSET_AT as PHYSICAL_OFFSET_AT

# Disks write whole sectors, so lost bytes start at such a boundary.
SECTOR_BYTES = 512

# Parts of a message header.
TIMESTAMP = struct.Struct(">q")
REST = struct.Struct(">iqi")
START = struct.Struct(">II")  # size, magic: the first 8 bytes of a message and all of a blank marker
SHORT = struct.Struct(">H")
INT = struct.Struct(">I")
LONG = struct.Struct(">q")

# Message headers by the length of the block of fields that all messages of a batch share: sys flag, born timestamp,
# born host, store timestamp, store host, reconsume times and prepared transaction offset. A host takes 8 or 20 bytes.
SHARED_HEADERS = {length: struct.Struct(f">IIIiiqq{length}sI") for length in (48, 60, 72)}

QUEUE_ENTRY = struct.Struct(">qiq")  # physical offset, size, tags code
QUEUE_ENTRY_BYTES = 20
# Entry that the official broker writes before the first real entry of a queue that starts in the middle of a file.
QUEUE_BLANK_SIZE = 0x7FFFFFFF
QUEUE_BLANK = QUEUE_ENTRY.pack(0, QUEUE_BLANK_SIZE, 0)
# Size in the entry of a lost message. An official broker must find that the message does not fit into its log file. It
# adds the position there, less than a GiB, in 32 bits: with QUEUE_BLANK_SIZE, which earlier versions wrote, the sum is
# negative, and every pull that comes to the entry fails.
QUEUE_HOLE_SIZE = (1 << 30) + 1
QUEUE_HOLE_SIZES = (QUEUE_HOLE_SIZE, QUEUE_BLANK_SIZE)

BLANK_BYTES = 8  # room that a blank marker needs at the end of a commit log file


def mapped_file_name(offset: int) -> str:
    """Return the name of the mapped file whose first byte is at ``offset``: 20 digits."""
    return f"{offset:020d}"


def mapped_file_offsets(names: list[str]) -> list[int]:
    """Return the offsets that names of mapped files stand for, ascending; other names are ignored."""
    offsets = [parse_integer_or(name, -1) for name in names if len(name) == 20 and name.isdecimal()]
    return sorted(offset for offset in offsets if offset >= 0)
