"""Encodes messages and writes them into the commit log and their consume queue: the hot half of the store.

`MessageStore` looks up the queue and makes messages durable (`MessageStore.flush`); the broker checks permissions.

A message travels from the handler of a send to `append_message` as one `NewMessage`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Generic, Protocol, TypeVar, cast
from zlib import crc32

from codec.constants import MAGIC_V1, MAGIC_V2
from codec.hosts import pack_host
from codec.message import Message
from codec.properties import encode_properties
from codec.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from storage.commit_log import CommitLog
from storage.disk_mapping import Buffer
from storage.errors import MessageIllegal, PropertiesTooLong
from storage.layout import (
    HEADER,
    MAX_PROPERTIES_BYTES,
    QUEUE_ENTRY,
    SECTOR_BYTES,
    SHARED_HEADERS,
    SHORT,
    TIMESTAMP,
)
from storage.tags import TAGS, tags_code_of

# Queue offset, physical offset, size in bytes, store timestamp in ms. A plain tuple, because a named one costs as much
# as the rest of the bookkeeping.
Appended = tuple[int, int, int, int]
# First queue offset, physical offset of each message, store timestamp in ms.
BatchAppended = tuple[int, list[int], int]

Encoded = tuple[bytes, list[int], bytes]
"""Stored messages, their physical offsets, their queue entries."""

# Flag and body length of a message in a batch body. Like the official broker, this one ignores the fields before them
# (total size, magic, checksum).
_FLAG_AND_SIZE = Struct(">12xiI")
_HEAD_BYTES = 20
_ZERO_SECTOR = bytes(SECTOR_BYTES)
_FLAG_AND_TIME = Struct(">iq")
_TIMES = Struct(">iq")
_PLAIN = ~(BORN_HOST_V6 | STORE_HOST_V6)
NO_HOST = bytes(8)

Properties = TypeVar("Properties", bytes, str, dict[str, str])
OtherProperties = TypeVar("OtherProperties", bytes, str, dict[str, str])


class QueueWriter(Protocol):
    """The end of a queue, to which a message and its entry are appended: a `ConsumeQueue` or a `QueueTail`."""

    topic_part: bytes
    queue_id: int
    next_offset: int
    buffer: Buffer
    position: int
    limit: int
    recently_used: bool

    def make_room(self) -> None:
        """Get room for the next entry. Raises StoreFull."""

    def make_room_for(self, size: int) -> None:
        """Get room for ``size`` bytes of entries. Raises StoreFull."""

    def append_entry(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Append one entry."""

    def append_entries(self, entries: bytes) -> None:
        """Append encoded entries."""


