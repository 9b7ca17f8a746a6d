"""The observer that captures traffic: a bounded buffer on the event loop, written by a worker thread.

Forwarding never waits for the disk: `observe` only appends to the buffer, and drops and counts exchanges when the
buffer is full. The `run` task moves ready exchanges to a batch and lets a worker thread encode and write it
(`rotation.py`). The thread yields the interpreter after every few exchanges, so that the loop waits fractions of a
millisecond, not the 5 ms of the interpreter's switch interval. An exchange is ready at once, or, with a mirror, once
its outcome arrived or `target_wait_ms` passed. The buffer's room is released only after the write, so that the bound
covers exchanges in the worker too. After an OSError the batch and the block being built stay as they are and the write
is retried. At shutdown the remaining exchanges are written for up to `MAX_CLOSE_S`; a worker stuck in a disk call is
abandoned (`_retire_worker`), and whatever is unwritten is counted as dropped.
"""

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import trio

from codec.capture import CaptureRecord
from gateway.runtime.metrics import Metric
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.capture.files import CaptureFolder, DiskFolder
from gateway.shadow.capture.rotation import RotatedFiles
from gateway.shadow.capture.selection import CaptureSelection
from gateway.shadow.capture.settings import CaptureSettings
from gateway.shadow.traffic.exchange import Codes, Exchange
from gateway.shadow.traffic.outcome import Outcome
from storage.clock import SystemClock

log = logging.getLogger(__name__)

RETRY_INTERVAL_S = 1.0
MAX_CLOSE_S = 5.0
YIELD_EVERY = 8
"""Exchanges after which the worker yields the interpreter to the event loop."""
MAX_BATCH_BLOCKS = 8
"""Approximate number of blocks that one worker call writes; bounds how long their memory is buffered."""


class BufferedExchange:
    """An exchange that waits for the disk and, with a mirror, for its outcome at the target."""

    __slots__ = ("exchange", "outcome", "since_s", "size_bytes")

    def __init__(self, exchange: Exchange, size_bytes: int) -> None:
        self.exchange = exchange
        self.size_bytes = size_bytes
        self.since_s = 0.0
        self.outcome: Outcome | None = None


