"""Deduplication ids: rows that are sent again get the same ids, so that consumers can recognise duplicates.

This only works if a retried task gets the same rows in the same order, so the plan must not shuffle them randomly.
"""

import hashlib
from typing import Final

DEDUP_OFF: Final = "off"
DEDUP_UNIQUE_KEY: Final = "msgId"
"""Value of `dedupKey` with which the id is in the unique key only."""

DIGEST_BYTES: Final = 10


class DedupIds:
    """Ids of one partition's rows: a text `<write>:<batch>:<partition>:<row>`, and a unique key derived from it.

    The unique key has the form of stock clients', 32 hex digits: 80 bits of a digest in place of address, process and
    class loader, and the row number in place of time and counter. Tools that decode it therefore show a meaningless
    address and a time shortly after the start of the month.
    """

    def __init__(self, write: str, batch: int, partition: int) -> None:
        self.prefix = f"{write}:{batch}:{partition}:"
        self._digest = hashlib.blake2b(self.prefix.encode(), digest_size=DIGEST_BYTES).hexdigest().upper()

    def dedup_id(self, row: int) -> str:
        """Return the id of a row as text."""
        return f"{self.prefix}{row}"

    def unique_key(self, row: int) -> str:
        """Return the id of a row as a unique key (msgId)."""
        return f"{self._digest}{row:012X}"
