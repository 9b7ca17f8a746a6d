"""The clock of servers under test: the machine's, moved ahead by `advance`."""

from storage.clock import SystemClock


class AdvancingClock(SystemClock):
    """The machine's clocks; the wall clock is ahead by ``ahead_ms``.

    Only the wall clock moves, by which messages become due. The monotonic clock, by which clients are found silent and
    waiting pulls end, keeps pace with the clients, which know nothing of the other time.
    """

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def advance(self, seconds: float) -> None:
        """Move the wall clock ahead. Raises ValueError for a negative time: stored messages cannot get younger."""
        if seconds < 0:
            raise ValueError(f"time cannot go back: advance({seconds:g})")
        self.ahead_ms += round(seconds * 1000)
