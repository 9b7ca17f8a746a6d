"""A crash-safe queue of records in the files of one directory, bounded in bytes.

Theory of operation
-------------------
Problem: records must come back in order after any crash, and if the disk damaged some, the number of lost records must
still be known.

Layout. A file `<first sequence number, 20 digits>.spill` starts with 8 bytes of magic. Records follow: payload length
and CRC-32 of sequence number and payload (4 bytes each), sequence number (8 bytes), payload. Numbers are big-endian.
Sequence numbers have no gaps, and each file's name is the first one in it. So if records are damaged, the gap between
the readable numbers tells how many were lost. `position` holds the sequence number at which the next process
resumes, and `owner` the target and rule that the directory belongs to.

Invariant: every record from the saved position on is in a file, until `save_position` moves the position past it. A
file is deleted only after a position after its last record has been saved and synced.

A crash leaves
- during an append: a torn record at the end of the last file. `recover` finds it, and the next process never appends
  to a file of an earlier one, so no record ever follows the damage.
- between an append and the next `save_position`: records that were finished but are read again. `spill_backlog.py`
  treats them as in doubt.
- during `save_position`: the previous position, because two slots are written in turn and each has a checksum.
- before a file is deleted: a file of finished records only, which `recover` deletes.

The records are messages, so files and directories are their owner's alone, whatever the umask is.

Appends are not synced, so a power failure may lose the most recent ones, usually up to half a minute.

All methods block, and the caller makes sure that only one thread at a time calls them. `spill_backlog.py` decides what
is written and when.
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

from toolkit.private_files import make_private_directories, open_private

MAGIC: Final = b"RMQSPIL2"
SUFFIX: Final = ".spill"
ASIDE_MARKER: Final = ".aside-"
"""Part of the name of a directory that was set aside because it belongs to another configuration."""
_OWNER, _POSITION = "owner", "position"
_RECORD_HEADER: Final = Struct(">IIQ")
_SLOT: Final = Struct(">QQI")
_SLOT_BYTES: Final = 512
"""A disk writes a sector entirely or not at all, so one of the two slots is always intact."""


class SpillQueueFull(OSError):
    """The files would exceed their maximum size."""


@dataclass(slots=True)
class SpillRecovery:
    """The records that an earlier process left, and what went wrong with them.

    `count` records can be resumed. `torn_tail`: the last file ends within a record, so at least one record is lost.
    `set_aside_as` is the new name of a directory that belongs to another owner, "" if there was none. `problems` are
    texts for the log.
    """

    count: int = 0
    torn_tail: bool = False
    set_aside_as: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SpillRead:
    """Records with their sequence numbers, and the number of damaged records before, between or after them."""

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
    """True for a file of an earlier process: its end may be damaged, so nothing is appended to it."""


class _PositionFile:
    """The file `position`: two slots, each with a write count, a sequence number and the CRC-32 of both.

    The intact slot with the higher write count is valid.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._count = 0

    def load_sequence(self) -> int | None:
        """Return the sequence number; None when there is no file, or both slots are damaged."""
        try:
            with open(self._path, "rb") as file:
                slots = [self._read_slot(file, number) for number in range(2)]
        except FileNotFoundError:
            return None
        # The slot that was written last, if it is intact. Otherwise a crash hit it, and the other one holds.
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
        """Write a sequence number into the older slot."""
        # The slots take turns, so a crash while one is written leaves the other.
        self._count += 1
        head = _SLOT.pack(self._count, sequence, 0)[:16]
        descriptor = open_private(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, head + crc32(head).to_bytes(4, "big"), self._count % 2 * _SLOT_BYTES)
            if sync:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


