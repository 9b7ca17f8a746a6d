"""Long polls: waiting pulls that are answered when their queue grows, at the latest at their deadline.

A waiting pull comes with two functions that answer it, so this module knows nothing of answers.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

from remoting.connection import Connection
from storage.clock import Clock

QueueKey = tuple[str, int]
Watcher = Callable[[], bool]
TICK_MS = 20


class WaitingPull:
    """A pull that found no message yet.

    ``try_answer()`` answers the pull if there are messages now, and returns whether it did. ``expire()`` answers the
    pull with or without messages.
    """

    __slots__ = ("connection", "expire", "queue", "tick", "try_answer")

    def __init__(
        self,
        connection: Connection,
        queue: QueueKey,
        try_answer: Callable[[], bool],
        expire: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.queue = queue
        self.try_answer = try_answer
        self.expire = expire
        self.tick = 0


class LongPolls:
    """All waiting pulls of a broker, by queue and by deadline (to 20 ms).

    Source: PullRequestHoldService, 5.4.0. Deviation: nothing is scanned every 5 s. `mark_grown` marks a queue, and
    `answer_marked`, which runs once after each batch of requests, answers its pulls in the same step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_queue: dict[QueueKey, dict[WaitingPull, None]] = {}
        self._by_tick: dict[int, dict[WaitingPull, None]] = {}
        self._by_connection: dict[Connection, dict[WaitingPull, None]] = {}
        self._count = 0
        self._marked: set[QueueKey] = set()
        self._watchers: dict[QueueKey, dict[Watcher, None]] = {}
        self._changed = trio.Event()
        self._sleeping_until = float("inf")

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: WaitingPull, timeout_ms: int) -> None:
        """Hold a pull until its queue grows, its connection closes or ``timeout_ms`` passes.

        Raises RequestError when the connection has too many outstanding requests.
        """
        pull.connection.begin_request()
        pull.tick = -(-(self._now_ms() + max(1, timeout_ms)) // TICK_MS)
        self._count += 1
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_tick.setdefault(pull.tick, {})[pull] = None
        self._by_connection.setdefault(pull.connection, {})[pull] = None
        if pull.tick < self._sleeping_until:
            self._changed.set()

    def remove(self, pull: WaitingPull) -> None:
        """Forget a pull. Do nothing when it is not held."""
        held = self._by_queue.get(pull.queue)
        if held is None or pull not in held:
            return
        _discard(self._by_queue, pull.queue, pull)
        if pull.queue in self._watchers:
            self._by_queue.setdefault(pull.queue, {})
        _discard(self._by_tick, pull.tick, pull)
        _discard(self._by_connection, pull.connection, pull)
        self._count -= 1
        pull.connection.end_request()

    def mark_grown(self, topic: str, queue_id: int) -> None:
        """Mark a queue that grew. This is cheap when no pull waits for it."""
        if (topic, queue_id) in self._by_queue:
            self._marked.add((topic, queue_id))

    def answer_marked(self) -> None:
        """Answer those pulls of marked queues that now find messages, and notify the queues' watchers."""
        while self._marked:
            queue = self._marked.pop()
            for pull in list(self._by_queue.get(queue, ())):
                if pull.connection.closed or pull.try_answer():
                    self.remove(pull)
            self._notify_watchers(queue)

    def watch_queue(self, queue: QueueKey, watcher: Watcher) -> None:
        """Call ``watcher()`` in `answer_marked` whenever the queue grew, until it returns False."""
        self._watchers.setdefault(queue, {})[watcher] = None
        self._by_queue.setdefault(queue, {})

    def _notify_watchers(self, queue: QueueKey) -> None:
        for watcher in list(self._watchers.get(queue, ())):
            if not watcher():
                self._unwatch_queue(queue, watcher)

    def _unwatch_queue(self, queue: QueueKey, watcher: Watcher) -> None:
        watchers = self._watchers[queue]
        del watchers[watcher]
        if not watchers:
            del self._watchers[queue]
            if not self._by_queue[queue]:
                del self._by_queue[queue]

    def waiting_for(self, queue: QueueKey) -> list[WaitingPull]:
        """Return the pulls that wait for a queue, oldest first."""
        return list(self._by_queue.get(queue, ()))

    def count_waiting(self, queue: QueueKey) -> int:
        """Return the number of pulls that wait for a queue."""
        return len(self._by_queue.get(queue, ()))

    def drop_connection(self, connection: Connection) -> None:
        """Forget the pulls of a closed connection."""
        for pull in list(self._by_connection.get(connection, ())):
            self.remove(pull)

    def expire_due(self) -> None:
        """Answer every pull whose deadline has passed."""
        now = self._now_tick()
        for tick in sorted(tick for tick in self._by_tick if tick <= now):
            for pull in list(self._by_tick.get(tick, ())):
                self.remove(pull)
                if not pull.connection.closed:
                    pull.expire()

    async def run(self) -> None:
        """Answer pulls at their deadlines until cancelled. Sleep while there are none."""
        while True:
            self._changed = trio.Event()
            self._sleeping_until = min(self._by_tick, default=float("inf"))
            left_s = (self._sleeping_until * TICK_MS - self._now_ms()) / 1000
            with trio.move_on_after(max(0.001, left_s)):
                await self._changed.wait()
            self.expire_due()

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def _now_tick(self) -> int:
        return self._now_ms() // TICK_MS


Key = TypeVar("Key")


def _discard(table: dict[Key, dict[WaitingPull, None]], key: Key, pull: WaitingPull) -> None:
    """Remove a pull from the group under ``key``, and the group from the table with its last pull."""
    held = table[key]
    del held[pull]
    if not held:
        del table[key]
