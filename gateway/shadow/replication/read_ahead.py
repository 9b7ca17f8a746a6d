"""Copies a stretch of one queue faster than one read and one put in turn: spans of it are read side by side.

Reads have no effect and may be answered in any order. A put waits for the one before it, so that the target holds a
piece of the primary's queue at any moment, whatever ends the copying.
Not responsible for what is out of the ordinary (a message that does not come, a target that expects another one): it
ends there, and `kept_copy.QueueCopy.step` finds out what it is.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from gateway.shadow.replication.pace import Pace
from gateway.shadow.replication.queue_copy import QueueCopy, Run

SPANS: Final = 8
"""Stretches of one queue that are read at a time."""
SPAN_MESSAGES: Final = 256
PUT_MESSAGES: Final = 512
PUT_BYTES: Final = 512 * 1024
"""Most of one put; a target of ours stores 512 messages of 1 KiB in 10 ms, and serves nobody else meanwhile."""

Told = Callable[[int, int], Awaitable[None]]
"""Hears of every put: messages that are new at the target, bytes. The next put waits for it."""
MayGo = Callable[[], Awaitable[None]]
"""Is waited for before each read and each put."""


async def at_once() -> None:
    """A `MayGo` that never waits."""


class Room:
    """What all queues that share it may have read ahead of their puts.

    Each queue may always have one read under way, so that the bounds are exceeded by an answer per queue and read.
    """

    def __init__(self, reads: int = 16, size_bytes: int = 32 * 1024 * 1024) -> None:
        self._reads = reads
        self._most_bytes = size_bytes
        self.reading = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether as many bytes wait as may."""
        return self.size_bytes >= self._most_bytes

    @property
    def is_free(self) -> bool:
        """Whether one read more may be under way."""
        return self.reading < self._reads and not self.is_full


class _Span:
    """A stretch of the queue: what was read of it and not taken yet, and why reading ended early."""

    __slots__ = ("is_odd", "position", "problem", "reading", "runs", "stop")

    def __init__(self, first: int, stop: int) -> None:
        self.position = first
        self.stop = stop
        self.runs: deque[Run] = deque()
        self.reading = False
        self.is_odd = False
        self.problem: Exception | None = None

    @property
    def may_read(self) -> bool:
        return not (self.reading or self.is_odd or self.problem or self.position >= self.stop)


class CopyAhead:
    """`run` copies from the target's end to ``goal`` (exclusive), if the target's last message is known to be right."""

    def __init__(
        self, copy: QueueCopy, goal: int, room: Room, pace: Pace, told: Told, may_go: MayGo = at_once
    ) -> None:
        self._copy = copy
        self._goal = goal
        self._room = room
        self._pace = pace
        self._told = told
        self._may_go = may_go
        self._spans: deque[_Span] = deque()
        self._next = copy.position
        self._span_messages = max(SPAN_MESSAGES, copy.batch_messages)
        self._arrived = trio.Event()

    async def run(self) -> None:
        """Returns at the goal, or where something is out of the ordinary. Raises what `QueueCopy.step` does."""
        if self._copy.position != self._copy.end:
            return
        problem: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._put_all(nursery)
                except Exception as error:  # noqa: BLE001 - as it is, and not in a group
                    problem = error
                nursery.cancel_scope.cancel()
        finally:
            self._room.size_bytes -= sum(len(run.body) for span in self._spans for run in span.runs)
        if problem is not None:
            raise problem

    async def _put_all(self, nursery: trio.Nursery) -> None:
        while self._copy.position < self._goal:
            self._read_on(nursery)
            runs = self._take()
            if runs:
                if not await self._put(runs):
                    return
                continue
            front = self._spans[0]
            if front.problem is not None:
                raise front.problem
            if front.is_odd:
                return
            self._arrived = trio.Event()
            await self._arrived.wait()

    # -- reading ------------------------------------------------------------------------------------------------

    def _read_on(self, nursery: trio.Nursery) -> None:
        while len(self._spans) < SPANS and self._next < self._goal:
            stop = min(self._next + self._span_messages, self._goal)
            self._spans.append(_Span(self._next, stop))
            self._next = stop
        for span in self._spans:
            if span.may_read and (span is self._spans[0] or self._room.is_free):
                span.reading = True
                self._room.reading += 1
                nursery.start_soon(self._read, span)

    async def _read(self, span: _Span) -> None:
        try:
            while span.position < span.stop and not self._must_wait(span):
                await self._may_go()
                run = await self._copy.read(span.position, span.stop - span.position)
                if run is None:
                    span.is_odd = True
                    return
                span.runs.append(run)
                span.position += run.count
                self._room.size_bytes += len(run.body)
                self._arrived.set()
        except Exception as problem:  # noqa: BLE001 - it is raised where its turn is
            span.problem = problem
        finally:
            span.reading = False
            self._room.reading -= 1
            self._arrived.set()

    def _must_wait(self, span: _Span) -> bool:
        """The first span goes on in a full room when nothing of it waits, since others wait for what it brings."""
        return self._room.is_full and (span is not self._spans[0] or bool(span.runs))

    # -- putting ------------------------------------------------------------------------------------------------

    def _take(self) -> list[Run]:
        """What follows the target's end and has been read, as much as one put may have, at least one answer."""
        most, most_bytes = self._pace.share(PUT_MESSAGES, PUT_BYTES)
        runs: list[Run] = []
        while self._spans:
            span = self._spans[0]
            while span.runs:
                most, most_bytes = most - span.runs[0].count, most_bytes - len(span.runs[0].body)
                if runs and (most < 0 or most_bytes < 0):
                    return runs
                runs.append(span.runs.popleft())
            if span.position < span.stop:
                break
            self._spans.popleft()
        return runs

    async def _put(self, runs: list[Run]) -> bool:
        """Whether the target expects what follows now."""
        size_bytes = sum(len(run.body) for run in runs)
        try:
            await self._may_go()
            new = await self._copy.put(runs)
        finally:
            self._room.size_bytes -= size_bytes
        await self._told(new, size_bytes)
        return self._copy.position == runs[-1].first + runs[-1].count
