"""Makes appended bytes durable: at intervals, or before the answer leaves when the broker flushes synchronously.

Not responsible for how a file is flushed (storage is) nor for what the answer says.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from codec.command import decode_frame, encode_command
from codec.constants import ResponseCode
from remoting.connection import Connection
from storage.store import MessageStore

log = logging.getLogger(__name__)

RunBlocking = Callable[[Callable[[], object]], Awaitable[object]]
FLUSH_RETRY_S = 1.0
LENGTH_BYTES = 4


class HeldAnswer(NamedTuple):
    """An answer that waits for the disk."""

    connection: Connection
    answer: bytes
    deadline: float


class GroupCommit:
    """Holds answers until the bytes they speak of are on disk; all that wait share one flush.

    An answer that waits longer than ``timeout_ms`` leaves with FLUSH_DISK_TIMEOUT: stored, perhaps not durable.
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
        """How many answers are held."""
        return len(self._held)

    @property
    def flushing_s(self) -> float:
        """For how long the flush under way has run, in seconds; 0 while there is none."""
        started_s = self._flush_started_s
        return 0.0 if started_s is None else trio.current_time() - started_s

    def hold_answer(self, connection: Connection, answer: bytes | None) -> None:
        """Writes ``answer`` once everything appended so far is durable; ``None`` asks for the flush alone."""
        if answer is not None:
            connection.outstanding_requests += (
                1  # Not `begin`: the message is stored, its answer must not be refused.
            )
            self._held.append(HeldAnswer(connection, answer, trio.current_time() + self._timeout_s))
            self._some_held.set()
        self._flush_requested.set()

    async def run(self) -> None:
        """Flushes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_deadlines)
            while True:
                if self.synchronous:
                    await self._flush_requested.wait()
                else:
                    await trio.sleep(self._interval_s)
                await self._flush_once()

    async def _flush_once(self) -> None:
        """One flush for all answers held now. Those that come meanwhile wait for the next one."""
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

    async def _watch_deadlines(self) -> None:
        """Answers what waited too long. All wait equally long, so the first held is the first due."""
        while True:
            if not self._held:
                self._some_held = trio.Event()
                await self._some_held.wait()
            await trio.sleep_until(self._held[0].deadline if self._held else trio.current_time())
            while self._held and self._held[0].deadline <= trio.current_time():
                held = self._pop_oldest()
                log.warning("flush did not end in time", extra={"remote": held.connection.remote})
                held.connection.write(_not_durable(held.answer))


def _not_durable(answer: bytes) -> bytes:
    """The same answer with the code that says: stored, but not known to be on disk."""
    command = decode_frame(answer, LENGTH_BYTES, len(answer))
    command.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return encode_command(command)
