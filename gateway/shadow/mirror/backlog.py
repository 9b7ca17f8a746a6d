"""What waits for a target: a queue in memory, bounded in messages and bytes, and files behind it if asked for.

Not responsible for order within a queue of the primary (ordering) nor for the files' layout (spill).
"""

from collections import deque
from collections.abc import Callable

import trio

from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.subject import Subject

BACKLOG_FULL = "the queue is full"


class BacklogEntry:
    """One exchange on its way; `failures` counts those it had alone.

    `sequence` is its number in files, -1 while it is in none. `resumed` says that an earlier process took it in.
    """

    __slots__ = ("exchange", "failures", "is_finished", "resumed", "sequence", "size", "subject")

    def __init__(self, exchange: Exchange, subject: Subject) -> None:
        self.exchange = exchange
        self.subject = subject
        self.size = exchange.size_bytes
        self.failures = 0
        self.sequence = -1
        self.resumed = False
        self.is_finished = False


class Backlog:
    """First in, first out. What was taken counts until it is `done` or `put_back`.

    `dropped` is called for what finds no room, `lost` with how many are gone from disk, where nobody knows which.
    `resumed` is called with how many an earlier process left there, before anything is taken.
    """

    spilled = 0
    """How many are on disk alone."""
    on_disk = 0
    """How many are there, and in memory perhaps as well: those that outlive a process that is killed."""
    unidentified = 0
    """How many of them an earlier process left, so that nobody knows what they are about."""

    def __init__(self, messages: int, size_bytes: int) -> None:
        self._max_messages = messages
        self._max_bytes = size_bytes
        self._queue: deque[BacklogEntry] = deque()
        self._taken = 0
        self.size_bytes = 0
        self.dropped: Callable[[BacklogEntry, str], None] = lambda entry, reason: None
        self.lost: Callable[[int, str], None] = lambda count, reason: None
        self.resumed: Callable[[int], None] = lambda count: None
        self.known: Callable[[BacklogEntry], None] = lambda entry: None
        """Is called for each of `unknown` when it is read."""

    def __len__(self) -> int:
        """Those that wait, without what was taken."""
        return len(self._queue)

    @property
    def can_take(self) -> bool:
        """Whether `take` has something."""
        return bool(self._queue)

    def append(self, entry: BacklogEntry) -> bool:
        """Appends one; False when there is no room, after `dropped` was called."""
        if self._has_room(entry):
            self._append_to_memory(entry)
            return True
        self.dropped(entry, BACKLOG_FULL)
        return False

    def _has_room(self, entry: BacklogEntry) -> bool:
        return (
            len(self._queue) + self._taken < self._max_messages
            and self.size_bytes + entry.size <= self._max_bytes
        )

    def _append_to_memory(self, entry: BacklogEntry) -> None:
        self._queue.append(entry)
        self.size_bytes += entry.size

    def take_entries(self, count: int) -> list[BacklogEntry]:
        """Up to `count` from the front."""
        queue = self._queue
        taken = [queue.popleft() for _ in range(min(count, len(queue)))]
        self._taken += len(taken)
        return taken

    def put_back(self, entries: list[BacklogEntry]) -> None:
        """To the front again, in their order."""
        self._queue.extendleft(reversed(entries))
        self._taken -= len(entries)

    def finish_entry(self, entry: BacklogEntry) -> None:
        """One that was taken is over."""
        self._taken -= 1
        self.size_bytes -= entry.size

    async def wait_until_opened(self) -> None:
        """Returns once all is counted that an earlier process left; in memory nothing was."""
        await trio.lowlevel.checkpoint()

    async def run(self, ready: Callable[[], None]) -> None:
        """Nothing to do in memory."""
        await trio.sleep_forever()

    def close(self) -> None:
        """At the end of the process, when nothing is on its way any more; blocks while files are written."""
