"""Position of a stream in files that appear, grow, are closed, and are removed.

An offset is `{folder: {file: position}}`: everything before the position was read, and `DONE` stands for a file that
was read completely and will not grow. Files without an entry have not been started. Removed files leave the offset,
so its size follows that of the folder.
"""

import logging
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from codec.capture import Damage
from spark.capture.capture_file import CaptureBlockReader, find_files
from spark.capture.options import CaptureSpec
from spark.capture.task_planning import BlockPlan
from spark.errors import DataLossError

log = logging.getLogger(__name__)

DONE: Final = -1
Offset = Mapping[str, Any]


class KnownFile:
    """Blocks (and damage) of one file that are not planned yet: end, records and bytes of each.

    Scanning continues at `end`. `final` tells that the file will not grow.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.final = False
        self.size = -1
        self.gateway: str | None = None
        self.blocks = array("q")

    def read_gateway(self, path: str) -> None:
        """Read which gateway writes the file, once its header is there. Raises FileNotFoundError."""
        if self.gateway is None:
            with CaptureBlockReader(path) as file:
                self.gateway = None if file.header is None else file.header.gateway

    def mark_final(self) -> None:
        """Stop scanning the file."""
        self.final, self.blocks = True, array("q")

    def scan_new_blocks(self, path: str, *, superseded: bool) -> None:
        """Scan what was added since the last scan. Raises FileNotFoundError.

        `superseded` means that the gateway has begun a newer file, so this one will not grow even without an index.
        """
        if self.final:
            return
        if not superseded and os.stat(path).st_size == self.size:
            return
        with CaptureBlockReader(path) as file:
            self.size = file.size
            ended = file.closed or superseded
            for found in file.iter_blocks(self.end):
                at_end = found.position + found.size == file.size
                if isinstance(found, Damage) and at_end and not ended:
                    return  # perhaps not completely written yet
                records = 0 if isinstance(found, Damage) else found.records
                self.end = found.position + found.size
                self.blocks.extend((self.end, records, found.size))
            self.final = ended

    def blocks_after(self, place: int) -> Iterator[tuple[int, int, int]]:
        """Return end, records and bytes of the blocks that end after a position."""
        each = iter(self.blocks)
        return (block for block in zip(each, each, each, strict=True) if block[0] > place)

    def forget_before(self, place: int) -> None:
        """Forget the blocks before a position; they will not be requested again."""
        self.blocks = array("q", [number for block in self.blocks_after(place) for number in block])


class CaptureProgress:
    """The driver's view of the folders, used by one thread."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._files: dict[str, KnownFile] = {}
        self._frozen: dict[str, int] | None = None

    def freeze_end(self) -> None:
        """Exclude everything that is written from now on."""
        self._scan_files({})
        self._frozen = {path: known.end for path, known in self._files.items()}

    def next_end(self, start: Offset) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`, within the limits. Raises DataLossError."""
        places = flatten_offset(start)
        self._check_removed(places)
        if self._frozen is None:
            self._scan_files(places)
        return self._apply_limits(places)

    def plan_batch(self, start: Offset, end: Offset) -> BlockPlan:
        """Return the blocks of a batch. Raises DataLossError for a removed file, unless losses are allowed."""
        pieces, begun = BlockPlan(), flatten_offset(start)
        wanted = replace(self._spec.record_filter, codes=None)
        for path, stop in flatten_offset(end).items():
            place = begun.get(path, 0)
            if place in (DONE, stop):
                continue
            try:
                with CaptureBlockReader(path) as file:
                    pieces.add_file(file, wanted, place, None if stop == DONE else stop)
            except FileNotFoundError:
                self._report_loss(path)
        return pieces

    def _scan_files(self, places: Mapping[str, int]) -> None:
        paths = find_files(self._spec.paths)
        later: set[tuple[str, str]] = set()
        for path in reversed(paths):
            place = places.get(path, 0)
            known = self._files.setdefault(path, KnownFile(max(place, 0)))
            folder = os.path.dirname(path)
            try:
                known.read_gateway(path)
                if place == DONE:
                    known.mark_final()
                else:
                    known.scan_new_blocks(path, superseded=(folder, known.gateway or "") in later)
            except FileNotFoundError:
                del self._files[path]
                continue
            if known.gateway is not None:
                later.add((folder, known.gateway))

    def _apply_limits(self, places: dict[str, int]) -> dict[str, Any]:
        """Take whole blocks, file by file, until a limit is reached; at least one block."""
        records = bytes_ = 0
        most, most_bytes = self._spec.max_records, self._spec.max_bytes
        end = dict(places)
        for path, known in sorted(self._files.items(), key=lambda each: os.path.basename(each[0])):
            stop = known.end if self._frozen is None else self._frozen.get(path, 0)
            place = places.get(path, 0)
            if place == DONE:
                continue
            known.forget_before(place)
            for block_end, count, size in known.blocks_after(place):
                full = (most and records + count > most) or (most_bytes and bytes_ + size > most_bytes)
                if block_end > stop or (bytes_ and full):
                    break
                end[path], records, bytes_ = block_end, records + count, bytes_ + size
            else:
                if known.final and end.get(path, 0) >= known.end:
                    end[path] = DONE
                continue
            if block_end <= stop:
                break
        return nest_offset(end)

    def _check_removed(self, places: dict[str, int]) -> None:
        """Drop removed files from the offset. It is a loss if they had not been read completely."""
        for path in [path for path in places if not os.path.exists(path)]:
            known = self._files.pop(path, None)
            unread = places[path] != DONE and (known is None or not known.final or known.end > places[path])
            del places[path]
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
        os.path.join(folder, name): place for folder, some in offset.items() for name, place in some.items()
    }


def nest_offset(places: Mapping[str, int]) -> dict[str, Any]:
    """Return an offset as Spark stores it, in a fixed order, since Spark compares offsets as text."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(places):
        folder, name = os.path.split(path)
        found.setdefault(folder, {})[name] = places[path]
    return found
