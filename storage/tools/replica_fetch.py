"""Fetches damaged parts of the commit log from another replica, whose log has the same bytes at the same offsets.

Nothing is taken on trust. The replica has to send the whole messages beside the damaged part as well, and these must
equal the ones here byte for byte: otherwise its log is not a replica of this one. Messages that lie in other damaged or
filled parts are not compared, but at least one message beside the part has to be. Each message of the part itself must
name its physical offset, its lengths must add up, and its body must match its CRC. Together the messages must fill the
part exactly.

`check_fetch` reads a part without keeping it. `write_fetched` first copies it to a file of its own, because the part
may be as long as a log file, and the replica may fail at any byte. It is put into the log when all of it is there:

1. The first eight bytes of the part become zeros, durably, so that a crash leaves damage and not a mixture.
2. All other bytes are written and flushed.
3. The first eight bytes are written and flushed.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.message import MIN_MESSAGE_BYTES
from storage.commit_log import CommitLog
from storage.damage import is_filler
from storage.errors import StoreError
from storage.files import Files
from storage.layout import BLANK_BYTES, START
from storage.log_scan import NoMessage, ScannedMessage, check_message
from storage.replica_log import MAX_TAIL_BYTES
from storage.tools.log_check import DamagedRange

_COPY_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = START.size

Write = Callable[[int, bytes], object]
"""Takes the physical offset of a message, and its bytes."""


class CannotFetch(StoreError):
    """A replica does not have what is damaged here, or has something else."""


class AlsoFilled(CannotFetch):
    """A replica has fillers where this log has them."""


class LogSource(Protocol):
    """The log of another replica, with the physical offsets [begin, end)."""

    begin: int
    end: int

    def read(self, start: int) -> Iterator[bytes]:
        """Yield the bytes from the start of a message on, as they come. Raises CannotFetch."""


def check_fetch(
    log: CommitLog, source: LogSource, damaged: DamagedRange, lost_ranges: Sequence[DamagedRange]
) -> DamagedRange:
    """Read a damaged range at a replica; return it with the end that the messages there have. Raises CannotFetch.

    ``lost_ranges``: all ranges that are damaged or filled here, in which nothing can be compared.
    """
    return _fetch(log, source, damaged, lost_ranges, lambda offset, message: None)


def write_fetched(
    files: Files,
    root: str,
    log: CommitLog,
    source: LogSource,
    damaged: DamagedRange,
    lost_ranges: Sequence[DamagedRange],
) -> None:
    """Replace a damaged range by the bytes of a replica, durably. Raises CannotFetch; then nothing has changed.

    ``damaged`` is what `check_fetch` returned, and there is room for it in the log's files.
    """
    path = f"{root}/damaged/fetched-{damaged.start:020d}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "wb+") as copy:

            def write(offset: int, message: bytes) -> None:
                copy.write(message)

            fetched = _fetch(log, source, damaged, lost_ranges, write)
            if fetched.end != damaged.end:
                raise CannotFetch(f"the replica's messages now end at {fetched.end}, not at {damaged.end}")
            copy.seek(0)
            _put_into_log(files, log, damaged.start, lambda: copy.read(_COPY_BYTES))
    finally:
        files.delete(path)


def _put_into_log(files: Files, log: CommitLog, start: int, read: Callable[[], bytes]) -> None:
    base = log.base_of(start)
    buffer, first = log.mapped_file(base).buffer, start - base
    buffer[first : first + _FIRST_BYTES] = bytes(_FIRST_BYTES)
    files.flush(log.path(base))
    opening, offset, paths = b"", start, {log.path(base): None}
    while piece := read():
        if not opening:
            opening, piece = piece[:_FIRST_BYTES], bytes(_FIRST_BYTES) + piece[_FIRST_BYTES:]
        while piece:
            part_base = log.base_of(offset)
            position = offset - part_base
            part = piece[: log.file_bytes - position]
            log.mapped_file(part_base).buffer[position : position + len(part)] = part
            paths[log.path(part_base)] = None
            offset, piece = offset + len(part), piece[len(part) :]
    files.flush_many(list(paths))
    buffer[first : first + _FIRST_BYTES] = opening
    files.flush(log.path(base))


def _fetch(
    log: CommitLog,
    source: LogSource,
    damaged: DamagedRange,
    lost_ranges: Sequence[DamagedRange],
    write: Write,
) -> DamagedRange:
    """Read a range at a replica, with a message before and one after it, and check everything."""
    start = damaged.message_before if damaged.message_before >= 0 else damaged.start
    if not source.begin <= start < source.end:
        raise CannotFetch(
            f"the log of the replica begins at {source.begin} and ends at {source.end}, so that it lacks {start}"
        )
    end = _last_byte(log, damaged) if damaged.is_end_unknown else damaged.end
    messages = _messages(log, source.read(start), start)
    offset = start
    are_fillers = True
    comparisons = 0
    while offset < end:
        if offset >= source.end:
            raise CannotFetch(f"the log of the replica ends at {source.end}")
        message, is_whole_filler = next(messages)
        following = offset + len(message)
        if offset < damaged.start:
            if following > damaged.start:
                raise CannotFetch(f"the replica has no message at {damaged.start}")
            if not _is_lost(lost_ranges, offset):
                _compare(log, offset, message)
                comparisons += 1
        else:
            if following > end and not damaged.is_end_unknown:
                raise CannotFetch(
                    f"the replica's message at {offset} ends at {following}, and here the next one begins at {end}"
                )
            are_fillers = are_fillers and is_whole_filler
            write(offset, message)
        offset = following
    if are_fillers and damaged.is_filled:
        raise AlsoFilled("the replica has the same fillers")
    following = offset
    # Without a message before the range, the one to compare may come only after further ranges.
    while not comparisons and following < source.end and _is_lost(lost_ranges, following):
        message, _ = next(messages)
        following += len(message)
    if following < source.end and not _is_lost(lost_ranges, following) and _is_whole_here(log, following):
        message, _ = next(messages)
        _compare(log, following, message)
        comparisons += 1
    if not comparisons:
        raise CannotFetch(
            "there is no whole message beside these bytes here, by which to tell that the log is a replica of this one"
        )
    return replace(damaged, end=offset, is_end_unknown=False)


def _is_lost(lost_ranges: Sequence[DamagedRange], offset: int) -> bool:
    return any(damaged.start <= offset < damaged.end for damaged in lost_ranges)


def _messages(log: CommitLog, pieces: Iterator[bytes], start: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the messages, and the markers with the rest of their file, and whether each is a filler or a marker.

    Raises CannotFetch for what is neither, also because the replica ends too early.
    """
    buffer, offset = bytearray(), start

    def need(size: int) -> None:
        while len(buffer) < size:
            piece = next(pieces, b"")
            if not piece:
                raise CannotFetch(f"the replica sends no whole message at {offset}")
            buffer.extend(piece)

    while True:
        need(BLANK_BYTES)
        size, magic = START.unpack_from(buffer)
        room = log.file_bytes - (offset - log.base_of(offset))
        is_marker = magic == MAGIC_BLANK and size == room
        is_message = magic in (MAGIC_V1, MAGIC_V2) and MIN_MESSAGE_BYTES <= size <= room - BLANK_BYTES
        if not (is_marker or is_message) or size > MAX_TAIL_BYTES:
            raise CannotFetch(f"the replica has no message at {offset}")
        need(size)
        data = bytes(memoryview(buffer)[:size])
        message = NoMessage("") if is_marker else check_message(memoryview(data), 0, offset, True)
        if is_message and isinstance(message, NoMessage):
            raise CannotFetch(f"the replica's message at {offset} is damaged as well: {message.reason}")
        yield data, is_marker or (isinstance(message, ScannedMessage) and is_filler(message))
        del buffer[:size]
        offset += size


def _compare(log: CommitLog, offset: int, message: bytes) -> None:
    """Raise CannotFetch unless this log has the same message. The bytes after a marker mean nothing."""
    base = log.base_of(offset)
    size = BLANK_BYTES if START.unpack_from(message)[1] == MAGIC_BLANK else len(message)
    position = offset - base
    if log.mapped_file(base).view[position : position + size] != message[:size]:
        raise CannotFetch(f"the replica has another message at {offset}: it is not a replica of this store")


def _is_whole_here(log: CommitLog, offset: int) -> bool:
    base = log.base_of(offset)
    if offset >= log.max_offset or not os.path.exists(log.path(base)):
        return False
    view = log.mapped_file(base).view
    return isinstance(check_message(view, offset - base, offset, True), ScannedMessage)


def _last_byte(log: CommitLog, damaged: DamagedRange) -> int:
    """Return one past the last byte of a range that is not zero: messages that begin after it were not here."""
    base = log.base_of(damaged.start)
    view = log.mapped_file(base).view[damaged.start - base : damaged.end - base]
    return damaged.start + max(1, len(bytes(view).rstrip(b"\0")))
