"""Capture files opened for reading, as they are on the disk at this moment.

Not responsible for the format (codec.capture) nor for what is made of records.
"""

import contextlib
import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

from codec.capture import (
    Block,
    Buffer,
    Damage,
    FileHeader,
    Record,
    blocks,
    decode_header,
    read_block,
    read_index,
    wanted,
)
from codec.errors import CaptureError
from gateway.shadow.capture.files import SUFFIX

_CACHED_BLOCKS = 64


class CaptureFile:
    """One file. `header` is None when it is damaged; `closed` tells whether the file has its index."""

    def __init__(self, path: str, buffer: Buffer) -> None:
        self.path = path
        self.buffer = buffer
        self.closed = read_index(buffer) is not None
        self.header: FileHeader | None = None
        with contextlib.suppress(CaptureError):
            self.header = decode_header(buffer)
        self._cached = lru_cache(_CACHED_BLOCKS)(self._read)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.buffer)

    def blocks(
        self,
        *,
        from_ms: int | None = None,
        until_ms: int | None = None,
        topics: Collection[str] | None = None,
    ) -> Iterator[tuple[Block, list[Record]] | Damage]:
        """Blocks that may hold what is wanted, with all their records, and what cannot be read."""
        for block in blocks(self.buffer):
            if isinstance(block, Damage):
                yield block
            elif wanted(block, from_ms=from_ms, until_ms=until_ms, topics=topics):
                try:
                    yield block, read_block(self.buffer, block)
                except CaptureError as error:
                    yield Damage(block.position, block.size, error.reason)

    def record(self, block: Block, number: int) -> Record:
        """One record of a block that was read before; the blocks read last are kept."""
        return self._cached(block)[number]

    def _read(self, block: Block) -> list[Record]:
        return read_block(self.buffer, block)


@contextlib.contextmanager
def open_captures(paths: Sequence[str]) -> Iterator[list[CaptureFile]]:
    """Files, and those in folders, by the time they were begun. Raises OSError."""
    with contextlib.ExitStack() as stack:
        files = [CaptureFile(path, stack.enter_context(_mapped(path))) for path in _expanded(paths)]
        yield sorted(files, key=lambda file: (file.header.created_ms if file.header else 0, file.path))
        for file in files:
            file.buffer = b""


def _expanded(paths: Sequence[str]) -> list[str]:
    found = []
    for path in paths:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if name.endswith(SUFFIX))
            found += [os.path.join(path, name) for name in names]
        else:
            found.append(path)
    return found


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[Buffer]:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            yield buffer