@dataclass(slots=True)
class NewMessage(Generic[Properties]):
    """A message to be stored: the one shape in which its fields travel, from its creator into the log.

    ``properties`` are bytes as stored, the text that a producer sent, or a dictionary while they may still change;
    `append_message` encodes the latter two. Hosts are packed: address and 4-byte port, 8 or 20 bytes. The tags code of
    the queue entry is computed from the TAGS property when ``tags_code`` is None.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: Properties
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = NO_HOST
    store_host: bytes = NO_HOST
    reconsume_times: int = 0
    tags_code: int | None = None
    prepared_transaction_offset: int = 0

    @staticmethod
    def from_stored(message: Message, topic: str, queue_id: int) -> "NewMessage[dict[str, str]]":
        """Copy a stored message to another queue, with its flags, times and hosts."""
        return NewMessage(
            topic,
            queue_id,
            message.body,
            message.properties,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            pack_host(message.born_host),
            pack_host(message.store_host),
            message.reconsume_times,
        )

    def replace_properties(self, properties: OtherProperties) -> "NewMessage[OtherProperties]":
        """Give this message other properties, perhaps of another form, and return it. A copy would take 2 µs."""
        message: NewMessage[OtherProperties] = cast(Any, self)
        message.properties = properties
        return message

    def with_changes(self, **fields: object) -> "NewMessage[Properties]":
        """Return a copy with some fields replaced."""
        return replace(self, **fields)  # type: ignore[arg-type]


def append_message(
    log: CommitLog, queue: QueueWriter, message: NewMessage[Any], now_ms: int, max_bytes: int
) -> Appended:
    """Write one message and its queue entry. Raises MessageIllegal or StoreFull, and then nothing has changed.

    ``max_bytes`` bounds the body. Source: CommitLog.asyncPutMessage, MessageExtEncoder.encode, 5.4.0.
    """
    body, properties, sys_flag = message.body, message.properties, message.sys_flag
    born_host, store_host = message.born_host, message.store_host
    if properties.__class__ is not bytes:
        properties = properties.encode() if properties.__class__ is str else encode_properties(properties)
    body_bytes, properties_bytes, topic_part = len(body), len(properties), queue.topic_part
    rest_bytes = body_bytes + len(topic_part) + 2 + properties_bytes
    size = 72 + len(born_host) + len(store_host) + rest_bytes
    if properties_bytes > MAX_PROPERTIES_BYTES or body_bytes > max_bytes or b"\0" in properties:
        check_message_parts(body_bytes, max_bytes, properties)
    # Get room first, so that a failure changes nothing. Log before queue: rolling the log may close the queue's file.
    if log.position + size > log.limit:
        log.make_room(size)
    if queue.position >= queue.limit:
        queue.make_room()
    position, buffer = log.position, log.buffer
    physical_offset = log.base + position
    visible = sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
    queue_offset = queue.next_offset if visible else 0
    # The header is written last: a process killed in between leaves a size of zero, which ends the log.
    rest = position + size - rest_bytes
    buffer[rest : rest + rest_bytes] = b"".join((body, topic_part, SHORT.pack(properties_bytes), properties))
    magic = MAGIC_V1 if len(topic_part) <= 128 else MAGIC_V2
    crc = crc32(body) & 0x7FFFFFFF
    if size - rest_bytes == HEADER.size:
        HEADER.pack_into(
            buffer, position, size, magic, crc, queue.queue_id, message.flag, queue_offset, physical_offset,
            sys_flag & _PLAIN, message.born_timestamp, born_host, now_ms, store_host, message.reconsume_times,
            message.prepared_transaction_offset, body_bytes,
        )  # fmt: skip
    else:
        common = _common_part(
            sys_flag, message.born_timestamp, born_host, now_ms, store_host, message.reconsume_times,
            message.prepared_transaction_offset,
        )  # fmt: skip
        fields = (
            size,
            magic,
            crc,
            queue.queue_id,
            message.flag,
            queue_offset,
            physical_offset,
            common,
            body_bytes,
        )
        _write_head(buffer, position, SHARED_HEADERS[len(common)].pack(*fields))
    log.position = position + size
    if visible:
        tags_code = message.tags_code
        if tags_code is None:
            tags_code = tags_code_of(properties)
        QUEUE_ENTRY.pack_into(queue.buffer, queue.position, physical_offset, size, tags_code)
        queue.position += 20
        queue.next_offset = queue_offset + 1
        queue.recently_used = True
    log.queued_until = physical_offset + size
    return queue_offset, physical_offset, size, now_ms


def append_many(
    log: CommitLog,
    queue: QueueWriter,
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
    """Write all messages of a batch body and their queue entries; on an error none is written.

    ``properties_suffix`` is encoded properties that are appended to every message's own.

    Source: MessageExtEncoder.encode(MessageExtBatch), CommitLog.asyncPutMessages, 5.4.0.
    """
    if len(batch) > max_bytes:
        raise MessageIllegal(f"the batch takes {len(batch)} bytes, at most {max_bytes} are allowed")
    common = _common_part(sys_flag, born_timestamp, born_host, now_ms, store_host, reconsume_times, 0)
    # Encode the batch as if it began at the current end of the log. Only if its file turns out to be too short is the
    # batch encoded again for the beginning of the next file; its size does not depend on where it begins.
    blob, physical_offsets, entries = encode_batch(log, queue, batch, common, properties_suffix)
    size = len(blob)
    if log.position + size > log.limit:
        before = log.base
        log.make_room(size)
        if log.base != before:
            blob, physical_offsets, entries = encode_batch(log, queue, batch, common, properties_suffix)
    if queue.position + len(entries) > queue.limit:
        queue.make_room_for(len(entries))
    position, buffer = log.position, log.buffer
    # The first size and magic are written last, for the same reason as the header of a single message: zeros there end
    # the log. Any other bytes would count as damage, and recovery would keep the whole messages that follow.
    buffer[position + 8 : position + size] = memoryview(blob)[8:]
    buffer[position : position + 8] = blob[:8]
    log.position = position + size
    first = queue.next_offset
    queue.append_entries(entries)
    log.queued_until = log.base + log.position
    return first, physical_offsets, now_ms


def has_more_messages(batch: bytes, count: int) -> bool:
    """Tell whether a batch body seems to have more messages than ``count``; no more than these are looked at."""
    if len(batch) <= count * (_HEAD_BYTES + 2):
        return False
    position, unpack = 0, _FLAG_AND_SIZE.unpack_from
    try:
        for _ in range(count):
            body_end = position + _HEAD_BYTES + unpack(batch, position)[1]
            position = body_end + 2 + (batch[body_end] << 8 | batch[body_end + 1])
    except (struct_error, IndexError):
        return False  # Storing it ends here as well.
    return position < len(batch)


def check_batch_in_slices(
    batch: bytes, suffix: bytes, max_bytes: int, slice_messages: int
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each part of a batch body with at most ``slice_messages`` messages.

    Raises MessageIllegal where `append_many` would. So a caller that has taken all parts may append one after the
    other, and let other tasks run in between: none of them will be refused for its content.
    """
    if len(batch) > max_bytes:
        raise MessageIllegal(f"the batch takes {len(batch)} bytes, at most {max_bytes} are allowed")
    unpack, longest = _FLAG_AND_SIZE.unpack_from, MAX_PROPERTIES_BYTES - len(suffix)
    start = position = count = 0
    end = len(batch)
    try:
        while position < end:
            body_end = position + _HEAD_BYTES + unpack(batch, position)[1]
            properties_at = body_end + 2
            position = properties_at + (batch[body_end] << 8 | batch[body_end + 1])
            # One byte less than `longest` always has room for the separator before the suffix.
            if position - properties_at >= longest or batch.find(0, properties_at, position) >= 0:
                _check_batch_properties(batch[properties_at:position], suffix)
            count += 1
            if count % slice_messages == 0 and position <= end:
                yield start, position
                start = position
    except (struct_error, IndexError):
        position = -1
    if position != end or not count:
        raise MessageIllegal("the batch is empty or ends inside a message")
    if start < end:
        yield start, end


