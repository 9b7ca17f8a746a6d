"""Background tasks that must outlive a failure. Not responsible for what they do."""

import logging
from collections.abc import Awaitable, Callable

import trio

from storage.errors import StoreFull

log = logging.getLogger(__name__)


async def every(interval_s: float, name: str, work: Callable[[], Awaitable[None] | None]) -> None:
    """Runs ``work`` every ``interval_s`` seconds until cancelled; a failure is logged and the next turn tries again."""
    full = False
    while True:
        await trio.sleep(interval_s)
        try:
            await _run(work)
            full = False
        except StoreFull as error:
            if not full:  # said once, until it went well again
                log.warning("background task lacks disk space", extra={"task": name, "reason": str(error)})
            full = True
        except Exception:
            log.exception("background task failed", extra={"task": name})


async def once(name: str, work: Callable[[], Awaitable[None] | None]) -> bool:
    """Runs ``work`` and logs its failure, told by False: the second of the two places where a defect ends."""
    try:
        await _run(work)
    except Exception:
        log.exception("background task failed", extra={"task": name})
        return False
    return True


async def _run(work: Callable[[], Awaitable[None] | None]) -> None:
    result = work()
    if result is not None:
        await result