class SpillQueue:
    """Records are appended, read once each, and finished in the same order; then their files are deleted.

    Call `recover` first. ``owner`` is a text that describes target and rule of the records; a directory with another
    owner is set aside.
    """

    def __init__(self, directory: str, max_bytes: int, max_file_bytes: int, owner: str = "") -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_file_bytes = max_file_bytes
        self._owner = owner
        self._files: deque[_SpillFile] = deque()
        self._position = _PositionFile(os.path.join(directory, _POSITION))
        self.read_sequence = 0
        """Sequence number of the next record to read."""
        self.next_sequence = 0
        """Sequence number of the next record to append."""

    @property
    def size_bytes(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self._files)

    @property
    def unread_count(self) -> int:
        """Records that have not been read yet, damaged ones included."""
        return self.next_sequence - self.read_sequence

    # -- recovery ----------------------------------------------------------------------------------------------

    def recover(self) -> SpillRecovery:
        """Find the records of an earlier process and position the queue at the first unfinished one. Raises OSError."""
        recovery = SpillRecovery()
        make_private_directories(self._directory)
        files = sorted(_list_files(self._directory, recovery.problems), key=lambda file: file.first)
        # Another target or rule wrote these records: they must not reach this one.
        if files and read_owner(self._directory) != self._owner:
            recovery.set_aside_as = set_directory_aside(self._directory)
            make_private_directories(self._directory)
            files = []
        # Written before the first record, so that no record is ever without an owner.
        _replace_file(os.path.join(self._directory, _OWNER), self._owner.encode())
        position = self._position.load_sequence()
        if position is None:
            position = files[0].first if files else 0
            if files and os.path.exists(os.path.join(self._directory, _POSITION)):
                recovery.problems.append(
                    "the position file is damaged: records that were finished are read again"
                )
        self._resume_at(deque(files), position, recovery)
        return recovery

    def _resume_at(self, files: deque[_SpillFile], position: int, recovery: SpillRecovery) -> None:
        self._files, self.read_sequence, self.next_sequence = files, position, position
        if files:
            # Only the last file can be torn: the earlier ones were complete before it was begun.
            end_sequence, good_bytes = _find_end(files[-1])
            self.next_sequence = max(end_sequence, position)
            if good_bytes < files[-1].size:
                # Damage before the position concerns only finished records, which nobody needs.
                recovery.torn_tail = end_sequence >= position
                rest = files[-1].size - good_bytes
                recovery.problems.append(
                    f"the last {rest} bytes of {files[-1].path} are not a complete record"
                )
            if (
                end_sequence == files[-1].first
            ):  # It has no readable record, and the next file needs its name.
                os.remove(files.pop().path)
        self._delete_finished_files(position)
        recovery.count = self.unread_count

    # -- appending ----------------------------------------------------------------------------------------------

    def append_records(self, payloads: Sequence[bytes]) -> int:
        """Append all records or none, and return the sequence number of the first.

        Raises SpillQueueFull, or OSError when the disk fails.
        """
        data = b"".join(
            part for record in enumerate(payloads, self.next_sequence) for part in _encode_record(*record)
        )
        if self.size_bytes + len(data) > self._max_bytes:
            raise SpillQueueFull(f"the spill files would exceed {self._max_bytes} bytes")
        file = self._file_to_append()
        try:
            # At the known end, not in append mode: a partial write of an earlier failure is overwritten.
            with open(file.path, "r+b", buffering=0) as out:
                out.seek(file.size)
                rest = memoryview(data)
                while rest:
                    rest = rest[out.write(rest) :]
        except OSError:
            self._truncate_partial(file)
            raise
        file.size += len(data)
        first, self.next_sequence = self.next_sequence, self.next_sequence + len(payloads)
        return first

    @staticmethod
    def _truncate_partial(file: _SpillFile) -> None:
        """Give back the space of a partial write. Failure does not matter: the next append overwrites it."""
        with contextlib.suppress(OSError):
            os.truncate(file.path, file.size)

    def _file_to_append(self) -> _SpillFile:
        last = self._files[-1] if self._files else None
        if last is None or last.is_old or last.size >= self._max_file_bytes:
            path = os.path.join(self._directory, f"{self.next_sequence:020d}{SUFFIX}")
            with open(path, "wb", buffering=0, opener=open_private) as out:
                out.write(MAGIC)
            last = _SpillFile(path, self.next_sequence, len(MAGIC))
            self._files.append(last)
        return last

    # -- reading -----------------------------------------------------------------------------------------------

    def read_records(self, size_bytes: int) -> SpillRead:
        """Read the next records: about ``size_bytes``, at least one record; none when everything has been read."""
        batch, at = SpillRead([], 0, ""), self.read_sequence
        if not self.unread_count:
            return batch
        # Files are ordered by their first number, so the file of a record is the last one that begins at or before it.
        index = max(0, sum(file.first <= at for file in self._files) - 1)
        file = self._files[index] if self._files else _SpillFile("a file that is gone", self.next_sequence, 0)
        if file.first > at:  # the file before it is gone
            self.read_sequence = file.first
        else:
            # Where the next file begins is known from its name, so damaged records at the end of this one are counted.
            stop = self._files[index + 1].first if index + 1 < len(self._files) else self.next_sequence
            self.read_sequence = _read_file(file, at, stop, size_bytes, batch.records)
        batch.lost, batch.path = self.read_sequence - at - len(batch.records), file.path
        return batch

    def skip_to(self, sequence: int) -> None:
        """Skip unread records before this sequence number: the caller still has them in memory."""
        self.read_sequence = max(self.read_sequence, sequence)

    def save_position(self, sequence: int) -> None:
        """Save that all records before this one are finished, and delete files of only such records. Raises OSError."""
        # Sync before deleting a file: after a power failure an older position would point into the deleted file.
        self._position.save_sequence(sequence, sync=self._is_first_file_finished(sequence))
        self._delete_finished_files(sequence)

    def _is_first_file_finished(self, sequence: int) -> bool:
        """Tell whether all records of the first file come before a sequence number."""
        end_sequence = self._files[1].first if len(self._files) > 1 else self.next_sequence
        return bool(self._files) and end_sequence <= sequence

    def _delete_finished_files(self, sequence: int) -> None:
        while self._is_first_file_finished(sequence):
            with contextlib.suppress(OSError):
                os.remove(self._files.popleft().path)


