"""Work beside the forwarder that a defect must not end: nobody's client shall notice that a mirror met what it cannot
digest.

Not responsible for what is expected to fail (a target that is not there): whoever does the work sees to that.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 60.0
"""Work that went well for so long begins again after `PAUSE_S`."""


async def tireless(work: Callable[[], Awaitable[None]]) -> None:
    """Does ``work`` again whenever it fails, first soon and then less often; returns when it does.

    Each failure is logged with its trace.
    """
    pause_s = PAUSE_S
    while True:
        started_s = trio.current_time()
        try:
            return await work()
        except Exception:
            if trio.current_time() - started_s >= MOST_PAUSE_S:
                pause_s = PAUSE_S
            log.exception("work beside the forwarder failed", extra={"again_s": pause_s})
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)
