"""Limits on one batch of a stream: at most this many rows and bytes, and not before this many rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from spark.cluster import Queue
from spark.source.offset_json import Offsets


def queue_lags(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> dict[Queue, int]:
    """Return the number of messages between start and end per queue; queues without any are left out."""
    return {queue: end[queue] - start.get(queue, 0) for queue in end if end[queue] > start.get(queue, 0)}


def cap_rows(start: Mapping[Queue, int], end: Mapping[Queue, int], max_rows: int) -> Offsets:
    """Return nearer ends so that the batch has at most `max_rows` rows, shared in proportion to the queues' lags."""
    lag = queue_lags(start, end)
    if sum(lag.values()) <= max_rows:
        return dict(end)
    shares = divide_budget(lag, max_rows, turn=sum(start.values()))
    return {queue: start.get(queue, 0) + shares[queue] if queue in lag else end[queue] for queue in end}


def divide_budget(lag: Mapping[Queue, int], total: int, turn: int = 0) -> dict[Queue, int]:
    """Divide `total`, which is less than the sum of `lag`, into parts in proportion to it.

    No queue starves: each gets at least one. If `total` is smaller than the number of queues, `turn` rotates which
    queues get one.
    """
    queues = sorted(lag)
    if total < len(queues):
        chosen = {queues[(turn + index) % len(queues)] for index in range(total)}
        return {queue: int(queue in chosen) for queue in queues}
    # Each queue gets one, and the remainder in proportion to its lag, rounded down. The messages that rounding leaves
    # over go to the queues with the largest fractions.
    spare_total, spare_lag = total - len(queues), sum(lag.values()) - len(queues)
    parts = {queue: 1 + (lag[queue] - 1) * spare_total // max(spare_lag, 1) for queue in queues}
    remaining = total - sum(parts.values())
    by_fraction = sorted(
        queues, key=lambda queue: (-((lag[queue] - 1) * spare_total % max(spare_lag, 1)), queue)
    )
    for queue in by_fraction[:remaining]:
        parts[queue] += 1
    return parts


class MessageSizes(NamedTuple):
    """Sampled message sizes in bytes: those of the first messages, and the mean of the remaining ones."""

    head: Sequence[int]
    mean_of_rest: float

    def estimate_bytes(self, count: int) -> float:
        """Estimate the size of the first `count` messages, bytes."""
        return sum(self.head[:count]) + max(0, count - len(self.head)) * self.mean_of_rest

    def count_fitting(self, max_bytes: float, max_messages: int) -> int:
        """Estimate how many of the first `max_messages` messages fit into `max_bytes`."""
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
"""Sizes are sampled of the first messages of a queue, and at this many spots in the remaining ones."""


def choose_samples(start: int, end: int) -> list[tuple[int, int]]:
    """Choose samples of a range, as (first offset, count): its head, then spots spread over the remaining messages."""
    head = min(HEAD_SAMPLE_MESSAGES, end - start)
    later_messages = end - start - head
    if later_messages <= LATER_SAMPLE_MESSAGES * LATER_SAMPLES:
        return [(start, end - start)]
    step = later_messages // LATER_SAMPLES
    return [
        (start, head),
        *((start + head + index * step, LATER_SAMPLE_MESSAGES) for index in range(LATER_SAMPLES)),
    ]


def summarize_samples(samples: Sequence[Sequence[int]]) -> MessageSizes:
    """Summarise the sizes of the samples that `choose_samples` chose."""
    later_sizes = [size for sample in samples[1:] for size in sample] or list(samples[0])
    return MessageSizes(samples[0], sum(later_sizes) / len(later_sizes) if later_sizes else 0.0)


def cap_bytes(
    start: Mapping[Queue, int], end: Mapping[Queue, int], sizes: Mapping[Queue, MessageSizes], max_bytes: int
) -> Offsets:
    """Return nearer ends so that the batch has about `max_bytes` bytes, but at least one message."""
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
    """Spend the bytes left over in all queues on one more message per queue, the queues with the fewest first."""
    used = sum(sizes[queue].estimate_bytes(count) for queue, count in counts.items())
    queues = sorted(counts)
    turn %= len(queues)
    for queue in sorted(queues[turn:] + queues[:turn], key=counts.__getitem__):
        extra_bytes = sizes[queue].estimate_bytes(counts[queue] + 1) - sizes[queue].estimate_bytes(
            counts[queue]
        )
        if counts[queue] < lag[queue] and (used + extra_bytes <= max_bytes or used == 0):
            counts[queue] += 1
            used += extra_bytes


class TriggerDelay:
    """Delays a batch until `min_rows` rows are available, or the last batch started `delay_s` ago."""

    def __init__(self, min_rows: int | None, delay_s: float, clock: Callable[[], float]) -> None:
        self._min_rows = min_rows
        self._delay_s = delay_s
        self._clock = clock
        self._last = float("-inf")

    def should_start(self, rows: int) -> bool:
        """Tell whether a batch of this many rows starts now; if so, note the time. The first batch starts at once."""
        if self._min_rows and rows < self._min_rows and self._clock() - self._last < self._delay_s:
            return False
        self._last = self._clock()
        return True
