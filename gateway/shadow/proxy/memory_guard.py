"""Bounds the memory of all sessions together, by closing those that hold the most.

Each session is bounded for itself, but a thousand of them may each hold an unfinished frame of 16 MiB, or an answer
that its client does not read. All sessions are summed up once a second. In between, growing sessions report what they
add; once that is an eighth of a limit they are summed up too, so that a burst cannot exceed the limits by much.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from time import monotonic
from typing import Final, Protocol

import trio

from gateway.runtime.allocator import give_back_free_memory
from gateway.runtime.metrics import Metric
from gateway.runtime.run_blocking import RunBlocking

log = logging.getLogger(__name__)

SUMS_PER_LIMIT: Final = 8
TRIMMED_BYTES: Final = 16 * 1024 * 1024
"""Memory is given back to the system when the sessions hold this much less than they did."""
MIN_TRIM_INTERVAL_S: Final = 10.0
LOG_INTERVAL_S: Final = 10.0
SESSIONS_PER_TURN: Final = 256
"""Sessions summed up before other tasks have their turn: about half a millisecond."""


class BufferingSession(Protocol):
    """A session that holds bytes."""

    @property
    def buffered_bytes(self) -> int:
        """All bytes held in memory, unfinished frames included."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of unfinished frames."""

    def abort(self) -> None:
        """End the session at once, and free what it holds."""


class SessionGroup(Protocol):
    """The sessions of one listener; a sweep notes the sums of their bytes there."""

    buffered_bytes: int
    unfinished_bytes: int

    @property
    def sessions(self) -> Iterable[BufferingSession]:
        """The sessions at the moment."""


class MemoryGuard:
    """Closes the largest sessions when all together hold too much."""

    def __init__(
        self,
        max_bytes: float,
        max_unfinished_bytes: float,
        give_back: Callable[[], object] = give_back_free_memory,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
    ) -> None:
        self._give_back = give_back
        self._run_blocking = run_blocking
        self._peak_bytes = 0
        self._trimmed_s = -math.inf
        self._max_bytes = max_bytes
        self._max_unfinished_bytes = max_unfinished_bytes
        self._grown_limit = min(max_bytes, max_unfinished_bytes) / SUMS_PER_LIMIT
        self._grown_bytes = 0
        self._grown: dict[BufferingSession, None] = {}
        self._log_at_s = 0.0
        self.closed_total = 0

    def note_growth(self, session: BufferingSession, size: int) -> None:
        """Note that a session holds ``size`` bytes more, of a large unfinished frame or of output that waits."""
        self._grown[session] = None
        self._grown_bytes += size
        if self._grown_bytes > self._grown_limit:
            self._grown_bytes = 0
            # Only the sessions that grew are summed up here. The next sweep counts all of them.
            held = [(session.buffered_bytes, session.unfinished_bytes, session) for session in self._grown]
            self._grown = {session: None for size, _, session in held if size}
            self._close_largest(held)

    def forget_session(self, session: BufferingSession) -> None:
        """Forget a session that has ended."""
        self._grown.pop(session, None)

    async def sweep(self, groups: Iterable[SessionGroup]) -> None:
        """Sum up all sessions, and close the largest ones if that is too much."""
        held: list[tuple[int, int, BufferingSession]] = []
        for group in list(groups):
            first = len(held)
            for number, session in enumerate(list(group.sessions), 1):
                held.append((session.buffered_bytes, session.unfinished_bytes, session))
                if not number % SESSIONS_PER_TURN:
                    await trio.lowlevel.checkpoint()
            group.buffered_bytes = sum(size for size, _, _ in held[first:])
            group.unfinished_bytes = sum(size for _, size, _ in held[first:])
        self._close_largest(held)
        await self._give_back_memory(sum(size for size, _, _ in held))

    async def _give_back_memory(self, total_bytes: int) -> None:
        """Return memory to the system after a burst: the buffers of many sessions otherwise stay in the heap."""
        self._peak_bytes = max(self._peak_bytes, total_bytes)
        now_s = trio.current_time()
        if self._peak_bytes - total_bytes > TRIMMED_BYTES and now_s - self._trimmed_s > MIN_TRIM_INTERVAL_S:
            self._peak_bytes, self._trimmed_s = total_bytes, now_s
            await self._run_blocking(self._give_back)

    def _close_largest(self, held: list[tuple[int, int, BufferingSession]]) -> None:
        unfinished = [(size, session) for _, size, session in held]
        closed = self._close_down_to(self._max_unfinished_bytes, unfinished, "unfinished_total_bytes")
        # A session that was just closed must not make another one close for the same bytes.
        buffered = [(size, session) for size, _, session in held if session not in closed]
        self._close_down_to(self._max_bytes, buffered, "buffered_total_bytes")

    def _close_down_to(
        self, limit: float, held: list[tuple[int, BufferingSession]], setting: str
    ) -> set[BufferingSession]:
        """Close the largest sessions until the others hold no more than the limit; return the closed ones."""
        closed: set[BufferingSession] = set()
        held_bytes = total = sum(size for size, _ in held)
        if total <= limit:
            return closed
        # The largest first, so that as few clients as possible lose their connection.
        for size, session in sorted(held, key=itemgetter(0), reverse=True):
            if held_bytes <= limit:
                break
            held_bytes -= size
            closed.add(session)
            session.abort()
        self.closed_total += len(closed)
        # At most once per interval: an attacker can cause this with every burst.
        now_s = monotonic()
        if now_s >= self._log_at_s:
            self._log_at_s = now_s + LOG_INTERVAL_S
            extra = {"setting": setting, "bytes": total, "limit": limit, "closed_total": self.closed_total}
            log.warning("largest sessions closed: buffers of all clients exceed a limit", extra=extra)
        return closed

    def metrics(self) -> Iterator[Metric]:
        """Yield the number of closed sessions."""
        yield Metric(
            "forward_closed_for_memory_total",
            self.closed_total,
            "Client connections closed because all together held too many bytes.",
        )
