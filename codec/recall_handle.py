"""Recall handles: the text by which a producer cancels a timer message.

Source: RecallMessageHandle, 5.4.0.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from codec.errors import MessageFormatError

_VERSION = "v1"
_BASE64 = re.compile(r"[A-Za-z0-9_-]*={0,2}")


class RecallHandle(NamedTuple):
    """The identity of a timer message: topic, broker, a time in its slot (ms, as text) and unique key."""

    topic: str
    broker_name: str
    timestamp: str
    unique_key: str

    def encode(self) -> str:
        """Return the handle as text, in base64 for URLs."""
        return urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Parse a handle. Raises MessageFormatError with the official text."""
        items = _decoded(text).split(" ")
        if items[0] != _VERSION or len(items) < 5:
            raise MessageFormatError("recall handle is invalid")
        return cls(*items[1:5])


def _decoded(text: str) -> str:
    unpadded = text.rstrip("=")
    well_padded = len(text) == len(unpadded) or len(text) % 4 == 0
    if not text or not _BASE64.fullmatch(text) or len(unpadded) % 4 == 1 or not well_padded:
        raise MessageFormatError("recall handle is invalid")
    return urlsafe_b64decode(unpadded + "=" * (-len(unpadded) % 4)).decode("utf-8", "replace")
