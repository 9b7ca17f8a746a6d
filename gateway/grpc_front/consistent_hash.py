"""The hash by which the official Proxy chooses the queue of a message group.

Source: com.google.common.hash.Hashing.consistentHash of Guava (Lamping and Veach, "A fast, minimal memory, consistent
hash algorithm").
"""

from typing import Final

_FACTOR: Final = 2862933555777941757
_MASK: Final = (1 << 64) - 1


def consistent_hash(hashed: int, buckets: int) -> int:
    """Return the bucket of a signed hash code."""
    state, candidate = hashed & _MASK, 0
    while True:
        state = (_FACTOR * state + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= buckets:
            return candidate
        candidate = following
