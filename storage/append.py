"""Turns a message's fields into stored bytes and puts them where they belong; the hot half of the store.

Not responsible for finding the queue, for durability, or for whether the sender may send.
"""

from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from zlib import crc32

from codec.constants import MAGIC_V1, MAGIC_V2
from codec.hashing import tags_code as hash_tags
from codec.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.errors import MessageIllegal, PropertiesTooLong
from storage.files import Buffer
from storage.layout import (
    HEADER,
    MAX_PROPERTIES_BYTES,
    QUEUE_ENTRY,
    SHORT,
    TIMESTAMP,
)

# Queue offset, physical offset, size in bytes, store timestamp in ms. A plain tuple: a named one costs as
# much as
# the rest of the bookkeeping.
Appended = tuple[int, int, int, int]
# First queue offset, physical offset of each message, store timestamp in ms.
BatchAppended = tuple[int, list[int], int]

_FLAG_AND_TIME = Struct(">iq")
_TIMES = Struct(">iq")
# Message headers with all that a batch's messages share as one piece: 4 + 8 + host + 8 + host + 4 + 8 bytes.
_HEADERS = {length: Struct(f">IIIiiqq{length}sI") for length in (48, 60, 72)}

# Flag and body length of a message in a batch body.
_BATCH_FLAG_AND_SIZE = Struct(">12xiI")

_TAGS = b"TAGS\x01"
_PLAIN = ~(BORN_HOST_V6 | STORE_HOST_V6)


def tags_code_of(properties: bytes) -> int:
    """The tags code of encoded properties; 0 when they hold no tags."""
    at = properties.rfind(b"\x02TAGS\x01")
    if at >= 0:
        start = at + 6
    elif properties.startswith(_TAGS):
        start = 5
    else:
        return 0
    end = properties.find(b"\x02", start)
    tags = properties[start:] if end < 0 else properties[start:end]
    return hash_tags(tags.decode("utf-8", "replace"))


def append_message(
    log: CommitLog,
    queue: ConsumeQueue,
    store_host: bytes,
    now_ms: int,
    body: bytes | memoryview,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    tags_code: int | None,
    prepared: int,
    max_bytes: int,
) -> Appended:
    """Writes one message and its queue entry; on MessageIllegal or StoreFull nothing has changed.

    Source: CommitLog.asyncPutMessage, MessageExtEncoder.encode, 5.4.0.
    """
    body_bytes, properties_bytes = len(body), len(properties)
    topic_part = queue.topic_part
    rest_bytes = body_bytes + len(topic_part) + 2 + properties_bytes
    size = 72 + len(born_host) + len(store_host) + rest_bytes
    if properties_bytes > MAX_PROPERTIES_BYTES or body_bytes > max_bytes:
        raise _too_large(body_bytes, max_bytes, properties_bytes)
    # Room first: what fails leaves nothing half done. The log before the queue, whose files it may close.
    if log.position + size > log.limit:
        log.make_room(size)
    if queue.position >= queue.limit:
        queue.make_room()
    position, buffer = log.position, log.buffer
    physical_offset = log.base + position
    visible = sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
    queue_offset = queue.next_offset if visible else 0
    # The header goes last: a process killed in between leaves a size of zero, which is no message.
    rest = position + size - rest_bytes
    buffer[rest : rest + rest_bytes] = b"".join((body, topic_part, SHORT.pack(properties_bytes), properties))
    magic = MAGIC_V1 if len(topic_part) <= 128 else MAGIC_V2
    crc = crc32(body) & 0x7FFFFFFF
    if size - rest_bytes == HEADER.size:
        HEADER.pack_into(
            buffer, position, size, magic, crc, queue.queue_id, flag, queue_offset, physical_offset,
            sys_flag & _PLAIN, born_timestamp, born_host, now_ms, store_host, reconsume_times,
            prepared, body_bytes,
        )  # fmt: skip
    else:
        common = _common_part(
            sys_flag, born_timestamp, born_host, now_ms, store_host, reconsume_times, prepared
        )
        fields = (size, magic, crc, queue.queue_id, flag, queue_offset, physical_offset, common, body_bytes)
        _write_head(buffer, position, _HEADERS[len(common)].pack(*fields))
    log.position = position + size
    if visible:
        tags_code = tags_code_of(properties) if tags_code is None else tags_code
        QUEUE_ENTRY.pack_into(queue.buffer, queue.position, physical_offset, size, tags_code)
        queue.position += 20
        queue.next_offset = queue_offset + 1
        queue.used = True
    return queue_offset, physical_offset, size, now_ms


