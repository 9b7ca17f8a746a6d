"""One mirror stream: the exchanges of one rule and one broker on their way to the target.

Theory of operation
-------------------
Problem: bring exchanges to a target that may be slow, gone, full, or broken by one particular message, without ever
making the primary's clients wait, without unbounded memory, and with exact counts.

    offer_exchange → reorder buffer → backlog → batch → target writer → outcome

- `offer_exchange` never waits. The reorder buffer restores the primary's offset order within a queue, waiting at most
  `order_ms` for a gap; the backlog bounds what waits for the target, and drops what has no room.
- `_write_batches` hands one batch at a time to the writer, with a deadline. The batch size doubles after each quick
  success and shrinks to a quarter after a failure, so that a failing exchange is soon alone in its batch.
- A failure puts the batch back to the front and is counted by the circuit breaker. While the breaker is open the target
  is left alone; after the back-off one probe and one batch decide. An exchange that fails alone, right after the target
  answered a probe, counts the failure as its own, and is given up after `attempts` (or `refusals`) such failures. So an
  outage never counts against a message, and one bad message never stops the stream.
- A target that answers NO_PERMISSION to everything is reachable, but every attempt costs a message. After
  `breaker_forbidden` such answers in a row the breaker opens too.

Each entry is in exactly one place at any time (reorder buffer, backlog, `_in_flight`), and its outcome is settled
exactly once, through the stream's `StreamAccount`. When the stream is cancelled, the batch in flight goes back to the
backlog, which may write it to disk. The writers are `resend_writer.py` and `replication/replication_writer.py`.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import trio

from codec.constants import ResponseCode
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.mirror.backlog import Backlog, BacklogEntry
from gateway.shadow.mirror.circuit_breaker import BreakerState, CircuitBreaker
from gateway.shadow.mirror.reorder_buffer import ReorderBuffer
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.mirror.stream_account import StreamAccount, StreamCounts
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind, TargetWriter
from gateway.shadow.traffic.subject import Subject
from remoting.errors import RequestError

log = logging.getLogger(__name__)

_MAX_PROBLEM_CHARS: Final = 200


class ProbedWriter(TargetWriter, Protocol):
    """A target writer that can also find out whether its target answers at all."""

    async def probe(self) -> None:
        """Ask the target something harmless. Raises when there is no answer."""


class MirrorStream:
    """Takes exchanges with `offer_exchange`; `run` brings them to the writer until cancelled.

    Times are trio's, in seconds. ``tasks`` runs its background tasks.
    """

    def __init__(
        self,
        name: str,
        settings: MirrorSettings,
        writer: ProbedWriter,
        backlog: Backlog,
        account: StreamAccount,
        tasks: TaskSupervisor,
    ) -> None:
        self.name = name
        self.writer = writer
        self.breaker = CircuitBreaker(
            settings.breaker_failures,
            settings.breaker_backoff_ms / 1000,
            settings.breaker_backoff_max_ms / 1000,
        )
        self._settings = settings
        self._account = account
        self._tasks = tasks
        self._reorder_buffer: ReorderBuffer[BacklogEntry] = ReorderBuffer(
            settings.order_ms / 1000, settings.order_messages
        )
        self._backlog = backlog
        self._in_flight: list[BacklogEntry] = []
        self._wake = trio.Event()
        self._wake_order = trio.Event()
        self._batch_messages = 1
        self._forbidden_in_a_row = 0

    # -- status -------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> StreamCounts:
        """Exchanges by outcome."""
        return self._account.counts

    @property
    def problem(self) -> str:
        """The latest failure of the target or the disk; "" while there is none."""
        return self._account.problem

    @property
    def lost(self) -> int:
        """Exchanges lost in damaged spill files, for which no outcome is reported."""
        return self._account.lost

    @property
    def queued(self) -> int:
        """Exchanges that entered the stream and whose outcome is not known yet."""
        return self._reorder_buffer.waiting + len(self._backlog) + len(self._in_flight)

    def count_queued_of(self, topic: str) -> int:
        """Return how many of `queued` are of one topic, or may be: resumed exchanges count until they are read."""
        return self._account.count_waiting(topic) + self._backlog.unidentified

    @property
    def queued_bytes(self) -> int:
        """Approximate memory of the queued exchanges; those that are only on disk do not count."""
        return self._backlog.size_bytes

    @property
    def spilled(self) -> int:
        """Queued exchanges that are only on disk."""
        return self._backlog.spilled

    @property
    def on_disk(self) -> int:
        """Queued exchanges on disk, whether or not they are in memory too: those that survive a SIGKILL."""
        return self._backlog.on_disk

    async def wait_until_opened(self) -> None:
        """Return once exchanges of an earlier process are among `queued`; `run` must be under way."""
        await self._backlog.wait_until_opened()

    # -- accepting exchanges ------------------------------------------------------------------------------------

    def offer_exchange(self, exchange: Exchange, subject: Subject) -> Outcome | None:
        """Queue an exchange, or drop it when there is no room.

        Returns at once: the outcome if it is known already, because the exchange was dropped.
        """
        entry = BacklogEntry(exchange, subject)
        self._account.add_entry(entry)
        if subject.offset < 0:
            # Not a stored message, or one whose place in its queue is unknown: there is nothing to put it in order by.
            self._append_to_backlog(entry)
            return entry.outcome
        self._append_all_to_backlog(
            self._reorder_buffer.add_item(
                subject.queue, subject.offset, subject.count, entry, trio.current_time()
            )
        )
        self.counts.late = self._reorder_buffer.late
        if self._reorder_buffer.waiting:
            # The buffer bounds each queue by itself; many queues with a gap each are bounded here.
            if self._reorder_buffer.waiting > self._settings.queue_messages:
                self._append_all_to_backlog(self._reorder_buffer.take_all())
            self._wake_order.set()
        return entry.outcome

    def skip_exchange(self, exchange: Exchange, reason: str) -> Outcome:
        """Count an exchange that is not for the target, and return its outcome."""
        self._account.count_skipped(exchange)
        return Outcome(exchange, OutcomeKind.SKIPPED, reason)

    def _append_all_to_backlog(self, entries: Sequence[BacklogEntry]) -> None:
        for entry in entries:
            self._append_to_backlog(entry)

    def _append_to_backlog(self, entry: BacklogEntry) -> None:
        if self._backlog.append(entry):
            self._wake.set()

    # -- writing to the target ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write exchanges until cancelled; those that still wait then go to disk if the backlog has files."""
        try:
            async with trio.open_nursery() as nursery:
                for name, work in (
                    ("release overdue messages", self._release_overdue),
                    ("move the backlog to disk", partial(self._backlog.run, self._wake_writer)),
                    ("write to the target", self._write_batches),
                ):
                    nursery.start_soon(self._tasks.keep_running, name, work)
        finally:
            self._append_all_to_backlog(self._reorder_buffer.take_all())
            self._backlog.close()

    def _wake_writer(self) -> None:
        self._wake.set()

    async def _release_overdue(self) -> None:
        """Pass on entries that have waited `order_ms` for the messages before them."""
        while True:
            due_s = self._reorder_buffer.next_due_s()
            if due_s is None:
                self._wake_order = trio.Event()
                await self._wake_order.wait()
                continue
            await trio.sleep_until(due_s)
            self._append_all_to_backlog(self._reorder_buffer.take_due(trio.current_time()))

    async def _write_batches(self) -> None:
        while True:
            # A new event before waiting: whoever appends after this line sets it.
            if not self._backlog.can_take:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            wait_s = self.breaker.wait_s(trio.current_time())
            if wait_s:
                await trio.sleep(wait_s)
            elif self.breaker.state is BreakerState.CLOSED or await self._probe_target():
                await self._write_batch(self._backlog.take_entries(self._batch_messages))

    async def _probe_target(self) -> bool:
        """Tell whether a target that had failed answers again."""
        try:
            with trio.fail_after(self._settings.deadline_ms / 1000):
                await self.writer.probe()
        except Exception as problem:  # noqa: BLE001 - whatever the target does wrong ends here
            self._record_failure(problem)
            return False
        return True

    async def _write_batch(self, entries: list[BacklogEntry]) -> None:
        """Hand a batch to the writer; a batch that fails goes back to the front of the backlog."""
        self._in_flight = entries
        # Half-open means that the target answered a probe a moment ago, so that a failure now says something about the
        # batch.
        probed = self.breaker.state is BreakerState.HALF_OPEN
        started_s = trio.current_time()
        try:
            with trio.fail_after(self._settings.deadline_ms / 1000):
                outcomes = await self.writer.write([entry.exchange for entry in entries])
            # A defect of a writer must not settle the wrong entries; as a failure it is tried again and reported.
            if len(outcomes) != len(entries):
                raise AssertionError(f"{len(outcomes)} outcomes of {len(entries)} exchanges")
        except Exception as problem:  # noqa: BLE001 - whatever the target does wrong ends here
            self._on_failure(entries, problem, probed)
        # Cancelled: the batch goes back, so that the backlog can write it to disk at the end.
        except BaseException:
            self._backlog.put_back(entries)
            self._in_flight = []
            raise
        else:
            self._in_flight = []
            self._on_written(entries, outcomes, trio.current_time() - started_s)

    def _on_written(self, entries: list[BacklogEntry], outcomes: list[Outcome], took_s: float) -> None:
        # Skipped exchanges were not sent to the target, so they say nothing about it.
        sent = [outcome for outcome in outcomes if outcome.kind is not OutcomeKind.SKIPPED]
        if sent and all(outcome.refusal == ResponseCode.NO_PERMISSION for outcome in sent):
            self._on_forbidden(sent)
        # A batch that was skipped as a whole neither confirms nor clears a series of refusals.
        elif sent or not self._forbidden_in_a_row:
            self._forbidden_in_a_row = 0
            self.breaker.record_success()
            self._account.problem = ""
            if took_s * 1000 * 4 < self._settings.deadline_ms:  # A quick batch: a quarter of the deadline.
                self._batch_messages = min(self._batch_messages * 2, self._settings.batch_messages)
        for entry, outcome in zip(entries, outcomes, strict=True):
            self._backlog.finish_entry(entry)
            self._account.settle_entry(entry, outcome)

    def _on_forbidden(self, outcomes: list[Outcome]) -> None:
        """Slow down for a target that permits nothing: each further attempt would lose an exchange."""
        self._forbidden_in_a_row += len(outcomes)
        self._batch_messages = 1
        self._set_problem(outcomes[-1].reason)
        # The target answers, so it is not the breaker's business yet: a few refusals may concern single topics.
        if self._forbidden_in_a_row < self._settings.breaker_forbidden:
            self.breaker.record_success()
        else:
            self.breaker.trip(trio.current_time())

    def _on_failure(self, entries: list[BacklogEntry], problem: Exception, probed: bool) -> None:
        self._in_flight = []
        # Down to one soon: only an exchange that fails alone can be blamed.
        self._batch_messages = max(1, self._batch_messages // 4)
        self._record_failure(problem)
        if probed and len(entries) == 1 and self._give_up_if_exhausted(entries[0], problem):
            self._backlog.finish_entry(entries[0])
            return
        # Back to the front, in order: nothing of these queues may overtake them.
        self.counts.repeated += len(entries)
        self._backlog.put_back(entries)

    def _give_up_if_exhausted(self, entry: BacklogEntry, problem: Exception) -> bool:
        """Settle an exchange with which the target has failed too often, right after answering a probe each time."""
        entry.failures += 1
        # The two have limits of their own: a refusal comes at once, while silence costs the whole deadline each time.
        refused = isinstance(problem, RequestError)
        if entry.failures < (self._settings.refusals if refused else self._settings.attempts):
            return False
        kind = OutcomeKind.REFUSED if refused else OutcomeKind.DROPPED
        reason = f"given up after {entry.failures} attempts: {self.problem}"
        self._account.settle_entry(entry, Outcome(entry.exchange, kind, reason))
        return True

    def _record_failure(self, problem: Exception) -> None:
        self._set_problem((str(problem) or type(problem).__name__)[:_MAX_PROBLEM_CHARS])
        self.breaker.record_failure(trio.current_time())

    def _set_problem(self, reason: str) -> None:
        # Logged when it changes, not with every attempt of an outage.
        if reason != self.problem:
            log.warning("mirror target failed", extra={"stream": self.name, "reason": reason})
        self._account.problem = reason
