"""The task that reads and delivers timer messages, and sleeps until the next one arrives or is due."""

from math import inf
from typing import Final

import trio

from gateway.broker.delayed.timer_delivery import TimerDelivery
from gateway.broker.waiting.long_poll import LongPolls
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import TaskSupervisor
from storage.clock import Clock

MAX_READ_MESSAGES: Final = 1000
MAX_DELIVERED_MESSAGES: Final = 128
"""Largest numbers of messages read and delivered before other tasks get their turn."""
GATHER_S: Final = 0.005
"""Time for which messages gather before they are put into the wheel, unless one is due sooner."""
MAX_SLEEP_S: Final = 5.0
"""Longest sleep, so that a change of the wall clock, or a suspended machine, is noticed soon."""
FAILURE_PAUSE_S: Final = 1.0


class TimerTask:
    """Runs the delivery of timer messages."""

    def __init__(
        self, timers: TimerDelivery, clock: Clock, long_polls: LongPolls, tasks: TaskSupervisor
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._long_polls = long_polls
        self._tasks = tasks

    async def run(self) -> None:
        """Read and deliver until cancelled."""
        while True:
            self._timers.arrived.clear()
            worked = False

            def step() -> None:
                nonlocal worked
                worked = self._read_and_deliver()

            if not await self._tasks.attempt("timer messages", step):
                await trio.sleep(FAILURE_PAUSE_S)
            elif worked:
                await trio.lowlevel.checkpoint()
            else:
                await self._sleep()

    def _read_and_deliver(self) -> bool:
        """Read the topic, then deliver: a recall must be read before the message that it recalls is delivered.

        Return True when there was any work.
        """
        try:
            read = self._timers.read_topic(MAX_READ_MESSAGES)
            delivered = self._timers.deliver_due(MAX_DELIVERED_MESSAGES) if read < MAX_READ_MESSAGES else 0
        finally:
            self._long_polls.answer_marked()
        return bool(read or delivered)

    async def _sleep(self) -> None:
        due_ms = self._timers.next_due_ms()
        left_s = MAX_SLEEP_S if self._timers.behind_messages else inf
        if due_ms is not None:
            left_s = min(MAX_SLEEP_S, max(0.0, (due_ms - self._clock.now_ms()) / 1000))
        with trio.move_on_after(left_s):
            await self._timers.arrived.wait(inf)
            await trio.sleep(GATHER_S)


async def save_timers(timers: TimerDelivery, run_blocking: RunBlocking) -> None:
    """Write checkpoint and metrics when they changed, in a thread."""
    unsaved = timers.take_unsaved()
    if unsaved != (None, None):
        await run_blocking(lambda: timers.save(unsaved))
