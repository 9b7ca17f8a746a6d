"""Walks through stored messages one after another and reports where they stop being valid.

Recovery, the index and the tools all ask `check_message` whether bytes are a message. It must not accept what a crash
left half written, which would invent a message, nor refuse a whole message, which would cut the log there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.message import MIN_MESSAGE_BYTES
from codec.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from storage.commit_log import CommitLog
from storage.layout import HEADER, LONG, REST, SECTOR_BYTES, SHORT, START


@dataclass(slots=True)
class ScannedMessage:
    """The parts of a stored message that consume queues and the index need."""

    physical_offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: bytes

    @property
    def has_queue_entry(self) -> bool:
        """False if the message is prepared or rolled back, which no queue holds."""
        return self.sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


@dataclass(slots=True)
class NoMessage:
    """The result of a check that finds no valid message.

    The reason is empty where all bytes are zeros, and at a blank marker, which ends a file without an error.
    """

    reason: str
    is_blank_marker: bool = False


@dataclass(slots=True)
class ScanEnd:
    """The end of a scan: one past the last valid message, and the reason; an empty reason means zeros or the limit."""

    physical_offset: int
    reason: str
    zeros: bool  # True if nothing was ever written there


def check_message(
    view: memoryview, position: int, physical_offset: int, check_crc: bool, sectors_lost: bool = False
) -> ScannedMessage | NoMessage:
    """Return the message at ``position``, or the reason why no valid message is there.

    With ``sectors_lost``, after a power cut, properties in which a disk sector is all zeros count as damaged: the CRC
    covers only the body.
    Source: CommitLog.checkMessageAndReturnSize, 5.4.0. Deviation: the message must also name ``physical_offset`` as
    its own, so that remains of an earlier, truncated life of the file are not taken for new messages.
    """
    # Size and magic are written last, so zeros here mean that no message was finished.
    available = len(view) - position
    if available < 8:
        return NoMessage("no room for a message")
    size, magic = START.unpack_from(view, position)
    if magic == MAGIC_BLANK:
        if size == available:
            return NoMessage("", is_blank_marker=True)
        return NoMessage(f"a blank marker of {size} bytes where {available} are left")
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return NoMessage(f"magic number {magic:#010x}" if size or magic else "")
    if not MIN_MESSAGE_BYTES <= size <= available:
        return NoMessage(f"a message of {size} bytes where {available} are left")
    # A whole message from an earlier life of the file passes all other checks, but names the offset that it had then.
    (_, _, body_crc, queue_id, _, queue_offset, own_offset, sys_flag, *_) = HEADER.unpack_from(view, position)
    if own_offset != physical_offset:
        return NoMessage(f"the message belongs at physical offset {own_offset}")
    # Walk over the parts of variable length. A torn or damaged message can hold any length, so each part must end
    # within the message before the next one is read.
    at = position + 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
    (store_timestamp,) = LONG.unpack_from(view, at)
    at += 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    end = position + size
    if at + REST.size > end:
        return NoMessage(f"a message of {size} bytes is shorter than its header")
    body_bytes = REST.unpack_from(view, at)[2]
    body = at + REST.size
    at = body + body_bytes
    topic_at = at + (1 if magic == MAGIC_V1 else 2)
    if body_bytes < 0 or topic_at > end:
        return NoMessage(f"a body of {body_bytes} bytes in a message of {size}")
    topic_end = topic_at + (view[at] if magic == MAGIC_V1 else SHORT.unpack_from(view, at)[0])
    if topic_end + 2 > end or topic_end + 2 + SHORT.unpack_from(view, topic_end)[0] != end:
        return NoMessage("its parts do not add up to its size")
    # The CRC covers only the body. A sector that a power cut took from the properties shows as zeros, which our broker
    # never stores there. The official one may, so without a power cut such properties are accepted.
    if check_crc and body_bytes and crc32(view[body:at]) & 0x7FFFFFFF != body_crc:
        return NoMessage("the body does not match its CRC")
    topic, properties = bytes(view[topic_at:topic_end]), bytes(view[topic_end + 2 : end])
    if not topic or b"\0" in topic or (sectors_lost and _has_lost_sector(properties, topic_end + 2)):
        return NoMessage("its topic or properties are damaged")
    return ScannedMessage(
        physical_offset, size, topic, queue_id, queue_offset, sys_flag, store_timestamp, properties
    )


def check_message_at(log: CommitLog, physical_offset: int) -> ScannedMessage | NoMessage:
    """Return what `check_message` says of the message at a physical offset, without checking its CRC."""
    base = log.base_of(physical_offset)
    return check_message(log.mapped_file(base).view, physical_offset - base, physical_offset, check_crc=False)


def _has_lost_sector(properties: bytes, position: int) -> bool:
    """Return True if a disk sector of the properties is all zeros.

    `storage.append` refuses properties that would look like this wherever they lie.
    """
    if b"\0" not in properties:
        return False
    end = position + len(properties)
    first = position - position % SECTOR_BYTES
    for sector in range(first, end, SECTOR_BYTES):
        part = properties[max(sector, position) - position : sector + SECTOR_BYTES - position]
        if not part.strip(b"\0") and (sector >= position or len(part) > 1):
            return True
    return False


def _describe_unwritten(view: memoryview, position: int, readable: int) -> str | None:
    """Return the reason why a message of which a part was never written is invalid; None if all of it was written.

    The reason is the empty string where nothing was written. ``readable`` is the end of the bytes that may be read.
    """
    # Reading past ``readable`` can end the process (`MappedFile.readable_until`), so this comes before any check.
    if position + START.size > readable:
        return ""
    size, magic = START.unpack_from(view, position)
    if magic == MAGIC_BLANK or position + size <= readable:
        return None
    return f"a message of {size} bytes where {readable - position} were written"


def scan_log(
    log: CommitLog, start: int, end: int, check_crc: bool = True, sectors_lost: bool = False
) -> Iterator[ScannedMessage | ScanEnd]:
    """Yield the messages between two physical offsets, then one ScanEnd.

    A message must begin at ``start``. ``end`` is exclusive; a scan that reaches it ends without a reason.
    """
    offset = start
    while offset < end:
        base = log.base_of(offset)
        mapped = log.mapped_file(base)
        view = mapped.view
        scan_end = min(log.file_bytes, end - base)
        position = offset - base
        readable = mapped.readable_until(position)
        while position < scan_end:
            if readable < log.file_bytes:
                unwritten = _describe_unwritten(view, position, readable)
                if unwritten is not None:
                    yield ScanEnd(base + position, unwritten, not unwritten)
                    return
            message = check_message(view, position, base + position, check_crc, sectors_lost)
            if isinstance(message, ScannedMessage):
                yield message
                position += message.size
            elif message.is_blank_marker:
                position = log.file_bytes  # The next message begins with the next file.
            else:
                yield ScanEnd(base + position, message.reason, not message.reason)
                return
        offset = base + position
    yield ScanEnd(offset, "", True)
