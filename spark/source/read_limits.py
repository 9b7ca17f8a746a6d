"""How much of what is there becomes one batch of a stream: at most so many rows and bytes, not before so many rows.

Not responsible for what is there, nor for how large messages are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from spark.cluster import Queue
from spark.source.offset_json import Offsets


def queue_lags(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> dict[Queue, int]:
    """How many messages there are in each queue; queues without any are left out."""
    return {queue: end[queue] - start.get(queue, 0) for queue in end if end[queue] > start.get(queue, 0)}


def cap_rows(start: Mapping[Queue, int], end: Mapping[Queue, int], max_rows: int) -> Offsets:
    """Nearer ends, so that there are at most so many rows: each queue's share is that of its lag, at least one."""
    lag = queue_lags(start, end)
    if sum(lag.values()) <= max_rows:
        return dict(end)
    shares = divide_budget(lag, max_rows, turn=sum(start.values()))
    return {queue: start.get(queue, 0) + shares[queue] if queue in lag else end[queue] for queue in end}


def divide_budget(lag: Mapping[Queue, int], total: int, turn: int = 0) -> dict[Queue, int]:
    """Parts of `lag` that sum up to exactly `most`, which is less than its sum, in proportion to it.

    Nobody starves: everybody gets one; where that is too much already, some do, and others another `turn`.
    """
    queues = sorted(lag)
    if total < len(queues):
        lucky = {queues[(turn + index) % len(queues)] for index in range(total)}
        return {queue: int(queue in lucky) for queue in queues}
    spare, rest = total - len(queues), sum(lag.values()) - len(queues)
    parts = {queue: 1 + (lag[queue] - 1) * spare // max(rest, 1) for queue in queues}
    left = total - sum(parts.values())
    by_rest = sorted(queues, key=lambda queue: (-((lag[queue] - 1) * spare % max(rest, 1)), queue))
    for queue in by_rest[:left]:
        parts[queue] += 1
    return parts


class MessageSizes(NamedTuple):
    """What is known of the sizes of messages, bytes: those of the first ones, and the mean of the rest."""

    head: Sequence[int]
    mean_of_rest: float

    def estimate_bytes(self, count: int) -> float:
        """About the bytes of the first `count` messages."""
        return sum(self.head[:count]) + max(0, count - len(self.head)) * self.mean_of_rest

    def count_fitting(self, max_bytes: float, max_messages: int) -> int:
        """How many of the first `most` messages fit into so many bytes, about."""
        used = 0.0
        for index, size in enumerate(self.head[:max_messages]):
            used += size
            if used > max_bytes:
                return index
        return (
            max_messages
            if self.mean_of_rest <= 0
            else min(max_messages, len(self.head) + int((max_bytes - used) / self.mean_of_rest))
        )


HEAD_SAMPLE_MESSAGES: Final = 128
LATER_SAMPLE_MESSAGES: Final = 16
LATER_SAMPLES: Final = 4
"""So many sizes are looked at in a row, so many at each of so many places in the rest of a queue's stretch."""


def choose_samples(start: int, end: int) -> list[tuple[int, int]]:
    """Where in a stretch sizes are looked at, as (first offset, count): its head first, then places in the rest."""
    head = min(HEAD_SAMPLE_MESSAGES, end - start)
    left = end - start - head
    if left <= LATER_SAMPLE_MESSAGES * LATER_SAMPLES:
        return [(start, end - start)]
    step = left // LATER_SAMPLES
    return [
        (start, head),
        *((start + head + index * step, LATER_SAMPLE_MESSAGES) for index in range(LATER_SAMPLES)),
    ]


def summarize_samples(seen: Sequence[Sequence[int]]) -> MessageSizes:
    """What the sizes at `spots_of` say: those of the head, and the mean of those elsewhere."""
    elsewhere = [size for spot in seen[1:] for size in spot] or list(seen[0])
    return MessageSizes(seen[0], sum(elsewhere) / len(elsewhere) if elsewhere else 0.0)


def cap_bytes(
    start: Mapping[Queue, int], end: Mapping[Queue, int], sizes: Mapping[Queue, MessageSizes], max_bytes: int
) -> Offsets:
    """Nearer ends, so that there are about at most so many bytes; one message at least, however large it is."""
    lag = queue_lags(start, end)
    weights = {queue: max(1, int(sizes[queue].estimate_bytes(count))) for queue, count in lag.items()}
    if sum(weights.values()) <= max_bytes:
        return dict(end)
    budgets = divide_budget(weights, max_bytes, turn=sum(start.values()))
    counts = {queue: sizes[queue].count_fitting(budgets[queue], lag[queue]) for queue in lag}
    _spend_remainder(counts, lag, sizes, max_bytes, turn=sum(start.values()))
    return {queue: start.get(queue, 0) + counts[queue] if queue in lag else end[queue] for queue in end}


def _spend_remainder(
    counts: dict[Queue, int],
    lag: Mapping[Queue, int],
    sizes: Mapping[Queue, MessageSizes],
    max_bytes: int,
    turn: int,
) -> None:
    """What is too little in each queue for another message may be enough in one: first where there is least so far."""
    used = sum(sizes[queue].estimate_bytes(count) for queue, count in counts.items())
    queues = sorted(counts)
    turn %= len(queues)
    for queue in sorted(queues[turn:] + queues[:turn], key=counts.__getitem__):
        more = sizes[queue].estimate_bytes(counts[queue] + 1) - sizes[queue].estimate_bytes(counts[queue])
        if counts[queue] < lag[queue] and (used + more <= max_bytes or used == 0):
            counts[queue] += 1
            used += more


class TriggerDelay:
    """Whether a batch may start already: `least` rows are there, or the last one is `delay_s` ago."""

    def __init__(self, least: int | None, delay_s: float, clock: Callable[[], float]) -> None:
        self._least = least
        self._delay_s = delay_s
        self._clock = clock
        self._last = float("-inf")

    def should_start(self, rows: int) -> bool:
        """Asked when so many rows are there; if so a batch is taken to start now. The first may start at once."""
        if self._least and rows < self._least and self._clock() - self._last < self._delay_s:
            return False
        self._last = self._clock()
        return True
