"""An address and port as messages hold them: 4 or 16 bytes of address, then 4 bytes of port.

Only numeric addresses have a packed form.

Source: MessageExt.socketAddress2ByteBuffer, 5.4.0.
"""

from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from codec.errors import MessageFormatError
from codec.java_numbers import JavaInteger, parse_integer_or, parse_java_integer, quoted

Host = tuple[str, int]

MAX_ADDRESS_CHARS: Final = 64
_BYTE: Final = JavaInteger(0, 255)
MAX_PORT: Final = 0x7FFFFFFF
"""Largest port that has a packed form: the field is a signed 32-bit number."""
MAX_DIALED_PORT: Final = 65_535


def pack_address(address: str) -> bytes:
    """Return the 4 bytes of an IPv4 address or the 16 of an IPv6 one (a zone such as ``%eth0`` is dropped).

    Raises MessageFormatError for anything else, host names included.
    """
    if len(address) > MAX_ADDRESS_CHARS:  # The cache must not keep a zone of a megabyte.
        raise MessageFormatError(f"not a numeric address: {quoted(address)!a}")
    return _pack_address(address)


@lru_cache(maxsize=1024)
def _pack_address(address: str) -> bytes:
    try:
        if ":" in address:
            return IPv6Address(address.partition("%")[0]).packed
        first, second, third, fourth = [parse_java_integer(part, _BYTE) for part in address.split(".", 4)]
        return bytes((first, second, third, fourth))
    except ValueError as error:
        raise MessageFormatError(f"not a numeric address: {quoted(address)!a}") from error


def unpack_address(packed: bytes | memoryview) -> str:
    """Return the text of a 4-byte or 16-byte address, IPv6 in its short form. Raises MessageFormatError."""
    return _unpack_address(bytes(packed))


@lru_cache(maxsize=1024)
def _unpack_address(packed: bytes) -> str:
    if len(packed) == 4:
        return f"{packed[0]}.{packed[1]}.{packed[2]}.{packed[3]}"
    if len(packed) == 16:
        return str(IPv6Address(packed))
    raise MessageFormatError(f"an address has 4 or 16 bytes, not {len(packed)}")


def pack_host(host: Host) -> bytes:
    """Return 8 bytes (IPv4) or 20 bytes (IPv6). Raises MessageFormatError."""
    address, port = host
    if not 0 <= port <= MAX_PORT:
        raise MessageFormatError(f"not a port: {port}")
    return pack_address(address) + port.to_bytes(4)


def unpack_host(packed: bytes | memoryview) -> Host:
    """Return address and port. Raises MessageFormatError when the length is neither 8 nor 20."""
    return unpack_address(packed[:-4]), int.from_bytes(packed[-4:])


def parse_host(text: str) -> Host:
    """Return host and port of "host:port" or "[v6]:port", as they can be dialed. Raises ValueError."""
    host, _, port_text = text.rpartition(":")
    port = parse_integer_or(port_text, 0)
    if not host or not 0 < port <= MAX_DIALED_PORT:
        raise ValueError(f"{quoted(text)!r} is not host:port")
    return host.strip("[]"), port


def format_host(host: Host) -> str:
    """Return "address:port", with brackets around an IPv6 address. The address may also be a name."""
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
