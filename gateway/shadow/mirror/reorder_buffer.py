"""Puts exchanges of a queue into the order of the primary's offsets: answers of different clients overtake each other.

Not responsible for gaps that nothing fills (messages that came by other ways): each costs one wait.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _QueueBuffer(Generic[Item]):
    """One queue: the offset that goes on at once, and a heap of what waits: offset, number, item, count."""

    __slots__ = ("expected", "waiting")

    def __init__(self) -> None:
        self.expected = 0
        self.waiting: list[tuple[int, int, Item, int]] = []


class ReorderBuffer(Generic[Item]):
    """Holds items whose offset is beyond the next one of their queue, at most `per_lane` of a queue, at most `wait_s`.

    Items come out in the order of their offsets, but for those that come later than that: these are `late`.
    Which offset comes next in a queue is not known at first, so its first item waits too.
    """

    def __init__(self, wait_s: float, per_lane: int, lanes: int = 100_000) -> None:
        self._wait_s = wait_s
        self._per_lane = per_lane
        self._max_lanes = lanes
        self._lanes: dict[Hashable, _QueueBuffer[Item]] = {}
        self._due: deque[tuple[float, Hashable, int]] = deque()
        self._number = 0
        self.waiting = 0
        self.late = 0

    def add_item(self, queue: Hashable, offset: int, count: int, item: Item, now_s: float) -> list[Item]:
        """What may go on now, in order; it may be nothing, this item, or this one and those that waited for it."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._new_lane(queue)
        if offset < lane.expected:
            self.late += 1
            return [item]
        if offset == lane.expected and not lane.waiting:
            lane.expected = offset + count
            return [item]
        self._number += 1
        heappush(lane.waiting, (offset, self._number, item, count))
        self.waiting += 1
        if offset != lane.expected:
            self._due.append((now_s + self._wait_s, queue, offset))
        return self._take_ready(lane, lane.expected)

    def take_due(self, now_s: float) -> list[Item]:
        """What has waited long enough, with all of its queue before it and what follows at once."""
        released: list[Item] = []
        while self._due and self._due[0][0] <= now_s:
            _, queue, offset = self._due.popleft()
            lane = self._lanes.get(queue)
            if lane is not None:
                released += self._take_ready(lane, offset)
        return released

    def next_due_s(self) -> float | None:
        """When `due` has to be asked; None while nothing waits."""
        if not self.waiting:
            self._due.clear()
        return self._due[0][0] if self._due else None

    def take_all(self) -> list[Item]:
        """Everything that waits, in order."""
        released: list[Item] = []
        for lane in self._lanes.values():
            while lane.waiting:
                released.append(self._pop_first(lane))
        return released

    def _take_ready(self, lane: _QueueBuffer[Item], through: int) -> list[Item]:
        released: list[Item] = []
        waiting = lane.waiting
        while waiting and (waiting[0][0] <= max(through, lane.expected) or len(waiting) > self._per_lane):
            released.append(self._pop_first(lane))
        return released

    def _pop_first(self, lane: _QueueBuffer[Item]) -> Item:
        offset, _, item, count = heappop(lane.waiting)
        lane.expected = max(lane.expected, offset + count)
        self.waiting -= 1
        return item

    def _new_lane(self, queue: Hashable) -> _QueueBuffer[Item]:
        if len(self._lanes) >= self._max_lanes:
            self._lanes = {name: lane for name, lane in self._lanes.items() if lane.waiting}
        lane = self._lanes[queue] = _QueueBuffer()
        return lane
