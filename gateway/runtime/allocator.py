"""One setting of the C library's allocator. Not responsible for how much memory anything takes."""

import ctypes
import logging
from typing import Final

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD: Final = -3
# Above the size of one read (256 KiB), which must stay cheap; below what is held of unfinished frames.
LARGE_BLOCK_BYTES: Final = 384 * 1024


def give_back_large_blocks() -> bool:
    """Makes large blocks maps of their own, which freeing gives back to the system; tells whether it could.

    Left alone, glibc raises that bound to the size of whatever was freed, up to 32 MiB: large frames then come
    from its heap, which they leave full of holes, and a burst of them stays resident for good.
    """
    try:
        done = bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES))
    except (OSError, AttributeError):
        done = False  # another C library
    log.debug("allocator", extra={"large_blocks_given_back": done})
    return done
