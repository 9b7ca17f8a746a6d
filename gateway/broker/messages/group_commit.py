"""Group commit: one flush to the disk answers every send that waits for it.

With SYNC_FLUSH an answer may leave only after its message is durable. Flushing once per message would limit the
broker to the disk's rate of flushes, so answers queue up and share flushes:

1. `hold_answer` queues the encoded answer and starts a flush, unless one is running.
2. The flush runs in a thread. At its beginning it notes how many answers have been queued; answers that are queued
   later wait for the next flush, because the running one may not cover their bytes.
3. When a flush succeeds, the answers noted at its beginning are written in their order, all of a connection at once.
   If more are queued by then, the next flush starts.
4. An answer that waits longer than the time limit is sent with FLUSH_DISK_TIMEOUT: stored, perhaps not durable.

Invariant: a SUCCESS answer is sent only after a flush that began after the append it reports. A crash before step 3
loses answers, never messages whose answers were sent; the producer sends again.

When the disk refuses a flush (FlushFailed), all held answers become refusals, and the store refuses every later send
(`storage/flush_guard.py`): no flush can make these messages durable any more. The task fails from then on, so that
`/readyz` and the metrics say so. When a flush could not be tried (no file descriptor is left, for example), the answers
stay queued, and it is tried again after a second.

With ASYNC_FLUSH no answer is held and the store is flushed at intervals.

Where there is a `Reactor`, the thread is a `FlushThread`, and no step passes through trio's scheduler. Otherwise
`run` hands each flush to a worker thread. `trio.to_thread` costs two passes through the scheduler for each call, longer
than a flush of a fast disk takes: with a `FlushThread` a send that waits for its flush takes 0.1 ms instead of 0.2, and
90 µs of processor time instead of 220.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import trio

from codec.command import decode_frame, encode_command, encode_response
from codec.constants import ResponseCode
from gateway.broker.messages.message_writer import store_refusal
from gateway.runtime.run_blocking import RunBlocking
from remoting.connection import Connection
from remoting.reactor import Reactor
from storage.errors import FlushFailed
from storage.store import MessageStore

log = logging.getLogger(__name__)

FLUSH_RETRY_S = 1.0
LENGTH_BYTES = 4


class HeldAnswer(NamedTuple):
    """An encoded answer that waits for the disk."""

    connection: Connection
    answer: bytes
    deadline: float


class FlushThread:
    """Runs ``work`` in a thread after each `start`, and then calls ``ended`` in the event loop.

    ``ended`` gets the exception that ``work`` raised, or None. `start` must not be called again before that. A lock
    wakes the thread up, and an eventfd that the reactor watches like a socket brings the outcome back.
    """

    def __init__(
        self, work: Callable[[], object], ended: Callable[[Exception | None], None], reactor: Reactor
    ) -> None:
        self._work = work
        self._ended = ended
        self._reactor = reactor
        self._error: Exception | None = None
        self._is_closing = False
        self._started = threading.Lock()  # Released by `start`: the cheapest way to wake a thread up.
        self._started.acquire()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.watch(self._event, self._handle_end)
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Run the work once."""
        self._started.release()

    def _run(self) -> None:
        while True:
            self._started.acquire()
            if self._is_closing:
                return
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - handed to `ended`
                self._error = error
            os.eventfd_write(self._event, 1)  # Last: from here on the event loop may take the outcome.

    def _handle_end(self) -> None:
        with suppress(BlockingIOError):  # the reactor may call without need
            os.eventfd_read(self._event)
            error, self._error = self._error, None
            try:
                self._ended(error)
            except Exception:
                log.exception("the end of a flush could not be handled")

    def close(self) -> None:
        """End the thread, after the work that is running; its outcome is dropped. Idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._reactor.unwatch(self._event)
        with suppress(RuntimeError):  # started, and not yet seen by the thread
            self._started.release()
        self._thread.join()
        os.close(self._event)


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
        reactor: Reactor | None = None,
    ) -> None:
        self.synchronous = synchronous
        self._store = store
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self._run_blocking = run_blocking
        self._held: deque[HeldAnswer] = deque()
        # Answers ever queued; of these, those that have left, and those that the last flush covers.
        self._queued = 0
        self._released = 0
        self._covered = 0
        # Of flushes that succeeded since the start; written by the thread that flushes.
        self.flushes = 0
        self.longest_flush_s = 0.0
        self._is_flush_wanted = False
        self._flush_started_s: float | None = None
        self._flush_requested = trio.Event()
        self._flush_failed = trio.Event()
        self._thread = FlushThread(self._flush, self._end_flush, reactor) if synchronous and reactor else None

    def reconfigure(self, *, interval_ms: int, timeout_ms: int) -> None:
        """Apply changed times: the interval from the next flush on, the timeout to answers held from now on."""
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms

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
            self._held.append(HeldAnswer(connection, answer, trio.current_time() + self._timeout_ms / 1000))
            self._queued += 1
        self._is_flush_wanted = True  # Last: from here on the thread may cover the answer.
        if self._thread is None:
            self._flush_requested.set()
        elif self._flush_started_s is None and not self._flush_failed.is_set():
            self._start_thread(self._thread)

    def _start_thread(self, thread: FlushThread) -> None:
        self._flush_started_s = trio.current_time()
        thread.start()

    def _flush(self) -> None:
        """Flush for all answers that are queued now. Runs in a thread."""
        # The flag before the count: an answer queued in between asks for one flush too many, never one too few.
        self._is_flush_wanted = False
        self._covered = self._queued
        began_s = time.perf_counter()
        self._store.flush()
        self.flushes += 1
        self.longest_flush_s = max(self.longest_flush_s, time.perf_counter() - began_s)

    def _end_flush(self, error: Exception | None) -> None:
        """Write the covered answers after a flush of the thread, and start the next flush."""
        self._flush_started_s = None
        if error is not None:
            if isinstance(error, FlushFailed):
                self._refuse_held(error)
            else:
                log.error("flush failed; answers wait for the next attempt", exc_info=error)
            # `_repeat_failed` finds out whether the failure is final, and otherwise tries again.
            self._flush_failed.set()
            return
        self._write_covered()
        if self._is_flush_wanted and self._thread is not None:
            self._start_thread(self._thread)

    def _write_covered(self) -> None:
        """Write the answers that the last flush covers, those of one connection in one call."""
        # A pipelining producer has many answers here, and each write of their connection is a system call.
        answers: dict[Connection, list[bytes]] = {}
        while self._held and self._released < self._covered:
            held = self._pop_oldest()
            answers.setdefault(held.connection, []).append(held.answer)
        for connection, parts in answers.items():
            connection.write(parts[0] if len(parts) == 1 else b"".join(parts))

    async def run(self) -> None:
        """Flush until cancelled. `watch_deadlines` runs at the same time.

        Raises FlushFailed; from then on every call does.
        """
        if self._thread is not None:
            return await self._repeat_failed(self._thread)
        await self._run_blocking(self._store.flushes.check)
        while True:
            if self.synchronous:
                await self._flush_requested.wait()
            else:
                await trio.sleep(self._interval_ms / 1000)
            await self._flush_once()

    async def _repeat_failed(self, thread: FlushThread) -> None:
        while True:
            await self._flush_failed.wait()
            # Raises FlushFailed where the disk refused: then the task fails, and `/readyz` shows it.
            await self._run_blocking(self._store.flushes.check)
            await trio.sleep(FLUSH_RETRY_S)
            self._flush_failed = trio.Event()
            self._start_thread(thread)

    async def _flush_once(self) -> None:
        """Flush for all answers that are held now."""
        self._flush_requested = trio.Event()
        if not self._held and self._store.durable_offset >= self._store.max_physical_offset:
            return  # An idle broker leaves its disk alone.
        self._flush_started_s = trio.current_time()
        try:
            await self._run_blocking(self._flush)
        except FlushFailed as error:
            self._refuse_held(error)
            raise
        except Exception:
            log.exception("flush failed; answers wait for the next attempt")
            await trio.sleep(FLUSH_RETRY_S)
            self._flush_requested.set()
            return
        finally:
            self._flush_started_s = None
        self._write_covered()

    def _refuse_held(self, error: FlushFailed) -> None:
        """Refuse all sends that wait, also those that came during the flush: none can become durable any more."""
        refusal = store_refusal(error, self._store.config.max_message_bytes)
        while self._held:
            held = self._pop_oldest()
            request = decode_frame(held.answer, LENGTH_BYTES, len(held.answer))
            held.connection.write(encode_response(request.opaque, refusal.code, {}, b"", refusal.remark))

    def _pop_oldest(self) -> HeldAnswer:
        self._released += 1
        held = self._held.popleft()
        held.connection.outstanding_requests -= 1
        return held

    def close(self) -> None:
        """End the thread, after the flush that is running. Idempotent."""
        if self._thread is not None:
            self._thread.close()

    async def watch_deadlines(self) -> None:
        """Write answers whose deadline has passed, until cancelled.

        All have the same time limit, so the oldest is due first, and an answer that is queued during the sleep is not
        due before its end. An event of the first answer would cost each single send a pass through the scheduler.
        """
        while True:
            next_s = trio.current_time() + self._timeout_ms / 1000
            await trio.sleep_until(self._held[0].deadline if self._held else next_s)
            while self._held and self._held[0].deadline <= trio.current_time():
                held = self._pop_oldest()
                log.warning("flush timed out, answering before it", extra={"remote": held.connection.remote})
                held.connection.write(_not_durable(held.answer))


def _not_durable(answer: bytes) -> bytes:
    """Return the same answer with the code for "stored, but not known to be on disk"."""
    command = decode_frame(answer, LENGTH_BYTES, len(answer))
    command.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return encode_command(command)
