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
from gateway.shadow.mirror.backlog import Backlog, Entry
from gateway.shadow.mirror.breaker import Breaker, State
from gateway.shadow.mirror.counts import Counts
from gateway.shadow.mirror.ordering import Ordering
from gateway.shadow.mirror.settings import Mirroring
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Fate, Outcome, Writer
from gateway.shadow.traffic.request_policy import SENDS
from gateway.shadow.traffic.subject import Subject
from remoting.errors import RequestError

log = logging.getLogger(__name__)

_PROBLEM_CHARS: Final = 200

Told = Callable[[Entry, Outcome], None]
"""Is called once for every entry that came in."""
Probe = Callable[[], Awaitable[None]]
"""Asks the target something harmless; raises when it is not there."""


class Stream:
    """`offer` never waits; `run` brings what was offered to the writer, for as long as it is not cancelled.

    Times are the scheduler's, in seconds. `problem` is what the target did wrong last, "" while all is well; `lost`
    counts what files that cannot be read held, for which no outcome is told.
    """

    def __init__(
        self,
        name: str,
        writer: Writer,
        settings: Mirroring,
        told: Told,
        probe: Probe,
        backlog: Backlog | None = None,
    ) -> None:
        self.name = name
        self.writer = writer
        self.counts = Counts()
        self.breaker = Breaker(
            settings.breaker_failures,
            settings.breaker_backoff_ms / 1000,
            settings.breaker_backoff_max_ms / 1000,
        )
        self.problem = ""
        self.lost = 0
        self._settings = settings
        self._told = told
        self._probe = probe
        self._ordering: Ordering[Entry] = Ordering(settings.order_ms / 1000, settings.order_messages)
        # An empty backlog is false, so it is asked for by name.
        memory = Backlog(settings.queue_messages, settings.queue_bytes)
        self._backlog = memory if backlog is None else backlog
        self._backlog.dropped = self._drop
        self._backlog.lost = self._lose
        self._backlog.resumed = self._resume
        self._backlog.known = self._know
        self._flying: list[Entry] = []
        self._wake = trio.Event()
        self._wake_order = trio.Event()
        self._batch = 1
        self._forbidden = 0
        self._topics: Counter[str] = Counter()

    # -- coming in ----------------------------------------------------------------------------------------------

    def offer(self, exchange: Exchange, subject: Subject) -> Entry:
        """Takes an exchange in, or drops it when there is no room; returns at once."""
        entry = Entry(exchange, subject)
        self.counts.observed += 1
        self._topics[subject.topic] += 1
        if subject.offset < 0:
            self._admit(entry)
            return entry
        now_s = trio.current_time()
        for each in self._ordering.put(subject.queue, subject.offset, subject.count, entry, now_s):
            self._admit(each)
        self.counts.late = self._ordering.late
        if self._ordering.waiting:
            if self._ordering.waiting > self._settings.queue_messages:
                self._admit_all(self._ordering.flush())
            self._wake_order.set()
        return entry

    def skip(self, exchange: Exchange, reason: str) -> Outcome:
        """Counts an exchange that is left out."""
        self.counts.observed += 1
        self.counts.skipped += 1
        self._note_oneway(exchange)
        return Outcome(exchange, Fate.SKIPPED, reason)

    def _admit_all(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._admit(entry)

    def _admit(self, entry: Entry) -> None:
        if self._backlog.put(entry):
            self._wake.set()

    def _drop(self, entry: Entry, reason: str) -> None:
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

    def _know(self, entry: Entry) -> None:
        self._topics[entry.subject.topic] += 1

    def _decide(self, entry: Entry, outcome: Outcome) -> None:
        self.counts.note(outcome.fate)
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

    def queued_of(self, topic: str) -> int:
        """How many of `queued` are of one topic, or may be: what an earlier process left and nobody has read."""
        return self._topics[topic] + self._backlog.unknown

    @property
    def queued(self) -> int:
        """Exchanges that came in and whose fate is not known yet."""
        return self._ordering.waiting + len(self._backlog) + len(self._flying)

    @property
    def queued_bytes(self) -> int:
        """What they take in memory, about; what waits on disk is not counted."""
        return self._backlog.bytes

    @property
    def spilled(self) -> int:
        """How many of them are on disk alone."""
        return self._backlog.spilled

    @property
    def on_disk(self) -> int:
        """How many are on disk, and in memory perhaps as well: what is left when the process is killed."""
        return self._backlog.on_disk

    async def opened(self) -> None:
        """Returns once what an earlier process left is among `queued`; `run` must be under way."""
        await self._backlog.opened()

    # -- going out ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until cancelled; what then waits is kept if the backlog has a place that outlives the process."""
        try:
            async with trio.open_nursery() as nursery:
                for work in (self._release, partial(self._backlog.run, self._wake_up), self._work):
                    nursery.start_soon(tireless, work)
        finally:
            self._admit_all(self._ordering.flush())
            self._backlog.close()

    def _wake_up(self) -> None:
        self._wake.set()

    async def _release(self) -> None:
        """Lets go on what waited long enough for messages before it."""
        while True:
            due_s = self._ordering.next_due_s()
            if due_s is None:
                self._wake_order = trio.Event()
                await self._wake_order.wait()
                continue
            await trio.sleep_until(due_s)
            self._admit_all(self._ordering.due(trio.current_time()))

    async def _work(self) -> None:
        while True:
            if not self._backlog.ready:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            wait_s = self.breaker.wait_s(trio.current_time())
            if wait_s:
                await trio.sleep(wait_s)
            elif self.breaker.state is State.CLOSED or await self._answers():
                await self._go(self._backlog.take(self._batch))

    async def _answers(self) -> bool:
        """Whether a target that failed is there again."""
        try:
            with trio.fail_after(self._settings.deadline_ms / 1000):
                await self._probe()
        except Exception as problem:  # noqa: BLE001 - whatever the target does wrong ends here
            self._failed(problem)
            return False
        return True

    async def _go(self, entries: list[Entry]) -> None:
        """Hands some to the writer; those it fails with go back to the front of the queue."""
        self._flying = entries
        probed = self.breaker.state is State.HALF_OPEN
        started_s = trio.current_time()
        try:
            with trio.fail_after(self._settings.deadline_ms / 1000):
                outcomes = await self.writer.write([entry.exchange for entry in entries])
            if len(outcomes) != len(entries):
                raise AssertionError(f"{len(outcomes)} outcomes of {len(entries)} exchanges")
        except Exception as problem:  # noqa: BLE001 - whatever the target does wrong ends here
            self._return(entries, problem, probed)
        except BaseException:
            self._backlog.put_back(entries)
            self._flying = []
            raise
        else:
            self._flying = []
            self._succeeded(entries, outcomes, trio.current_time() - started_s)

    def _succeeded(self, entries: list[Entry], outcomes: list[Outcome], took_s: float) -> None:
        asked = [outcome for outcome in outcomes if outcome.fate is not Fate.SKIPPED]
        if asked and all(outcome.refusal == ResponseCode.NO_PERMISSION for outcome in asked):
            self._forbid(asked)
        elif asked or not self._forbidden:
            self._forbidden = 0
            self.breaker.succeeded()
            self.problem = ""
            if took_s * 4000 < self._settings.deadline_ms:
                self._batch = min(self._batch * 2, self._settings.batch_messages)
        for entry, outcome in zip(entries, outcomes, strict=True):
            self._backlog.done(entry)
            self._decide(entry, outcome)

    def _forbid(self, outcomes: list[Outcome]) -> None:
        """The target is there, and lets us do nothing: each try costs as much as one that succeeds, and is lost."""
        self._forbidden += len(outcomes)
        self._batch = 1
        self._note(outcomes[-1].reason)
        if self._forbidden < self._settings.breaker_forbidden:
            self.breaker.succeeded()
        else:
            self.breaker.open(trio.current_time())

    def _return(self, entries: list[Entry], problem: Exception, probed: bool) -> None:
        self._flying = []
        self._batch = max(1, self._batch // 4)
        self._failed(problem)
        if probed and len(entries) == 1 and self._gives_up(entries[0], problem):
            self._backlog.done(entries[0])
            return
        self.counts.repeated += len(entries)
        self._backlog.put_back(entries)

    def _gives_up(self, entry: Entry, problem: Exception) -> bool:
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

    def _failed(self, problem: Exception) -> None:
        self._note((str(problem) or type(problem).__name__)[:_PROBLEM_CHARS])
        self.breaker.failed(trio.current_time())

    def _note(self, said: str) -> None:
        if said != self.problem:
            log.warning("mirror target failed", extra={"stream": self.name, "reason": said})
        self.problem = said