def _check_batch_properties(properties: bytes, suffix: bytes) -> None:
    if suffix:
        properties = _with_suffix(properties, suffix)
    check_message_parts(0, 0, properties)


def _with_suffix(properties: bytes, suffix: bytes) -> bytes:
    """Append encoded properties to a message's own."""
    return properties + (suffix if not properties or properties[-1] == 2 else b"\x02" + suffix)


def encode_batch(log: CommitLog, queue: QueueWriter, batch: bytes, common: bytes, suffix: bytes) -> Encoded:
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
    tagged = TAGS in batch  # most batches have no tags, and then no message is searched for them
    pieces: list[bytes] = []
    entries: list[int] = []
    end, position = len(batch), 0
    try:
        while position < end:
            # The message's parts in the batch body. A length that lies ends in an IndexError, a struct error, or a
            # position past the end, all of which refuse the batch as a whole.
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
            # The stored message in four pieces, and its queue entry. All messages are joined only once, at the end.
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


def _write_head(buffer: Buffer, position: int, head: bytes) -> None:
    """Write a header, its size and magic last."""
    buffer[position + 8 : position + len(head)] = head[8:]
    buffer[position : position + 8] = head[:8]


def check_message_parts(body_bytes: int, max_bytes: int, properties: bytes) -> None:
    """Raise MessageIllegal for parts that are too large, and for properties that recovery could take for damage."""
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLong(
            f"the properties take {len(properties)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
        )
    if body_bytes > max_bytes:
        raise MessageIllegal(f"the body takes {body_bytes} bytes, at most {max_bytes} are allowed")
    check_no_lost_sector(properties)


def check_no_lost_sector(properties: bytes) -> None:
    """Raise MessageIllegal for properties that could look as if the disk had lost a sector of them.

    After a power cut, zeros are the only sign of a lost sector (`log_scan.check_message`).
    Deviation: the official broker stores such properties; it does not look for lost sectors.
    """
    if properties[:1] == b"\0" or properties[-1:] == b"\0" or _ZERO_SECTOR in properties:
        raise MessageIllegal(
            f"the properties begin or end with a NUL character, or hold {SECTOR_BYTES} of them in a row"
        )


def _common_part(
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    now_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> bytes:
    """Return the header from the system flag to the prepared transaction offset, for IPv4 and IPv6 hosts."""
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
