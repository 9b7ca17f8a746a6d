"""Queue offsets of the target for those of the primary: a sparse map that is never ahead.

Learned from messages whose place on both sides is known. Not responsible for learning nor for files (state is).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

PrimaryQueue = tuple[str, str, int]
"""The primary's broker, topic, queue id."""
MappedRange = list[int]
"""First offset at the primary, at the target, and how many follow each other on both sides."""

_MAX_CROSSED_RANGES: Final = 64


class OffsetMap:
    """Stretches of offsets, rising on both sides, at most `runs` per queue: the oldest are forgotten.

    What `translate` gives may be earlier than necessary (a consumer then gets messages again), never later.
    """

    def __init__(self, runs: int) -> None:
        self._max_ranges = runs
        self._queues: dict[PrimaryQueue, list[MappedRange]] = {}
        self._crossed: dict[PrimaryQueue, list[MappedRange]] = {}
        self.changes = 0

    def add_range(self, queue: PrimaryQueue, primary: int, target: int, count: int = 1) -> bool:
        """Notes that `count` messages from `primary` on are those from `target` on; False when that is of no use.

        What does not rise on both sides, such as a message that came late, is not noted: offsets near it are
        translated by its neighbours, which are earlier.
        """
        runs = self._queues.setdefault(queue, [])
        if runs:
            first, there, length = last = runs[-1]
            if primary == first + length and target == there + length:
                last[2] = length + count
                self.changes += 1
                return True
            if primary < first + length or target < there + length:
                self._note_crossing(queue, primary, target)
                return False
        runs.append([primary, target, count])
        self.changes += 1
        if len(runs) > self._max_ranges:
            del runs[: len(runs) - self._max_ranges]
        return True

    def _note_crossing(self, queue: PrimaryQueue, primary: int, target: int) -> None:
        """Remembers messages that are earlier at the primary and later at the target than others; few, or as one."""
        crossed = self._crossed.setdefault(queue, [])
        crossed.append([primary, target, 1])
        if len(crossed) > _MAX_CROSSED_RANGES:
            merged = [min(each[0] for each in crossed), max(each[1] for each in crossed), 1]
            self._crossed[queue] = [merged]

    def translate(self, queue: PrimaryQueue, primary: int) -> int | None:
        """Where a group that goes on at `primary` goes on at the target; None when nothing so early is known.

        Every message of the target before that offset is, as far as is known, one before `primary`.
        """
        runs = self._queues.get(queue)
        if not runs:
            return None
        at = bisect_right(runs, primary, key=lambda run: run[0]) - 1
        if at < 0:
            return None
        first, there, length = runs[at]
        return there + min(primary - first, length)

    def translate_back(self, queue: PrimaryQueue, target: int) -> int | None:
        """The same in the other direction: where a group that goes on at `target` goes on at the primary."""
        runs = self._queues.get(queue)
        if not runs:
            return None
        at = bisect_right(runs, target, key=lambda run: run[1]) - 1
        if at < 0:
            return None
        first, there, length = runs[at]
        crossed = [run[0] for run in self._crossed.get(queue, ()) if run[1] >= target]
        return min([first + min(target - there, length), *crossed])

    def lowest_offset(self, queue: PrimaryQueue) -> int | None:
        """The first offset of the primary that can be translated."""
        runs = self._queues.get(queue)
        return runs[0][0] if runs else None

    def forget_topic(self, topic: str) -> None:
        """Forgets a topic's queues: the topic is another one now."""
        for queue in [queue for queue in self._queues if queue[1] == topic]:
            del self._queues[queue]
            self._crossed.pop(queue, None)
            self.changes += 1

    def contains_offset(self, queue: PrimaryQueue, primary: int) -> bool:
        """Whether this very message is in the map."""
        runs = self._queues.get(queue, [])
        at = bisect_left(runs, primary + 1, key=lambda run: run[0]) - 1
        return at >= 0 and primary < runs[at][0] + runs[at][2]

    def dump_rows(self) -> list[tuple[str, str, int, list[MappedRange], list[MappedRange]]]:
        """For a file."""
        return [
            (*queue, [run[:] for run in runs], [run[:] for run in self._crossed.get(queue, ())])
            for queue, runs in self._queues.items()
        ]

    def load_rows(self, rows: Iterable[Sequence[Any]]) -> None:
        """From a file. Raises ValueError or TypeError for what `dump` does not give."""
        for broker, topic, queue_id, runs, crossed in rows:
            whole = [[int(number) for number in run] for run in runs]
            rising = all(
                here[0] + here[2] <= there[0] and here[1] + here[2] <= there[1]
                for here, there in pairwise(whole)
            )
            if not rising or any(len(run) != 3 for run in whole):
                raise ValueError(f"offsets of {topic} do not rise")
            queue = str(broker), str(topic), int(queue_id)
            self._queues[queue] = whole[-self._max_ranges :]
            if crossed:
                self._crossed[queue] = [[int(number) for number in run] for run in crossed]

    def count_entries(self) -> Mapping[str, int]:
        """How much is remembered."""
        return {"queues": len(self._queues), "runs": sum(map(len, self._queues.values()))}
