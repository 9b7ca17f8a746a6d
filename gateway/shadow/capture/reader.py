"""Capture files opened for reading, as they are on disk at this moment. The format is in `codec.capture`."""

import contextlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from codec.capture import (
    Buffer,
    CaptureBlock,
    CaptureRecord,
    Damage,
    FileHeader,
    decode_header,
    iter_blocks,
    may_contain,
    read_block,
    read_index,
)
from codec.errors import CaptureError
from gateway.shadow.capture.files import SUFFIX

_MAX_CACHED_BLOCKS = 64
_MAX_CACHED_BYTES = 256 * 1024 * 1024
"""Bytes of the records in the cache: a small compressed block can hold up to 1 GiB."""
_RECORD_OVERHEAD_BYTES = 500


class CaptureFileReader:
    """Reads one file. `header` is None when it is damaged; `has_index` tells whether the file was closed properly."""

    def __init__(self, path: str, buffer: Buffer) -> None:
        self.path = path
        self.buffer = buffer
        self.has_index = read_index(buffer) is not None
        self.header: FileHeader | None = None
        with contextlib.suppress(CaptureError):
            self.header = decode_header(buffer)
        self._cached_blocks: OrderedDict[int, tuple[int, list[CaptureRecord]]] = OrderedDict()
        self._cached_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return len(self.buffer)

    def read_blocks(
        self,
        *,
        from_ms: int | None = None,
        until_ms: int | None = None,
        topics: Collection[str] | None = None,
    ) -> Iterator[tuple[CaptureBlock, list[CaptureRecord]] | Damage]:
        """Yield the blocks that may hold matching records, with all their records, and the damage that was found."""
        for block in iter_blocks(self.buffer):
            if isinstance(block, Damage):
                yield block
            elif may_contain(block, from_ms=from_ms, until_ms=until_ms, topics=topics):
                try:
                    yield block, read_block(self.buffer, block)
                except CaptureError as error:
                    yield Damage(block.position, block.size, error.reason)

    def read_record(self, block: CaptureBlock, number: int) -> CaptureRecord:
        """Return one record of a block; the blocks used last stay in memory."""
        cached = self._cached_blocks.get(block.position)
        if cached is None:
            records = read_block(self.buffer, block)
            self._cache_block(block, records)
            return records[number]
        self._cached_blocks.move_to_end(block.position)
        return cached[1][number]

    def _cache_block(self, block: CaptureBlock, records: list[CaptureRecord]) -> None:
        size = sum(map(_record_bytes, records))
        self._cached_blocks[block.position] = size, records
        self._cached_bytes += size
        while len(self._cached_blocks) > _MAX_CACHED_BLOCKS or (
            self._cached_bytes > _MAX_CACHED_BYTES and len(self._cached_blocks) > 1
        ):
            self._cached_bytes -= self._cached_blocks.popitem(last=False)[1][0]


def _record_bytes(record: CaptureRecord) -> int:
    return (
        _RECORD_OVERHEAD_BYTES + len(record.request) + len(record.answer or b"") + len(record.target or b"")
    )


@contextlib.contextmanager
def open_captures(paths: Sequence[str]) -> Iterator[list[CaptureFileReader]]:
    """Open files, and those in folders, ordered by creation time. Raises OSError."""
    with contextlib.ExitStack() as stack:
        files = [
            CaptureFileReader(path, stack.enter_context(_map_file(path))) for path in _expand_folders(paths)
        ]
        yield sorted(files, key=lambda file: (file.header.created_ms if file.header else 0, file.path))
        for file in files:
            file.buffer = b""


def _expand_folders(paths: Sequence[str]) -> list[str]:
    file_paths = []
    for path in paths:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if name.endswith(SUFFIX))
            file_paths += [os.path.join(path, name) for name in names]
        else:
            file_paths.append(path)
    return file_paths


@contextlib.contextmanager
def _map_file(path: str) -> Iterator[Buffer]:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            yield buffer
