"""Tunes the C library's memory allocator so that large blocks and free pages are returned to the system.

glibc returns free memory by itself only at the end of its heap. Frames of all sizes that live for different times leave
holes everywhere else: under hostile traffic a shadow gateway held 124 MiB of heap, of which 81 MiB were free.
"""

import ctypes
import logging
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from gateway.runtime.run_blocking import RunBlocking

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD: Final = -3
# Above the size of one read (256 KiB), which must stay cheap; below the buffers of unfinished frames.
LARGE_BLOCK_BYTES: Final = 384 * 1024
MIN_TRIMMED_BYTES: Final = 8 * 1024 * 1024
"""Growth and free memory that are worth a trim, which takes a few milliseconds of the allocator's lock."""
MIN_FREED_BYTES: Final = 32 * 1024 * 1024
"""Free memory that has come since the last trim and is worth another one, though the process has not grown."""
TRIM_INTERVAL_S: Final = 5.0


def give_back_large_blocks() -> bool:
    """Allocate large blocks as mappings of their own, which freeing returns to the system; return True on success.

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
    """Return free pages of the heap to the system; return True if there were any. Call it rarely: 0.1 ms per MiB.

    Blocks below LARGE_BLOCK_BYTES come from the heap, which does not shrink by itself after a burst of them.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False


class _Mallinfo2(ctypes.Structure):
    """The fields of glibc's `mallinfo2`, in their order."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def measure_free_heap_bytes() -> int:
    """Return the size of the heap's free blocks in bytes; 0 with another C library than glibc 2.33 or later."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().fordblks)


def measure_anonymous_bytes() -> int:
    """Return the process's resident memory without mapped files; 0 where the system does not tell."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


class HeapTrimmer:
    """Gives free memory of the heap back when the process has grown and enough is free to be worth the time.

    The allocator still counts a page that was given back as free, so growth is measured by resident memory: since the
    last trim, or since the smallest size after it. A trim in the middle of a burst finds most of its memory in use, so
    memory that becomes free after it counts as well.
    """

    def __init__(
        self,
        min_bytes: int = MIN_TRIMMED_BYTES,
        measure_free: Callable[[], int] = measure_free_heap_bytes,
        measure_resident: Callable[[], int] = measure_anonymous_bytes,
        give_back: Callable[[], object] = give_back_free_memory,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
    ) -> None:
        self._min_bytes = min_bytes
        self._measure_free = measure_free
        self._measure_resident = measure_resident
        self._give_back = give_back
        self._run_blocking = run_blocking
        self._smallest_bytes = 0
        self._least_free_bytes = 0

    async def trim(self) -> None:
        """Give memory back if the process has grown by ``min_bytes`` and as much is free, or if much became free.

        Call it every few seconds.
        """
        await self._run_blocking(self._trim_now)

    def _trim_now(self) -> None:
        resident, free = self._measure_resident(), self._measure_free()
        self._smallest_bytes = min(self._smallest_bytes or resident, resident)
        self._least_free_bytes = min(self._least_free_bytes, free)
        has_grown = resident - self._smallest_bytes >= self._min_bytes and free >= self._min_bytes
        if has_grown or free - self._least_free_bytes >= MIN_FREED_BYTES:
            self._give_back()
            self._smallest_bytes, self._least_free_bytes = self._measure_resident(), self._measure_free()
