"""The body of a batch send: several messages, each with its flag, body and properties.

Fields that all messages of a batch share (topic, queue, born host) are in the request's header.

Source: MessageDecoder.encodeMessage, MessageDecoder.encodeMessages, 5.4.0.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError

from codec.errors import MessageFormatError
from codec.message import MAX_PROPERTIES_BYTES

Buffer = bytes | bytearray | memoryview
BatchEntry = tuple[int, Buffer, bytes]

ENTRY_HEAD = Struct(">IIIiI")
"""Size, magic (0), body CRC (0), flag and body length; body, 2-byte properties length and properties follow."""
_SIZE_FLAG_BODY = Struct(">I8xiI")
_MIN_ENTRY_BYTES = ENTRY_HEAD.size + 2


def split_batch(body: Buffer) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield each message's flag, body and encoded properties. A ``body`` that is not bytes is copied once.

    Raises MessageFormatError at the first incomplete entry, after those before it were yielded.
    """
    data = bytes(body)
    position, total = 0, len(data)
    unpack, head_bytes = _SIZE_FLAG_BODY.unpack_from, ENTRY_HEAD.size
    while position < total:
        if total - position < _MIN_ENTRY_BYTES:
            raise MessageFormatError(
                f"the last {total - position} bytes of a batch are too short for an entry"
            )
        size, flag, body_bytes = unpack(data, position)
        body_at = position + head_bytes
        body_end = body_at + body_bytes
        position += size
        if not body_end + 2 <= position <= total:
            raise MessageFormatError("a batch entry is shorter than its body, or extends beyond the batch")
        if (data[body_end] << 8 | data[body_end + 1]) != position - body_end - 2:
            raise MessageFormatError("the properties of a batch entry do not end where the entry ends")
        yield flag, data[body_at:body_end], data[body_end + 2 : position]


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Encode entries as a batch body. Raises MessageFormatError for more than 32767 bytes of properties."""
    parts: list[Buffer] = []
    for flag, body, properties in entries:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise MessageFormatError("properties longer than 32767 bytes")
        size = _MIN_ENTRY_BYTES + len(body) + len(properties)
        try:
            parts += (
                ENTRY_HEAD.pack(size, 0, 0, flag, len(body)),
                body,
                len(properties).to_bytes(2),
                properties,
            )
        except StructError as error:
            raise MessageFormatError(f"flag {flag} does not fit 32 bits") from error
    return b"".join(parts)
