"""Access to the properties of a stored message without parsing the rest."""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final

from codec.constants import MAGIC_V1
from codec.message import HEADERS, MAGIC_AT, SYS_FLAG_AT, stored_properties
from codec.properties import find_property
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6

ReadProperty = Callable[[Any], bytes | None]
"""Returns the bytes of one property: of `property_reader` in stored properties that have a separator before the first,
of `split_property_reader` in what `split_stored_properties` makes of them."""

SEPARATOR: Final = b"\x02"
# Last byte of the magic number, last byte of the sys flag, and the body's length where hosts are IPv4.
_USUAL: Final = Struct(
    f">{MAGIC_AT + 3}xB{SYS_FLAG_AT - MAGIC_AT - 1}xB{HEADERS[0].size - SYS_FLAG_AT - 8}xi"
).unpack_from
_NAME_END: Final = b"\x01"
_VERSION_1: Final = MAGIC_V1 & 0xFF
_IPV6: Final = BORN_HOST_V6 | STORE_HOST_V6
# Position of the topic's length in a usual message without a body; three bytes and the topic later, its properties.
_USUAL_TOPIC_AT: Final = HEADERS[0].size
_USUAL_PROPERTIES_AT: Final = _USUAL_TOPIC_AT + 3


def separated_properties(message: bytes | memoryview) -> bytes:
    """Return the properties of a stored message, with a separator before the first."""
    version, flags, length = _USUAL(message)
    if version == _VERSION_1 and not flags & _IPV6:
        return SEPARATOR + message[_USUAL_PROPERTIES_AT + length + message[_USUAL_TOPIC_AT + length] :]
    return SEPARATOR + stored_properties(memoryview(message))


def property_prefix(name: str) -> bytes:
    """Return the bytes before a property's value."""
    return b"\x02%b\x01" % name.encode()


def property_reader(name: str) -> ReadProperty:
    """Return a function that reads one property's bytes. Text is UTF-8; invalid bytes read as U+FFFD, as in Java."""
    plain, sought = name.encode(), property_prefix(name)
    width = len(sought)

    def read(properties: bytes) -> bytes | None:
        start = properties.rfind(sought)
        if start < 0:
            return None
        start += width
        end = properties.find(SEPARATOR, start)
        if end < 0:
            end = len(properties)
        # A property with an empty value does not count, but an earlier one of the same name may have a value.
        return properties[start:end] if end > start else find_property(properties[1:], plain)

    return read


def split_stored_properties(properties: bytes) -> dict[bytes, bytes]:
    """Return the properties by name; the last of a name that has a value counts."""
    values = {}
    for pair in properties.split(SEPARATOR):
        name, _, value = pair.partition(_NAME_END)
        if value:
            values[name] = value
    return values


def split_property_reader(name: str) -> ReadProperty:
    """Return a function that reads one property's bytes from split properties."""
    plain = name.encode()

    def read(properties: Mapping[bytes, bytes]) -> bytes | None:
        return properties.get(plain)

    return read
