"""Group commit: one flush to the disk answers every send that waits for it.

With SYNC_FLUSH an answer may leave only after its message is durable. Flushing once per message would limit the
broker to the disk's rate of flushes, so answers queue up and share flushes:

1. `hold_answer` queues the encoded answer and requests a flush.
2. `run` flushes the store in a thread. Answers that are queued during a flush wait for the next one, because the
   running flush may not cover their bytes.
3. When a flush succeeds, all answers that were queued before it began are written, in order.
4. An answer that waits longer than the time limit is sent with FLUSH_DISK_TIMEOUT: stored, perhaps not durable.

Invariant: a SUCCESS answer is sent only after a flush that began after the append it reports. A crash before step 3
loses answers, never messages whose answers were sent; the producer sends again. After a failed flush the answers stay
queued, and the flush is repeated after a second. With ASYNC_FLUSH no answer is held and the store is flushed at
intervals.
"""

import logging
from collections import deque
from typing import NamedTuple

import trio

from codec.command import decode_frame, encode_command
from codec.constants import ResponseCode
from gateway.runtime.run_blocking import RunBlocking
from remoting.connection import Connection
from storage.store import MessageStore

log = logging.getLogger(__name__)

FLUSH_RETRY_S = 1.0
LENGTH_BYTES = 4


class HeldAnswer(NamedTuple):
    """An encoded answer that waits for the disk."""

    connection: Connection
    answer: bytes
    deadline: float


class GroupCommit:
    """Holds answers until their messages are on disk. All held answers share one flush.
    Source: CommitLog.GroupCommitService, FlushDiskWatcher and FlushRealTimeService, 5.4.0.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        synchronous: bool,
        interval_ms: int,
        timeout_ms: int,
        run_blocking: RunBlocking,
    ) -> None:
        self.synchronous = synchronous
        self._store = store
        self._interval_s = interval_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self._run_blocking = run_blocking
        self._held: deque[HeldAnswer] = deque()
        self._released = 0
        self._flush_started_s: float | None = None
        self._flush_requested = trio.Event()
        self._some_held = trio.Event()

    @property
    def held_count(self) -> int:
        """Number of held answers."""
        return len(self._held)

    @property
    def flushing_s(self) -> float:
        """Running time in seconds of the current flush; 0 while there is none."""
        started_s = self._flush_started_s
        return 0.0 if started_s is None else trio.current_time() - started_s

    def hold_answer(self, connection: Connection, answer: bytes | None) -> None:
        """Write ``answer`` once everything appended so far is durable. None requests the flush alone."""
        if answer is not None:
            # Counted directly, without the limit: the message is stored, so its answer must not be refused.
            connection.outstanding_requests += 1
            self._held.append(HeldAnswer(connection, answer, trio.current_time() + self._timeout_s))
            self._some_held.set()
        self._flush_requested.set()

    async def run(self) -> None:
        """Flush until cancelled. `watch_deadlines` runs beside it."""
        while True:
            if self.synchronous:
                await self._flush_requested.wait()
            else:
                await trio.sleep(self._interval_s)
            await self._flush_once()

    async def _flush_once(self) -> None:
        """Flush for all answers that are held now."""
        last = self._released + len(self._held)
        self._flush_requested = trio.Event()
        if not self._held and self._store.durable_offset >= self._store.max_physical_offset:
            return
        self._flush_started_s = trio.current_time()
        try:
            await self._run_blocking(self._store.flush)
        except Exception:
            log.exception("flush failed; answers wait for the next attempt")
            await trio.sleep(FLUSH_RETRY_S)
            self._flush_requested.set()
            return
        finally:
            self._flush_started_s = None
        while self._held and self._released < last:
            held = self._pop_oldest()
            held.connection.write(held.answer)

    def _pop_oldest(self) -> HeldAnswer:
        self._released += 1
        held = self._held.popleft()
        held.connection.outstanding_requests -= 1
        return held

    async def watch_deadlines(self) -> None:
        """Write answers whose deadline has passed, until cancelled.

        All have the same time limit, so the oldest is due first.
        """
        while True:
            if not self._held:
                self._some_held = trio.Event()
                await self._some_held.wait()
            await trio.sleep_until(self._held[0].deadline if self._held else trio.current_time())
            while self._held and self._held[0].deadline <= trio.current_time():
                held = self._pop_oldest()
                log.warning("flush timed out, answering before it", extra={"remote": held.connection.remote})
                held.connection.write(_not_durable(held.answer))


def _not_durable(answer: bytes) -> bytes:
    """Return the same answer with the code for "stored, but not known to be on disk"."""
    command = decode_frame(answer, LENGTH_BYTES, len(answer))
    command.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return encode_command(command)
