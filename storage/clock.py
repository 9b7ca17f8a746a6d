"""The injected source of time."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall clock and monotonic clock."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch; may step when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def clock_with_suspension(clock: Clock) -> Callable[[], float]:
    """Return the clock of leases: that of the system, also while the machine was suspended, or the one of a test."""
    if isinstance(clock, SystemClock) and hasattr(time, "CLOCK_BOOTTIME"):
        return lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    return clock.monotonic
