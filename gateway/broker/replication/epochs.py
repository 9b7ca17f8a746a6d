"""The epochs of a log: which master wrote which part of it, and how far the logs of two brokers are the same.

Theory of operation
-------------------
A controller gives each master that it elects an *epoch*, a number above all earlier ones. The master notes the epoch
with the end of its log at that moment, and the epoch lasts until the next one begins. A slave has the entries of its
master that begin in its own part of the log. Two brokers that have an epoch with the same start had the same bytes
before it, and got their later ones from the same master: so their logs are equal up to the end of the newest epoch
that both have (`EpochTable.consistent_point`). What a broker has after that point, no other one has to have.

The file is the official one, ``<storePathRootDir>/epochFileCheckpoint``: the number of entries, the CRC-32 of the
others lines without its highest bit, and a line ``epoch-start`` for each. It is on the disk when a change returns, so
that no byte of an epoch is in the log before its entry is.

Deviations, each of which the brokers of one name can have independently:

- An epoch in which nothing was stored stays in the table, with the same start as the next one. The official broker
  leaves the next one out instead, and with it the proof that two masters wrote different messages from there on.
- An empty table deletes the files. The official broker leaves the last entries in them.
- A table has at most `MAX_EPOCHS` entries, as many as an official master can send. The empty ones go first.

Source: EpochFileCache and CheckpointFile, 5.4.0.
"""

import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from codec.java_numbers import I32, I64, parse_java_integer
from storage.files import Files

log = logging.getLogger(__name__)

FILE_NAME: Final = "epochFileCheckpoint"
MAX_EPOCHS: Final = 1000
NO_END: Final = I64.high
"""The end of the newest epoch, which goes on."""
_ENTRY: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")


class EpochStart(NamedTuple):
    """One epoch, and the physical offset of its first byte."""

    epoch: int
    start: int


def check_epochs(entries: Sequence[EpochStart]) -> None:
    """Raise ValueError unless epochs ascend, and starts do not descend."""
    before = EpochStart(-1, 0)
    for entry in entries:
        if not (before.epoch < entry.epoch <= I32.high and before.start <= entry.start <= I64.high):
            raise ValueError(f"{entry.epoch}-{entry.start} cannot follow {before.epoch}-{before.start}")
        before = entry


def encode_epochs(entries: Iterable[EpochStart]) -> bytes:
    """Return the content of the file."""
    lines = [f"{entry.epoch}-{entry.start}\n" for entry in entries]
    content = "".join(lines).encode()
    return b"%d\n%d\n%b" % (len(lines), crc32(content) & 0x7FFFFFFF, content)


def parse_epochs(data: bytes) -> tuple[EpochStart, ...]:
    """Return the entries of a file. A CRC of 0 is not checked. Raises ValueError."""
    count, checksum, content = data.decode("ascii").split("\n", 2)
    entries = []
    for line in content.splitlines():
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ValueError(f"{line!r} is not an epoch and its start")
        entries.append(EpochStart(parse_java_integer(match[1], I32), parse_java_integer(match[2])))
    if parse_java_integer(count) != len(entries):
        raise ValueError(f"{count} entries are announced, {len(entries)} follow")
    if parse_java_integer(checksum) not in (0, crc32(content.encode()) & 0x7FFFFFFF):
        raise ValueError("the entries do not match their CRC")
    check_epochs(entries)
    return tuple(entries)