def append_many(
    log: CommitLog,
    queue: ConsumeQueue,
    store_host: bytes,
    now_ms: int,
    batch: bytes,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    max_bytes: int,
    properties_suffix: bytes,
) -> BatchAppended:
    """Writes all messages of a batch body and their queue entries: all of them or, on an error, none.

    `properties_suffix` is encoded properties that every message gets behind its own.

    Source: MessageExtEncoder.encode(MessageExtBatch), CommitLog.asyncPutMessages, 5.4.0.
    """
    if len(batch) > max_bytes:
        raise MessageIllegal(f"the batch takes {len(batch)} bytes, at most {max_bytes} are allowed")
    common = _common_part(sys_flag, born_timestamp, born_host, now_ms, store_host, reconsume_times, 0)
    # Sizes do not depend on where the messages go: they are laid out from the current end of the log, and
    # once more only when its file turns out to be too short for them.
    blob, places, entries = _encode(log, queue, batch, common, properties_suffix)
    size = len(blob)
    if log.position + size > log.limit:
        before = log.base
        log.make_room(size)
        if log.base != before:
            blob, places, entries = _encode(log, queue, batch, common, properties_suffix)
    if queue.position + len(entries) > queue.limit:
        queue.make_room_for(len(entries))
    position, buffer = log.position, log.buffer
    # The first size goes last, for the same reason as the header of a single message.
    buffer[position + 4 : position + size] = memoryview(blob)[4:]
    buffer[position : position + 4] = blob[:4]
    log.position = position + size
    first = queue.next_offset
    queue.put_many(entries)
    return first, places, now_ms


def _encode(
    log: CommitLog, queue: ConsumeQueue, batch: bytes, common: bytes, suffix: bytes
) -> tuple[bytes, list[int], bytes]:
    """(stored messages, their physical offsets, queue entries) of a batch body, as if put at the log's end.

    `common` is the part of the header from the system flag to the prepared transaction offset; `suffix` goes
    behind every message's own properties.
    """
    queue_id, suffix_bytes = queue.queue_id, len(suffix)
    magic = MAGIC_V1 if len(queue.topic_part) <= 128 else MAGIC_V2
    pack, unpack = _HEADERS[len(common)].pack, _BATCH_FLAG_AND_SIZE.unpack_from
    tails = _Tails(queue.topic_part)
    fixed = 40 + len(common) + len(queue.topic_part)
    offset, physical_offset = queue.next_offset, log.base + log.position
    tagged = _TAGS in batch
    pieces: list[bytes] = []
    entries: list[int] = []
    end, position = len(batch), 0
    try:
        while position < end:
            # Of what else is in front, total size, magic and checksum, nothing is looked at, as officially.
            flag, body_bytes = unpack(batch, position)
            start = position + 20
            body_end = start + body_bytes
            body = batch[start:body_end]
            properties_at = body_end + 2
            position = properties_at + (batch[body_end] << 8 | batch[body_end + 1])
            properties = batch[properties_at:position]
            if suffix_bytes:
                properties += suffix if not properties or properties[-1] == 2 else b"\x02" + suffix
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
    """What stands between body and properties, by the length of the properties; a batch has few of them."""

    def __init__(self, topic_part: bytes) -> None:
        self._topic_part = topic_part

    def __missing__(self, properties_bytes: int) -> bytes:
        if properties_bytes > MAX_PROPERTIES_BYTES:
            raise PropertiesTooLong(f"the properties take {properties_bytes} bytes")
        tail = self[properties_bytes] = self._topic_part + SHORT.pack(properties_bytes)
        return tail


@lru_cache(maxsize=256)
def _queue_entries(count: int) -> Struct:
    return Struct(">" + "qiq" * count)


def _write_head(buffer: Buffer, position: int, head: bytes) -> None:
    """Writes a header, its size last."""
    buffer[position + 4 : position + len(head)] = head[4:]
    buffer[position : position + 4] = head[:4]


def _too_large(body_bytes: int, max_bytes: int, properties_bytes: int) -> MessageIllegal:
    if properties_bytes > MAX_PROPERTIES_BYTES:
        return PropertiesTooLong(f"properties of {properties_bytes} bytes, {MAX_PROPERTIES_BYTES} fit")
    return MessageIllegal(f"the body takes {body_bytes} bytes, at most {max_bytes} are allowed")


def _common_part(
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    now_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> bytes:
    """The header from the system flag to the prepared transaction offset, for hosts of either length."""
    flags = sys_flag & _PLAIN
    flags |= BORN_HOST_V6 if len(born_host) == 20 else 0
    flags |= STORE_HOST_V6 if len(store_host) == 20 else 0
    return b"".join(
        (
            _FLAG_AND_TIME.pack(flags, born_timestamp),
            born_host,
            TIMESTAMP.pack(now_ms),
            store_host,
            _TIMES.pack(reconsume_times, prepared_transaction_offset),
        )
    )
