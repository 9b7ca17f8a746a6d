"""Notices that somebody's cluster stops answering during a run: from then on, results would say nothing about it."""

import time
from collections.abc import Callable
from typing import Final

from compat_tests.endpoints.reach import Unreachable, find_broker

CHECK_EVERY_S: Final = 10.0
"""Time between two checks; each is a request to the namesrv and one to a broker."""
GONE_AFTER_S: Final = 20.0
"""Time for which a cluster may be unreachable before the run ends: a restart, or a moment of overload."""


class EndpointGone(Exception):
    """The cluster has stopped answering; the text says what was noticed last."""


class EndpointWatch:
    """Checks a cluster, known by the address ("host:port") of its namesrv, whenever it is called and a check is due."""

    def __init__(
        self,
        namesrv: str,
        find: Callable[[str, float], str] = find_broker,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namesrv = namesrv
        self._find = find
        self._now = now
        self._checked_s = self._answered_s = now()

    def __call__(self) -> None:
        """Check if it is time to. Raises EndpointGone if nothing has answered for `GONE_AFTER_S`."""
        if self._now() - self._checked_s < CHECK_EVERY_S:
            return
        try:
            self._find(self._namesrv, 0)
            self._answered_s = self._now()
        except Unreachable as problem:
            if self._now() - self._answered_s >= GONE_AFTER_S:
                raise EndpointGone(str(problem)) from problem
        self._checked_s = self._now()
