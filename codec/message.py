"""A message as the commit log and the body of a pull answer hold it.

The form of messages in a batch send lives in `codec.batch`.

Source: MessageDecoder.decode, MessageExtEncoder.encode, MessageVersion, 5.4.0.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Any

from codec import properties as names
from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.errors import MessageFormatError
from codec.hashing import crc32
from codec.hosts import Host, pack_host, unpack_host
from codec.ids import encode_message_id
from codec.properties import decode_properties, encode_properties
from codec.sysflag import BORN_HOST_V6, COMPRESSED, COMPRESSION_ZLIB, STORE_HOST_V6, compression_type

Buffer = bytes | bytearray | memoryview

HEADER = Struct(">IIIiiqqiq8sq8siqi")
"""The part before the body, with IPv4 hosts (packed: address and 4-byte port).

size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag, born timestamp, born host,
store timestamp, store host, reconsume times, prepared transaction offset, body length.
"""
HEADERS = (
    HEADER,
    Struct(">IIIiiqqiq20sq8siqi"),
    Struct(">IIIiiqqiq8sq20siqi"),
    Struct(">IIIiiqqiq20sq20siqi"),
)
"""The header by host kinds: `HEADERS[sys_flag >> 4 & 3]`."""
SIZE_AND_MAGIC = Struct(">II")

# Positions of fields, in bytes from the message's start; the same in every version.
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
STORE_TIMESTAMP_AT = 56
"""With an IPv4 born host; 12 bytes later with an IPv6 one."""

MAX_PROPERTIES_BYTES = 0x7FFF
MAX_TOPIC_BYTES_V1 = 0x7F
MAX_TOPIC_BYTES_V2 = 0x7FFF
MIN_MESSAGE_BYTES = HEADER.size + 1 + 2
MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Message:
    """One stored message; offsets are -1 or 0 where nothing was stored yet.

    ``body`` is as stored (possibly compressed), ``size`` counts all bytes of the stored form. Host ports and
    timestamps (ms since 1970) are those of the producer (born) and the broker (store).
    """

    topic: str
    body: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    born_timestamp: int = 0
    born_host: Host = ("0.0.0.0", 0)
    store_timestamp: int = 0
    store_host: Host = ("0.0.0.0", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    size: int = 0
    magic: int = MAGIC_V1

    @property
    def msg_id(self) -> str:
        """The offset message id: the broker's address and the physical offset."""
        return encode_message_id(self.store_host[0], self.store_host[1], self.physical_offset)

    @property
    def unique_key(self) -> str | None:
        """The id that the producer assigned."""
        return self.properties.get(names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)

    @property
    def tags(self) -> str | None:
        """The tag (a single one, despite the name)."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys by which the message can be queried."""
        return self.properties.get(names.KEYS, "").split()

    def decompressed_body(self, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
        """Return the body as the producer passed it.

        Raises MessageFormatError when it is damaged, longer than ``max_bytes``, or not compressed with zlib;
        ``compression_type(sys_flag)`` tells beforehand.
        """
        if not self.sys_flag & COMPRESSED:
            return self.body
        if compression_type(self.sys_flag) != COMPRESSION_ZLIB:
            raise MessageFormatError("body is compressed, but not with zlib")
        return _inflate(self.body, max_bytes)


def _inflate(body: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_bytes)
    except zlib.error as error:
        raise MessageFormatError(f"compressed body is damaged: {error}") from error
    if not inflater.eof:
        reason = "is longer than allowed" if len(plain) >= max_bytes else "ends early"
        raise MessageFormatError(f"compressed body {reason}")
    return plain


def encode_message(message: Message) -> bytes:
    """Return the stored form. Size, body CRC and the host bits of the sys flag are computed, not copied from
    ``message``.

    A topic of more than 127 bytes makes it version 2, whatever ``message.magic`` says. Raises MessageFormatError when
    topic or properties are too long, a host is not numeric, or a number does not fit.
    """
    topic = message.topic.encode("utf-8", "replace")
    packed = encode_properties(message.properties)
    magic = MAGIC_V2 if len(topic) > MAX_TOPIC_BYTES_V1 else message.magic
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise MessageFormatError(f"unknown message magic {magic:#x}")
    if len(topic) > MAX_TOPIC_BYTES_V2 or len(packed) > MAX_PROPERTIES_BYTES:
        raise MessageFormatError("topic or properties longer than 32767 bytes")
    topic_length = len(topic).to_bytes(1 if magic == MAGIC_V1 else 2)
    tail = b"".join((message.body, topic_length, topic, len(packed).to_bytes(2), packed))
    return _pack_header(message, magic, len(tail)) + tail


def _pack_header(message: Message, magic: int, tail_bytes: int) -> bytes:
    born, store = pack_host(message.born_host), pack_host(message.store_host)
    sys_flag = message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    sys_flag |= (BORN_HOST_V6 if len(born) > 8 else 0) | (STORE_HOST_V6 if len(store) > 8 else 0)
    header = HEADERS[sys_flag >> 4 & 3]
    try:
        return header.pack(
            header.size + tail_bytes,
            magic,
            crc32(message.body),
            message.queue_id,
            message.flag,
            message.queue_offset,
            message.physical_offset,
            sys_flag,
            message.born_timestamp,
            born,
            message.store_timestamp,
            store,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(message.body),
        )
    except StructError as error:
        raise MessageFormatError(f"a number does not fit the message header: {error}") from error


def decode_message(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> Message:
    """Decode the message at ``position``, its body copied; the next is at ``position + message.size``.

    Raises MessageFormatError when the bytes are not a whole message, or the body does not match its CRC.
    """
    end = message_end(buffer, position)
    sys_flag = int.from_bytes(buffer[position + SYS_FLAG_AT : position + SYS_FLAG_AT + 4])
    header = HEADERS[sys_flag >> 4 & 3]
    body_at = position + header.size
    if body_at > end:
        raise MessageFormatError(f"message of {end - position} bytes is shorter than its header")
    values = header.unpack_from(buffer, position)
    body_end = body_at + values[14]
    if not body_at <= body_end <= end - 2:
        raise MessageFormatError(f"body of {values[14]} bytes extends beyond its message")
    body = bytes(buffer[body_at:body_end])
    if check_crc and body and crc32(body) != values[2]:
        raise MessageFormatError("body does not match its CRC")
    topic, packed = _topic_and_properties(bytes(buffer[body_end:end]), values[1])
    return _message(values, topic, packed, body)


def message_end(buffer: Buffer, position: int) -> int:
    """Return the end, exclusive, of the message at ``position``. Raises MessageFormatError if it is incomplete."""
    if not 0 <= position <= len(buffer) - MIN_MESSAGE_BYTES:
        raise MessageFormatError("not enough bytes for a message")
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise MessageFormatError(f"unknown message magic {magic:#x}")
    if not MIN_MESSAGE_BYTES <= size <= len(buffer) - position:
        raise MessageFormatError(f"message of {size} bytes, of which {len(buffer) - position} are present")
    return position + int(size)


def split_messages(buffer: memoryview) -> Iterator[memoryview]:
    """Yield the stored messages of a part of a commit log, each not decoded.

    Raises MessageFormatError at the first byte that does not belong to a whole message.
    """
    position = 0
    while position < len(buffer):
        end = message_end(buffer, position)
        yield buffer[position:end]
        position = end


def locate_stored_parts(message: memoryview) -> tuple[tuple[Any, ...], int, int, int, int]:
    """Return the header fields of a whole stored message, and the begin and end of its body and of its topic.

    Its properties begin two bytes after the topic's end. Nothing is checked: use it for messages that were checked
    when they were stored.
    """
    header = HEADERS[message[SYS_FLAG_AT + 3] >> 4 & 3]
    values = header.unpack_from(message)
    body_end = header.size + values[14]
    topic_at = body_end + (1 if values[1] == MAGIC_V1 else 2)
    return values, header.size, body_end, topic_at, topic_at + int.from_bytes(message[body_end:topic_at])


def stored_properties(message: memoryview) -> bytes:
    """Return the encoded properties of a stored message; see `locate_stored_parts`."""
    return bytes(message[locate_stored_parts(message)[-1] + 2 :])


def _topic_and_properties(tail: bytes, magic: int) -> tuple[str, bytes]:
    length_bytes = 1 if magic == MAGIC_V1 else 2
    topic_end = length_bytes + int.from_bytes(tail[:length_bytes])
    packed = tail[topic_end + 2 :]
    if topic_end + 2 > len(tail) or int.from_bytes(tail[topic_end : topic_end + 2]) != len(packed):
        raise MessageFormatError("topic and properties do not end where the message ends")
    return str(tail[length_bytes:topic_end], "utf-8", "replace"), packed


def _message(values: tuple[Any, ...], topic: str, packed: bytes, body: bytes) -> Message:
    return Message(
        topic,
        body,
        decode_properties(packed),
        flag=values[4],
        sys_flag=values[7],
        queue_id=values[3],
        queue_offset=values[5],
        physical_offset=values[6],
        born_timestamp=values[8],
        born_host=unpack_host(values[9]),
        store_timestamp=values[10],
        store_host=unpack_host(values[11]),
        reconsume_times=values[12],
        prepared_transaction_offset=values[13],
        body_crc=values[2],
        size=values[0],
        magic=values[1],
    )


def iter_messages(buffer: Buffer, *, check_crc: bool = True) -> Iterator[Message]:
    """Yield the messages of a pull answer's body, or of a part of a commit log; a blank marker ends it.

    Raises MessageFormatError at the first byte that does not belong to a whole message.
    """
    position = 0
    while position < len(buffer):
        if bytes(buffer[position + MAGIC_AT : position + MAGIC_AT + 4]) == _BLANK:
            return
        message = decode_message(buffer, position, check_crc=check_crc)
        yield message
        position += message.size


_BLANK = MAGIC_BLANK.to_bytes(4)
