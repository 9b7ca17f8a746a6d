"""Keeps what several tasks do together below a rate, in messages and bytes per second."""

from typing import Final

import trio

SHARE_S: Final = 0.1


class Pace:
    """`take` is called after the work and waits until its share of time has passed; a rate of 0 is no limit.

    What was not used is not saved up, so that rest is not followed by a burst.
    """

    def __init__(self, messages_per_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def cost_s(self, messages: int, size_bytes: int) -> float:
        """Seconds that so much takes at the rate."""
        by_count = messages / self.messages_per_s if self.messages_per_s else 0.0
        by_size = size_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return max(by_count, by_size)

    def share(self, messages: int, size_bytes: int) -> tuple[int, int]:
        """At most so many messages and bytes, and no more than a tenth of a second's: what is done at a time."""
        return (
            min(messages, int(self.messages_per_s * SHARE_S)) if self.messages_per_s else messages,
            min(size_bytes, int(self.bytes_per_s * SHARE_S)) if self.bytes_per_s else size_bytes,
        )

    async def take(self, messages: int, size_bytes: int) -> None:
        """Waits for the turn of so much."""
        cost_s = self.cost_s(messages, size_bytes)
        if cost_s <= 0:
            return
        self._free_s = max(self._free_s, trio.current_time()) + cost_s
        await trio.sleep_until(self._free_s)
