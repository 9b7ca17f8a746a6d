"""Leaves a target alone for a while after failures in a row. Not responsible for what failed."""

from enum import Enum


class BreakerState(Enum):
    """Whether the target is asked."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """One attempt decides."""


class CircuitBreaker:
    """Opens after `failures` in a row, for `backoff_s`, then lets one attempt through; each failure of such an attempt
    doubles the time, up to `backoff_max_s`. Times are those of the caller's clock, in seconds."""

    def __init__(self, failures: int, backoff_s: float, backoff_max_s: float) -> None:
        self._max_failures = failures
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._failures = 0
        self._next_backoff_s = backoff_s
        self._open_until_s = 0.0
        self.state = BreakerState.CLOSED
        self.opened_total = 0

    def wait_s(self, now_s: float) -> float:
        """How long to leave the target alone; 0 when it may be asked, which makes an open breaker half-open."""
        if self.state is not BreakerState.OPEN:
            return 0.0
        left_s = self._open_until_s - now_s
        if left_s > 0:
            return left_s
        self.state = BreakerState.HALF_OPEN
        return 0.0

    def record_success(self) -> None:
        """The target did what it was asked."""
        self._failures = 0
        self._next_backoff_s = self._backoff_s
        self.state = BreakerState.CLOSED

    def record_failure(self, now_s: float) -> None:
        """It did not."""
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or self._failures >= self._max_failures:
            self.trip(now_s)

    def trip(self, now_s: float) -> None:
        """Leaves the target alone, however often it failed."""
        self.state = BreakerState.OPEN
        self.opened_total += 1
        self._open_until_s = now_s + self._next_backoff_s
        self._next_backoff_s = min(self._next_backoff_s * 2, self._backoff_max_s)
