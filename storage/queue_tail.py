"""The end of a queue whose last messages have no entries yet.

Where messages become readable only later (`storage.confirmed_store`), the next message of a queue gets an offset that
the queue itself has not reached. A `QueueTail` gives it out. It takes the place of a `ConsumeQueue` for the functions
that append messages, in Python and in C, and drops the entries that they write: `storage.log_dispatch` builds them from
the log.
"""

from typing import Final

from storage.disk_mapping import Buffer
from storage.layout import QUEUE_ENTRY_BYTES

SCRATCH_BYTES: Final = 4096 * QUEUE_ENTRY_BYTES
"""Size of the memory for dropped entries, which all tails of a store share."""


class QueueTail:
    """Gives out the offsets of one queue, from ``next_offset`` on. Entries written to ``buffer`` are never read."""

    __slots__ = (
        "buffer",
        "limit",
        "next_offset",
        "position",
        "queue_id",
        "recently_used",
        "topic_part",
    )

    def __init__(self, queue_id: int, topic_part: bytes, next_offset: int, buffer: Buffer) -> None:
        self.queue_id = queue_id
        self.topic_part = topic_part
        self.next_offset = next_offset
        self.buffer = buffer
        self.position = self.limit = 0
        self.recently_used = False

    def make_room(self) -> None:
        """Begin the memory for dropped entries anew."""
        self.position, self.limit = 0, SCRATCH_BYTES

    def make_room_for(self, size: int) -> None:
        """Do nothing: `append_entries` needs no room."""

    def append_entry(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Give out one offset."""
        self.next_offset += 1

    def append_entries(self, entries: bytes) -> None:
        """Give out the offsets of encoded entries."""
        self.next_offset += len(entries) // QUEUE_ENTRY_BYTES
