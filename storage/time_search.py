"""Finds queue offsets by store timestamp, by binary search."""

from enum import Enum

from storage.commit_log import CommitLog, store_timestamp_of
from storage.consume_queue import ConsumeQueue


class Boundary(Enum):
    """The message to find when none, or several, were stored at a time. Source: BoundaryType, 5.4.0."""

    LOWER = "lower"  # the first one stored at the time or later
    UPPER = "upper"  # the last one stored at the time or earlier


def store_timestamp_at(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """Return the store timestamp in ms of one message; -1 when it is gone.

    Source: CommitLog.pickupStoreTimestamp, 5.4.0.
    """
    physical_offset, size, _ = queue.read_entry(offset)
    message = log.select(physical_offset, size)
    return -1 if message is None else store_timestamp_of(message)


def first_offset_after(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, inclusive: bool) -> int:
    """Return the first offset in [min, max) stored after (or at) the time; max when there is none."""
    low, high = queue.min_offset, queue.next_offset
    while low < high:
        middle = probe = (low + high) // 2
        time_ms = store_timestamp_at(log, queue, probe)
        while time_ms < 0 and probe + 1 < high:  # a hole: the message after it tells the time
            probe += 1
            time_ms = store_timestamp_at(log, queue, probe)
        if time_ms < 0 or time_ms > timestamp_ms or (inclusive and time_ms == timestamp_ms):
            high = middle
        else:
            low = probe + 1
    return low


def offset_by_time(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, boundary: Boundary) -> int:
    """Return the queue offset for a store timestamp, always in [min_offset, max_offset].

    LOWER: the first message at the time or later; max_offset when all are earlier. UPPER: the last message at the
    time or earlier; min_offset when all are later. Source: ConsumeQueue.getOffsetInQueueByTime, 5.4.0.
    """
    if boundary is Boundary.LOWER:
        return first_offset_after(log, queue, timestamp_ms, inclusive=True)
    return max(queue.min_offset, first_offset_after(log, queue, timestamp_ms, inclusive=False) - 1)
