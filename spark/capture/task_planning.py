"""Planning of tasks: the blocks that each task reads."""

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
        self._entries = array("q")
        self.total_bytes = 0

    def add_file(
        self, file: CaptureBlockReader, record_filter: CaptureFilter, start: int = 0, end: int | None = None
    ) -> None:
        """Add the matching blocks of a file that begin in [start, end)."""
        self._paths.append(file.path)
        for part in file.iter_blocks(start, end):
            if isinstance(part, Damage) or record_filter.may_match_block(part):
                self._entries.extend((len(self._paths) - 1, part.position, part.size))
                self.total_bytes += part.size

    def group_into_partitions(self, spec: CaptureSpec) -> list[tuple[FileRange, ...]]:
        """Return as few tasks as the options allow, of similar size, and never more than blocks."""
        blocks = len(self._entries) // 3
        count = max(-(-self.total_bytes // spec.partition_bytes), spec.min_partitions or 1)
        count = min(count, spec.max_partitions or count, blocks)
        return [tuple(self._join_neighbours(group)) for group in self._split_evenly(count)]

    def _split_evenly(self, count: int) -> Iterator[list[tuple[int, int, int]]]:
        """Yield exactly `count` groups. Each takes its share of the remaining bytes, and leaves at least one block for
        each later group.
        """
        numbers = iter(self._entries)
        entries = list(zip(numbers, numbers, numbers, strict=True))
        at, remaining_bytes = 0, self.total_bytes
        for groups in range(count, 0, -1):
            # Half a block's size is the tolerance: a block goes to the group that its larger part belongs to.
            first, group_bytes = at, 0
            last = len(entries) - groups + 1
            while at < last and (
                at == first or group_bytes + entries[at][2] // 2 < remaining_bytes // groups
            ):
                group_bytes += entries[at][2]
                at += 1
            at = len(entries) if groups == 1 else at
            remaining_bytes -= group_bytes
            yield entries[first:at]

    def _join_neighbours(self, entries: Sequence[tuple[int, int, int]]) -> Iterator[FileRange]:
        path, start, end = -1, 0, 0
        for file, position, count in entries:
            if file != path:
                if path >= 0:
                    yield FileRange(self._paths[path], start, end)
                path, start = file, position
            end = position + count
        yield FileRange(self._paths[path], start, end)


def blocks_in_range(
    file: CaptureBlockReader, file_range: FileRange, record_filter: CaptureFilter
) -> Iterator[CaptureBlock | Damage]:
    """Yield the matching blocks, and the damage, of a file range."""
    for part in file.iter_blocks(file_range.start, file_range.end):
        if isinstance(part, Damage) or record_filter.may_match_block(part):
            yield part
