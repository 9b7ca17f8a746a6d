"""How much of what is there becomes one batch of a stream: at most so many rows and bytes, not before so many rows.

Not responsible for what is there, nor for how large messages are.
"""

from collections.abc import Callable, Mapping
from typing import Any

from spark.cluster import Queue
from spark.source.offsets import Offsets


def lags(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> dict[Queue, int]:
    """How many messages there are in each queue; queues without any are left out."""
    return {queue: end[queue] - start.get(queue, 0) for queue in end if end[queue] > start.get(queue, 0)}


def cap_rows(start: Mapping[Queue, int], end: Mapping[Queue, int], most: int) -> Offsets:
    """Nearer ends, so that there are at most so many rows: each queue's share is that of its lag, at least one."""
    lag = lags(start, end)
    if sum(lag.values()) <= most:
        return dict(end)
    shares = share(lag, most, turn=sum(start.values()))
    return {queue: start.get(queue, 0) + shares[queue] if queue in lag else end[queue] for queue in end}


def share(lag: Mapping[Queue, int], most: int, turn: int = 0) -> dict[Queue, int]:
    """Parts of `lag` that sum up to exactly `most`, which is less than its sum, in proportion to it.

    Nobody starves: everybody gets one; where that is too much already, some do, and others another `turn`.
    """
    queues = sorted(lag)
    if most < len(queues):
        lucky = {queues[(turn + index) % len(queues)] for index in range(most)}
        return {queue: int(queue in lucky) for queue in queues}
    spare, rest = most - len(queues), sum(lag.values()) - len(queues)
    parts = {queue: 1 + (lag[queue] - 1) * spare // rest for queue in queues}
    left = most - sum(parts.values())
    by_rest = sorted(queues, key=lambda queue: (-((lag[queue] - 1) * spare % rest), queue))
    for queue in by_rest[:left]:
        parts[queue] += 1
    return parts


class Gate:
    """Whether a batch may start already: `least` rows are there, or the last one is `delay_s` ago."""

    def __init__(self, least: int | None, delay_s: float, clock: Callable[[], float]) -> None:
        self._least = least
        self._delay_s = delay_s
        self._clock = clock
        self._last = float("-inf")

    def opens(self, rows: int) -> bool:
        """Asked when so many rows are there; if so a batch is taken to start now. The first may start at once."""
        if rows == 0:
            return False
        if self._least and rows < self._least and self._clock() - self._last < self._delay_s:
            return False
        self._last = self._clock()
        return True


def has_limits(values: Mapping[str, Any]) -> bool:
    """Whether any of the options limits a batch."""
    return any(
        values[name] for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
    )
