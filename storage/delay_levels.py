"""Delay levels: the delay of each level, and the delivery time that a delayed message's queue entry holds.

Delivery lives in `gateway/broker/delayed/delay_service.py`.
"""

from codec.java_numbers import I32, parse_integer_or, quoted
from codec.properties import DELAY_TIME_LEVEL, find_integer
from codec.topics import SCHEDULE_TOPIC

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_DELAY = DELAY_TIME_LEVEL.encode()


def parse_levels(text: str) -> list[int]:
    """Return the delays in ms of levels 1, 2, …; the ValueError names the part that cannot be parsed."""
    delays = []
    for part in text.split():
        number, unit = parse_integer_or(part[:-1], -1, I32), part[-1]
        if unit not in UNITS_MS or number < 0:
            raise ValueError(f"messageDelayLevel: {quoted(part)} is not a number with s, m, h or d")
        delays.append(number * UNITS_MS[unit])
    if not delays:
        raise ValueError("messageDelayLevel: no level")
    return delays


class DelayLevels:
    """The table that ``messageDelayLevel`` configures. Source: DefaultMessageStore.parseDelayLevel, 5.4.0."""

    __slots__ = ("delays_ms",)

    def __init__(self, levels: str) -> None:
        self.delays_ms = parse_levels(levels)

    def deliver_at_ms(self, level: int, store_timestamp_ms: int) -> int:
        """Return the time, in ms, at which a message of a level (from 1) is due; an unknown level counts as 1 s.

        Source: DefaultMessageStore.computeDeliverTimestamp, 5.4.0.
        """
        if 1 <= level <= len(self.delays_ms):
            return store_timestamp_ms + self.delays_ms[level - 1]
        return store_timestamp_ms + 1000

    def scheduled_deliver_ms(self, topic: bytes, properties: bytes, store_timestamp_ms: int) -> int | None:
        """Return the delivery time, which replaces a delayed message's tags code; None for other messages."""
        if topic != _SCHEDULE_TOPIC:
            return None
        level = find_integer(properties, _DELAY, 0, I32)
        if level <= 0:
            return None
        return self.deliver_at_ms(min(level, len(self.delays_ms)), store_timestamp_ms)
