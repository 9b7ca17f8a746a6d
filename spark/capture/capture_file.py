"""Read capture files that may be growing, closed, or removed at the same time.

Files are read with `pread` and never mapped: a file that its gateway truncates must not crash the reader. The format
is defined in `codec.capture`.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Final, Self

from codec.capture import (
    BLOCK_HEAD,
    BLOCK_MAGIC,
    FILE_HEAD,
    MAGIC,
    MAX_TEXT_BYTES,
    TRAILER,
    CaptureBlock,
    Damage,
    FileHeader,
    block_size,
    check_block,
    decode_header,
    decode_index,
    index_position,
)
from codec.errors import CaptureError, TornError

SUFFIX: Final = ".rmqcap"
_WINDOW_BYTES: Final = 1 << 20
_HEADER_BYTES: Final = FILE_HEAD.size + MAX_TEXT_BYTES + 4


def find_files(paths: Sequence[str]) -> list[str]:
    """Return files, files in folders, and files that patterns match, each once, in the order gateways created them.

    Files in hidden folders and files without the suffix count only if they are named.
    """
    files: dict[str, None] = {}
    for pattern in paths:
        path = pattern.removeprefix("file://").removeprefix("file:")
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        for match in matches:
            files.update(
                dict.fromkeys(_files_in_folder(match) if os.path.isdir(match) else [os.path.abspath(match)])
            )
    return sorted(files, key=lambda path: (os.path.basename(path), path))


def _files_in_folder(path: str) -> Iterator[str]:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file():
                yield os.path.abspath(entry.path)


class CaptureBlockReader:
    """One file at the size it had when opened. Raises OSError, and FileNotFoundError if it was removed.

    A `closed` file has its index and will never change. `header` is None if it is damaged or not written yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        try:
            self.size = os.fstat(self._fd).st_size
            self._index = self._read_index()
            self._head = self._read_at(0, _HEADER_BYTES)
        except OSError:
            os.close(self._fd)
            raise
        self.closed = self._index is not None
        self.header: FileHeader | None = None
        try:
            self.header = decode_header(self._head)
        except CaptureError as error:
            self._no_header = error.reason

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def iter_blocks(self, start: int = 0, end: int | None = None) -> Iterator[CaptureBlock | Damage]:
        """Yield blocks of records that begin in [start, end), in order, and damage between them.

        Uses the index if there is one, which reads nothing else; otherwise every block is checked. `start` is 0 or
        where a block or damage ended. An incomplete block at the end is not reported.
        """
        stop = self.size if end is None else min(end, self.size)
        if self._index is not None:
            yield from (block for block in self._index if start <= block.position < stop)
        else:
            yield from self._scan_blocks(start, stop)

    def read_block(self, block: CaptureBlock) -> bytes:
        """Return the bytes of a block; fewer if the file was truncated since."""
        return self._read_at(block.position, block.size)

    def _read_at(self, position: int, count: int) -> bytes:
        parts = []
        while count > 0:
            part = os.pread(self._fd, count, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_index(self) -> list[CaptureBlock] | None:
        at = self.size - TRAILER.size
        if at < 0:
            return None
        position = index_position(self._read_at(at, TRAILER.size), self.size)
        return None if position is None else decode_index(self._read_at(position, at - position), position)

    def _scan_blocks(self, start: int, stop: int) -> Iterator[CaptureBlock | Damage]:
        position = start or (self.header.size if self.header else 0)
        while position < stop:
            if position + TRAILER.size == self.size and self._is_trailer_at(position):
                return
            try:
                block, has_records = self._check_block_at(position)
            except CaptureError as error:
                # Skip to the next valid block. Damage that reaches the end may be a block that is still being written.
                following = self._find_next_block(position + 1)
                if following is None and self._may_be_incomplete(position, error):
                    return
                end = self.size if following is None else following
                yield Damage(position, end - position, error.reason if position else self._no_header)
                position = end
                continue
            if has_records:
                yield block
            position += block.size

    def _may_be_incomplete(self, position: int, error: CaptureError) -> bool:
        """Tell whether the bytes at a position may be the beginning of something still being written."""
        if position:
            return isinstance(error, TornError)
        head = self._head
        if len(head) < FILE_HEAD.size:
            return MAGIC.startswith(head[: len(MAGIC)])
        return head.startswith(MAGIC) and self.size < FILE_HEAD.size + FILE_HEAD.unpack_from(head)[2] + 4

    def _is_trailer_at(self, position: int) -> bool:
        return index_position(self._read_at(position, TRAILER.size), self.size) is not None

    def _check_block_at(self, position: int) -> tuple[CaptureBlock, bool]:
        size = block_size(self._read_at(position, min(BLOCK_HEAD.size, self.size - position)), position)
        return check_block(self._read_at(position, min(size, self.size - position)), position)

    def _find_next_block(self, start: int) -> int | None:
        """Return where the next valid block begins. A block contains its own position, so copies of blocks do not
        match.
        """
        position = start
        while position < self.size:
            window = self._read_at(position, _WINDOW_BYTES)
            at = window.find(BLOCK_MAGIC)
            while at >= 0:
                try:
                    self._check_block_at(position + at)
                    return position + at
                except CaptureError:
                    at = window.find(BLOCK_MAGIC, at + 1)
            if len(window) < _WINDOW_BYTES:
                return None
            position += len(window) - len(BLOCK_MAGIC) + 1
        return None
