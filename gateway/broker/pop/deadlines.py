"""Callbacks that run at a wall clock time, in the order of their times."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from gateway.broker.waiting.wake_signal import WakeSignal

MAX_CANCELLED_KEPT: Final = 1024
"""Cancelled deadlines are removed from the heap when there are more than this, and more than half of the heap."""


class Deadline:
    """A callback to run at ``due_ms``."""

    __slots__ = ("due_ms", "run")

    def __init__(self, due_ms: int, run: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.run: Callable[[], None] | None = run


class Deadlines:
    """Callbacks by time. The signal ``earlier`` is set when a new one is due before all others."""

    def __init__(self, earlier: WakeSignal) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._serial = count()
        self._cancelled = 0
        self.earlier = earlier

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def schedule(self, due_ms: int, run: Callable[[], None]) -> Deadline:
        """Add a deadline."""
        deadline = Deadline(due_ms, run)
        earlier = not self._heap or due_ms < self._heap[0][0]
        heapq.heappush(self._heap, (due_ms, next(self._serial), deadline))
        if earlier:
            self.earlier.set()
        return deadline

    def cancel(self, deadline: Deadline) -> None:
        """Cancel a deadline. Do nothing when it has run."""
        if deadline.run is None:
            return
        deadline.run = None
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED_KEPT and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].run is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_due_ms(self) -> int | None:
        """Return the wall time (ms) of the next deadline, which may be past; None when there is none."""
        while self._heap and self._heap[0][2].run is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_ms: int, max_deadlines: int) -> int:
        """Run at most ``max_deadlines`` due callbacks and return their number."""
        done = 0
        while done < max_deadlines and (due := self.next_due_ms()) is not None and due <= now_ms:
            deadline = heapq.heappop(self._heap)[2]
            run, deadline.run = deadline.run, None
            done += 1
            if run is not None:
                run()
        return done
