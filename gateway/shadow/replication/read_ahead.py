"""Copies a range of one queue with several reads at a time; the puts stay in order.

Reading one answer and putting it, in turn, leaves both sides idle half the time. Here up to `MAX_RANGES` parts of the
range are read side by side, in any order, which is harmless because reads change nothing. A put waits for the one
before it, so that the target holds a contiguous piece of the primary's queue whenever copying ends. Messages that were
read ahead and not put yet are only in memory, bounded by a `ReadAheadBudget` that all queues share; they are discarded
on failure.

Copying also ends, without an error, at anything unusual: the primary does not return a message, or the target expects
another offset. `QueueCopier.copy_once` then finds the reason.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from gateway.shadow.replication.queue_copier import MessageRun, QueueCopier
from toolkit.rate_limiter import TrioRateLimiter

MAX_RANGES: Final = 8
"""Maximum number of ranges of one queue that are read at a time."""
RANGE_MESSAGES: Final = 256
MAX_PUT_MESSAGES: Final = 512
MAX_PUT_BYTES: Final = 512 * 1024
"""Largest batch per put. Storing 512 messages of 1 KiB blocks our broker's loop for about 10 ms."""

OnPut = Callable[[int, int], Awaitable[None]]
"""Called after each put with the number of messages new at the target, and bytes. The next put waits for it."""
WaitForTurn = Callable[[], Awaitable[None]]
"""Awaited before each read and each put."""


async def never_wait() -> None:
    """A `WaitForTurn` that never waits."""


class ReadAheadBudget:
    """Bounds the reads and bytes that the queues sharing it have read ahead of their puts.

    Each queue may always have one read under way, so the bounds are exceeded by up to one answer per queue and read.
    """

    def __init__(self, max_reads: int = 16, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._max_reads = max_reads
        self._max_bytes = max_bytes
        self.reads_under_way = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """True when as many bytes wait as are allowed."""
        return self.size_bytes >= self._max_bytes

    @property
    def can_start_read(self) -> bool:
        """True when another read may start."""
        return self.reads_under_way < self._max_reads and not self.is_full


class _ReadRange:
    """A range of the queue: the runs read and not put yet, and why reading ended early, if it did."""

    __slots__ = ("pending_runs", "position", "problem", "reading", "stop", "stopped_early")

    def __init__(self, first: int, stop: int) -> None:
        self.position = first
        self.stop = stop
        self.pending_runs: deque[MessageRun] = deque()
        self.reading = False
        self.stopped_early = False
        self.problem: Exception | None = None

    @property
    def can_read(self) -> bool:
        return not (self.reading or self.stopped_early or self.problem or self.position >= self.stop)


class ReadAheadCopier:
    """`run` copies from the target's end to ``goal`` (exclusive), if the target's last message has been verified."""

    def __init__(
        self,
        copier: QueueCopier,
        goal: int,
        budget: ReadAheadBudget,
        rate_limiter: TrioRateLimiter,
        on_put: OnPut,
        wait_for_turn: WaitForTurn = never_wait,
    ) -> None:
        self._copier = copier
        self._goal = goal
        self._budget = budget
        self._rate_limiter = rate_limiter
        self._on_put = on_put
        self._wait_for_turn = wait_for_turn
        self._ranges: deque[_ReadRange] = deque()
        self._next_offset = copier.position
        self._range_messages = max(RANGE_MESSAGES, copier.batch_messages)
        self._arrived = trio.Event()

    async def run(self) -> None:
        """Return at the goal or at anything unusual. Raises what `QueueCopier.copy_once` raises."""
        # They agree only after a put. Before it the target's last message is not verified.
        if self._copier.position != self._copier.target_end:
            return
        problem: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._put_all(nursery)
                except Exception as error:  # noqa: BLE001 - re-raised below, outside of an exception group
                    problem = error
                # Whatever else is being read is of no use any more.
                nursery.cancel_scope.cancel()
        finally:
            # Runs that were read and not put are discarded. Other queues share the budget.
            self._budget.size_bytes -= sum(
                len(run.body) for read_range in self._ranges for run in read_range.pending_runs
            )
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
            # Nothing can be put: puts follow the queue's order, so only the first range matters.
            front = self._ranges[0]
            if front.problem is not None:
                raise front.problem
            # Deleted messages, a hole, or the end of the queue: `copy_once` finds out which.
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
        for read_range in self._ranges:
            # The first range may always read, because all others wait for it.
            if read_range.can_read and (read_range is self._ranges[0] or self._budget.can_start_read):
                read_range.reading = True
                self._budget.reads_under_way += 1
                nursery.start_soon(self._read_range, read_range)

    async def _read_range(self, read_range: _ReadRange) -> None:
        try:
            while read_range.position < read_range.stop and not self._must_pause(read_range):
                await self._wait_for_turn()
                run = await self._copier.read_run(read_range.position, read_range.stop - read_range.position)
                if run is None:
                    read_range.stopped_early = True
                    return
                read_range.pending_runs.append(run)
                read_range.position += run.count
                self._budget.size_bytes += len(run.body)
                self._arrived.set()
        except Exception as problem:  # noqa: BLE001 - raised when it is this range's turn
            read_range.problem = problem
        finally:
            read_range.reading = False
            self._budget.reads_under_way -= 1
            self._arrived.set()

    def _must_pause(self, read_range: _ReadRange) -> bool:
        """Tell whether a range must stop reading for now.

        The first range may exceed a full budget while none of its runs wait, because all other ranges wait for it.
        """
        return self._budget.is_full and (read_range is not self._ranges[0] or bool(read_range.pending_runs))

    # -- putting ------------------------------------------------------------------------------------------------

    def _take_runs(self) -> list[MessageRun]:
        """Take the runs that follow the target's end, up to the limits of one put; at least one if there is any."""
        messages_left, bytes_left = self._rate_limiter.batch_limits(MAX_PUT_MESSAGES, MAX_PUT_BYTES)
        runs: list[MessageRun] = []
        while self._ranges:
            read_range = self._ranges[0]
            while read_range.pending_runs:
                messages_left -= read_range.pending_runs[0].count
                bytes_left -= len(read_range.pending_runs[0].body)
                if runs and (messages_left < 0 or bytes_left < 0):
                    return runs
                runs.append(read_range.pending_runs.popleft())
            if read_range.position < read_range.stop:
                break
            self._ranges.popleft()
        return runs

    async def _put_runs(self, runs: list[MessageRun]) -> bool:
        """Put runs; tell whether the target now expects what follows them."""
        size_bytes = sum(len(run.body) for run in runs)
        try:
            await self._wait_for_turn()
            new = await self._copier.put_runs(runs)
        finally:
            # `_take_runs` removed these runs from their ranges, so `run` does not release them.
            self._budget.size_bytes -= size_bytes
        await self._on_put(new, size_bytes)
        return self._copier.position == runs[-1].first + runs[-1].count
