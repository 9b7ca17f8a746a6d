"""The observer that captures: a bounded buffer on the loop, files in a worker thread.

What the disk does not take in time is dropped and counted; forwarding never waits. Not responsible for the format
(codec.capture), for which exchanges are written (selection) nor for files (rotation).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import trio

from codec.capture import Record
from gateway.runtime.metrics import Figure
from gateway.runtime.run_blocking import RunBlocking
from gateway.shadow.capture.files import Folder
from gateway.shadow.capture.rotation import RotatedFiles
from gateway.shadow.capture.selection import Selection
from gateway.shadow.capture.settings import CaptureSettings
from gateway.shadow.traffic.exchange import Codes, Exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeListener

log = logging.getLogger(__name__)

RETRY_S = 1.0
CLOSE_S = 5.0
YIELD_EVERY = 8
BATCH_BLOCKS = 8
"""At most about so many blocks are made in one call of the worker, so that their memory is released soon."""


class Held:
    """An exchange that waits for the disk, and perhaps for its outcome at the target."""

    __slots__ = ("exchange", "outcome", "since_s", "size_bytes")

    def __init__(self, exchange: Exchange, size_bytes: int) -> None:
        self.exchange = exchange
        self.size_bytes = size_bytes
        self.since_s = 0.0
        self.outcome: Outcome | None = None


class Capture:
    """An observer of the hub. `run` must be running; it writes what is left when it is cancelled."""

    def __init__(
        self,
        settings: CaptureSettings,
        folder: Folder,
        *,
        gateway: str,
        run: int,
        now_ms: Callable[[], int],
        run_blocking: RunBlocking,
    ) -> None:
        self._settings = settings
        self._selection = Selection(settings)
        self._codes = self._selection.codes()
        self._files = RotatedFiles(settings, folder, gateway, run, now_ms)
        self._run_blocking = run_blocking
        self._buffer: deque[Held] = deque()
        self._batch: deque[Held] = deque()
        self._taken: list[Held] = []
        self._by_exchange: dict[int, Held] = {}
        self._joins = False
        self._held_messages = 0
        self._held_bytes = 0
        self._fresh_bytes = 0
        self._wake = trio.Event()
        self._working = threading.Lock()
        self._wanted: Callable[[], None] | None = None
        self._problem = ""
        self._dropping = False
        self._observed = 0
        self._left_out = 0
        self._dropped = 0
        self._failures = 0
        self._late = 0
        self._defects = 0

    def codes(self) -> Codes:
        """What the rules may want."""
        return self._codes

    def observe(self, exchange: Exchange) -> None:
        """Keeps an exchange for the worker; drops it when the buffer is full."""
        size = exchange.size_bytes
        settings = self._settings
        self._observed += 1
        if self._held_messages >= settings.buffer_messages or self._held_bytes + size > settings.buffer_bytes:
            self._drop()
            return
        held = Held(exchange, size)
        self._buffer.append(held)
        if self._joins:
            held.since_s = trio.current_time()
            self._by_exchange[id(exchange)] = held
        self._held_messages += 1
        self._held_bytes += size
        self._fresh_bytes += size
        if self._fresh_bytes >= settings.block_bytes:
            self._wake.set()

    def outcomes(self) -> OutcomeListener:
        """What the mirror has to call so that exchanges are written with the target's answers.

        Observe with the capture first, then with the mirror: an outcome for what was not observed yet is not joined.
        """
        self._joins = self._settings.target_wait_ms > 0
        return self._listen

    def _listen(self, outcome: Outcome) -> None:
        held = self._by_exchange.pop(id(outcome.exchange), None)
        if held is not None:
            held.outcome = outcome
        elif self._joins:
            self._late += 1

    def _drop(self) -> None:
        self._dropped += 1
        if not self._dropping:
            self._dropping = True
            reason = self._problem or "the disk is slower than the traffic"
            log.warning("capture drops exchanges: its buffer is full", extra={"reason": reason})

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes until cancelled, then what is left, for at most CLOSE_S."""
        task_status.started()
        try:
            while True:
                with trio.move_on_after(self._settings.block_interval_ms / 1000):
                    await self._wake.wait()
                self._wake = trio.Event()
                self._fresh_bytes = 0
                await self._write_ready()
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await self._finish()

    async def _write_ready(self) -> None:
        """Writes what need not wait any longer; after a failure, the same again in a while."""
        while True:
            self._take(everything=False)
            if not self._batch and not self._files.pending and not self._files.is_old():
                return
            if not await self._write(self._write_batch):
                await trio.sleep(RETRY_S)

    async def _finish(self) -> None:
        """Writes what is left, unless the worker was left alone with a disk that does not return."""
        alone = going = self._give_up()
        try:
            while going and (self._buffer or self._batch):
                self._take(everything=True)
                going = await self._write(self._write_batch)
            if alone:
                await self._write(self._files.close)
        finally:
            if self._held_messages:
                self._dropped += self._held_messages
                log.warning("capture ends with unwritten exchanges", extra={"count": self._held_messages})

    def _take(self, *, everything: bool) -> None:
        """Moves what is ready from the buffer to the batch, in order; nothing while one could not be written."""
        if self._batch:
            return
        wait_s = 0.0 if everything or not self._joins else self._settings.target_wait_ms / 1000
        written_from_s = trio.current_time() - wait_s
        room = BATCH_BLOCKS * self._settings.block_bytes
        while self._buffer and room > 0:
            held = self._buffer[0]
            if wait_s and held.outcome is None and held.since_s > written_from_s:
                return
            self._batch.append(self._buffer.popleft())
            self._taken.append(held)
            room -= held.size_bytes

    async def _write(self, work: Callable[[], None]) -> bool:
        """Lets the worker do something; False when the disk did not want it. Said once, until it went well again."""
        try:
            await self._run_blocking(self._alone(work))
        except OSError as error:
            self._failures += 1
            if not self._problem:
                log.warning("capture cannot be written", extra={"reason": str(error)})
            self._problem = str(error)
        else:
            if self._problem or self._dropping:
                log.warning("capture goes on", extra={"dropped": self._dropped})
            self._problem, self._dropping = "", False
            self._release()
        return not self._problem

    def _alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work for the worker thread, which does nothing once it was given up."""

        def run() -> None:
            with self._working:
                if self._wanted is run:
                    work()

        self._wanted = run
        return run

    def _give_up(self) -> bool:
        """Whether the worker does nothing now, and will not: its disk may never return, but we want to end."""
        self._wanted = None
        return not self._working.locked()

    def _release(self) -> None:
        """What was taken is in a file now."""
        self._held_messages -= len(self._taken)
        for held in self._taken:
            self._held_bytes -= held.size_bytes
            if self._joins:
                self._by_exchange.pop(id(held.exchange), None)
        self._taken.clear()

    def _write_batch(self) -> None:
        """In the worker thread: nothing else touches the batch and the files meanwhile."""
        self._files.close_old()
        self._files.flush()
        while self._batch:
            held = self._batch.popleft()
            record = self._record(held)
            if record is not None:
                self._files.add(record)
            if not len(self._batch) % YIELD_EVERY:
                # Lets the loop have the interpreter at once; it would get it after 5 ms otherwise.
                time.sleep(0)
        self._files.flush()

    def _record(self, held: Held) -> Record | None:
        """What is written of an exchange; one that cannot be made a record of must not end the capture."""
        try:
            record = self._selection.record(held.exchange, held.outcome)
        except Exception:
            if not self._defects:
                log.exception("an exchange cannot be captured", extra={"code": held.exchange.code})
            self._defects += 1
            return None
        self._left_out += record is None
        return record

    def figures(self) -> Iterator[Figure]:
        """What was captured and what was not."""
        files = self._files
        yield Figure("capture_observed_total", self._observed, "Exchanges the capture was told of.")
        yield Figure("capture_records_total", files.written_records, "Exchanges written.")
        yield Figure("capture_left_out_total", self._left_out, "Exchanges that no rule wanted, or no sample.")
        yield Figure(
            "capture_dropped_total", self._dropped, "Exchanges dropped, the disk being slow or full."
        )
        yield Figure("capture_written_bytes_total", files.written_bytes, "Bytes of files, compressed.")
        yield Figure(
            "capture_write_failures_total", self._failures, "Times the disk refused to take a block."
        )
        yield Figure(
            "capture_late_outcomes_total",
            self._late,
            "Outcomes that came after their exchange was written, or dropped.",
        )
        yield Figure("capture_defects_total", self._defects, "Exchanges that could not be made a record of.")
        yield Figure("capture_deleted_files_total", files.deleted_files, "Files removed to keep the limits.")
        yield Figure("capture_buffer_messages", self._held_messages, "Exchanges that wait.", "gauge")
        yield Figure("capture_buffer_bytes", self._held_bytes, "Bytes of their frames.", "gauge")
