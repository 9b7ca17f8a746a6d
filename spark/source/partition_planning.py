"""Stretches of queues become partitions: large ones are split, small ones put together.

Not responsible for which stretches are read.
"""

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
    """The ranges of each partition, none empty; every message is in one of them, in its queue's order.

    No partition has more than `max_records`, whatever the other limits; there are no more than `max_partitions`; no
    fewer than `min_partitions`, if there are as many messages; none has less than `min_records` where that is possible.
    """
    pieces = [piece for each in ranges if each.start < each.end for piece in _split_above(each, max_records)]
    total = sum(_message_count(piece) for piece in pieces)
    if not total:
        return []
    least = min(min_partitions or 1, total)
    pieces = _split_to_count(pieces, least)
    most = min(max_partitions or len(pieces), len(pieces))
    wanted = max(least, -(-total // max(min_records, 1)))
    return _group_ranges(pieces, min(most, wanted), max_records)


def _message_count(offsets: OffsetRange) -> int:
    return offsets.end - offsets.start


def _split_above(whole: OffsetRange, max_records: int | None) -> list[OffsetRange]:
    return _split_evenly(whole, -(-_message_count(whole) // max_records) if max_records else 1)


def _split_evenly(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Parts that differ by one message at most."""
    size, parts = _message_count(whole), min(parts, _message_count(whole))
    borders = [whole.start + size * index // parts for index in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(borders)]


def _split_to_count(ranges: list[OffsetRange], min_ranges: int) -> list[OffsetRange]:
    """At least so many pieces, the largest ones halved, thirded … so that they come near each other."""
    if len(ranges) >= min_ranges:
        return ranges
    parts = [1] * len(ranges)
    for _ in range(min_ranges - len(ranges)):
        largest = max(range(len(ranges)), key=lambda index: _message_count(ranges[index]) / parts[index])
        parts[largest] += 1
    return [part for piece, count in zip(ranges, parts, strict=True) for part in _split_evenly(piece, count)]


def _group_ranges(
    ranges: list[OffsetRange], count: int, max_records: int | None
) -> list[tuple[OffsetRange, ...]]:
    """The largest first, each to where least is so far; to a new one where there would be too much."""
    bins: list[list[OffsetRange]] = [[] for _ in range(count)]
    loads = [0] * count
    for piece in sorted(ranges, key=_message_count, reverse=True):
        index = min(range(len(bins)), key=loads.__getitem__)
        if max_records and bins[index] and loads[index] + _message_count(piece) > max_records:
            bins.append([])
            loads.append(0)
            index = len(bins) - 1
        bins[index].append(piece)
        loads[index] += _message_count(piece)
    return [tuple(sorted(each, key=_queue_order)) for each in bins if each]


def _queue_order(offsets: OffsetRange) -> tuple[str, str, int, int]:
    return offsets.topic, offsets.broker, offsets.queue_id, offsets.start
