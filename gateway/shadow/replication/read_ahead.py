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
from gateway.shadow.replication.queue_copier import MessageRun, QueueCopier

MAX_RANGES: Final = 8
"""Stretches of one queue that are read at a time."""
RANGE_MESSAGES: Final = 256
MAX_PUT_MESSAGES: Final = 512
MAX_PUT_BYTES: Final = 512 * 1024
"""Most of one put; a target of ours stores 512 messages of 1 KiB in 10 ms, and serves nobody else meanwhile."""

OnPut = Callable[[int, int], Awaitable[None]]
"""Hears of every put: messages that are new at the target, bytes. The next put waits for it."""
WaitForTurn = Callable[[], Awaitable[None]]
"""Is waited for before each read and each put."""


async def never_wait() -> None:
    """A `MayGo` that never waits."""


class ReadAheadBudget:
    """What all queues that share it may have read ahead of their puts.

    Each queue may always have one read under way, so that the bounds are exceeded by an answer per queue and read.
    """

    def __init__(self, reads: int = 16, size_bytes: int = 32 * 1024 * 1024) -> None:
        self._max_reads = reads
        self._max_bytes = size_bytes
        self.reads_under_way = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether as many bytes wait as may."""
        return self.size_bytes >= self._max_bytes

    @property
    def can_start_read(self) -> bool:
        """Whether one read more may be under way."""
        return self.reads_under_way < self._max_reads and not self.is_full


class _ReadRange:
    """A stretch of the queue: what was read of it and not taken yet, and why reading ended early."""

    __slots__ = ("position", "problem", "reading", "runs", "stop", "stopped_early")

    def __init__(self, first: int, stop: int) -> None:
        self.position = first
        self.stop = stop
        self.runs: deque[MessageRun] = deque()
        self.reading = False
        self.stopped_early = False
        self.problem: Exception | None = None

    @property
    def can_read(self) -> bool:
        return not (self.reading or self.stopped_early or self.problem or self.position >= self.stop)


class ReadAheadCopier:
    """`run` copies from the target's end to ``goal`` (exclusive), if the target's last message is known to be right."""

    def __init__(
        self,
        copy: QueueCopier,
        goal: int,
        budget: ReadAheadBudget,
        pace: Pace,
        on_put: OnPut,
        wait_for_turn: WaitForTurn = never_wait,
    ) -> None:
        self._copier = copy
        self._goal = goal
        self._budget = budget
        self._pace = pace
        self._on_put = on_put
        self._wait_for_turn = wait_for_turn
        self._ranges: deque[_ReadRange] = deque()
        self._next_offset = copy.position
        self._range_messages = max(RANGE_MESSAGES, copy.batch_messages)
        self._arrived = trio.Event()

    async def run(self) -> None:
        """Returns at the goal, or where something is out of the ordinary. Raises what `QueueCopy.step` does."""
        if self._copier.position != self._copier.target_end:
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
            self._budget.size_bytes -= sum(len(run.body) for span in self._ranges for run in span.runs)
        if problem is not None:
            raise problem

    async def _put_all(self, nursery: trio.Nursery) -> None:
        while self._copier.position < self._goal:
            self._start_reads(nursery)
            runs = self._take_runs()
            if runs:
                if not await self._put_runs(runs):
                    return
                continue
            front = self._ranges[0]
            if front.problem is not None:
                raise front.problem
            if front.stopped_early:
                return
            self._arrived = trio.Event()
            await self._arrived.wait()

    # -- reading ------------------------------------------------------------------------------------------------

    def _start_reads(self, nursery: trio.Nursery) -> None:
        while len(self._ranges) < MAX_RANGES and self._next_offset < self._goal:
            stop = min(self._next_offset + self._range_messages, self._goal)
            self._ranges.append(_ReadRange(self._next_offset, stop))
            self._next_offset = stop
        for span in self._ranges:
            if span.can_read and (span is self._ranges[0] or self._budget.can_start_read):
                span.reading = True
                self._budget.reads_under_way += 1
                nursery.start_soon(self._read_range, span)

    async def _read_range(self, span: _ReadRange) -> None:
        try:
            while span.position < span.stop and not self._must_pause(span):
                await self._wait_for_turn()
                run = await self._copier.read_run(span.position, span.stop - span.position)
                if run is None:
                    span.stopped_early = True
                    return
                span.runs.append(run)
                span.position += run.count
                self._budget.size_bytes += len(run.body)
                self._arrived.set()
        except Exception as problem:  # noqa: BLE001 - it is raised where its turn is
            span.problem = problem
        finally:
            span.reading = False
            self._budget.reads_under_way -= 1
            self._arrived.set()

    def _must_pause(self, span: _ReadRange) -> bool:
        """The first span goes on in a full room when nothing of it waits, since others wait for what it brings."""
        return self._budget.is_full and (span is not self._ranges[0] or bool(span.runs))

    # -- putting ------------------------------------------------------------------------------------------------

    def _take_runs(self) -> list[MessageRun]:
        """What follows the target's end and has been read, as much as one put may have, at least one answer."""
        most, most_bytes = self._pace.share(MAX_PUT_MESSAGES, MAX_PUT_BYTES)
        runs: list[MessageRun] = []
        while self._ranges:
            span = self._ranges[0]
            while span.runs:
                most, most_bytes = most - span.runs[0].count, most_bytes - len(span.runs[0].body)
                if runs and (most < 0 or most_bytes < 0):
                    return runs
                runs.append(span.runs.popleft())
            if span.position < span.stop:
                break
            self._ranges.popleft()
        return runs

    async def _put_runs(self, runs: list[MessageRun]) -> bool:
        """Whether the target expects what follows now."""
        size_bytes = sum(len(run.body) for run in runs)
        try:
            await self._wait_for_turn()
            new = await self._copier.put_runs(runs)
        finally:
            self._budget.size_bytes -= size_bytes
        await self._on_put(new, size_bytes)
        return self._copier.position == runs[-1].first + runs[-1].count
