"""The two clocks a store reads, as a seam for tests; not timers or sleeping."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall and monotonic time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may step when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
