"""One stream of exchanges on their way to a target: bounded, in order, with deadline and circuit breaker.

Not responsible for how an exchange is written (a Writer's) nor which exchanges come here (mirrors').
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from codec.constants import ResponseCode
from gateway.runtime.supervise import tireless
from gateway.shadow.mirror.backlog import Backlog, BacklogEntry
from gateway.shadow.mirror.circuit_breaker import BreakerState, CircuitBreaker
from gateway.shadow.mirror.reorder_buffer import ReorderBuffer
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.mirror.stream_account import StreamCounts
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Fate, Outcome, Writer
from gateway.shadow.traffic.request_policy import SENDS
from gateway.shadow.traffic.subject import Subject
from remoting.errors import RequestError

log = logging.getLogger(__name__)

_MAX_PROBLEM_CHARS: Final = 200

Told = Callable[[BacklogEntry, Outcome], None]
"""Is called once for every entry that came in."""
Probe = Callable[[], Awaitable[None]]
"""Asks the target something harmless; raises when it is not there."""


class MirrorStream:
    """`offer` never waits; `run` brings what was offered to the writer, for as long as it is not cancelled.

    Times are the scheduler's, in seconds. `problem` is what the target did wrong last, "" while all is well; `lost`
    counts what files that cannot be read held, for which no outcome is told.
    """

    def __init__(
        self,
        name: str,
        writer: Writer,
        settings: MirrorSettings,
        told: Told,
        probe: Probe,
        backlog: Backlog | None = None,
    ) -> None:
        self.name = name
        self.writer = writer
        self.counts = StreamCounts()
        self.breaker = CircuitBreaker(
            settings.breaker_failures,
            settings.breaker_backoff_ms / 1000,
            settings.breaker_backoff_max_ms / 1000,
        )
        self.problem = ""
        self.lost = 0
        self._settings = settings
        self._told = told
        self._probe = probe
        self._reorder_buffer: ReorderBuffer[BacklogEntry] = ReorderBuffer(
            settings.order_ms / 1000, settings.order_messages
        )
        # An empty backlog is false, so it is asked for by name.
        memory = Backlog(settings.queue_messages, settings.queue_bytes)
        self._backlog = memory if backlog is None else backlog
        self._backlog.dropped = self._drop
        self._backlog.lost = self._lose
        self._backlog.resumed = self._resume
        self._backlog.known = self._know
        self._in_flight: list[BacklogEntry] = []
        self._wake = trio.Event()
        self._wake_order = trio.Event()
        self._batch_messages = 1
        self._forbidden_in_a_row = 0
        self._topics: Counter[str] = Counter()

    # -- coming in ----------------------------------------------------------------------------------------------

    def offer_exchange(self, exchange: Exchange, subject: Subject) -> BacklogEntry:
        """Takes an exchange in, or drops it when there is no room; returns at once."""
        entry = BacklogEntry(exchange, subject)
        self.counts.observed += 1
        self._topics[subject.topic] += 1
        if subject.offset < 0:
            self._admit(entry)
            return entry
        now_s = trio.current_time()
        for each in self._reorder_buffer.add_item(subject.queue, subject.offset, subject.count, entry, now_s):
            self._admit(each)
        self.counts.late = self._reorder_buffer.late
        if self._reorder_buffer.waiting:
            if self._reorder_buffer.waiting > self._settings.queue_messages:
                self._admit_all(self._reorder_buffer.take_all())
            self._wake_order.set()
        return entry

    def count_skipped(self, exchange: Exchange, reason: str) -> Outcome:
        """Counts an exchange that is left out."""
        self.counts.observed += 1
        self.counts.skipped += 1
        self._note_oneway(exchange)
        return Outcome(exchange, Fate.SKIPPED, reason)

    def _admit_all(self, entries: Sequence[BacklogEntry]) -> None:
        for entry in entries:
            self._admit(entry)

    def _admit(self, entry: BacklogEntry) -> None:
        if self._backlog.append(entry):
            self._wake.set()

    def _drop(self, entry: BacklogEntry, reason: str) -> None:
        self._decide(entry, Outcome(entry.exchange, Fate.DROPPED, reason))

    def _lose(self, count: int, reason: str) -> None:
        """Exchanges on disk are gone, and nobody knows which: the topics' counts stay too high."""
        self.counts.dropped += count
        self.lost += count
        self.problem = reason

    def _resume(self, count: int) -> None:
        """An earlier process left so many."""
        self.counts.observed += count
        self.counts.resumed += count

    def _know(self, entry: BacklogEntry) -> None:
        self._topics[entry.subject.topic] += 1

    def _decide(self, entry: BacklogEntry, outcome: Outcome) -> None:
        self.counts.count_fate(outcome.fate)
        self._note_oneway(entry.exchange)
        topic = entry.subject.topic
        self._topics[topic] -= 1
        if not self._topics[topic]:
            del self._topics[topic]
        try:
            self._told(entry, outcome)
        except Exception:
            log.exception("an outcome was not taken note of", extra={"stream": self.name})

    def _note_oneway(self, exchange: Exchange) -> None:
        self.counts.oneway += exchange.answer is None and exchange.code in SENDS

    def count_queued_of(self, topic: str) -> int:
        """How many of `queued` are of one topic, or may be: what an earlier process left and nobody has read."""
        return self._topics[topic] + self._backlog.unidentified

    @property
    def queued(self) -> int:
        """Exchanges that came in and whose fate is not known yet."""
        return self._reorder_buffer.waiting + len(self._backlog) + len(self._in_flight)

    @property
    def queued_bytes(self) -> int:
        """What they take in memory, about; what waits on disk is not counted."""
        return self._backlog.size_bytes

    @property
    def spilled(self) -> int:
        """How many of them are on disk alone."""
        return self._backlog.spilled

    @property
    def on_disk(self) -> int:
        """How many are on disk, and in memory perhaps as well: what is left when the process is killed."""
        return self._backlog.on_disk

    async def wait_until_opened(self) -> None:
        """Returns once what an earlier process left is among `queued`; `run` must be under way."""
        await self._backlog.wait_until_opened()

    # -- going out ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until cancelled; what then waits is kept if the backlog has a place that outlives the process."""
        try:
            async with trio.open_nursery() as nursery:
                for work in (
                    self._release_overdue,
                    partial(self._backlog.run, self._wake_writer),
                    self._write_batches,
                ):
                    nursery.start_soon(tireless, work)
        finally:
            self._admit_all(self._reorder_buffer.take_all())
            self._backlog.close()

    def _wake_writer(self) -> None:
        self._wake.set()

    async def _release_overdue(self) -> None:
        """Lets go on what waited long enough for messages before it."""
        while True:
            due_s = self._reorder_buffer.next_due_s()
            if due_s is None:
                self._wake_order = trio.Event()
                await self._wake_order.wait()
                continue
            await trio.sleep_until(due_s)
            self._admit_all(self._reorder_buffer.take_due(trio.current_time()))

    async def _write_batches(self) -> None:
        while True:
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
        """Whether a target that failed is there again."""
        try:
            with trio.fail_after(self._settings.deadline_ms / 1000):
                await self._probe()
        except Exception as problem:  # noqa: BLE001 - whatever the target does wrong ends here
            self._record_failure(problem)
            return False
        return True

    async def _write_batch(self, entries: list[BacklogEntry]) -> None:
        """Hands some to the writer; those it fails with go back to the front of the queue."""
        self._in_flight = entries
        probed = self.breaker.state is BreakerState.HALF_OPEN
        started_s = trio.current_time()
        try:
            with trio.fail_after(self._settings.deadline_ms / 1000):
                outcomes = await self.writer.write([entry.exchange for entry in entries])
            if len(outcomes) != len(entries):
                raise AssertionError(f"{len(outcomes)} outcomes of {len(entries)} exchanges")
        except Exception as problem:  # noqa: BLE001 - whatever the target does wrong ends here
            self._on_failure(entries, problem, probed)
        except BaseException:
            self._backlog.put_back(entries)
            self._in_flight = []
            raise
        else:
            self._in_flight = []
            self._on_written(entries, outcomes, trio.current_time() - started_s)

    def _on_written(self, entries: list[BacklogEntry], outcomes: list[Outcome], took_s: float) -> None:
        asked = [outcome for outcome in outcomes if outcome.fate is not Fate.SKIPPED]
        if asked and all(outcome.refusal == ResponseCode.NO_PERMISSION for outcome in asked):
            self._on_forbidden(asked)
        elif asked or not self._forbidden_in_a_row:
            self._forbidden_in_a_row = 0
            self.breaker.record_success()
            self.problem = ""
            if took_s * 4000 < self._settings.deadline_ms:
                self._batch_messages = min(self._batch_messages * 2, self._settings.batch_messages)
        for entry, outcome in zip(entries, outcomes, strict=True):
            self._backlog.finish_entry(entry)
            self._decide(entry, outcome)

    def _on_forbidden(self, outcomes: list[Outcome]) -> None:
        """The target is there, and lets us do nothing: each try costs as much as one that succeeds, and is lost."""
        self._forbidden_in_a_row += len(outcomes)
        self._batch_messages = 1
        self._set_problem(outcomes[-1].reason)
        if self._forbidden_in_a_row < self._settings.breaker_forbidden:
            self.breaker.record_success()
        else:
            self.breaker.trip(trio.current_time())

    def _on_failure(self, entries: list[BacklogEntry], problem: Exception, probed: bool) -> None:
        self._in_flight = []
        self._batch_messages = max(1, self._batch_messages // 4)
        self._record_failure(problem)
        if probed and len(entries) == 1 and self._give_up_if_exhausted(entries[0], problem):
            self._backlog.finish_entry(entries[0])
            return
        self.counts.repeated += len(entries)
        self._backlog.put_back(entries)

    def _give_up_if_exhausted(self, entry: BacklogEntry, problem: Exception) -> bool:
        """Whether the target, which had just answered a probe, has failed with this exchange often enough."""
        entry.failures += 1
        refused = isinstance(problem, RequestError)
        if entry.failures < (self._settings.refusals if refused else self._settings.attempts):
            return False
        fate = Fate.REFUSED if refused else Fate.DROPPED
        self._decide(
            entry, Outcome(entry.exchange, fate, f"given up after {entry.failures} times: {self.problem}")
        )
        return True

    def _record_failure(self, problem: Exception) -> None:
        self._set_problem((str(problem) or type(problem).__name__)[:_MAX_PROBLEM_CHARS])
        self.breaker.record_failure(trio.current_time())

    def _set_problem(self, said: str) -> None:
        if said != self.problem:
            log.warning("mirror target failed", extra={"stream": self.name, "reason": said})
        self.problem = said
