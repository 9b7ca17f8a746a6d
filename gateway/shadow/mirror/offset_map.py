"""Maps queue offsets of the primary to those of the target: a sparse map, sometimes too early, never too late.

It is built from messages whose place on both sides is known. A translated consumer offset may be earlier than
necessary, so that a group gets messages again, but never so late that it misses one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from codec.java_numbers import I64, quoted

PrimaryQueue = tuple[str, str, int]
"""The primary's broker, topic, queue id."""
MappedRange = list[int]
"""The first offset at the primary, the first at the target, and the number of consecutive messages on both sides."""

_MAX_CROSSED_RANGES: Final = 64
MAX_QUEUES: Final = 200_000
"""Queues in the map; beyond it those that were added first are forgotten. Clients make up names of topics."""


class OffsetMap:
    """Ranges of offsets per queue, ascending on both sides. Beyond ``max_ranges`` ranges the oldest are forgotten.

    *Crossed* messages are earlier at the primary but later at the target than others; `translate_back` needs them.
    """

    def __init__(self, max_ranges: int) -> None:
        self._max_ranges = max_ranges
        self._queues: dict[PrimaryQueue, list[MappedRange]] = {}
        self._crossed: dict[PrimaryQueue, list[MappedRange]] = {}
        self.changes = 0

    def add_range(self, queue: PrimaryQueue, primary: int, target: int, count: int = 1) -> bool:
        """Note that ``count`` messages from offset ``primary`` on are stored at the target from offset ``target`` on.

        Return False if the range does not ascend on both sides, as for a message that arrived late. The map then leaves
        the range out, and translates offsets near it by the ranges before it.
        """
        ranges = self._queues.get(queue)
        if ranges is None:
            ranges = self._add_queue(queue)
        if ranges:
            first, there, length = last = ranges[-1]
            # The usual case: the next message on both sides. One range stays one range.
            if primary == first + length and target == there + length:
                last[2] = length + count
                self.changes += 1
                return True
            # Late on one side. The range is left out of the map, as translation must never be ahead.
            if primary < first + length or target < there + length:
                self._note_crossing(queue, primary, target)
                return False
        ranges.append([primary, target, count])
        self.changes += 1
        if len(ranges) > self._max_ranges:
            del ranges[: len(ranges) - self._max_ranges]
        return True

    def _add_queue(self, queue: PrimaryQueue) -> list[MappedRange]:
        # Dicts keep the order of insertion, so the first key is the oldest queue.
        if len(self._queues) >= MAX_QUEUES:
            oldest = next(iter(self._queues))
            del self._queues[oldest]
            self._crossed.pop(oldest, None)
        ranges = self._queues[queue] = []
        return ranges

    def _note_crossing(self, queue: PrimaryQueue, primary: int, target: int) -> None:
        """Remember a crossed message; too many of them are merged into one that covers all."""
        crossed = self._crossed.setdefault(queue, [])
        crossed.append([primary, target, 1])
        if len(crossed) > _MAX_CROSSED_RANGES:
            merged = [min(run[0] for run in crossed), max(run[1] for run in crossed), 1]
            self._crossed[queue] = [merged]

    def translate(self, queue: PrimaryQueue, primary: int) -> int | None:
        """Return where a group at offset ``primary`` continues at the target; None when no range is that early.

        Every message of the target before the returned offset is one before ``primary``, as far as is known.
        """
        ranges = self._queues.get(queue)
        if not ranges:
            return None
        at = bisect_right(ranges, primary, key=lambda run: run[0]) - 1
        if at < 0:
            return None
        first, there, length = ranges[at]
        return there + min(primary - first, length)

    def translate_back(self, queue: PrimaryQueue, target: int) -> int | None:
        """Return where a group at offset ``target`` of the target continues at the primary; None when unknown."""
        ranges = self._queues.get(queue)
        if not ranges:
            return None
        at = bisect_right(ranges, target, key=lambda run: run[1]) - 1
        if at < 0:
            return None
        first, there, length = ranges[at]
        # Messages at or after ``target`` that are earlier at the primary: the group has not seen them.
        crossed = [run[0] for run in self._crossed.get(queue, ()) if run[1] >= target]
        return min([first + min(target - there, length), *crossed])

    def lowest_offset(self, queue: PrimaryQueue) -> int | None:
        """Return the first offset of the primary that can be translated."""
        ranges = self._queues.get(queue)
        return ranges[0][0] if ranges else None

    def forget_topic(self, topic: str) -> None:
        """Forget all queues of a topic that was deleted."""
        for queue in [queue for queue in self._queues if queue[1] == topic]:
            del self._queues[queue]
            self._crossed.pop(queue, None)
            self.changes += 1

    def dump_rows(self) -> list[tuple[str, str, int, list[MappedRange], list[MappedRange]]]:
        """Return the map as rows of the state file."""
        return [
            (*queue, [run[:] for run in ranges], [run[:] for run in self._crossed.get(queue, ())])
            for queue, ranges in self._queues.items()
        ]

    def load_rows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Load rows of the state file. Raises ValueError or TypeError for rows of another shape."""
        for broker, topic, queue_id, ranges, crossed in rows:
            whole = [[_require_number(number) for number in run] for run in ranges]
            rising = all(
                here[0] + here[2] <= there[0] and here[1] + here[2] <= there[1]
                for here, there in pairwise(whole)
            )
            if not rising or any(len(run) != 3 for run in whole):
                raise ValueError(f"offsets of {topic} do not ascend")
            queue = str(broker), str(topic), _require_number(queue_id)
            self._queues[queue] = whole[-self._max_ranges :]
            if crossed:
                self._crossed[queue] = [[_require_number(number) for number in run] for run in crossed]

    def count_entries(self) -> Mapping[str, int]:
        """Return the number of queues and ranges."""
        return {"queues": len(self._queues), "ranges": sum(map(len, self._queues.values()))}


def _require_number(value: Any) -> int:
    """Return a number of the state file. Raises ValueError for anything else."""
    if type(value) is not int or value not in I64:
        raise ValueError(f"{quoted(repr(value))} is not a 64-bit number")
    return value
