"""Message ids: the broker's (address and physical offset) and the producer's (address, process, time).

Source: MessageDecoder.createMessageId, MessageDecoder.decodeMessageId, MessageClientIDSetter, 5.4.0.
"""

from typing import NamedTuple

from codec.errors import MessageFormatError
from codec.hosts import pack_address, pack_host, unpack_address, unpack_host

_OFFSET_MASK = (1 << 64) - 1


class UniqueKey(NamedTuple):
    """The parts of a producer's message id; ``elapsed_ms`` counts from the start of the producer's month."""

    address: str
    process_id: int
    loader_hash: int
    elapsed_ms: int
    counter: int


def encode_message_id(host: str, port: int, physical_offset: int) -> str:
    """Return the id of the message at ``physical_offset`` (bytes): 32 upper-case hex digits, 56 with an IPv6 host.

    Raises MessageFormatError when ``host`` is not a numeric address.
    """
    return (pack_host((host, port)) + (physical_offset & _OFFSET_MASK).to_bytes(8)).hex().upper()


def message_id_prefix(host: str, port: int) -> str:
    """Return the common prefix of the ids of one broker's messages; 16 hex digits of the physical offset follow.

    ``f"{prefix}{physical_offset:016X}"`` equals `encode_message_id`, in a tenth of its time.
    Raises MessageFormatError when ``host`` is not a numeric address.
    """
    return pack_host((host, port)).hex().upper()


def decode_message_id(message_id: str) -> tuple[str, int, int]:
    """Return host, port and physical offset. Raises MessageFormatError for other text."""
    packed = _unhex(message_id)
    if len(packed) not in (16, 28):
        raise MessageFormatError(f"a message id has 32 or 56 digits, not {len(message_id)}")
    host, port = unpack_host(packed[:-8])
    return host, port, int.from_bytes(packed[-8:], signed=True)


def make_unique_key(address: str, process_id: int, loader_hash: int, elapsed_ms: int, counter: int) -> str:
    """Build a producer's id in the form of stock clients: 32 upper-case hex digits, 56 with an IPv6 address.

    All numbers are cut to their width (16, 32, 32 and 16 bits).
    """
    numbers = (process_id & 0xFFFF) << 32 | loader_hash & 0xFFFFFFFF
    numbers = numbers << 48 | (elapsed_ms & 0xFFFFFFFF) << 16 | counter & 0xFFFF
    return (pack_address(address) + numbers.to_bytes(12)).hex().upper()


def decode_unique_key(unique_key: str) -> UniqueKey:
    """Return the parts of a producer's id. Raises MessageFormatError; foreign ids may decode to nonsense."""
    packed = _unhex(unique_key)
    if len(packed) not in (16, 28):
        raise MessageFormatError(f"a unique key has 32 or 56 digits, not {len(unique_key)}")
    numbers = int.from_bytes(packed[-12:])
    return UniqueKey(
        unpack_address(packed[:-12]),
        numbers >> 80,
        numbers >> 48 & 0xFFFFFFFF,
        numbers >> 16 & 0xFFFFFFFF,
        numbers & 0xFFFF,
    )


def unique_key_time_ms(
    unique_key: str, month_start_ms: int, previous_month_start_ms: int, now_ms: int
) -> int:
    """Return about when the id was made, in ms since 1970, given the starts of the producer's months in its time
    zone.

    The id does not contain the month: a time of this month that is still in the future belongs to the previous month.
    Raises MessageFormatError. Source: MessageClientIDSetter.getNearlyTimeFromID, 5.4.0.
    """
    elapsed_ms = decode_unique_key(unique_key).elapsed_ms
    made_ms = month_start_ms + elapsed_ms
    return made_ms if made_ms < now_ms else previous_month_start_ms + elapsed_ms


def _unhex(text: str) -> bytes:
    try:
        packed = bytes.fromhex(text)
    except ValueError as error:
        raise MessageFormatError(f"not hexadecimal: {text[:80]!r}") from error
    if len(packed) * 2 != len(text):
        raise MessageFormatError("an id holds no spaces")
    return packed
