"""A queue in the files of one directory: checksummed, bounded, in order, and found again by the next process.

A file begins with 8 bytes of magic. Records follow: length of the payload, CRC-32 of sequence number and payload (4
bytes each), sequence number (8), and the payload; numbers are big-endian. Sequence numbers have no gap, and a file's
name is the first one in it; so what damage took is counted, whatever is damaged. `position` says from which number on
the next process goes on (`_Position`), `owner` whose the directory is. Everything here blocks, and is called by one
thread at a time. Not responsible for what is put there and when (spilling is).
"""

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct, error
from typing import BinaryIO, Final
from zlib import crc32

MAGIC: Final = b"RMQSPIL2"
SUFFIX: Final = ".spill"
ASIDE_MARKER: Final = ".aside-"
"""Part of the names of directories that belonged to another configuration."""
_OWNER, _POSITION = "owner", "position"
_RECORD_HEADER: Final = Struct(">IIQ")
_SLOT: Final = Struct(">QQI")
_SLOT_BYTES: Final = 512
"""A disk writes a sector whole or not at all, so that one of two slots is always good."""


class SpillQueueFull(OSError):
    """As many bytes as allowed are on disk."""


@dataclass(slots=True)
class SpillRecovery:
    """What an earlier process left: `count` records to go on with, and what is to be told about it.

    `torn` says that the end of the last file is no whole record: at least one exchange is gone. `aside` is the new name
    of a directory that belonged to another configuration, "" for none.
    """

    count: int = 0
    torn_tail: bool = False
    set_aside_as: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SpillRead:
    """Records with their sequence numbers, and how many before, between or after them were lost to damage."""

    records: list[tuple[int, bytes]]
    lost: int
    path: str


@dataclass(slots=True)
class _SpillFile:
    path: str
    first: int
    size: int
    read_at: int = 0
    is_old: bool = False
    """Of an earlier process: nothing is appended behind what may be damaged."""


