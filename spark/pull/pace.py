"""A limit of messages a second.

Not responsible for what is counted.
"""

import time
from collections.abc import Callable


class Pace:
    """A bucket that fills by `per_second` (0: no limit) and holds a second's worth; what is over has to wait."""

    def __init__(
        self,
        per_second: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second, self._clock, self._sleep = per_second, clock, sleep
        self._left = float(per_second)
        self._at = clock()

    def take(self, count: int) -> None:
        """Waits until so many may pass."""
        if not self._per_second:
            return
        now = self._clock()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second) - count
        self._at = now
        if self._left < 0:
            self._sleep(-self._left / self._per_second)
