"""Keeps requests with many entries from making one long turn of the loop together.

A long request yields after each slice of its entries, but that alone is not enough: with 100 of them at work, a turn of
the loop has 100 slices. So they work one at a time.
"""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import trio

from gateway.broker.processors.turns import ITEMS_PER_TURN


class LongWork:
    """The long requests of one kind, of which one is at work at any moment."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    def lock_for(self, entries: int) -> AbstractAsyncContextManager[Any]:
        """Return a context in which a request may handle its entries; short requests do not wait."""
        return self._lock if entries > ITEMS_PER_TURN else nullcontext()