class _PositionFile:
    """Two slots: how often it was written, the sequence number, CRC-32 of both. The later good one counts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._count = 0

    def load_sequence(self) -> int | None:
        """The number; None when there is none, or both slots are damaged."""
        try:
            with open(self._path, "rb") as file:
                slots = [self._read_slot(file, number) for number in range(2)]
        except FileNotFoundError:
            return None
        self._count, sequence = max((slot for slot in slots if slot is not None), default=(0, None))
        return sequence

    @staticmethod
    def _read_slot(file: BinaryIO, number: int) -> tuple[int, int] | None:
        file.seek(number * _SLOT_BYTES)
        data = file.read(_SLOT.size)
        if len(data) < _SLOT.size:
            return None
        count, sequence, checksum = _SLOT.unpack(data)
        return (count, sequence) if checksum == crc32(data[:16]) and count else None

    def save_sequence(self, sequence: int, sync: bool) -> None:
        self._count += 1
        head = _SLOT.pack(self._count, sequence, 0)[:16]
        place = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(place, head + crc32(head).to_bytes(4, "big"), self._count % 2 * _SLOT_BYTES)
            if sync:
                os.fdatasync(place)
        finally:
            os.close(place)


class SpillQueue:
    """Records are appended, read once each, and noted as over in the same order; then their files go.

    ``owner`` is a text that says what the records are for; what another owner left is set aside.
    """

    def __init__(self, directory: str, limit_bytes: int, file_bytes: int, owner: str = "") -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._file_bytes = file_bytes
        self._owner = owner
        self._files: deque[_SpillFile] = deque()
        self._position = _PositionFile(os.path.join(directory, _POSITION))
        self.read_sequence = 0
        """Sequence number of the record that is read next."""
        self.next_sequence = 0
        """That of the next one appended."""

    @property
    def size_bytes(self) -> int:
        """What the files take."""
        return sum(file.size for file in self._files)

    @property
    def unread(self) -> int:
        """Records that were not read, those included that cannot be."""
        return self.next_sequence - self.read_sequence

    # -- what an earlier process left ---------------------------------------------------------------------------

    def recover(self) -> SpillRecovery:
        """Finds what is there and goes on with it. Raises OSError."""
        left = SpillRecovery()
        os.makedirs(self._directory, exist_ok=True)
        found = sorted(_list_files(self._directory, left.problems), key=lambda file: file.first)
        if found and read_owner(self._directory) != self._owner:
            left.set_aside_as = set_directory_aside(self._directory)
            os.makedirs(self._directory)
            found = []
        _replace_file(os.path.join(self._directory, _OWNER), self._owner.encode())
        position = self._position.load_sequence()
        if position is None:
            position = found[0].first if found else 0
            if found and os.path.exists(os.path.join(self._directory, _POSITION)):
                left.problems.append("the position is damaged: what was mirrored already is looked at again")
        self._resume_at(deque(found), position, left)
        return left

    def _resume_at(self, files: deque[_SpillFile], position: int, left: SpillRecovery) -> None:
        self._files, self.read_sequence, self.next_sequence = files, position, position
        if files:
            behind, good_bytes = _find_end(files[-1])
            self.next_sequence = max(behind, position)
            if good_bytes < files[-1].size:
                left.torn_tail = behind >= position
                rest = files[-1].size - good_bytes
                left.problems.append(f"the last {rest} bytes of {files[-1].path} are no whole record")
            if behind == files[-1].first:  # its name is the one the next file will have
                os.remove(files.pop().path)
        self._delete_finished_files(position)
        left.count = self.unread

    # -- going in -----------------------------------------------------------------------------------------------

    def append_records(self, payloads: Sequence[bytes]) -> int:
        """Appends all or nothing; the first one's number. Raises SpillFull, OSError when the disk takes no more."""
        data = b"".join(
            part for record in enumerate(payloads, self.next_sequence) for part in _encode_record(*record)
        )
        if self.size_bytes + len(data) > self._limit_bytes:
            raise SpillQueueFull(f"more than {self._limit_bytes} bytes would be on disk")
        file = self._file_to_append()
        try:
            with open(file.path, "r+b", buffering=0) as out:
                out.seek(file.size)
                left = memoryview(data)
                while left:
                    left = left[out.write(left) :]
        except OSError:
            self._truncate_partial(file)
            raise
        file.size += len(data)
        first, self.next_sequence = self.next_sequence, self.next_sequence + len(payloads)
        return first

    @staticmethod
    def _truncate_partial(file: _SpillFile) -> None:
        """What was written in part is overwritten later; giving its room back is only polite."""
        with contextlib.suppress(OSError):
            os.truncate(file.path, file.size)

    def _file_to_append(self) -> _SpillFile:
        last = self._files[-1] if self._files else None
        if last is None or last.is_old or last.size >= self._file_bytes:
            path = os.path.join(self._directory, f"{self.next_sequence:020d}{SUFFIX}")
            with open(path, "wb", buffering=0) as out:
                out.write(MAGIC)
            last = _SpillFile(path, self.next_sequence, len(MAGIC))
            self._files.append(last)
        return last

    # -- coming out ---------------------------------------------------------------------------------------------

    def read_records(self, size_bytes: int) -> SpillRead:
        """The next records, about so many bytes but at least one; nothing when all was read."""
        found, at = SpillRead([], 0, ""), self.read_sequence
        if not self.unread:
            return found
        index = max(0, sum(file.first <= at for file in self._files) - 1)
        file = self._files[index] if self._files else _SpillFile("a file that is gone", self.next_sequence, 0)
        if file.first > at:  # what was before it is gone
            self.read_sequence = file.first
        else:
            stop = self._files[index + 1].first if index + 1 < len(self._files) else self.next_sequence
            self.read_sequence = _read_file(file, at, stop, size_bytes, found.records)
        found.lost, found.path = self.read_sequence - at - len(found.records), file.path
        return found

    def skip_to(self, sequence: int) -> None:
        """Records before this one need not be read: they are known."""
        self.read_sequence = max(self.read_sequence, sequence)

    def save_position(self, sequence: int) -> None:
        """All records before this one are over: the next process begins with it. Raises OSError."""
        # A file must not go while an older position might come back after a power cut: its records would be missed.
        self._position.save_sequence(sequence, sync=self._is_first_file_finished(sequence))
        self._delete_finished_files(sequence)

    def _is_first_file_finished(self, sequence: int) -> bool:
        """Whether all of the first file is before a number."""
        behind = self._files[1].first if len(self._files) > 1 else self.next_sequence
        return bool(self._files) and behind <= sequence

    def _delete_finished_files(self, sequence: int) -> None:
        while self._is_first_file_finished(sequence):
            with contextlib.suppress(OSError):
                os.remove(self._files.popleft().path)