class CaptureWriter:
    """An observer of the hub. `run` must be running; it writes the remaining exchanges when it is cancelled."""

    def __init__(
        self,
        settings: CaptureSettings,
        folder: CaptureFolder,
        *,
        gateway: str,
        run: int,
        now_ms: Callable[[], int],
        run_blocking: RunBlocking,
        has_mirror: bool = False,
    ) -> None:
        self.tasks = TaskSupervisor("capture")
        self._settings = settings
        self._selection = CaptureSelection(settings)
        self._codes = self._selection.codes()
        self._files = RotatedFiles(settings, folder, gateway, run, now_ms)
        self._run_blocking = run_blocking
        self._buffer: deque[BufferedExchange] = deque()
        self._batch: deque[BufferedExchange] = deque()
        self._in_progress: list[BufferedExchange] = []
        self._by_exchange: dict[int, BufferedExchange] = {}
        self._joins_outcomes = has_mirror and settings.target_wait_ms > 0
        self._buffered_messages = 0
        self._buffered_bytes = 0
        self._bytes_since_wake = 0
        self._wake = trio.Event()
        self._work_lock = threading.Lock()
        self._current_work: Callable[[], None] | None = None
        self._last_error = ""
        self._dropping = False
        self._observed = 0
        self._left_out = 0
        self._dropped = 0
        self._failures = 0
        self._late_outcomes = 0
        self._defects = 0

    def codes(self) -> Codes:
        """Return the request codes that any rule may select."""
        return self._codes

    def observe(self, exchange: Exchange) -> None:
        """Buffer an exchange for the worker; drop it when the buffer is full."""
        size = exchange.size_bytes
        settings = self._settings
        self._observed += 1
        if (
            self._buffered_messages >= settings.buffer_messages
            or self._buffered_bytes + size > settings.buffer_bytes
        ):
            self._count_drop()
            return
        buffered = BufferedExchange(exchange, size)
        self._buffer.append(buffered)
        if self._joins_outcomes:
            buffered.since_s = trio.current_time()
            self._by_exchange[id(exchange)] = buffered
        self._buffered_messages += 1
        self._buffered_bytes += size
        self._bytes_since_wake += size
        # Less than a block waits for the interval.
        if self._bytes_since_wake >= settings.block_bytes:
            self._wake.set()

    def observe_outcome(self, outcome: Outcome) -> None:
        """Attach the target's answer to its exchange while that is still buffered: an `OutcomeListener`.

        The capture must observe an exchange before the mirror does: an outcome of an exchange that the capture has not
        seen yet is counted as late.
        """
        buffered = self._by_exchange.pop(id(outcome.exchange), None)
        if buffered is not None:
            buffered.outcome = outcome
        elif self._joins_outcomes:
            self._late_outcomes += 1

    def _count_drop(self) -> None:
        self._dropped += 1
        if not self._dropping:
            self._dropping = True
            reason = self._last_error or "the disk is slower than the traffic"
            log.warning("capture buffer is full, dropping exchanges", extra={"reason": reason})

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled, then write the remaining exchanges for at most MAX_CLOSE_S."""
        task_status.started()
        try:
            while True:
                with trio.move_on_after(self._settings.block_interval_ms / 1000):
                    await self._wake.wait()
                self._wake = trio.Event()
                self._bytes_since_wake = 0
                if not await self.tasks.attempt("write exchanges", self._write_ready):
                    await trio.sleep(RETRY_INTERVAL_S)
        finally:
            with trio.move_on_after(MAX_CLOSE_S, shield=True):
                await self._write_rest()

    async def _write_ready(self) -> None:
        """Write the exchanges that need not wait any longer, retrying after a failure.

        Those that become ready meanwhile wait for the next turn: each batch ends a block, and a file remembers its
        blocks until it is closed.
        """
        is_full = True
        while is_full:
            is_full = self._fill_batch(everything=False)
            if not self._batch and not self._files.pending_records and not self._files.is_file_expired():
                return
            if not await self._run_in_worker(self._write_batch):
                is_full = True
                await trio.sleep(RETRY_INTERVAL_S)

    async def _write_rest(self) -> None:
        """Write the remaining exchanges, unless the worker is stuck in a disk call."""
        is_worker_free = succeeded = self._retire_worker()
        try:
            while succeeded and (self._buffer or self._batch):
                self._fill_batch(everything=True)
                succeeded = await self._run_in_worker(self._write_batch)
            if is_worker_free:
                await self._run_in_worker(self._files.close)
        finally:
            if self._buffered_messages:
                self._dropped += self._buffered_messages
                log.warning(
                    "capture ended with unwritten exchanges", extra={"count": self._buffered_messages}
                )

    def _fill_batch(self, *, everything: bool) -> bool:
        """Move ready exchanges from the buffer to the batch, oldest first; return True if the batch is full.

        Do nothing while a batch is unwritten.
        """
        if self._batch:
            return True
        wait_s = 0.0 if everything or not self._joins_outcomes else self._settings.target_wait_ms / 1000
        written_from_s = trio.current_time() - wait_s
        room = MAX_BATCH_BLOCKS * self._settings.block_bytes
        while self._buffer and room > 0:
            buffered = self._buffer[0]
            if wait_s and buffered.outcome is None and buffered.since_s > written_from_s:
                return False
            self._batch.append(self._buffer.popleft())
            self._in_progress.append(buffered)
            room -= buffered.size_bytes
        return room <= 0

    async def _run_in_worker(self, work: Callable[[], None]) -> bool:
        """Run work in the worker thread; return False after an OSError. A failure is logged once until a write
        succeeds."""
        try:
            await self._run_blocking(self._guard_work(work))
        except OSError as error:
            self._failures += 1
            if not self._last_error:
                log.warning("capture cannot write to disk", extra={"reason": str(error)})
            self._last_error = str(error)
        else:
            if self._last_error or self._dropping:
                log.warning("capture resumed", extra={"dropped": self._dropped})
            self._last_error, self._dropping = "", False
            self._release_written()
        return not self._last_error

    def _guard_work(self, work: Callable[[], None]) -> Callable[[], None]:
        """Wrap work for the worker thread so that it does nothing after `_retire_worker`."""

        def run() -> None:
            with self._work_lock:
                if self._current_work is run:
                    work()

        self._current_work = run
        return run

    def _retire_worker(self) -> bool:
        """Forbid the worker any further work; return False when it is working now and may never return."""
        self._current_work = None
        return not self._work_lock.locked()

    def _release_written(self) -> None:
        """Release the buffer's room for the exchanges that are in a file now."""
        self._buffered_messages -= len(self._in_progress)
        for buffered in self._in_progress:
            self._buffered_bytes -= buffered.size_bytes
            if self._joins_outcomes:
                self._by_exchange.pop(id(buffered.exchange), None)
        self._in_progress.clear()

    def _write_batch(self) -> None:
        """Write the batch, in the worker thread: nothing else touches the batch and the files meanwhile."""
        self._files.close_expired_file()
        self._files.flush()
        while self._batch:
            buffered = self._batch.popleft()
            record = self._make_record(buffered)
            if record is not None:
                self._files.add_record(record)
            if not len(self._batch) % YIELD_EVERY:
                # Hands the interpreter lock to the event loop, which would get it only after 5 ms otherwise.
                time.sleep(0)
        self._files.flush()

    def _make_record(self, buffered: BufferedExchange) -> CaptureRecord | None:
        """Return the record of an exchange; a failure to make one is counted and must not end the capture."""
        try:
            record = self._selection.make_record(buffered.exchange, buffered.outcome)
        except Exception:
            if not self._defects:
                log.exception("exchange cannot be captured", extra={"code": buffered.exchange.code})
            self._defects += 1
            return None
        self._left_out += record is None
        return record

    def collect_metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the capture."""
        files = self._files
        yield Metric("capture_observed_total", self._observed, "Exchanges observed by the capture.")
        yield Metric("capture_records_total", files.written_records, "Exchanges written.")
        yield Metric(
            "capture_left_out_total", self._left_out, "Exchanges not selected by a rule or its sample."
        )
        yield Metric(
            "capture_dropped_total", self._dropped, "Exchanges dropped, the disk being slow or full."
        )
        yield Metric("capture_written_bytes_total", files.written_bytes, "Bytes of files, compressed.")
        yield Metric("capture_write_failures_total", self._failures, "Failed attempts to write to disk.")
        yield Metric(
            "capture_late_outcomes_total",
            self._late_outcomes,
            "Outcomes that arrived after their exchange was written or dropped.",
        )
        yield Metric("capture_defects_total", self._defects, "Exchanges that could not be encoded.")
        yield Metric("capture_deleted_files_total", files.deleted_files, "Files deleted to keep the limits.")
        yield Metric("capture_buffer_messages", self._buffered_messages, "Exchanges that wait.", "gauge")
        yield Metric("capture_buffer_bytes", self._buffered_bytes, "Bytes of their frames.", "gauge")


def build_capture(settings: CaptureSettings, *, has_mirror: bool) -> CaptureWriter | None:
    """Return the observer for the hub, whose `run` must run; None when nothing is captured.

    ``has_mirror``: exchanges wait for the answer of the mirror's target.
    """
    if not settings.directory:
        return None
    return CaptureWriter(
        settings,
        DiskFolder(settings.directory),
        gateway=socket.gethostname(),
        run=secrets.randbits(64),
        now_ms=SystemClock().now_ms,
        # A thread that hangs in a disk call must not keep the process from ending.
        run_blocking=partial(trio.to_thread.run_sync, abandon_on_cancel=True),
        has_mirror=has_mirror,
    )
