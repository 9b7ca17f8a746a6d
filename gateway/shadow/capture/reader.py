"""Capture files opened for reading, as they are on disk at this moment. The format is in `codec.capture`."""

import contextlib
import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

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


class CaptureFileReader:
    """Reads one file. `header` is None when it is damaged; `has_index` tells whether the file was closed properly."""

    def __init__(self, path: str, buffer: Buffer) -> None:
        self.path = path
        self.buffer = buffer
        self.has_index = read_index(buffer) is not None
        self.header: FileHeader | None = None
        with contextlib.suppress(CaptureError):
            self.header = decode_header(buffer)
        self._cached_block = lru_cache(_MAX_CACHED_BLOCKS)(self._decode_block)

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
        return self._cached_block(block)[number]

    def _decode_block(self, block: CaptureBlock) -> list[CaptureRecord]:
        return read_block(self.buffer, block)


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
    found = []
    for path in paths:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if name.endswith(SUFFIX))
            found += [os.path.join(path, name) for name in names]
        else:
            found.append(path)
    return found


@contextlib.contextmanager
def _map_file(path: str) -> Iterator[Buffer]:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            yield buffer
