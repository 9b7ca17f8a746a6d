"""A stored message reduced to what content parity compares: identity, digest, and place."""

from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

from codec import properties as names
from codec.constants import MAGIC_V1
from codec.errors import MessageFormatError
from codec.expected_differences import COMPARED_SYS_FLAG_BITS, EXPECTED_PROPERTY_NAMES
from codec.message import HEADERS, SYS_FLAG_AT, message_end
from codec.properties import find_property

_HEAD = Struct(">iIqi")
_MASKED: Final = {
    same_offsets: tuple(b"%b\x01" % name.encode() for name in sorted(masked))
    for same_offsets, masked in EXPECTED_PROPERTY_NAMES.items()
}
_UNIQUE_KEY = names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX.encode()
_DELIVERED_LATER_MARKS: Final = (
    b"%b\x01true" % names.TRANSACTION_PREPARED.encode(),
    b"%b\x01" % names.REAL_TOPIC.encode(),
)
_SHARDING_KEY = names.SHARDING_KEY.encode()


class ComparedMessage(NamedTuple):
    """One message of a queue. `identity` is its unique key, or its digest if it has none (`keyed` is False).

    `digest` is a stable hash of topic, body, flag, sys flag (`COMPARED_SYS_FLAG_BITS`), born time, reconsume times,
    properties (sorted, without `EXPECTED_PROPERTY_NAMES`), and born host if the target has the primary's offsets.
    The checksums tell which part changed. Times are ms since 1970. `delivered_later`: the broker put the message into
    this queue later than it was sent (transactions, delays), so its place there is arbitrary.
    """

    offset: int
    identity: bytes
    digest: bytes
    keyed: bool
    sharding_key: bytes | None
    born_ms: int
    stored_ms: int
    body_crc: int
    properties_crc: int
    delivered_later: bool = False


def parse_entries(body: bytes, *, same_offsets: bool) -> Iterator[ComparedMessage]:
    """Yield the messages in the body of a pull answer. Raises MessageFormatError.

    ``same_offsets``: the target stores messages at the primary's offsets, with all their other stored fields unchanged.
    """
    position = 0
    while position < len(body):
        end = message_end(body, position)
        try:
            yield _parse_entry(body, position, end, same_offsets)
        except (StructError, IndexError, ValueError) as error:
            raise MessageFormatError(f"a message is incomplete: {error}") from error
        position = end


def _parse_entry(body: bytes, position: int, end: int, same_offsets: bool) -> ComparedMessage:
    header = HEADERS[body[position + SYS_FLAG_AT + 3] >> 4 & 3]
    values = header.unpack_from(body, position)
    body_at = position + header.size
    body_end = body_at + values[14]
    topic_at = body_end + (1 if values[1] == MAGIC_V1 else 2)
    topic_end = topic_at + int.from_bytes(body[body_end:topic_at])
    properties = body[topic_end + 2 : end]
    if not body_at <= body_end < topic_end <= end - 2:
        raise ValueError("its parts do not fit its size")
    masked = _MASKED[same_offsets]
    compared = b"\x02".join(
        sorted([pair for pair in properties.split(b"\x02") if pair and not pair.startswith(masked)])
    )
    hashed = blake2b(body[body_at:topic_end], digest_size=12)
    hashed.update(_HEAD.pack(values[4], values[7] & COMPARED_SYS_FLAG_BITS, values[8], values[12]))
    hashed.update(values[9] + compared if same_offsets else compared)
    digest = hashed.digest()
    key = find_property(properties, _UNIQUE_KEY)
    return ComparedMessage(
        values[5],
        key or digest,
        digest,
        key is not None,
        find_property(properties, _SHARDING_KEY),
        values[8],
        values[10],
        values[2],
        crc32(compared),
        any(mark in properties for mark in _DELIVERED_LATER_MARKS),
    )


def changed_part(primary: ComparedMessage, target: ComparedMessage) -> str:
    """Return the part that differs between messages with different digests: body, properties or header (the rest)."""
    if primary.body_crc != target.body_crc:
        return "body"
    return "properties" if primary.properties_crc != target.properties_crc else "header"
