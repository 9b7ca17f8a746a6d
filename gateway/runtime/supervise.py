"""Background tasks that survive failures: restarted with back-off, repeated at an interval, or run once.

An exception of a task is logged with its trace and ends here, so that a defect in a mirror or in housekeeping never
ends the process. Expected failures, such as an unreachable target, are handled by the tasks themselves.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from storage.errors import StoreFull

log = logging.getLogger(__name__)

MIN_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
"""A task that ran at least this long without failing is restarted after `MIN_BACKOFF_S` again."""


async def supervise(work: Callable[[], Awaitable[None]]) -> None:
    """Restart a background task with exponential back-off when it raises; return when it returns."""
    backoff_s = MIN_BACKOFF_S
    while True:
        started_s = trio.current_time()
        try:
            return await work()
        except Exception:
            if trio.current_time() - started_s >= MAX_BACKOFF_S:
                backoff_s = MIN_BACKOFF_S
            log.exception("background task failed and will be restarted", extra={"again_s": backoff_s})
        await trio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)


async def run_every(interval_s: float, name: str, work: Callable[[], Awaitable[None] | None]) -> None:
    """Run ``work`` every ``interval_s`` seconds until cancelled; after a failure the next turn tries again."""
    disk_full = False
    while True:
        await trio.sleep(interval_s)
        try:
            await _call(work)
            disk_full = False
        except StoreFull as error:
            if not disk_full:  # logged once, until the task succeeded again
                log.warning("background task lacks disk space", extra={"task": name, "reason": str(error)})
            disk_full = True
        except Exception:
            log.exception("background task failed", extra={"task": name})


async def run_once(name: str, work: Callable[[], Awaitable[None] | None]) -> bool:
    """Run ``work`` and return whether it succeeded; a failure is logged."""
    try:
        await _call(work)
    except Exception:
        log.exception("background task failed", extra={"task": name})
        return False
    return True


async def _call(work: Callable[[], Awaitable[None] | None]) -> None:
    result = work()
    if result is not None:
        await result