class EpochTable:
    """The epochs of one broker's log, kept in a file. ``root`` is the folder of the store.

    All changes raise StoreFull or OSError, and change nothing then.
    """

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._path = f"{root}/{FILE_NAME}"
        self._backup = f"{self._path}.bak"
        self._is_readable = True
        self._entries = self._read()
        self._starts = [entry.start for entry in self._entries]

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All epochs, oldest first."""
        return self._entries

    @property
    def newest(self) -> EpochStart | None:
        """The epoch that goes on; None before the first election."""
        return self._entries[-1] if self._entries else None

    def find(self, offset: int) -> EpochStart | None:
        """Return the newest epoch that begins at or before an offset; the first one for bytes before it.

        Those were stored before the broker had a controller. None only from an empty table.
        """
        index = bisect_right(self._starts, offset)
        return self._entries[max(0, index - 1)] if self._entries else None

    def end_of_epoch(self, offset: int) -> int:
        """Return the end of the epoch that a byte is in."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else NO_END

    def consistent_point(
        self, own_end: int, master_entries: Sequence[EpochStart], master_end: int
    ) -> int | None:
        """Return up to which offset this log is the master's: the end of the newest epoch that both have.

        ``own_end`` and ``master_end`` are the ends of the logs. None if they have no epoch in common.
        """
        master_ends = {entry: end for entry, end in with_ends(master_entries, master_end)}
        for entry, end in reversed(with_ends(self._entries, own_end)):
            if entry in master_ends:
                return min(end, master_ends[entry])
        return None

    # -- changes --------------------------------------------------------------------------------------------------

    def append(self, epoch: int, start: int) -> None:
        """Begin an epoch at the end of the log.

        An entry of the same epoch gets the new start, as in the official broker: a master that was started again may
        have lost its last bytes. Raises ValueError for an epoch that is older than the newest one.
        """
        if self.newest is not None and self.newest.epoch > epoch:
            raise ValueError(f"epoch {epoch} is older than {self.newest.epoch}")
        earlier = [entry for entry in self._entries if entry.epoch < epoch and entry.start <= start]
        self._replace([*earlier, EpochStart(epoch, start)])

    def adopt(self, master_entries: Sequence[EpochStart], end: int) -> None:
        """Take over what a master says about a log that is its own up to ``end``.

        Older epochs that the master has forgotten, because it has deleted their messages, stay. One without messages
        goes: after an unclean election the master may never have had it.
        """
        entries = [entry for entry in master_entries if entry.start <= end]
        if entries:
            first = entries[0]
            older = [
                entry for entry in self._entries if entry.epoch < first.epoch and entry.start < first.start
            ]
            entries = older + entries
        self._replace(entries)

    def trim(self, end: int) -> None:
        """Forget the epochs that begin after the end of the log, which a loss of power may have shortened."""
        self._replace([entry for entry in self._entries if entry.start <= end])

    def cut(self, end: int) -> None:
        """Forget the epochs that begin at or after the place where the log is cut: they are another master's."""
        self._replace([entry for entry in self._entries if entry.start < end])

    def drop_before(self, begin: int) -> None:
        """Forget the epochs that end before the log begins, as old files are deleted.

        One that ends where the log begins stays: two logs may part there.
        """
        self._replace(self._entries[max(0, bisect_left(self._starts, begin) - 1) :])

    # -- the file -------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[EpochStart, ...]:
        for path in (self._path, self._backup):
            data = self._files.read_small(path)
            if not data:
                continue
            try:
                return parse_epochs(data)
            except ValueError as error:
                self._is_readable = False
                log.error("epochs cannot be read", extra={"path": path, "reason": str(error)})
        return ()

    def _replace(self, entries: Sequence[EpochStart]) -> None:
        entries = _bounded(entries)
        if entries == self._entries:
            return
        if entries:
            # A file that cannot be read must not take the place of a backup that can.
            self._files.write_small(
                self._path, encode_epochs(entries), self._backup if self._is_readable else None
            )
        else:
            # The backup first: it would be read as soon as the other one is missing.
            for path in (self._backup, self._path):
                self._files.delete(path)
                self._files.flush(path)
        self._is_readable = True
        self._entries = entries
        self._starts = [entry.start for entry in entries]


def with_ends(entries: Sequence[EpochStart], end: int) -> list[tuple[EpochStart, int]]:
    """Return each epoch with its end; that of the newest one is ``end``."""
    ends = [entry.start for entry in entries[1:]] + [end]
    return list(zip(entries, ends, strict=False))


def _bounded(entries: Sequence[EpochStart]) -> tuple[EpochStart, ...]:
    """Return at most `MAX_EPOCHS` entries: the oldest in which nothing was stored go first, then the oldest."""
    surplus = len(entries) - MAX_EPOCHS
    if surplus <= 0:
        return tuple(entries)
    empty = [entry for entry, end in with_ends(entries, NO_END) if entry.start == end][:surplus]
    dropped = set(empty)
    return tuple(entry for entry in entries if entry not in dropped)[-MAX_EPOCHS:]
