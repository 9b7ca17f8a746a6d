"""The injected source of time."""

import time
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
