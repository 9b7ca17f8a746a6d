"""Files of exchanges that memory has no room for: a queue on disk, checksummed, bounded, in order.

A file begins with 8 bytes of magic. Records follow: length and CRC-32 of the payload, 4 bytes each, and the payload
(see `encode`). Numbers are big-endian. A file is deleted when all of it was read. Everything here blocks, and is called
by one thread at a time. Not responsible for what is put there and when (spilling is).
"""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from gateway.shadow.exchange import Exchange, Side

MAGIC: Final = b"RMQSPIL1"
SUFFIX: Final = ".spill"
_RECORD: Final = Struct(">II")
_HEAD: Final = Struct(">iqqdddBIIHHH")
"""code, connection, wall ms, asked, forwarded, answered (s), flags, sizes of request, answer and the three texts"""
_HAS_ANSWER, _REVERSE, _BY_TARGET = 1, 2, 4


def encode(exchange: Exchange) -> bytes:
    """An exchange as the payload of a record."""
    texts = [text.encode() for text in (exchange.client, exchange.upstream, exchange.broker)]
    answer = exchange.answer or b""
    flags = (
        (_HAS_ANSWER if exchange.answer is not None else 0)
        | (_REVERSE if exchange.reverse else 0)
        | (_BY_TARGET if exchange.side is Side.TARGET else 0)
    )
    head = _HEAD.pack(
        exchange.code,
        exchange.connection,
        exchange.wall_ms,
        exchange.asked_s,
        exchange.forwarded_s,
        exchange.answered_s,
        flags,
        len(exchange.request),
        len(answer),
        *map(len, texts),
    )
    return b"".join((head, exchange.request, answer, *texts))


def decode(payload: bytes) -> Exchange:
    """The reverse of `encode`; nothing is checked, since the checksum was."""
    code, connection, wall_ms, asked_s, forwarded_s, answered_s, flags, *sizes = _HEAD.unpack_from(payload)
    parts, at = [], _HEAD.size
    for size in sizes:
        parts.append(payload[at : at + size])
        at += size
    request, answer, client, upstream, broker = parts
    return Exchange(
        code,
        request,
        answer if flags & _HAS_ANSWER else None,
        connection=connection,
        client=client.decode(),
        upstream=upstream.decode(),
        broker=broker.decode(),
        wall_ms=wall_ms,
        asked_s=asked_s,
        forwarded_s=forwarded_s,
        answered_s=answered_s,
        reverse=bool(flags & _REVERSE),
        side=Side.TARGET if flags & _BY_TARGET else Side.PRIMARY,
    )


class SpillDamaged(Exception):
    """A file cannot be read; `lost` records of it are gone."""

    def __init__(self, path: str, lost: int) -> None:
        super().__init__(f"{path} is damaged: {lost} exchanges are lost")
        self.lost = lost


class SpillFull(OSError):
    """As many bytes as allowed are on disk."""


@dataclass(slots=True)
class _File:
    path: str
    size: int
    count: int = 0
    read_at: int = len(MAGIC)
    read_count: int = 0


class SpillFiles:
    """A queue of records in the files of one directory, which belongs to it alone."""

    def __init__(self, directory: str, limit_bytes: int, file_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._file_bytes = file_bytes
        self._files: deque[_File] = deque()
        self._number = 0

    @property
    def size_bytes(self) -> int:
        """What the files take."""
        return sum(file.size for file in self._files)

    def clear(self) -> int:
        """Deletes what an earlier process left; says how many files. Raises OSError."""
        os.makedirs(self._directory, exist_ok=True)
        left = [name for name in os.listdir(self._directory) if name.endswith(SUFFIX)]
        for name in left:
            os.remove(os.path.join(self._directory, name))
        return len(left)

    def append(self, payloads: Sequence[bytes]) -> None:
        """Appends all or nothing. Raises SpillFull, and OSError when the disk takes no more."""
        data = b"".join(
            part for payload in payloads for part in (_RECORD.pack(len(payload), crc32(payload)), payload)
        )
        if self.size_bytes + len(data) > self._limit_bytes:
            raise SpillFull(f"more than {self._limit_bytes} bytes would be on disk")
        file = self._last()
        try:
            with open(file.path, "r+b", buffering=0) as out:
                out.seek(file.size)
                left = memoryview(data)
                while left:
                    left = left[out.write(left) :]
        except OSError:
            self._cut(file)
            raise
        file.size += len(data)
        file.count += len(payloads)

    @staticmethod
    def _cut(file: _File) -> None:
        """What was written in part is overwritten later; giving its room back is only polite."""
        try:
            os.truncate(file.path, file.size)
        except OSError:
            return

    def _last(self) -> _File:
        if not self._files or self._files[-1].size >= self._file_bytes:
            self._number += 1
            path = os.path.join(self._directory, f"{self._number:012d}{SUFFIX}")
            with open(path, "wb", buffering=0) as out:
                out.write(MAGIC)
            self._files.append(_File(path, len(MAGIC)))
        return self._files[-1]

    def read(self, size_bytes: int) -> list[bytes]:
        """The next payloads, about so many bytes but at least one; none when all was read. Raises SpillDamaged."""
        if not self._files:
            return []
        file = self._files[0]
        try:
            payloads = _read(file, size_bytes)
        except OSError:
            payloads = []
        if not payloads:
            lost = file.count - file.read_count
            self._remove(file)
            if lost:
                raise SpillDamaged(file.path, lost)
            return self.read(size_bytes)
        if file.read_count == file.count:
            self._remove(file)
        return payloads

    def _remove(self, file: _File) -> None:
        self._files.popleft()
        try:
            os.remove(file.path)
        except OSError:
            return


def _read(file: _File, size_bytes: int) -> list[bytes]:
    """Whole records from where reading stopped, up to the first that is damaged."""
    with open(file.path, "rb") as source:
        source.seek(file.read_at)
        payloads: list[bytes] = []
        taken = 0
        while file.read_count < file.count and (taken < size_bytes or not payloads):
            head = source.read(_RECORD.size)
            if len(head) < _RECORD.size:
                break
            length, checksum = _RECORD.unpack(head)
            payload = source.read(min(length, file.size))
            if len(payload) != length or crc32(payload) != checksum:
                break
            payloads.append(payload)
            taken += length
            file.read_count += 1
            file.read_at += _RECORD.size + length
    return payloads
