"""Plan partitions from offset ranges: large ranges are split, small ones grouped."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from spark.pull.read_spec import OffsetRange


def plan_partitions(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_partitions: int | None = None,
    max_records: int | None = None,
    min_records: int = 1,
) -> list[tuple[OffsetRange, ...]]:
    """Return the offset ranges of each partition. No range is empty, and every message is in exactly one partition.

    No partition exceeds `max_records`, whatever the other limits. There are at most `max_partitions`, and at least
    `min_partitions` if there are as many messages. If possible, no partition has fewer than `min_records` messages.
    """
    ranges = [
        part for whole in ranges if whole.start < whole.end for part in _split_above(whole, max_records)
    ]
    total = sum(_message_count(part) for part in ranges)
    if not total:
        return []
    min_count = min(min_partitions or 1, total)
    ranges = _split_to_count(ranges, min_count)
    max_count = min(max_partitions or len(ranges), len(ranges))
    sufficient = max(min_count, -(-total // max(min_records, 1)))
    return _group_ranges(ranges, min(max_count, sufficient), max_records)


def _message_count(offsets: OffsetRange) -> int:
    return offsets.end - offsets.start


def _split_above(whole: OffsetRange, max_records: int | None) -> list[OffsetRange]:
    return _split_evenly(whole, -(-_message_count(whole) // max_records) if max_records else 1)


def _split_evenly(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Split a range into parts that differ by one message at most."""
    size, parts = _message_count(whole), min(parts, _message_count(whole))
    borders = [whole.start + size * index // parts for index in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(borders)]


def _split_to_count(ranges: list[OffsetRange], min_ranges: int) -> list[OffsetRange]:
    """Split the largest ranges until there are at least `min_ranges`, keeping their sizes similar."""
    if len(ranges) >= min_ranges:
        return ranges
    parts = [1] * len(ranges)
    for _ in range(min_ranges - len(ranges)):
        largest = max(range(len(ranges)), key=lambda index: _message_count(ranges[index]) / parts[index])
        parts[largest] += 1
    return [part for part, count in zip(ranges, parts, strict=True) for part in _split_evenly(part, count)]


def _group_ranges(
    ranges: list[OffsetRange], count: int, max_records: int | None
) -> list[tuple[OffsetRange, ...]]:
    """Assign ranges, largest first, to the least loaded of `count` groups; open a new group rather than exceed the
    limit.
    """
    groups: list[list[OffsetRange]] = [[] for _ in range(count)]
    loads = [0] * count
    for part in sorted(ranges, key=_message_count, reverse=True):
        index = min(range(len(groups)), key=loads.__getitem__)
        if max_records and groups[index] and loads[index] + _message_count(part) > max_records:
            groups.append([])
            loads.append(0)
            index = len(groups) - 1
        groups[index].append(part)
        loads[index] += _message_count(part)
    return [tuple(sorted(group, key=_queue_order)) for group in groups if group]


def _queue_order(offsets: OffsetRange) -> tuple[str, str, int, int]:
    return offsets.topic, offsets.broker, offsets.queue_id, offsets.start
