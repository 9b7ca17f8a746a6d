"""Extracts and hashes the index keys of stored messages.

Every message of the log passes through here once, so the common layout has a fast path; messages of other layouts are
parsed by `log_scan`.
"""

import struct
from functools import lru_cache
from itertools import islice

from codec.constants import MAGIC_V1
from codec.hashing import continue_hash, index_hash, java_hash, positive_hash
from codec.properties import find_property
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6

# size, magic, physical offset, sys flag, store timestamp, body bytes of a V1 message with IPv4 hosts
_HEAD = struct.Struct(">II20xqI16xq20xI")
_UNUSUAL = BORN_HOST_V6 | STORE_HOST_V6
_SHORT = struct.Struct(">H")
_BODY_AT = 88
_UNIQUE = b"UNIQ_KEY\x01"
_KEYS = b"KEYS\x01"
_TAGS = b"TAGS\x01"
_PREFIX_DIGITS = 20
"""The first 20 digits of a unique key (address, process, class loader), which one stock client repeats in all its keys.

Their hash is cached.
"""
_MAX_TAIL_DIGITS = 256
"""The longest rest of a unique key that `continue_hash` takes; producers may send keys of any length."""
_MAX_CACHED_TAGS_BYTES = 64
"""Longer tags are hashed each time: a producer may send 32,000 bytes of them, and other ones with each message."""

CommonMessage = tuple[int, int, int, bytes, bytes]


def parse_common_message(
    view: memoryview, position: int, physical_offset: int, room: int
) -> CommonMessage | None:
    """Return (size, sys flag, store timestamp, topic, properties) of a message in the common layout, else None.

    The common layout is version 1 with IPv4 hosts. ``room`` is the number of bytes from ``position`` to the end of the
    messages in ``view``.
    """
    if room < _BODY_AT + 4:
        return None
    size, magic, offset, sys_flag, stored, body_bytes = _HEAD.unpack_from(view, position)
    topic_at = position + _BODY_AT + body_bytes
    end = position + size
    if (
        magic != MAGIC_V1
        or offset != physical_offset
        or sys_flag & _UNUSUAL
        or topic_at + 4 > end
        or size > room
    ):
        return None
    # One byte of topic length, the topic, two bytes of properties length.
    properties_at = topic_at + 3 + view[topic_at]
    if properties_at > end or properties_at + _SHORT.unpack_from(view, properties_at - 2)[0] != end:
        return None
    topic = bytes(view[topic_at + 1 : properties_at - 2])
    return size, sys_flag, stored, topic, bytes(view[properties_at:end])


@lru_cache(maxsize=4096)
def _prefix_hash(topic: bytes, prefix: bytes) -> int:
    return java_hash((topic + b"#" + prefix).decode("ascii"))


def _tags_hash(topic: bytes, tags: bytes) -> int:
    return index_hash(f"{topic.decode()}#T#{tags.decode('utf-8', 'replace')}")


_cached_tags_hash = lru_cache(maxsize=4096)(_tags_hash)


def key_hashes(topic: bytes, properties: bytes, max_keys: int) -> list[int]:
    """Return the hashes of a message's unique key, its first ``max_keys`` keys and its tags, in the official order.

    Source: IndexService.buildIndex, 5.4.0. Deviation: there all keys are indexed; 32 KB of properties hold 16,000.
    """
    hashes = []
    unique = _property(properties, _UNIQUE)
    if unique:
        hashes.append(_unique_hash(topic, unique))
    keys = _property(properties, _KEYS)
    if keys:
        prefix = topic.decode() + "#"
        # Each key once: repeated ones would use up the limit.
        split = filter(None, dict.fromkeys(keys.decode("utf-8", "replace").split(" ")))
        hashes += [index_hash(prefix + key) for key in islice(split, max_keys)]
    tags = _property(properties, _TAGS)
    if tags:
        hash_tags = _cached_tags_hash if len(tags) <= _MAX_CACHED_TAGS_BYTES else _tags_hash
        hashes.append(hash_tags(topic, tags))
    return hashes


def _property(properties: bytes, start: bytes) -> bytes | None:
    """Return the value that follows ``start``, which is a property's name and separator; None without the property.

    Where ``start`` was found at the end of a longer name, fall back to the slower exact search.
    """
    at = properties.find(start)
    if at < 0:
        return None
    if at and properties[at - 1] != 2:
        return find_property(properties, start[:-1])
    at += len(start)
    end = properties.find(b"\x02", at)
    return properties[at:] if end < 0 else properties[at:end]


def _unique_hash(topic: bytes, unique: bytes) -> int:
    tail_digits = len(unique) - _PREFIX_DIGITS
    if 0 < tail_digits <= _MAX_TAIL_DIGITS and unique.isascii() and topic.isascii():
        prefix = _prefix_hash(topic, unique[:_PREFIX_DIGITS])
        return positive_hash(continue_hash(prefix, unique[_PREFIX_DIGITS:]))
    return index_hash(f"{topic.decode()}#{unique.decode('utf-8', 'replace')}")
