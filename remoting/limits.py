"""The limits of one connection."""

from dataclasses import dataclass

from codec.fastjson import MAX_VALUES


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection. All are configurable, and no peer can exceed them.

    - ``output_high_watermark_bytes``: above it, no request of the peer is read until the peer has read its answers.
    - ``max_output_bytes``: a peer with more unread answers is disconnected.
    - ``crowded_output_bytes``: unread answers of all connections of the process above which a peer that has not read
      its last ones gets no further ones.
    - ``read_bytes``: size of one read. ``large_read_bytes`` while more than 256 KiB of an unfinished frame are held, so
      that many such peers do not starve the others.
    - ``max_turn_s``: time for the requests of one peer, after which all others have their turn.
    - ``max_json_values``: bounds the time that a JSON body takes to read, about 1 µs per value.
    """

    max_frame_bytes: int = 16 * 1024 * 1024
    max_header_bytes: int = 1024 * 1024
    read_bytes: int = 64 * 1024
    large_read_bytes: int = 32 * 1024
    max_turn_s: float = 0.005
    max_json_values: int = MAX_VALUES
    output_high_watermark_bytes: int = 8 * 1024 * 1024
    max_output_bytes: int = 64 * 1024 * 1024
    crowded_output_bytes: int = 128 * 1024 * 1024
    max_outstanding_requests: int = 10_000
    idle_close_s: float = 120.0
