"""Ids that are the same when the same rows are sent once more: what a consumer tells duplicates by.

Not responsible for whether the rows are the same: that is the plan's part (no shuffle into a random order).
"""

import hashlib
from typing import Final

DEDUP_OFF: Final = "off"
DEDUP_UNIQUE_KEY: Final = "msgId"
"""The value of `dedupKey` that wants the id as the unique key only."""

DIGEST_BYTES: Final = 10


class DedupIds:
    """The ids of one partition's rows: a text `<write>:<batch>:<partition>:<row>`, and a unique key made of it.

    The unique key has the form stock clients make, 32 hex digits: 80 bits of a digest where those have address,
    process and loader, and the row's number where they have time and counter. So tools that take it apart find an
    address that is none and a time shortly after the month began.
    """

    def __init__(self, write: str, batch: int, partition: int) -> None:
        self.prefix = f"{write}:{batch}:{partition}:"
        self._digest = hashlib.blake2b(self.prefix.encode(), digest_size=DIGEST_BYTES).hexdigest().upper()

    def dedup_id(self, row: int) -> str:
        """The id of a row in words."""
        return f"{self.prefix}{row}"

    def unique_key(self, row: int) -> str:
        """The id of a row as its unique key (msgId)."""
        return f"{self._digest}{row:012X}"
