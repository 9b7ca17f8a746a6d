"""Exchanges that wait in a mirror stream for the target, first in, first out, and bounded in number and bytes.

`Backlog` is the memory-only queue. `spill_backlog.py` extends it with files. Putting a queue's messages into the
primary's order happens before they get here, in `reorder_buffer.py`.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import trio

from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome
from gateway.shadow.traffic.subject import Subject

BACKLOG_FULL = "the queue is full"
ENTRY_OVERHEAD_BYTES: Final = 1_200
"""Memory of an entry besides its two frames: objects, subject, addresses."""
MAX_DECODED_ENTRIES: Final = 256
"""Entries at the front whose commands stay decoded: about a batch. Decoding a later entry again costs 3 us; keeping it
decoded would take four times the memory of its frames."""


class BacklogEntry:
    """One waiting exchange.

    `failures` counts the attempts that failed with this exchange as the only one of its batch. `sequence` is its
    number in the spill queue, -1 while it is only in memory. `size` is about the memory it takes. `resumed` marks an
    exchange that an earlier process received; `is_finished` one that `Backlog.finish_entry` was called with. `outcome`
    is None until it is known.
    """

    __slots__ = (
        "exchange",
        "failures",
        "is_finished",
        "outcome",
        "resumed",
        "sequence",
        "size",
        "subject",
    )

    def __init__(self, exchange: Exchange, subject: Subject) -> None:
        self.exchange = exchange
        self.subject = subject
        self.size = exchange.size_bytes + ENTRY_OVERHEAD_BYTES
        self.failures = 0
        self.sequence = -1
        self.resumed = False
        self.is_finished = False
        self.outcome: Outcome | None = None


class BacklogListener(Protocol):
    """Is notified of entries that enter or leave a backlog without going through its stream."""

    def on_dropped(self, entry: BacklogEntry, reason: str) -> None:
        """Handle an entry for which there was no room."""

    def on_lost(self, count: int, reason: str) -> None:
        """Handle the loss of exchanges on disk; it is unknown which ones they were."""

    def on_resumed(self, count: int) -> None:
        """Handle exchanges that an earlier process left on disk. Called before any of them can be taken."""

    def on_identified(self, entry: BacklogEntry) -> None:
        """Handle a resumed exchange that has been read, so that its topic is known now."""


class Backlog:
    """A queue in memory. An entry that was taken counts against the bounds until it is finished or put back."""

    def __init__(self, max_messages: int, max_bytes: int, listener: BacklogListener) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._listener = listener
        self._queue: deque[BacklogEntry] = deque()
        self._in_flight_count = 0
        self.size_bytes = 0
        """Memory of all entries, taken ones included; those that are only on disk do not count."""

    def __len__(self) -> int:
        """Return the number of waiting entries, in memory and on disk, without those that were taken."""
        return len(self._queue)

    @property
    def spilled(self) -> int:
        """Number of entries that are only on disk."""
        return 0

    @property
    def on_disk(self) -> int:
        """Number of entries on disk, whether or not they are in memory too: those that survive a SIGKILL."""
        return 0

    @property
    def unidentified(self) -> int:
        """Number of entries of an earlier process that have not been read yet, so that their topic is unknown."""
        return 0

    @property
    def can_take(self) -> bool:
        """Tell whether `take_entries` would return something."""
        return bool(self._queue)

    def append(self, entry: BacklogEntry) -> bool:
        """Append an entry; without room for it, report it as dropped and return False."""
        if self._has_room(entry):
            self._append_to_memory(entry)
            return True
        self._listener.on_dropped(entry, BACKLOG_FULL)
        return False

    def _has_room(self, entry: BacklogEntry) -> bool:
        return (
            len(self._queue) + self._in_flight_count < self._max_messages
            and self.size_bytes + entry.size <= self._max_bytes
        )

    def _append_to_memory(self, entry: BacklogEntry) -> None:
        # Far from the front: it will be a while until the commands are needed again.
        if len(self._queue) >= MAX_DECODED_ENTRIES:
            entry.exchange.forget_decoded()
        self._queue.append(entry)
        self.size_bytes += entry.size

    def take_entries(self, max_count: int) -> list[BacklogEntry]:
        """Take up to ``max_count`` entries from the front."""
        queue = self._queue
        entries = [queue.popleft() for _ in range(min(max_count, len(queue)))]
        self._in_flight_count += len(entries)
        return entries

    def put_back(self, entries: list[BacklogEntry]) -> None:
        """Return taken entries to the front, in their order."""
        # `extendleft` appends one by one, which turns the order around.
        self._queue.extendleft(reversed(entries))
        self._in_flight_count -= len(entries)

    def finish_entry(self, entry: BacklogEntry) -> None:
        """Forget a taken entry whose outcome is known."""
        self._in_flight_count -= 1
        self.size_bytes -= entry.size

    async def wait_until_opened(self) -> None:
        """Return once everything that an earlier process left is counted."""
        await trio.lowlevel.checkpoint()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Move entries between memory and disk until cancelled; call ``on_ready`` when `can_take` may be true now."""
        await trio.sleep_forever()

    def close(self) -> None:
        """Write the entries that have to survive the process. Called once, after the last batch; may block."""
