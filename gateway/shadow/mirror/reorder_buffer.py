"""Puts exchanges of a queue into the order of the primary's offsets.

Answers to different clients overtake each other, so exchanges arrive in another order than the primary stored the
messages. A gap that is never filled, because a message bypassed the gateway, costs one wait.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _QueueBuffer(Generic[Item]):
    """One queue: the next expected offset, and a heap of waiting items as (offset, number, item, count)."""

    __slots__ = ("expected", "waiting")

    def __init__(self) -> None:
        self.expected = 0
        self.waiting: list[tuple[int, int, Item, int]] = []


class ReorderBuffer(Generic[Item]):
    """Delays items whose offset is ahead of the expected one of their queue, until the gap closes.

    An item waits at most ``wait_s`` seconds, and at most ``max_waiting`` items wait per queue. Items leave in the order
    of their offsets, except those that arrive after a later one has left: `late` counts them. The first item of a queue
    waits too, because the expected offset is unknown then.
    """

    def __init__(self, wait_s: float, max_waiting: int, max_queues: int = 100_000) -> None:
        self._wait_s = wait_s
        self._max_waiting = max_waiting
        self._max_queues = max_queues
        self._queues: dict[Hashable, _QueueBuffer[Item]] = {}
        self._due: deque[tuple[float, Hashable, int]] = deque()
        self._number = 0
        self.waiting = 0
        self.late = 0

    def add_item(self, queue: Hashable, offset: int, count: int, item: Item, now_s: float) -> list[Item]:
        """Add an item; return the items that may leave now, in order: none, this one, or this one and its followers."""
        buffer = self._queues.get(queue)
        if buffer is None:
            buffer = self._add_queue(queue)
        # A later message has left already. Holding this one back would only make it later still.
        if offset < buffer.expected:
            self.late += 1
            return [item]
        if offset == buffer.expected and not buffer.waiting:
            buffer.expected = offset + count
            return [item]
        self._number += 1
        heappush(buffer.waiting, (offset, self._number, item, count))
        self.waiting += 1
        # At the expected offset it leaves right below, and needs no due time.
        if offset != buffer.expected:
            self._due.append((now_s + self._wait_s, queue, offset))
        return self._take_ready(buffer, buffer.expected)

    def take_due(self, now_s: float) -> list[Item]:
        """Return overdue items, each with everything of its queue before it and everything directly after it."""
        released: list[Item] = []
        while self._due and self._due[0][0] <= now_s:
            _, queue, offset = self._due.popleft()
            buffer = self._queues.get(queue)
            if buffer is not None:
                released += self._take_ready(buffer, offset)
        return released

    def next_due_s(self) -> float | None:
        """Return when to call `take_due`; None while nothing waits."""
        # Everything left before it was due: drop the due times, which would wake the stream for nothing.
        if not self.waiting:
            self._due.clear()
        return self._due[0][0] if self._due else None

    def take_all(self) -> list[Item]:
        """Return all waiting items, in order."""
        released: list[Item] = []
        for buffer in self._queues.values():
            while buffer.waiting:
                released.append(self._pop_first(buffer))
        return released

    def _take_ready(self, buffer: _QueueBuffer[Item], through: int) -> list[Item]:
        released: list[Item] = []
        waiting = buffer.waiting
        while waiting and (
            waiting[0][0] <= max(through, buffer.expected) or len(waiting) > self._max_waiting
        ):
            released.append(self._pop_first(buffer))
        return released

    def _pop_first(self, buffer: _QueueBuffer[Item]) -> Item:
        offset, _, item, count = heappop(buffer.waiting)
        buffer.expected = max(buffer.expected, offset + count)
        self.waiting -= 1
        return item

    def _add_queue(self, queue: Hashable) -> _QueueBuffer[Item]:
        if len(self._queues) >= self._max_queues:
            # Idle queues are forgotten. Their next message waits once, as the first of a queue does.
            self._queues = {name: buffer for name, buffer in self._queues.items() if buffer.waiting}
        buffer = self._queues[queue] = _QueueBuffer()
        return buffer
