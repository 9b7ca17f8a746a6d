"""Times of the protocol in milliseconds."""

from typing import Any


def to_ms(time: Any) -> int:
    """Return a Timestamp (since 1970) or a Duration in ms. Of values out of range, what they say."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def set_ms(time: Any, milliseconds: int) -> None:
    """Set a Timestamp or a Duration."""
    time.seconds, rest_ms = divmod(milliseconds, 1000)
    time.nanos = rest_ms * 1_000_000
