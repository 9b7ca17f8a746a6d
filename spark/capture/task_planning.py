"""Planning of tasks: which one reads which blocks."""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from codec.capture import CaptureBlock, Damage
from spark.capture.capture_file import CaptureBlockReader
from spark.capture.options import CaptureFilter, CaptureSpec


class FileRange(NamedTuple):
    """Part of a file: the blocks, and damage, that begin in [start, end)."""

    path: str
    start: int
    end: int


class BlockPlan:
    """Positions and sizes of the blocks to read, 24 bytes each, since a capture may have millions of blocks."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._places = array("q")
        self.total_bytes = 0

    def add_file(
        self, file: CaptureBlockReader, wanted: CaptureFilter, start: int = 0, end: int | None = None
    ) -> None:
        """Add the matching blocks of a file that begin in [start, end)."""
        self._paths.append(file.path)
        for found in file.iter_blocks(start, end):
            if isinstance(found, Damage) or wanted.may_match_block(found):
                self._places.extend((len(self._paths) - 1, found.position, found.size))
                self.total_bytes += found.size

    def group_into_partitions(self, spec: CaptureSpec) -> list[tuple[FileRange, ...]]:
        """Return as few tasks as the options allow, of similar size, and never more than blocks."""
        blocks = len(self._places) // 3
        count = max(-(-self.total_bytes // spec.partition_bytes), spec.min_partitions or 1)
        count = min(count, spec.max_partitions or count, blocks)
        return [tuple(self._join_neighbours(some)) for some in self._split_evenly(count)]

    def _split_evenly(self, count: int) -> Iterator[list[tuple[int, int, int]]]:
        """Yield exactly `count` groups: each takes its share of the remaining bytes, and leaves every other group a
        block.
        """
        each = iter(self._places)
        places = list(zip(each, each, each, strict=True))
        at, left = 0, self.total_bytes
        for groups in range(count, 0, -1):
            first, taken = at, 0
            last = len(places) - groups + 1
            while at < last and (at == first or taken + places[at][2] // 2 < left // groups):
                taken += places[at][2]
                at += 1
            at = len(places) if groups == 1 else at
            left -= taken
            yield places[first:at]

    def _join_neighbours(self, places: Sequence[tuple[int, int, int]]) -> Iterator[FileRange]:
        path, start, end = -1, 0, 0
        for file, position, count in places:
            if file != path:
                if path >= 0:
                    yield FileRange(self._paths[path], start, end)
                path, start = file, position
            end = position + count
        yield FileRange(self._paths[path], start, end)


def blocks_in_range(
    file: CaptureBlockReader, stretch: FileRange, wanted: CaptureFilter
) -> Iterator[CaptureBlock | Damage]:
    """Yield the matching blocks, and the damage, of a file range."""
    for found in file.iter_blocks(stretch.start, stretch.end):
        if isinstance(found, Damage) or wanted.may_match_block(found):
            yield found
