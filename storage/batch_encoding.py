"""Encodes the body of a batch send into stored messages and queue entries for the end of the commit log.

Nothing is written here; `append.py` copies the result into the files.
"""

from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from zlib import crc32

from codec.constants import MAGIC_V1, MAGIC_V2
from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.errors import MessageIllegal, PropertiesTooLong
from storage.layout import MAX_PROPERTIES_BYTES, SECTOR_BYTES, SHARED_HEADERS, SHORT
from storage.tags import TAGS, tags_code_of

Encoded = tuple[bytes, list[int], bytes]
"""Stored messages, their physical offsets, their queue entries."""

# Flag and body length of a message in a batch body. Like the official broker, this one ignores the fields before them
# (total size, magic, checksum).
_FLAG_AND_SIZE = Struct(">12xiI")
_HEAD_BYTES = 20


_ZERO_SECTOR = bytes(SECTOR_BYTES)


def check_no_lost_sector(properties: bytes) -> None:
    """Raise MessageIllegal for properties that could look as if the disk had lost a sector of them.

    After a power cut, zeros are the only sign of a lost sector (`log_scan.check_message`).
    Deviation: the official broker stores such properties; it does not look for lost sectors.
    """
    if properties[:1] == b"\0" or properties[-1:] == b"\0" or _ZERO_SECTOR in properties:
        raise MessageIllegal(
            f"the properties begin or end with a NUL character, or hold {SECTOR_BYTES} of them in a row"
        )


def encode_batch(log: CommitLog, queue: ConsumeQueue, batch: bytes, common: bytes, suffix: bytes) -> Encoded:
    """Encode all messages of a batch. Raises MessageIllegal.

    ``common`` is the header from the system flag to the prepared transaction offset; ``suffix`` is encoded properties
    that are appended to every message's own.
    """
    queue_id, suffix_bytes = queue.queue_id, len(suffix)
    magic = MAGIC_V1 if len(queue.topic_part) <= 128 else MAGIC_V2
    pack, unpack = SHARED_HEADERS[len(common)].pack, _FLAG_AND_SIZE.unpack_from
    tails = _Tails(queue.topic_part)
    fixed = 40 + len(common) + len(queue.topic_part)
    offset, physical_offset = queue.next_offset, log.base + log.position
    tagged = TAGS in batch
    pieces: list[bytes] = []
    entries: list[int] = []
    end, position = len(batch), 0
    try:
        while position < end:
            flag, body_bytes = unpack(batch, position)
            start = position + _HEAD_BYTES
            body_end = start + body_bytes
            body = batch[start:body_end]
            properties_at = body_end + 2
            position = properties_at + (batch[body_end] << 8 | batch[body_end + 1])
            properties = batch[properties_at:position]
            if suffix_bytes:
                properties += suffix if not properties or properties[-1] == 2 else b"\x02" + suffix
            if b"\0" in properties:
                check_no_lost_sector(properties)
            properties_bytes = len(properties)
            size = fixed + 2 + body_bytes + properties_bytes
            crc = crc32(body) & 0x7FFFFFFF
            head = pack(size, magic, crc, queue_id, flag, offset, physical_offset, common, body_bytes)
            pieces += (head, body, tails[properties_bytes], properties)
            entries += (physical_offset, size, tags_code_of(properties) if tagged else 0)
            physical_offset += size
            offset += 1
    except (struct_error, IndexError):
        position = -1
    if position != end or not entries:
        raise MessageIllegal("the batch is empty or ends inside a message")
    return b"".join(pieces), entries[0::3], _queue_entries(len(entries) // 3).pack(*entries)


class _Tails(dict[int, bytes]):
    """The bytes between body and properties, by the length of the properties; a batch has few different lengths."""

    def __init__(self, topic_part: bytes) -> None:
        self._topic_part = topic_part

    def __missing__(self, properties_bytes: int) -> bytes:
        if properties_bytes > MAX_PROPERTIES_BYTES:
            raise PropertiesTooLong(
                f"the properties take {properties_bytes} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
            )
        tail = self[properties_bytes] = self._topic_part + SHORT.pack(properties_bytes)
        return tail


@lru_cache(maxsize=256)
def _queue_entries(count: int) -> Struct:
    """Return the struct of ``count`` queue entries in a row."""
    return Struct(">" + "qiq" * count)
