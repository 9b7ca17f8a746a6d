"""Background tasks that survive failures: restarted with back-off, repeated at an interval, or run once.

An exception of a task is logged with its traceback and goes no further, so that a defect in a mirror or in housekeeping
never ends the process. Expected failures, such as an unreachable target, are handled by the tasks themselves.

`TaskSupervisor` also remembers how each task is doing, for `/readyz` and `/metrics`. A task that fails again and again
is logged at its 1st, 2nd, 4th, 8th... failure in a row, so that it does not fill the log.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import trio

from gateway.runtime.metrics import Metric
from storage.errors import FlushFailed, StoreFull

log = logging.getLogger(__name__)

MAX_ERROR_CHARS: Final = 500
MIN_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
"""A task that ran at least this long without failing is restarted after `MIN_BACKOFF_S` again."""


@dataclass(slots=True)
class TaskHealth:
    """The state of one background task. Times are those of `trio.current_time`, in seconds."""

    name: str
    failures: int = 0
    failures_in_a_row: int = 0
    last_error: str = ""
    settled_at_s: float = -math.inf
    """Time from which the task counts as healthy again, unless it fails before."""

    def is_failing(self, now_s: float) -> bool:
        """Return True from a failure until the task succeeded, or ran for `MAX_BACKOFF_S` after its restart."""
        return now_s < self.settled_at_s

    def record_failure(self, error: BaseException) -> bool:
        """Count a failure; return True if it is to be logged."""
        self.failures += 1
        self.failures_in_a_row += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self.settled_at_s = math.inf
        return self.failures_in_a_row.bit_count() == 1

    def record_success(self) -> None:
        self.failures_in_a_row = 0
        self.settled_at_s = -math.inf


class TaskSupervisor:
    """Runs the background tasks of one part of the process, such as a broker, and knows how each is doing.

    ``part`` labels the metrics. Task names are unique within the part.
    """

    def __init__(self, part: str) -> None:
        self.part = part
        self._tasks: dict[str, TaskHealth] = {}

    async def keep_running(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Restart ``work`` with exponential back-off when it raises; return when it returns."""
        health = self._health_of(name)
        while True:
            started_s = trio.current_time()
            if health.failures_in_a_row:
                health.settled_at_s = started_s + MAX_BACKOFF_S
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - logged by `_note_failure`
                if trio.current_time() - started_s >= MAX_BACKOFF_S:
                    health.record_success()
                self._note_failure(health, error)
            else:
                return health.record_success()
            await trio.sleep(_backoff_s(health.failures_in_a_row))

    async def repeat(self, name: str, interval_s: float, work: Callable[[], Awaitable[None] | None]) -> None:
        """Run ``work`` every ``interval_s`` seconds until cancelled; after a failure the next turn tries again."""
        while True:
            await trio.sleep(interval_s)
            await self.attempt(name, work)

    async def attempt(self, name: str, work: Callable[[], Awaitable[None] | None]) -> bool:
        """Run ``work`` once and return True if it succeeded; a failure is recorded and logged."""
        health = self._health_of(name)
        try:
            result = work()
            if result is not None:
                await result
        except Exception as error:  # noqa: BLE001 - logged by `_note_failure`
            self._note_failure(health, error)
            return False
        health.record_success()
        return True

    def record_outcome(self, name: str, error: Exception | None) -> None:
        """Note how work ended that is not a task of its own, such as a change of role; the caller logs a failure."""
        if error is None:
            self._health_of(name).record_success()
        else:
            self._health_of(name).record_failure(error)

    def settle_all(self) -> None:
        """Take every task for healthy, because all of them end. Those that are started again may fail again."""
        for health in self._tasks.values():
            health.record_success()

    def _health_of(self, name: str) -> TaskHealth:
        return self._tasks.setdefault(name, TaskHealth(name))

    def _note_failure(self, health: TaskHealth, error: Exception) -> None:
        if not health.record_failure(error):
            return
        facts = {"part": self.part, "task": health.name, "failures_in_a_row": health.failures_in_a_row}
        if isinstance(error, FlushFailed):
            log.error("background task cannot write to the disk", extra={**facts, "reason": str(error)})
        elif isinstance(error, StoreFull):
            log.warning("background task lacks disk space", extra={**facts, "reason": str(error)})
        else:
            log.error("background task failed and will be tried again", exc_info=error, extra=facts)

    @property
    def failing(self) -> list[TaskHealth]:
        """The tasks that are failing now."""
        now_s = trio.current_time()
        return [health for health in self._tasks.values() if health.is_failing(now_s)]

    def status(self) -> list[dict[str, Any]]:
        """Return a row for each task, as JSON."""
        now_s = trio.current_time()
        return [
            {
                "part": self.part,
                "task": health.name,
                "failures": health.failures,
                "failing": health.is_failing(now_s),
                "last_error": health.last_error[:MAX_ERROR_CHARS],
            }
            for health in self._tasks.values()
        ]

    def metrics(self) -> Iterator[Metric]:
        """Yield failures and state of every task."""
        now_s = trio.current_time()
        for health in self._tasks.values():
            labels = {"part": self.part, "task": health.name}
            yield Metric(
                "task_failures_total", health.failures, "failures of a background task", labels=labels
            )
            failing = float(health.is_failing(now_s))
            yield Metric("task_failing", failing, "1 while a background task fails", "gauge", labels)


def _backoff_s(failures_in_a_row: int) -> float:
    # After a thousand failures the power would not fit into a float, and the error would end the process.
    return min(MIN_BACKOFF_S * float(1 << min(failures_in_a_row - 1, 16)), MAX_BACKOFF_S)
