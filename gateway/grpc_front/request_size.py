"""Bounds for requests before they are decoded: their bytes by method, and the number of their fields.

The bytes alone bound neither time nor memory. An empty entry of a list takes two bytes, which gzip packs into a
hundredth, and becomes an object that a handler looks at: 8 KiB of such a request held the event loop for minutes.
"""

from typing import Any, Final

from gateway.grpc_front.framing import GrpcError, GrpcStatus

MAX_CONTROL_BYTES: Final = 64 * 1024
"""Longest request, unpacked, of a method that carries no messages. What a client tells of itself is kept."""
MAX_FIELDS: Final = 8192
"""Fields of a request, those of its parts included. A message that is sent has about 20."""
_MIN_FIELD_BYTES: Final = 2
_PART: Final = 2
"""The wire type of texts, bytes and messages."""


class Unreadable(Exception):
    """Bytes that are not fields of a message."""


def check_field_count(encoded: bytes, descriptor: Any) -> None:
    """Refuse a request with more than ``MAX_FIELDS`` fields. Raises GrpcError.

    ``descriptor`` is that of its protobuf message. The decoder refuses bytes that cannot
    be read.
    """
    if len(encoded) <= MAX_FIELDS * _MIN_FIELD_BYTES:
        return
    allowed_fields = MAX_FIELDS
    parts = [(0, len(encoded), descriptor)]
    try:
        while parts:
            position, end, kind = parts.pop()
            declared_fields = kind.fields_by_number
            while position < end:
                allowed_fields -= 1
                if allowed_fields < 0:
                    raise GrpcError(
                        GrpcStatus.RESOURCE_EXHAUSTED,
                        f"a request has more than {MAX_FIELDS} fields: send less in one request",
                    )
                tag, position = read_varint(encoded, position)
                size, position = value_size(encoded, position, tag & 7)
                field = declared_fields.get(tag >> 3)
                if tag & 7 == _PART and field is not None and field.message_type is not None:
                    parts.append((position, min(position + size, end), field.message_type))
                position += size
    except Unreadable:
        return


def value_size(encoded: bytes, position: int, kind: int) -> tuple[int, int]:
    """Return the size of a value, and where it begins; 0 and the end of a number. Raises Unreadable."""
    match kind:
        case 0:
            return 0, read_varint(encoded, position)[1]
        case 1:
            return 8, position
        case 2:
            return read_varint(encoded, position)
        case 5:
            return 4, position
    return 0, position  # The begin or the end of a group.


def read_varint(encoded: bytes, position: int) -> tuple[int, int]:
    """Return a number of at most ten bytes, and where it ends. Raises Unreadable."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(encoded):
            break
        byte = encoded[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise Unreadable
