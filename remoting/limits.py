"""The limits one connection is held to: a plain value. Reading them from configuration is not done here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection; every one is configurable and none can be exceeded by a peer.

    ``output_bytes`` is a high-water mark: above it no further request of that peer is read until the peer has read
    its answers. ``output_limit_bytes`` is the end: a peer for which more than that is waiting is closed.
    ``read_bytes`` are taken from the peer at a time, ``large_read_bytes`` while more than 256 KiB of an unfinished
    frame are held, so that many such peers leave others their turn.
    """

    max_frame_bytes: int = 16 * 1024 * 1024
    max_header_bytes: int = 1024 * 1024
    read_bytes: int = 256 * 1024
    large_read_bytes: int = 32 * 1024
    output_high_watermark_bytes: int = 8 * 1024 * 1024
    max_output_bytes: int = 64 * 1024 * 1024
    max_outstanding_requests: int = 10_000
    idle_close_s: float = 120.0
