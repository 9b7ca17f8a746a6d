"""Follows one queue of the primary for as long as it is told to, and knows how far the target is.

Not responsible for which queues there are (kept_feeds is).
"""

import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from enum import Enum

import trio

from gateway.shadow.replication.pace import Pace
from gateway.shadow.replication.queue_copy import QueueCopy, Stuck
from gateway.shadow.replication.read_ahead import CopyAhead, Room
from gateway.shadow.replication.settings import KeptSettings

Prepare = Callable[[], Awaitable[None]]
"""Makes sure that the target has the queue. Raises ASKING_FAILED of `cluster`."""


class Phase(Enum):
    """What a feed does."""

    STARTING = "starting"
    CATCHING_UP = "catching up"
    LIVE = "live"
    FAILING = "failing"
    STUCK = "stuck"


class QueueFeed:
    """`run` copies until cancelled, whatever fails; `problem` is the last failure, "" when it is over."""

    def __init__(
        self, copy: QueueCopy, settings: KeptSettings, pace: Pace, room: Room, prepare: Prepare
    ) -> None:
        self.copy = copy
        self.phase = Phase.STARTING
        self.problem = ""
        self.failures = 0
        self.whole_ms = 0
        """When the target was last seen to have all of the queue, ms since 1970."""
        self._settings = settings
        self._pace = pace
        self._room = room
        self._prepare = prepare
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._numbers = itertools.count()
        self._urgent = 0
        self._hurry = trio.Event()

    async def wait_until(self, offset: int, *, urgent: bool = True) -> None:
        """Returns when the target has everything up to and with this offset of the queue.

        While somebody waits urgently, messages are not left to gather.
        """
        if self.copy.end > offset:
            return
        entry = (offset, next(self._numbers), trio.Event())
        heapq.heappush(self._waiting, entry)
        self._urgent += urgent
        if urgent:
            self._hurry.set()
        try:
            await entry[2].wait()
        finally:
            self._urgent -= urgent
            if not entry[2].is_set():
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)

    async def run(self) -> None:
        """Copies, and after each failure tries again, first soon and then less often."""
        settings = self._settings
        pause_ms = settings.backoff_ms
        while True:
            copied = self.copy.messages
            try:
                await self._follow()
            except Stuck as reason:
                self._note(Phase.STUCK, str(reason))
                pause_ms = settings.backoff_max_ms
            except Exception as problem:  # noqa: BLE001 - whatever a side answers, the queue is tried again
                self._note(Phase.FAILING, str(problem) or type(problem).__name__)
            if self.copy.messages > copied:
                pause_ms = settings.backoff_ms
            await trio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, settings.backoff_max_ms)

    async def _follow(self) -> None:
        copy = self.copy
        await self._prepare()
        await copy.look()
        while True:
            self._release()
            behind = copy.behind
            self.phase = Phase.CATCHING_UP if behind > self._settings.live_messages else Phase.LIVE
            self.problem = ""
            if not behind:
                self.whole_ms = time.time_ns() // 1_000_000
            before = copy.bytes
            count = await copy.step(0 if behind else self._settings.wait_ms)
            if self.phase is Phase.CATCHING_UP:
                await self._copied(count, copy.bytes - before)
                goal = copy.high - self._settings.live_messages
                await CopyAhead(copy, goal, self._room, self._pace, self._copied).run()
            elif 0 < count < self._settings.batch_messages:
                self._release()
                await self._gather()

    async def _copied(self, count: int, size_bytes: int) -> None:
        self._release()
        await self._pace.take(count, size_bytes)

    async def _gather(self) -> None:
        """Rests, so that a primary under load is asked for many messages at a time and not for each."""
        if self._urgent or not self._settings.gather_ms:
            return
        self._hurry = trio.Event()
        with trio.move_on_after(self._settings.gather_ms / 1000):
            await self._hurry.wait()

    def _note(self, phase: Phase, problem: str) -> None:
        self.phase, self.problem = phase, problem
        self.failures += 1

    def _release(self) -> None:
        while self._waiting and self._waiting[0][0] < self.copy.end:
            heapq.heappop(self._waiting)[2].set()
