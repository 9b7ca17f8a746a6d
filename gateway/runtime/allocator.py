"""Tunes the C library's memory allocator so that large blocks are returned to the system."""

import ctypes
import logging
from typing import Final

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD: Final = -3
# Above the size of one read (256 KiB), which must stay cheap; below the buffers of unfinished frames.
LARGE_BLOCK_BYTES: Final = 384 * 1024


def give_back_large_blocks() -> bool:
    """Allocate large blocks as separate mappings, which freeing returns to the system; return whether that worked.

    By default glibc raises its threshold to the size of any freed block, up to 32 MiB: large frames then come from
    the heap, fragment it, and a burst of them stays resident for good.
    """
    try:
        done = bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES))
    except (OSError, AttributeError):
        done = False  # another C library
    log.debug("allocator", extra={"large_blocks_given_back": done})
    return done


def give_back_free_memory() -> bool:
    """Return free pages of the heap to the system; return whether any were. Takes about 0.1 ms per MiB: call it rarely.

    Blocks below LARGE_BLOCK_BYTES come from the heap, which keeps what a burst of them took.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False
