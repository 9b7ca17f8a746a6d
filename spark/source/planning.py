"""Stretches of queues become partitions: large ones are split, small ones put together.

Not responsible for which stretches are read.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from spark.pull.spec import Range


def plan(
    ranges: Iterable[Range],
    *,
    min_partitions: int | None = None,
    max_partitions: int | None = None,
    max_records: int | None = None,
    min_records: int = 1,
) -> list[tuple[Range, ...]]:
    """The ranges of each partition, none empty; every message is in one of them, in its queue's order.

    No partition has more than `max_records`, whatever the other limits; there are no more than `max_partitions`; no
    fewer than `min_partitions`, if there are as many messages; none has less than `min_records` where that is possible.
    """
    pieces = [piece for each in ranges if each.start < each.end for piece in _split(each, max_records)]
    total = sum(_size(piece) for piece in pieces)
    if not total:
        return []
    least = min(min_partitions or 1, total)
    pieces = _split_into(pieces, least)
    most = min(max_partitions or len(pieces), len(pieces))
    wanted = max(least, -(-total // max(min_records, 1)))
    return _together(pieces, min(most, wanted), max_records)


def _size(piece: Range) -> int:
    return piece.end - piece.start


def _split(whole: Range, most: int | None) -> list[Range]:
    return _cut(whole, -(-_size(whole) // most) if most else 1)


def _cut(whole: Range, parts: int) -> list[Range]:
    """Parts that differ by one message at most."""
    size, parts = _size(whole), min(parts, _size(whole))
    borders = [whole.start + size * index // parts for index in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(borders)]


def _split_into(pieces: list[Range], least: int) -> list[Range]:
    """At least so many pieces, the largest ones halved, thirded … so that they come near each other."""
    if len(pieces) >= least:
        return pieces
    parts = [1] * len(pieces)
    for _ in range(least - len(pieces)):
        largest = max(range(len(pieces)), key=lambda index: _size(pieces[index]) / parts[index])
        parts[largest] += 1
    return [part for piece, count in zip(pieces, parts, strict=True) for part in _cut(piece, count)]


def _together(pieces: list[Range], count: int, most: int | None) -> list[tuple[Range, ...]]:
    """The largest first, each to where least is so far; to a new one where there would be too much."""
    bins: list[list[Range]] = [[] for _ in range(count)]
    loads = [0] * count
    for piece in sorted(pieces, key=_size, reverse=True):
        index = min(range(len(bins)), key=loads.__getitem__)
        if most and bins[index] and loads[index] + _size(piece) > most:
            bins.append([])
            loads.append(0)
            index = len(bins) - 1
        bins[index].append(piece)
        loads[index] += _size(piece)
    return [tuple(sorted(each, key=_place)) for each in bins if each]


def _place(piece: Range) -> tuple[str, str, int, int]:
    return piece.topic, piece.broker, piece.queue_id, piece.start