def set_directory_aside(directory: str) -> str:
    """Gives a directory another name, which no process uses; the name. Raises OSError."""
    names = (f"{directory}{ASIDE_MARKER}{number}" for number in itertools.count(1))
    name = next(name for name in names if not os.path.exists(name))
    os.rename(directory, name)
    return name


def holds_records(directory: str) -> bool:
    """Whether there are files of records in it, whatever is in these."""
    try:
        return any(name.endswith(SUFFIX) for name in os.listdir(directory))
    except OSError:
        return False


def iter_payloads(directory: str) -> Iterator[bytes]:
    """What can be read of a directory that nobody uses, in order, from its position on."""
    position = _PositionFile(os.path.join(directory, _POSITION)).load_sequence() or 0
    for file in sorted(_list_files(directory, []), key=lambda file: file.first):
        records: list[tuple[int, bytes]] = []
        at = max(file.first, position)
        while (at := _read_file(file, at, 1 << 63, 1 << 20, records)) < 1 << 63 or records:
            yield from (payload for _, payload in records)
            records.clear()


def _list_files(directory: str, problems: list[str]) -> Iterator[_SpillFile]:
    for name in os.listdir(directory):
        if not name.endswith(SUFFIX):
            continue
        path, stem = os.path.join(directory, name), name.removesuffix(SUFFIX)
        if stem.isdecimal():
            yield _SpillFile(path, int(stem), os.path.getsize(path), is_old=True)
        else:
            problems.append(f"{path} is not read: its name is no number")


def read_owner(directory: str) -> str | None:
    """Whose a directory is, as text; None when that cannot be read."""
    try:
        with open(os.path.join(directory, _OWNER), "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def _replace_file(path: str, data: bytes) -> None:
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)


def _encode_record(sequence: int, payload: bytes) -> tuple[bytes, bytes]:
    checksum = crc32(payload, crc32(sequence.to_bytes(8, "big")))
    return _RECORD_HEADER.pack(len(payload), checksum, sequence), payload


def _iter_records(file: _SpillFile) -> Iterator[tuple[int, bytes | None]]:
    """Sequence numbers and payloads from `read_at` on, which moves along; a payload is None when it is damaged.

    A length that is damaged leads to bytes that are no record, and so to the end or, seldom, to a later record.
    """
    try:
        with open(file.path, "rb") as source:
            if not file.read_at and source.read(len(MAGIC)) != MAGIC:
                return
            file.read_at = max(file.read_at, len(MAGIC))
            source.seek(file.read_at)
            while True:
                length, checksum, sequence = _RECORD_HEADER.unpack(source.read(_RECORD_HEADER.size))
                if file.read_at + _RECORD_HEADER.size + length > file.size:
                    return
                payload = source.read(length)
                file.read_at += _RECORD_HEADER.size + length
                is_good = checksum == crc32(payload, crc32(sequence.to_bytes(8, "big")))
                yield sequence, payload if is_good and len(payload) == length else None
    except (OSError, error):  # gone, or shorter than a record's head
        return


def _read_file(
    file: _SpillFile, at: int, stop: int, size_bytes: int, records: list[tuple[int, bytes]]
) -> int:
    """Adds records from `at` on, before `stop`; the number reading goes on with, `stop` at the end of the file."""
    taken = 0
    for sequence, payload in _iter_records(file):
        if payload is None or not at <= sequence < stop:
            continue
        records.append((sequence, payload))
        at, taken = sequence + 1, taken + len(payload)
        if taken >= size_bytes:
            return at
    return stop


def _find_end(file: _SpillFile) -> tuple[int, int]:
    """The number behind a file's last good record, and where that one ends, in bytes."""
    behind, good_bytes = file.first, 0
    scanned = _SpillFile(file.path, file.first, file.size)
    for sequence, payload in _iter_records(scanned):
        if payload is not None and sequence >= behind:
            behind, good_bytes = sequence + 1, scanned.read_at
    return behind, good_bytes or min(file.size, scanned.read_at)
