"""Which task reads which blocks. Not responsible for reading records."""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from codec.capture import CaptureBlock, Damage
from spark.capture.files import CaptureFile
from spark.capture.options import CaptureSpec, Wanted


class Stretch(NamedTuple):
    """A part of a file: the blocks, and damage, that begin in [start, end)."""

    path: str
    start: int
    end: int


class Pieces:
    """Places and sizes of what is to be read, 24 bytes each: a capture may have millions of blocks."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._places = array("q")
        self.total_bytes = 0

    def add(self, file: CaptureFile, wanted: Wanted, start: int = 0, end: int | None = None) -> None:
        """What is wanted of a file, in [start, end)."""
        self._paths.append(file.path)
        for found in file.blocks(start, end):
            if isinstance(found, Damage) or wanted.block(found):
                self._places.extend((len(self._paths) - 1, found.position, found.size))
                self.total_bytes += found.size

    def partitions(self, spec: CaptureSpec) -> list[tuple[Stretch, ...]]:
        """As few tasks as the options allow, about equally large; never more than there are blocks."""
        blocks = len(self._places) // 3
        count = max(-(-self.total_bytes // spec.partition_bytes), spec.min_partitions or 1)
        count = min(count, spec.max_partitions or count, blocks)
        return [tuple(self._joined(some)) for some in self._cut(count)]

    def _cut(self, count: int) -> Iterator[list[tuple[int, int, int]]]:
        """Exactly `count` groups: each takes its share of the bytes that are left, and leaves the others a block."""
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

    def _joined(self, places: Sequence[tuple[int, int, int]]) -> Iterator[Stretch]:
        path, start, end = -1, 0, 0
        for file, position, count in places:
            if file != path:
                if path >= 0:
                    yield Stretch(self._paths[path], start, end)
                path, start = file, position
            end = position + count
        yield Stretch(self._paths[path], start, end)


def stretch_blocks(file: CaptureFile, stretch: Stretch, wanted: Wanted) -> Iterator[CaptureBlock | Damage]:
    """What a task reads of a stretch."""
    for found in file.blocks(stretch.start, stretch.end):
        if isinstance(found, Damage) or wanted.block(found):
            yield found
