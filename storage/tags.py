"""Computes the tags code of a message: the hash of its tags, which its queue entry holds for filtering.

A delayed message's queue entry holds its delivery time instead; see `delay_levels.py`.
"""

from codec.hashing import tags_code

TAGS = b"TAGS\x01"


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
    return tags_code(tags.decode("utf-8", "replace"))