def set_directory_aside(directory: str) -> str:
    """Rename a directory so that no process uses it, and return the new name. Raises OSError."""
    names = (f"{directory}{ASIDE_MARKER}{number}" for number in itertools.count(1))
    name = next(name for name in names if not os.path.exists(name))
    os.rename(directory, name)
    return name


def holds_records(directory: str) -> bool:
    """Tell whether a directory has spill files, whatever they contain."""
    try:
        return any(name.endswith(SUFFIX) for name in os.listdir(directory))
    except OSError:
        return False


def iter_payloads(directory: str) -> Iterator[bytes]:
    """Yield the readable payloads of an unused directory in order, from its saved position on."""
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
            problems.append(f"{path} is ignored: its name is not a number")


def read_owner(directory: str) -> str | None:
    """Return the owner text of a directory; None when it cannot be read."""
    try:
        with open(os.path.join(directory, _OWNER), "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def _replace_file(path: str, data: bytes) -> None:
    with open(path + ".new", "wb", opener=open_private) as file:
        file.write(data)
    os.replace(path + ".new", path)


def _encode_record(sequence: int, payload: bytes) -> tuple[bytes, bytes]:
    checksum = crc32(payload, crc32(sequence.to_bytes(8, "big")))
    return _RECORD_HEADER.pack(len(payload), checksum, sequence), payload


def _iter_records(file: _SpillFile) -> Iterator[tuple[int, bytes | None]]:
    """Yield sequence numbers and payloads from `read_at` on, and advance it; a damaged payload is None.

    After a damaged length, reading continues at bytes that are not a record, and so ends early or, rarely, finds a
    later record.
    """
    try:
        with open(file.path, "rb") as source:
            if not file.read_at and source.read(len(MAGIC)) != MAGIC:
                return
            file.read_at = max(file.read_at, len(MAGIC))
            source.seek(file.read_at)
            while True:
                length, checksum, sequence = _RECORD_HEADER.unpack(source.read(_RECORD_HEADER.size))
                # A damaged length, or a record that a crash cut off. Nothing after it can be found by lengths.
                if file.read_at + _RECORD_HEADER.size + length > file.size:
                    return
                payload = source.read(length)
                file.read_at += _RECORD_HEADER.size + length
                is_good = checksum == crc32(payload, crc32(sequence.to_bytes(8, "big")))
                yield sequence, payload if is_good and len(payload) == length else None
    except (OSError, error):  # the file is gone, or ends within a record header
        return


def _read_file(
    file: _SpillFile, at: int, stop: int, size_bytes: int, records: list[tuple[int, bytes]]
) -> int:
    """Collect records from ``at`` on and before ``stop``; return where reading continues."""
    read_bytes = 0
    for sequence, payload in _iter_records(file):
        # Skipped, not fatal: the caller sees from the numbers how many records are missing.
        if payload is None or not at <= sequence < stop:
            continue
        records.append((sequence, payload))
        at, read_bytes = sequence + 1, read_bytes + len(payload)
        if read_bytes >= size_bytes:
            return at
    return stop


def _find_end(file: _SpillFile) -> tuple[int, int]:
    """Return the sequence number after a file's last intact record, and the byte at which that record ends."""
    end_sequence, good_bytes = file.first, 0
    scanned = _SpillFile(file.path, file.first, file.size)
    for sequence, payload in _iter_records(scanned):
        if payload is not None and sequence >= end_sequence:
            end_sequence, good_bytes = sequence + 1, scanned.read_at
    return end_sequence, good_bytes or min(file.size, scanned.read_at)
