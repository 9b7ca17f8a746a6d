"""Group commit: one flush to the disk for every message that waits for it.

With SYNC_FLUSH an answer may leave only after its message is durable (`answer_gate.py`). Flushing once per message
would limit the broker to the disk's rate of flushes, so messages share flushes:

1. `request_flush` starts a flush, unless one is running.
2. The flush runs in a thread. It covers what was appended before it began; messages that are appended later wait for
   the next flush, because the running one may not cover their bytes.
3. When a flush succeeds, listeners get the physical offset up to which the log is on the disk. If another flush has
   been requested by then, it starts.

Invariant: listeners get an offset only after a flush that covered everything below it has ended without an error.

When the disk refuses a flush (FlushFailed), listeners get the error, and the store refuses every later send
(`storage/flush_guard.py`). The task fails from then on, so that `/readyz` and the metrics say so. When a flush could
not be tried (no file descriptor is left, for example), it is tried again after a second.

With ASYNC_FLUSH the store is flushed at intervals.

Where there is a `Reactor`, the thread is a `FlushThread`, and no step passes through trio's scheduler. Otherwise
`run` hands each flush to a worker thread. `trio.to_thread` costs two passes through the scheduler for each call, longer
than a flush of a fast disk takes: with a `FlushThread` a send that waits for its flush takes 0.1 ms instead of 0.2, and
90 µs of processor time instead of 220.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import trio

from gateway.runtime.run_blocking import RunBlocking
from remoting.reactor import Reactor
from storage.errors import FlushFailed
from storage.store import MessageStore

log = logging.getLogger(__name__)

FLUSH_RETRY_S = 1.0


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
        """Run the work once, after the readers of the present poll."""
        # Its requests share the flush then. The thread would wait for the interpreter lock until they are handled.
        if not self._reactor.defer(self._wake):
            self._wake()

    def _wake(self) -> None:
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
    """Flushes the commit log, on request or at intervals, and announces how far it is on the disk.

    Source: CommitLog.GroupCommitService and FlushRealTimeService, 5.4.0.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        synchronous: bool,
        interval_ms: int,
        run_blocking: RunBlocking,
        reactor: Reactor | None = None,
    ) -> None:
        self.synchronous = synchronous
        self._store = store
        self._interval_ms = interval_ms
        self._run_blocking = run_blocking
        self._durable_listeners: list[Callable[[int], None]] = []
        self._failure_listeners: list[Callable[[FlushFailed], None]] = []
        # Of flushes that succeeded since the start; written by the thread that flushes.
        self.flushes = 0
        self.longest_flush_s = 0.0
        self._is_flush_wanted = False
        self._flush_started_s: float | None = None
        self._flush_requested = trio.Event()
        self._flush_failed = trio.Event()
        self._thread = FlushThread(self._flush, self._end_flush, reactor) if synchronous and reactor else None

    def add_listener(self, durable: Callable[[int], None], failed: Callable[[FlushFailed], None]) -> None:
        """Call ``durable`` with the offset up to which the log is on the disk, ``failed`` when the disk refuses it."""
        self._durable_listeners.append(durable)
        self._failure_listeners.append(failed)

    def reconfigure(self, *, interval_ms: int) -> None:
        """Apply a changed interval, from the next flush on."""
        self._interval_ms = interval_ms

    @property
    def flushing_s(self) -> float:
        """Running time in seconds of the current flush; 0 while there is none."""
        started_s = self._flush_started_s
        return 0.0 if started_s is None else trio.current_time() - started_s

    def request_flush(self) -> None:
        """Flush everything appended so far soon."""
        self._is_flush_wanted = True  # Before the thread is started, which resets it.
        if self._thread is None:
            self._flush_requested.set()
        elif self._flush_started_s is None and not self._flush_failed.is_set():
            self._start_thread(self._thread)

    def _start_thread(self, thread: FlushThread) -> None:
        self._flush_started_s = trio.current_time()
        thread.start()

    def _flush(self) -> None:
        """Flush everything that is appended now. Runs in a thread."""
        # Before the flush begins: a message appended in between asks for one flush too many, never one too few.
        self._is_flush_wanted = False
        began_s = time.perf_counter()
        self._store.flush()
        self.flushes += 1
        self.longest_flush_s = max(self.longest_flush_s, time.perf_counter() - began_s)

    def _end_flush(self, error: Exception | None) -> None:
        """Announce the outcome of a flush of the thread, and start the next one if it was requested."""
        self._flush_started_s = None
        if error is not None:
            if isinstance(error, FlushFailed):
                self._announce_failure(error)
            else:
                log.error("flush failed; answers wait for the next attempt", exc_info=error)
            # `_repeat_failed` finds out whether the failure is final, and otherwise tries again.
            self._flush_failed.set()
            return
        self._announce_durable()
        if self._is_flush_wanted and self._thread is not None and self._flush_started_s is None:
            self._start_thread(self._thread)

    def _announce_durable(self) -> None:
        position = self._store.durable_offset
        for listener in self._durable_listeners:
            listener(position)

    def _announce_failure(self, error: FlushFailed) -> None:
        for listener in self._failure_listeners:
            listener(error)

    async def run(self) -> None:
        """Flush until cancelled. Raises FlushFailed; from then on every call does."""
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
        """Flush everything that is appended now."""
        self._flush_requested = trio.Event()
        if not self._is_flush_wanted and self._store.durable_offset >= self._store.max_physical_offset:
            return  # An idle broker leaves its disk alone.
        self._flush_started_s = trio.current_time()
        try:
            await self._run_blocking(self._flush)
        except FlushFailed as error:
            self._announce_failure(error)
            raise
        except Exception:
            log.exception("flush failed; answers wait for the next attempt")
            await trio.sleep(FLUSH_RETRY_S)
            self.request_flush()
            return
        finally:
            self._flush_started_s = None
        self._announce_durable()

    def close(self) -> None:
        """End the thread, after the flush that is running. Idempotent."""
        if self._thread is not None:
            self._thread.close()
