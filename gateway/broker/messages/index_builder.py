"""Builds the message index in the background, in steps that grow with what is left to index.

Theory of operation
-------------------
Indexing a message takes 5 to 6 µs in Python, more than storing it, and 0.3 µs in the C extension. It does not happen in
a send: this task follows the log instead. Every `STEP_S` it indexes one slice of `SLICE_MESSAGES` (with the extension
`NATIVE_SLICE_MESSAGES`), and one more for every `BYTES_PER_SLICE` that wait; other tasks run between slices. So under
any constant load the backlog grows until a step indexes as much as arrives: in Python it is about 20 MiB at 10,000
messages per second, which a query searches in 20 ms. During a short burst little is indexed. When nothing was stored
since the last step, all that is left is indexed at once.

In an overloaded event loop the steps are further apart than `STEP_S`. If more than `MAX_BACKLOG_BYTES` wait, slices
become as long as the turns of others, up to `MAX_SLICES_PER_TURN`. If even that is too slow, the backlog grows, and
queries become slower but stay complete: they search what is not indexed (`storage.unindexed_search`).
"""

from collections.abc import Callable
from typing import Final

import trio

from codec.native import native_module
from storage.store import MessageStore

STEP_S: Final = 0.1
IDLE_S: Final = 0.5
"""Time between two steps while everything is indexed."""
SLICE_MESSAGES: Final = 100
NATIVE_SLICE_MESSAGES: Final = 1000
"""A slice with the C extension, about 0.3 ms."""
COST_IN_PYTHON: Final = NATIVE_SLICE_MESSAGES // SLICE_MESSAGES
"""Messages of such a slice that one counts as which the extension leaves to Python."""
BYTES_PER_SLICE: Final = 2 * 1024 * 1024
MAX_BACKLOG_BYTES: Final = 256 * 1024 * 1024
MAX_SLICES_PER_TURN: Final = 10
"""Longest turn of an overloaded broker: 1,000 messages, about 6 ms."""


class IndexBuilder:
    """Keeps the index of one store close to the end of its log.

    It rests while ``is_catching_up`` returns True: a slave first copies the messages that it lacks.
    """

    def __init__(self, store: MessageStore, is_catching_up: Callable[[], bool] = lambda: False) -> None:
        self._store = store
        self._is_catching_up = is_catching_up
        is_native = native_module() is not None
        self.slice_messages = NATIVE_SLICE_MESSAGES if is_native else SLICE_MESSAGES
        self._cost_in_python = COST_IN_PYTHON if is_native else 1
        self._last_end = 0

    async def run(self) -> None:
        """Index until cancelled. Raises StoreFull when the disk has no room for the index."""
        while True:
            await trio.sleep(STEP_S if self._store.index.unindexed_bytes else IDLE_S)
            if not self._is_catching_up():
                await self.run_step()

    async def run_step(self) -> None:
        """Index a part of what is left, or all of it if nothing was stored since the last step."""
        store = self._store
        end = store.max_physical_offset
        is_quiet, self._last_end = end == self._last_end, end
        slices_left = 1 + store.index.unindexed_bytes // BYTES_PER_SLICE
        while slices_left > 0 or (is_quiet and store.max_physical_offset == end):
            turn = self._slices_per_turn()
            for _ in range(turn):
                if not store.build_index(self.slice_messages, self._cost_in_python):
                    return
            slices_left -= turn
            await trio.lowlevel.checkpoint()

    def _slices_per_turn(self) -> int:
        excess = self._store.index.unindexed_bytes - MAX_BACKLOG_BYTES
        return 1 if excess <= 0 else min(MAX_SLICES_PER_TURN, 2 + excess // BYTES_PER_SLICE)
