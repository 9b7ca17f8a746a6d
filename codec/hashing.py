"""Java's string hash, the store's hashes derived from it, and the store's CRC."""

from functools import lru_cache
from operator import mul
from zlib import crc32 as zlib_crc32

_CHUNK = 256
# Powers of 31, highest first, so that a string's hash is the dot product of its
# code units with the last n of them.
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_CHUNK - 1, -1, -1)]
_TAIL_POWERS = [_POWERS[_CHUNK - length :] for length in range(_CHUNK + 1)]
_SHIFTS = [pow(31, length, 1 << 32) for length in range(_CHUNK + 1)]
_CHUNK_POWER = pow(31, _CHUNK, 1 << 32)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: 32 bit, signed, over UTF-16 code units (two for non-BMP characters)."""
    units: bytes | memoryview
    if text.isascii():  # noqa: SIM108 - two statements read better than one of 120 characters
        units = text.encode()
    else:
        units = memoryview(text.encode("utf-16-" + _ORDER, "surrogatepass")).cast("H")
    size = len(units)
    total = sum(map(mul, units, _TAIL_POWERS[size])) if size <= _CHUNK else _long_hash(units)
    return (total + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def _long_hash(units: bytes | memoryview) -> int:
    head = len(units) % _CHUNK
    total: int = sum(map(mul, units[:head], _TAIL_POWERS[head]))
    for start in range(head, len(units), _CHUNK):
        total = total * _CHUNK_POWER + sum(map(mul, units[start : start + _CHUNK], _POWERS)) & 0xFFFFFFFF
    return total


_ORDER = "le" if memoryview(b"\1\0").cast("H")[0] == 1 else "be"
_cached_hash = lru_cache(maxsize=4096)(java_hash)
_CACHED_LENGTH = 64


def tags_code(tags: str | None) -> int:
    """Return the signed hash that a consume queue entry holds (written as 64 bit); 0 without tags.

    Source: MessageExtBrokerInner.tagsString2tagsCode, 5.4.0.
    """
    if not tags:
        return 0
    if len(tags) <= _CACHED_LENGTH:  # Bounds the memory that clients can make the cache use.
        return _cached_hash(tags)
    return java_hash(tags)


def crc32(body: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 without its top bit, as messages hold it. Source: UtilAll.crc32, 5.4.0."""
    return zlib_crc32(body) & 0x7FFFFFFF


def continue_hash(hashed: int, tail: bytes) -> int:
    """Return the hash of a text from the hash of its beginning and the ASCII bytes of the rest, at most 256."""
    size = len(tail)
    total: int = hashed * _SHIFTS[size] + sum(map(mul, tail, _TAIL_POWERS[size]))
    return (total + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def index_hash(key: str) -> int:
    """Return the non-negative hash of an index key (``topic#key``). Source: IndexFile.indexKeyHashMethod, 5.4.0."""
    return positive_hash(java_hash(key))


def positive_hash(hashed: int) -> int:
    """Make a Java hash non-negative as the official index does: the smallest number becomes 0."""
    hashed = abs(hashed)
    return hashed if hashed <= 0x7FFFFFFF else 0
