"""Rate limiter: spaces work so that it stays below a rate of messages and bytes per second.

The core (`RateLimiter`) computes delays from an injected clock and never waits; `TrioRateLimiter` and
`BlockingRateLimiter` wait for these delays.

Every acquisition costs the time that its messages or its bytes take at the rate, whichever is longer. The costs add up
to a schedule that runs ahead of the clock, and the caller waits until its own cost is paid. Unused time is forgotten,
except for the last `burst_s` seconds: with 0, no burst follows a pause; with 1, up to one second's worth passes at
once after a pause.
"""

import math
import time
from collections.abc import Callable
from typing import Final

SHARE_S: Final = 0.1
"""Maximum length of one batch at the rate, in seconds."""


class RateLimiter:
    """Computes delays. A rate of 0 means no limit."""

    def __init__(
        self,
        messages_per_s: float = 0.0,
        bytes_per_s: float = 0.0,
        *,
        burst_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._messages_per_s = messages_per_s
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._clock = clock
        self._paid_until_s = -math.inf

    def reserve(self, messages: int, size_bytes: int = 0) -> float:
        """Account for an amount, and return the seconds to wait until it is paid for."""
        cost_s = self._cost_s(messages, size_bytes)
        if cost_s <= 0:
            return 0.0
        now_s = self._clock()
        self._paid_until_s = max(self._paid_until_s, now_s - self._burst_s) + cost_s
        return max(0.0, self._paid_until_s - now_s)

    def batch_limits(self, max_messages: int, max_bytes: int) -> tuple[int, int]:
        """Return the messages and bytes of one batch: at most these, and at most a tenth of a second's worth."""
        return (
            min(max_messages, int(self._messages_per_s * SHARE_S)) if self._messages_per_s else max_messages,
            min(max_bytes, int(self._bytes_per_s * SHARE_S)) if self._bytes_per_s else max_bytes,
        )

    def _cost_s(self, messages: int, size_bytes: int) -> float:
        by_count = messages / self._messages_per_s if self._messages_per_s else 0.0
        by_size = size_bytes / self._bytes_per_s if self._bytes_per_s else 0.0
        return max(by_count, by_size)


class TrioRateLimiter:
    """A rate limiter that several trio tasks share."""

    def __init__(
        self, messages_per_s: float = 0.0, bytes_per_s: float = 0.0, *, burst_s: float = 0.0
    ) -> None:
        import trio

        self._limiter = RateLimiter(messages_per_s, bytes_per_s, burst_s=burst_s, clock=trio.current_time)
        self._sleep = trio.sleep

    async def acquire(self, messages: int, size_bytes: int) -> None:
        """Wait for the turn of an amount."""
        delay_s = self._limiter.reserve(messages, size_bytes)
        if delay_s:
            await self._sleep(delay_s)

    def batch_limits(self, max_messages: int, max_bytes: int) -> tuple[int, int]:
        """See `RateLimiter.batch_limits`."""
        return self._limiter.batch_limits(max_messages, max_bytes)


class BlockingRateLimiter:
    """A rate limiter for one thread."""

    def __init__(
        self,
        messages_per_s: float = 0.0,
        bytes_per_s: float = 0.0,
        *,
        burst_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limiter = RateLimiter(messages_per_s, bytes_per_s, burst_s=burst_s, clock=clock)
        self._sleep = sleep

    def acquire(self, messages: int, size_bytes: int = 0) -> None:
        """Block until the turn of an amount."""
        delay_s = self._limiter.reserve(messages, size_bytes)
        if delay_s:
            self._sleep(delay_s)
