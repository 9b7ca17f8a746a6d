"""Position of a stream in files that appear, grow, are closed, and are removed.

An offset is `{folder: {file: position}}`: everything before the position was read, and `DONE` stands for a file that
was read completely and will not grow. Files without an entry have not been started. Removed files leave the offset,
so its size follows that of the folder.
"""

import logging
import os
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

from codec.capture import Damage
from spark.capture.capture_file import CaptureBlockReader, find_files
from spark.capture.options import CaptureSpec
from spark.capture.task_planning import BlockPlan
from spark.errors import DataLossError

log = logging.getLogger(__name__)

DONE: Final = -1
Offset = Mapping[str, Any]


class FileState:
    """State of one file: its blocks (and damage) that are not in a batch yet, as end, records and bytes of each.

    Scanning continues at `end`. If `final`, the file will not grow any more.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.final = False
        self.size = -1
        self.gateway: str | None = None
        self.blocks = array("q")

    def read_gateway(self, path: str) -> None:
        """Read the writing gateway's name, unless it is known or not written yet. Raises FileNotFoundError."""
        if self.gateway is None:
            with CaptureBlockReader(path) as file:
                self.gateway = None if file.header is None else file.header.gateway

    def mark_final(self) -> None:
        """Stop scanning the file."""
        self.final, self.blocks = True, array("q")

    def scan_new_blocks(self, path: str, *, superseded: bool) -> None:
        """Scan the blocks that were added since the last scan. Raises FileNotFoundError.

        `superseded` means that the gateway has begun a newer file, so this one will not grow even without an index.
        """
        if self.final:
            return
        if not superseded and os.stat(path).st_size == self.size:
            return
        with CaptureBlockReader(path) as file:
            self.size = file.size
            ended = file.closed or superseded
            for part in file.iter_blocks(self.end):
                at_end = part.position + part.size == file.size
                if isinstance(part, Damage) and at_end and not ended:
                    return  # the gateway may still be writing it
                records = 0 if isinstance(part, Damage) else part.records
                self.end = part.position + part.size
                self.blocks.extend((self.end, records, part.size))
            self.final = ended

    def blocks_after(self, position: int) -> Iterator[tuple[int, int, int]]:
        """Return end, records and bytes of the blocks that end after a position."""
        numbers = iter(self.blocks)
        return (block for block in zip(numbers, numbers, numbers, strict=True) if block[0] > position)

    def forget_before(self, position: int) -> None:
        """Forget the blocks before a position; they will not be requested again."""
        self.blocks = array("q", [number for block in self.blocks_after(position) for number in block])


class CaptureProgress:
    """The driver's view of the folders, used by one thread."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._files: dict[str, FileState] = {}
        self._frozen: dict[str, int] | None = None

    def freeze_end(self) -> None:
        """Exclude everything that is written from now on."""
        self._scan_files({})
        self._frozen = {path: state.end for path, state in self._files.items()}

    def next_end(self, start: Offset) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`, within the limits. Raises DataLossError."""
        positions = flatten_offset(start)
        self._check_removed(positions)
        if self._frozen is None:
            self._scan_files(positions)
        return self._apply_limits(positions)

    def plan_batch(self, start: Offset, end: Offset) -> BlockPlan:
        """Return the blocks of a batch. Raises DataLossError for a removed file, unless losses are allowed."""
        plan, begins = BlockPlan(), flatten_offset(start)
        for path, stop in flatten_offset(end).items():
            position = begins.get(path, 0)
            if position in (DONE, stop):
                continue
            try:
                with CaptureBlockReader(path) as file:
                    plan.add_file(file, self._spec.record_filter, position, None if stop == DONE else stop)
            except FileNotFoundError:
                self._report_loss(path)
        return plan

    def _scan_files(self, positions: Mapping[str, int]) -> None:
        paths = find_files(self._spec.paths)
        # From the newest file to the oldest: a file is complete if its gateway has begun a newer one in its folder.
        newer_gateways: set[tuple[str, str]] = set()
        for path in reversed(paths):
            position = positions.get(path, 0)
            state = self._files.setdefault(path, FileState(max(position, 0)))
            folder = os.path.dirname(path)
            try:
                state.read_gateway(path)
                if position == DONE:
                    state.mark_final()
                else:
                    state.scan_new_blocks(path, superseded=(folder, state.gateway or "") in newer_gateways)
            except FileNotFoundError:
                del self._files[path]
                continue
            if state.gateway is not None:
                newer_gateways.add((folder, state.gateway))

    def _apply_limits(self, positions: dict[str, int]) -> dict[str, Any]:
        """Take whole blocks, file by file, until a limit is reached; at least one block."""
        records = size_bytes = 0
        max_records, max_bytes = self._spec.max_records, self._spec.max_bytes
        end = dict(positions)
        for path, state in sorted(self._files.items(), key=lambda item: os.path.basename(item[0])):
            stop = state.end if self._frozen is None else self._frozen.get(path, 0)
            position = positions.get(path, 0)
            if position == DONE:
                continue
            state.forget_before(position)
            for block_end, count, size in state.blocks_after(position):
                full = (max_records and records + count > max_records) or (
                    max_bytes and size_bytes + size > max_bytes
                )
                # The first block is taken however large it is, or the stream would stand still.
                if block_end > stop or (size_bytes and full):
                    break
                end[path], records, size_bytes = block_end, records + count, size_bytes + size
            else:
                # All blocks of this file are in the batch.
                if state.final and end.get(path, 0) >= state.end:
                    end[path] = DONE
                continue
            if block_end <= stop:
                break  # a limit was reached; otherwise the frozen end was, and the next file may have room
        return nest_offset(end)

    def _check_removed(self, positions: dict[str, int]) -> None:
        """Drop removed files from the offset. It is a loss if they had not been read completely."""
        for path in [path for path in positions if not os.path.exists(path)]:
            state = self._files.pop(path, None)
            unread = positions[path] != DONE and (
                state is None or not state.final or state.end > positions[path]
            )
            del positions[path]
            if unread:
                self._report_loss(path)
        for path in [path for path in self._files if not os.path.exists(path)]:
            if next(self._files.pop(path).blocks_after(0), None) is not None:
                self._report_loss(path)

    def _report_loss(self, path: str) -> None:
        text = f"{path}: the file was removed before it was read to its end"
        if self._spec.fail_on_data_loss:
            raise DataLossError(f"{text} (failOnDataLoss=false continues without it)")
        log.warning(text)


def flatten_offset(offset: Offset) -> dict[str, int]:
    """Return positions by path."""
    return {
        os.path.join(folder, name): position
        for folder, files in offset.items()
        for name, position in files.items()
    }


def nest_offset(positions: Mapping[str, int]) -> dict[str, Any]:
    """Return an offset as Spark stores it, in a fixed order, since Spark compares offsets as text."""
    nested: dict[str, dict[str, int]] = {}
    for path in sorted(positions):
        folder, name = os.path.split(path)
        nested.setdefault(folder, {})[name] = positions[path]
    return nested
