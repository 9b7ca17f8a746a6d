"""A circuit breaker: stops trying a failing target for a while, then lets one attempt decide."""

from enum import Enum


class BreakerState(Enum):
    """The states of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """The back-off has passed, and the next attempt decides."""


class CircuitBreaker:
    """Opens after ``max_failures`` in a row, for ``backoff_s`` seconds, and then lets one attempt through.

    Each further failure doubles the back-off, up to ``max_backoff_s``. Times are seconds of the caller's clock.
    """

    def __init__(self, max_failures: int, backoff_s: float, max_backoff_s: float) -> None:
        self._max_failures = max_failures
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._failures = 0
        self._next_backoff_s = backoff_s
        self._open_until_s = 0.0
        self.state = BreakerState.CLOSED
        self.opened_total = 0

    def wait_s(self, now_s: float) -> float:
        """Return the remaining back-off in seconds; 0 allows an attempt, and turns an open breaker half-open."""
        if self.state is not BreakerState.OPEN:
            return 0.0
        left_s = self._open_until_s - now_s
        if left_s > 0:
            return left_s
        self.state = BreakerState.HALF_OPEN
        return 0.0

    def record_success(self) -> None:
        """Close the breaker: the target answered."""
        self._failures = 0
        self._next_backoff_s = self._backoff_s
        self.state = BreakerState.CLOSED

    def record_failure(self, now_s: float) -> None:
        """Count a failure, and open the breaker when there were enough of them."""
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or self._failures >= self._max_failures:
            self.trip(now_s)

    def trip(self, now_s: float) -> None:
        """Open the breaker regardless of the number of failures."""
        self.state = BreakerState.OPEN
        self.opened_total += 1
        self._open_until_s = now_s + self._next_backoff_s
        self._next_backoff_s = min(self._next_backoff_s * 2, self._max_backoff_s)
