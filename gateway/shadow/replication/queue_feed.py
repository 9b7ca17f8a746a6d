"""Follows one queue of the primary: catches up with its history, then long-polls for new messages, whatever fails.

`feed_set.py` decides which queues are followed.
"""

import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from enum import Enum

import trio

from gateway.shadow.replication.queue_copier import QueueCopier, QueueStuck
from gateway.shadow.replication.read_ahead import ReadAheadBudget, ReadAheadCopier
from gateway.shadow.replication.settings import QueueCopySettings
from toolkit.rate_limiter import TrioRateLimiter

PrepareQueue = Callable[[], Awaitable[None]]
"""Makes sure that the target has the queue. Raises CLUSTER_ERRORS of `cluster`."""


class FeedPhase(Enum):
    """The phases of a feed, as shown in `/status`."""

    STARTING = "starting"
    CATCHING_UP = "catching up"
    LIVE = "live"
    FAILING = "failing"
    STUCK = "stuck"


class QueueFeed:
    """`run` copies until cancelled, whatever fails. `problem` is the current failure, "" while there is none."""

    def __init__(
        self,
        copier: QueueCopier,
        settings: QueueCopySettings,
        rate_limiter: TrioRateLimiter,
        budget: ReadAheadBudget,
        prepare: PrepareQueue,
    ) -> None:
        self.copier = copier
        self.phase = FeedPhase.STARTING
        self.problem = ""
        self.failures = 0
        self.complete_ms = 0
        """Wall clock time when the target was last seen to have the complete queue, in ms since 1970."""
        self._settings = settings
        self._rate_limiter = rate_limiter
        self._budget = budget
        self._prepare = prepare
        self._waiters: list[tuple[int, int, trio.Event]] = []
        self._waiter_numbers = itertools.count()
        self._urgent_waiters = 0
        self._became_urgent = trio.Event()

    async def wait_until(self, offset: int, *, urgent: bool = True) -> None:
        """Return when the target has this offset of the queue and everything before it.

        While an urgent waiter waits, the feed does not pause to let messages gather.
        """
        if self.copier.target_end > offset:
            return
        entry = (offset, next(self._waiter_numbers), trio.Event())
        heapq.heappush(self._waiters, entry)
        self._urgent_waiters += urgent
        if urgent:
            self._became_urgent.set()
        try:
            await entry[2].wait()
        finally:
            self._urgent_waiters -= urgent
            # The waiter was cancelled. Its entry would stay for ever in a queue that receives nothing.
            if not entry[2].is_set():
                self._waiters.remove(entry)
                heapq.heapify(self._waiters)

    async def run(self) -> None:
        """Copy until cancelled; after a failure, try again with back-off."""
        settings = self._settings
        backoff_ms = settings.backoff_ms
        while True:
            copied = self.copier.copied_messages
            try:
                await self._follow_queue()
            except QueueStuck as reason:
                self._record_failure(FeedPhase.STUCK, str(reason))
                # An operator has to mend this, so there is no point in trying often.
                backoff_ms = settings.backoff_max_ms
            except Exception as problem:  # noqa: BLE001 - whatever a side does wrong, the queue is tried again
                self._record_failure(FeedPhase.FAILING, str(problem) or type(problem).__name__)
            # Progress shows that the next failure is a new one, so the back-off starts again.
            if self.copier.copied_messages > copied:
                backoff_ms = settings.backoff_ms
            await trio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, settings.backoff_max_ms)

    async def _follow_queue(self) -> None:
        copier = self.copier
        # Again after every failure: the topic may have been deleted at the target, and either side may have lost
        # messages.
        await self._prepare()
        await copier.refresh_offsets()
        while True:
            self._wake_waiters()
            behind = copier.behind_messages
            self.phase = FeedPhase.CATCHING_UP if behind > self._settings.live_messages else FeedPhase.LIVE
            self.problem = ""
            if not behind:
                # Marks of divergence that are older than this are healed.
                self.complete_ms = time.time_ns() // 1_000_000
            before = copier.copied_bytes
            count = await copier.copy_once(0 if behind else self._settings.wait_ms)
            if self.phase is FeedPhase.CATCHING_UP:
                # `copy_once` has verified the target's last message, on which reading ahead relies.
                await self._on_put(count, copier.copied_bytes - before)
                goal = copier.primary_end - self._settings.live_messages
                await ReadAheadCopier(copier, goal, self._budget, self._rate_limiter, self._on_put).run()
            # A full batch means that more messages wait already. A smaller one means that the feed keeps up, and
            # reading at once would fetch single messages.
            elif 0 < count < self._settings.batch_messages:
                self._wake_waiters()
                await self._wait_to_gather()

    async def _on_put(self, count: int, size_bytes: int) -> None:
        self._wake_waiters()
        await self._rate_limiter.acquire(count, size_bytes)

    async def _wait_to_gather(self) -> None:
        """Pause for `gather_ms`, so that a busy primary is asked for several messages at a time."""
        if self._urgent_waiters or not self._settings.gather_ms:
            return
        self._became_urgent = trio.Event()
        with trio.move_on_after(self._settings.gather_ms / 1000):
            await self._became_urgent.wait()

    def _record_failure(self, phase: FeedPhase, problem: str) -> None:
        self.phase, self.problem = phase, problem
        self.failures += 1

    def _wake_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] < self.copier.target_end:
            heapq.heappop(self._waiters)[2].set()
