"""A stored message reduced to what content parity compares: identity, digest, and place; and the differences of two."""

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
from codec.hosts import format_host, unpack_host
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
MAX_REMEMBERED_PROPERTIES_BYTES: Final = 2_048
"""Larger properties are compared but not remembered: differences in them have no names."""
MAX_VALUE_CHARS: Final = 100
MAX_DIFFERENCES: Final = 8
"""Fields named for one message."""


class ComparedMessage(NamedTuple):
    """One message of a queue. `identity` is its unique key, or its digest if it has none (`keyed` is False).

    `digest` is a stable hash of topic, body, flag, sys flag (`COMPARED_SYS_FLAG_BITS`), born time, reconsume times,
    and properties (sorted, without `EXPECTED_PROPERTY_NAMES`). `born_host` is kept if the target has the primary's
    offsets; it is not part of the digest, because a message that is sent again, by a roll-back for instance, gets
    another one. `flags` are flag, sys flag and reconsume times; `properties` are those compared, empty if they are
    larger than `MAX_REMEMBERED_PROPERTIES_BYTES`. Times are ms since 1970.
    `delivered_later`: the broker put the message into this queue later than it was sent (transactions, delays), so its
    place there is arbitrary.
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
    born_host: bytes = b""
    flags: tuple[int, int, int] = (0, 0, 0)
    body_bytes: int = 0
    properties: bytes = b""


class DifferingField(NamedTuple):
    """One field that differs, with the values of both sides as text; "-" where a side lacks the field."""

    name: str
    primary: str
    target: str


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
    # Body and topic are neighbours in the stored form, so that one slice covers both.
    hashed = blake2b(body[body_at:topic_end], digest_size=12)
    flags = values[4], values[7] & COMPARED_SYS_FLAG_BITS, values[12]
    hashed.update(_HEAD.pack(flags[0], flags[1], values[8], flags[2]))
    hashed.update(compared)
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
        values[9] if same_offsets else b"",
        flags,
        values[14],
        compared if len(compared) <= MAX_REMEMBERED_PROPERTIES_BYTES else b"",
    )


def changed_part(primary: ComparedMessage, target: ComparedMessage) -> str:
    """Return the part that differs between messages with different digests: body, properties or header (the rest)."""
    if primary.body_crc != target.body_crc:
        return "body"
    return "properties" if primary.properties_crc != target.properties_crc else "header"


def find_differences(primary: ComparedMessage, target: ComparedMessage) -> list[DifferingField]:
    """Return the fields in which two messages differ, at most `MAX_DIFFERENCES`."""
    differences = [
        DifferingField(name, str(primary_value), str(target_value))
        for name, primary_value, target_value in (
            *zip(("flag", "sysFlag", "reconsumeTimes"), primary.flags, target.flags, strict=True),
            ("bornTimestamp", primary.born_ms, target.born_ms),
        )
        if primary_value != target_value
    ]
    if primary.born_host != target.born_host:
        hosts = [format_host(unpack_host(message.born_host)) for message in (primary, target)]
        differences.append(DifferingField("bornHost", *hosts))
    if primary.body_crc != target.body_crc or primary.body_bytes != target.body_bytes:
        differences.append(DifferingField("body", _body_text(primary), _body_text(target)))
    if primary.properties_crc != target.properties_crc:
        differences += _differing_properties(primary.properties, target.properties)
    return differences[:MAX_DIFFERENCES]


def _differing_properties(primary_properties: bytes, target_properties: bytes) -> Iterator[DifferingField]:
    tables = [
        dict(pair.partition(b"\x01")[::2] for pair in properties.split(b"\x02") if pair)
        for properties in (primary_properties, target_properties)
    ]
    for name in sorted(tables[0].keys() | tables[1].keys()):
        if tables[0].get(name) != tables[1].get(name):
            texts = [_value_text(table[name]) if name in table else "-" for table in tables]
            yield DifferingField(f"property {_value_text(name)}", *texts)


def _value_text(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


def _body_text(message: ComparedMessage) -> str:
    return f"{message.body_bytes} bytes, CRC {message.body_crc:08x}"
