"""Damage in the middle of the commit log: set aside, and replaced so that the log stays readable across it.

A flipped bit makes one message invalid; the messages after it are whole. Cutting the log there, as is right for a torn
end, would lose them all. `recovery.py` decides which of the two it is.

1. `find_next_message` finds where the log is whole again.
2. Entries of consume queues that point there become *holes* (`ConsumeQueue.make_holes`): they keep their queue offsets,
   so that later messages keep theirs, and reads skip them.
3. `set_aside` copies the damaged bytes durably to ``damaged/<first>-<end>`` in the store's folder, for examination.
4. `write_filler` replaces them by fillers: valid messages without a queue entry, or the marker that ends a file. Any
   broker can read across them.

A crash before the last step leaves the damage, which the next start finds again.
"""

import logging
import re
from typing import Final
from zlib import crc32

from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.message import MAGIC_AT
from codec.sysflag import TRANSACTION_PREPARED
from storage.commit_log import CommitLog
from storage.files import Files
from storage.layout import BLANK_BYTES, HEADER, SHORT, START
from storage.log_scan import ScannedMessage, check_message

log = logging.getLogger(__name__)

FILLER_TOPIC = b"!"
"""As short as the shortest topic, so that a filler fits into the bytes of any message. No topic can have this name."""
_TOPIC_PART = bytes((len(FILLER_TOPIC),)) + FILLER_TOPIC
FILLER_FRAME_BYTES: Final = HEADER.size + len(_TOPIC_PART) + 2
MAX_FILLER_BYTES: Final = 1 << 20
"""A longer range gets several fillers: the official broker reads a whole message into its heap when it recovers."""
_NO_HOST = bytes(8)
MESSAGE_MAGIC = re.compile(b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2)))
"""Finds the places where messages may start, MAGIC_AT bytes before each match."""


def is_filler(message: ScannedMessage) -> bool:
    """Return True for a message that stands for damaged bytes."""
    return message.topic == FILLER_TOPIC


def find_next_message(log_files: CommitLog, damaged_from: int, end: int, sectors_lost: bool) -> int | None:
    """Return where the first whole message after ``damaged_from`` starts, below ``end``; None if there is none.

    A message is recognised by its magic number, by naming its own physical offset, and by its CRC.
    """
    base = log_files.base_of(damaged_from)
    position = damaged_from + 1 - base
    while base < end:
        mapped = log_files.mapped_file(base)
        limit = min(end - base, log_files.file_bytes, mapped.readable_until(position))
        for magic in MESSAGE_MAGIC.finditer(mapped.buffer, position + MAGIC_AT, limit):
            start = magic.start() - MAGIC_AT
            message = check_message(mapped.view, start, base + start, True, sectors_lost)
            if isinstance(message, ScannedMessage):
                return base + start
        base, position = base + log_files.file_bytes, 0
    return None


def set_aside(files: Files, root: str, log_files: CommitLog, start: int, end: int, reason: str) -> None:
    """Copy the bytes [start, end) of the log to a file of their own, durably, and report it. Raises StoreFull."""
    path = f"{root}/damaged/{start:020d}-{end:020d}"
    parts = []
    for base, first, last in _parts_by_file(log_files, start, end):
        mapped = log_files.mapped_file(base)
        mapped.reserve(first, last)  # a part of it may never have been written
        parts.append(bytes(mapped.view[first:last]))
    files.write_small(path, b"".join(parts))
    log.error(
        "commit log is damaged: the bytes were set aside, and the messages after them stay readable",
        extra={"physical_offset": start, "bytes": end - start, "reason": reason, "copy": path},
    )


def write_filler(files: Files, log_files: CommitLog, start: int, end: int) -> None:
    """Replace the bytes [start, end) by fillers and flush them.

    Raises CorruptionError for a range that is too short for one; nothing has changed then.
    """
    for base, first, last in _parts_by_file(log_files, start, end):
        size = last - first
        if size < FILLER_FRAME_BYTES and (last < log_files.file_bytes or size < BLANK_BYTES):
            raise log_files.corruption_error(base + first, f"{size} damaged bytes between two messages")
    for base, first, last in _parts_by_file(log_files, start, end):
        buffer = log_files.mapped_file(base).buffer
        if last == log_files.file_bytes:
            # Fillers up to the marker: recovery tells by them how many messages a queue can lack.
            marker = last - BLANK_BYTES if last - first >= FILLER_FRAME_BYTES + BLANK_BYTES else first
            buffer[marker:last] = START.pack(last - marker, MAGIC_BLANK) + bytes(last - marker - BLANK_BYTES)
            last = marker
        while first < last:
            size = min(MAX_FILLER_BYTES, last - first)
            if 0 < last - first - size < FILLER_FRAME_BYTES:
                size -= FILLER_FRAME_BYTES  # which leaves enough for the next one
            buffer[first : first + size] = _filler(base + first, size)
            first += size
        files.flush(log_files.path(base))


def _filler(physical_offset: int, size: int) -> bytes:
    """Return a message of ``size`` bytes without queue entry: a half message that nobody ends."""
    body = bytes(size - FILLER_FRAME_BYTES)
    head = HEADER.pack(
        size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, 0, 0, 0, physical_offset, TRANSACTION_PREPARED,
        0, _NO_HOST, 0, _NO_HOST, 0, 0, len(body),
    )  # fmt: skip
    return b"".join((head, body, _TOPIC_PART, SHORT.pack(0)))


def _parts_by_file(log_files: CommitLog, start: int, end: int) -> list[tuple[int, int, int]]:
    """Split [start, end) at the ends of files; return for each part the file's base and the positions in it."""
    parts = []
    while start < end:
        base = log_files.base_of(start)
        stop = min(end, base + log_files.file_bytes)
        parts.append((base, start - base, stop - base))
        start = stop
    return parts
