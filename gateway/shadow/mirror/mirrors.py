"""Everything that is mirrored: takes exchanges as they are over, chooses rule, mode and stream, and tells what became
of each.

Not responsible for bringing anything to a target (streams and writers do).
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Protocol

import trio

from codec.constants import STORED, ResponseCode
from gateway.runtime.metrics import Distribution, Figure, Latencies
from gateway.runtime.supervise import tireless
from gateway.shadow.mirror.backlog import Backlog, Entry
from gateway.shadow.mirror.breaker import State as Breaking
from gateway.shadow.mirror.counts import Counts
from gateway.shadow.mirror.diverged import Diverged
from gateway.shadow.mirror.holding import SYNCHRONOUS, Holding
from gateway.shadow.mirror.resuming import Aside, Place
from gateway.shadow.mirror.rules import Rules
from gateway.shadow.mirror.settings import (
    ASYNC,
    OFF,
    SYNC_BEST_EFFORT,
    TARGET_PRIMARY,
    Mirroring,
    MirrorRule,
)
from gateway.shadow.mirror.streams import Stream
from gateway.shadow.traffic.exchange import Codes, Exchange, Hub, Side
from gateway.shadow.traffic.outcome import Fate, Outcome, OutcomeListener, Writer
from gateway.shadow.traffic.request_policy import END_TRANSACTION, SENDS, UPDATE_CONSUMER_OFFSET
from gateway.shadow.traffic.subject import Subject, subject_of

log = logging.getLogger(__name__)

_LATENCY_TOPICS: Final = 1_000
_MESSAGES: Final = SENDS | {END_TRANSACTION}


class Probed(Writer, Protocol):
    """A writer that can ask its target something harmless."""

    async def probe(self) -> None: ...


class Making(Protocol):
    """What makes writers and their queues."""

    def writer(self, side: Side, broker: str, counts: Callable[[], Counts]) -> Probed:
        """For what a broker answered, on which side."""

    def backlog(self, place: Place, rule: MirrorRule) -> Backlog:
        """For the stream of a rule and broker."""

    def left(self, rules: Rules) -> list[Place]:
        """The streams an earlier run left something for."""

    async def aside(self) -> list[Aside]:
        """What earlier runs left for another configuration."""

    def ended(self, exchange: Exchange, subject: Subject) -> None:
        """Is told of an END_TRANSACTION that did not get to the target."""

    def half_topic(self, exchange: Exchange, subject: Subject) -> str:
        """The topic of a half message that was sent before this process began; "" when it is not known."""


class Mirrors:
    """An `Observer` with a `Holder` (`holding`); `join` makes both known. `run` must be running.

    Listeners added with `listen` hear every outcome. What no rule takes counts as skipped in `elsewhere`.
    """

    def __init__(
        self,
        rules: Rules,
        settings: Mirroring,
        making: Making,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.rules = rules
        self.diverged = Diverged(settings.diverged_marks)
        self.holding = Holding(settings.hold_ms / 1000, settings.held_answers)
        self.elsewhere = Counts()
        self.moved: set[str] = set()
        """Topics that a move has switched off: what the target stores of them is lacking nowhere."""
        self._settings = settings
        self._making = making
        self._now_ms = now_ms
        self._listeners: list[OutcomeListener] = []
        self._streams: dict[Place, Stream] = {}
        self._aside: list[Aside] = []
        self._resumed: dict[tuple[Side, str, tuple[str, int]], int] = {}
        """Of each queue of which an earlier run left something: the offset behind it."""
        self._halves: OrderedDict[tuple[Side, str, str], tuple[int, str]] = OrderedDict()
        self._latencies: dict[str, Latencies] = {}
        self._hub: Hub | None = None
        self._nursery: trio.Nursery | None = None
        self._codes = rules.codes()
        self._set_held_codes()

    # -- the hub's side -----------------------------------------------------------------------------------------

    def join(self, hub: Hub) -> None:
        """Adds observer and holder to a hub."""
        self._hub = hub
        hub.add_observer(self)
        hub.set_holder(self.holding)

    def listen(self, listener: OutcomeListener) -> None:
        """Adds a listener; it is called for every outcome."""
        self._listeners.append(listener)

    def codes(self) -> Codes:
        """See `Observer`."""
        return self._codes

    def observe(self, exchange: Exchange) -> None:
        """See `Observer`."""
        found = self._taken(exchange)
        if isinstance(found, str):
            self.elsewhere.observed += 1
            self.elsewhere.skipped += 1
            self._tell(Outcome(exchange, Fate.SKIPPED, found))
            return
        index, subject = found
        stream = self._stream(exchange.side, exchange.broker, index)
        mode = self.rules.mode(index, subject.topic)
        left_alone = stream.breaker.state is Breaking.OPEN
        self.holding.expect(exchange, ASYNC if mode == SYNC_BEST_EFFORT and left_alone else mode)
        reason = self._left_out(exchange, subject, index, mode)
        if reason:
            self._tell(stream.skip(exchange, reason))
        else:
            stream.offer(exchange, subject)

    def _taken(self, exchange: Exchange) -> tuple[int, Subject] | str:
        """The rule that takes an exchange, or why there is none."""
        if exchange.reverse or not exchange.broker:
            return "not a request to a broker"
        try:
            subject, _ = subject_of(exchange), exchange.answer_command
        except (ValueError, KeyError, TypeError, AttributeError):
            return "not understood"
        if exchange.code == END_TRANSACTION and exchange.side is Side.TARGET:
            subject = self._with_topic(exchange, subject)
        index = self._rule_of(exchange, subject)
        return "no rule" if index is None else (index, subject)

    def _with_topic(self, exchange: Exchange, subject: Subject) -> Subject:
        """The end of a transaction with its real topic, whose mode counts: a client that was asked names another."""
        known = self._halves.get((exchange.side, exchange.broker, subject.unique_key))
        topic = known[1] if known is not None else self._making.half_topic(exchange, subject)
        return replace(subject, topic=topic or subject.topic)

    def _rule_of(self, exchange: Exchange, subject: Subject) -> int | None:
        """A transaction is ended by the rule that took its half message."""
        place = exchange.side, exchange.broker, subject.unique_key
        if exchange.code == END_TRANSACTION:
            known = self._halves.get(place)
            if known is not None:
                return known[0]
            topic = subject.topic or self._making.half_topic(exchange, subject)
            subject = Subject(topic, subject.group, unique_key=subject.unique_key)
        index = self.rules.find(exchange.code, subject, exchange.client)
        if subject.half and index is not None:
            self._halves[place] = index, subject.topic
            if len(self._halves) > self._settings.half_messages:
                self._halves.popitem(last=False)
        return index

    def _left_out(self, exchange: Exchange, subject: Subject, index: int, mode: str) -> str:
        """Why an exchange that a rule takes is not for the target; "" when it is."""
        reason = _undone(exchange)
        if reason:
            return reason
        lacking = ""
        moved = subject.topic in self.moved
        if mode == OFF and moved and exchange.side is Side.TARGET:
            return "moved: the target has it"
        if mode == OFF:
            lacking = "its producers have moved" if moved else "the mode is off"
        elif exchange.side is Side.TARGET and mode != TARGET_PRIMARY:
            lacking = f"answered by the target, and the mode is {mode}"
            if exchange.code == END_TRANSACTION:
                return lacking  # If the primary lacks something, its half message has been marked.
        elif exchange.answer is None and exchange.code in SENDS:
            lacking = self._without_answer(exchange, index)
        if lacking:
            self._mark(exchange, subject, lacking)
            return lacking
        return "" if self.rules.samples(index, exchange.code, subject) else "not in the sample"

    def _without_answer(self, exchange: Exchange, index: int) -> str:
        if not exchange.request_command.is_oneway:
            return "nobody knows whether it was stored: the connection ended first"
        return "" if self.rules.rules[index].oneway == "send" else "a send without answer"

    # -- streams ------------------------------------------------------------------------------------------------

    def _stream(self, side: Side, broker: str, index: int) -> Stream:
        place = side, broker, index
        stream = self._streams.get(place)
        if stream is None:
            stream = self._streams[place] = self._new_stream(*place)
            if self._nursery is not None:
                self._nursery.start_soon(stream.run)
        return stream

    def _new_stream(self, side: Side, broker: str, index: int) -> Stream:
        name = f"{side.value}-{broker}-{index}"
        writer = self._making.writer(side, broker, lambda: stream.counts)
        backlog = self._making.backlog((side, broker, index), self.rules.rules[index])
        stream = Stream(name, writer, self._settings, self._decided, writer.probe, backlog)
        return stream

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs all streams, those that come later too, until cancelled."""
        for place in self._making.left(self.rules):
            self._stream(*place)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(tireless, self.holding.run)
                nursery.start_soon(tireless, self._tell_aside)
                for stream in self._streams.values():
                    nursery.start_soon(stream.run)
                task_status.started()
        finally:
            self._nursery = None

    async def _tell_aside(self) -> None:
        """Queues lack what is set aside."""
        self._aside = await self._making.aside()
        for each in self._aside:
            for place, (count, offset) in each.queues.items():
                reason = f"set aside, for another configuration: {each.directory}"
                self.diverged.mark(*place, self._now_ms(), reason, count=count, offset=offset)

    def _decided(self, entry: Entry, outcome: Outcome) -> None:
        exchange = outcome.exchange
        if entry.subject.offset >= 0 and (entry.resumed or self._resumed):
            self._look_for_gap(entry)
        if outcome.fate in (Fate.REFUSED, Fate.DROPPED) and exchange.code in _MESSAGES:
            self._mark(exchange, entry.subject, outcome.reason)
            if exchange.code == END_TRANSACTION:
                self._making.ended(exchange, entry.subject)
        elif outcome.fate is Fate.MIRRORED:
            self._latency(entry.subject.topic).record(outcome.latency_s)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        self.holding.told(outcome)
        for listener in self._listeners:
            try:
                listener(outcome)
            except Exception:
                log.exception("a listener for outcomes failed")

    def _mark(self, exchange: Exchange, subject: Subject, reason: str) -> None:
        if exchange.code not in _MESSAGES:
            return
        topic, queue_id = subject.topic, subject.queue_id
        if exchange.code == END_TRANSACTION and not topic:
            topic = self._halves.get((exchange.side, exchange.broker, subject.unique_key), (0, ""))[1]
        self.diverged.mark(
            exchange.broker,
            topic,
            queue_id,
            self._now_ms(),
            reason,
            count=subject.count,
            offset=subject.offset,
        )

    def _look_for_gap(self, entry: Entry) -> None:
        """What came in last before the process was killed was in no file yet; the next offset of its queue tells."""
        exchange, subject = entry.exchange, entry.subject
        place = exchange.side, exchange.broker, subject.queue
        if entry.resumed:
            self._resumed[place] = max(self._resumed.get(place, 0), subject.offset + subject.count)
            return
        expected = self._resumed.pop(place, subject.offset)
        if expected < subject.offset:
            reason = "lost when the gateway ended, or never seen by it"
            lacking = subject.offset - expected
            now_ms = self._now_ms()
            self.diverged.mark(
                exchange.broker, *subject.queue, now_ms, reason, count=lacking, offset=expected
            )

    def _latency(self, topic: str) -> Latencies:
        if topic not in self._latencies and len(self._latencies) >= _LATENCY_TOPICS:
            topic = ""
        return self._latencies.setdefault(topic, Latencies())

    # -- modes --------------------------------------------------------------------------------------------------

    def set_mode(self, topic: str, mode: str) -> None:
        """Switches a topic from now on. Raises ValueError for what is no mode.

        What is queued goes on to the target whatever the mode, and answers that are held stay so until their message
        is there or `hold_ms` is over; so no message is lost by a switch. To `off`: later messages are left out, and
        their queues are marked as diverged. From `off`: later messages are mirrored, the marks stay. Between async and
        the synchronous modes: only whether later answers are held. To `target-primary`: what the target answers
        from now on goes to the primary; what the primary still answers goes on to the target. From it: what the target
        answers is left out from now on and marked, what is queued for the primary goes on.
        """
        self.rules.set_mode(topic, mode)
        self._modes_changed()

    def reset_mode(self, topic: str) -> None:
        """Gives a topic the mode of its rule again."""
        self.rules.reset_mode(topic)
        self._modes_changed()

    def choose_mode(self, topic: str, mode: str) -> None:
        """Sets a mode, or with "" that of the rule. Raises ValueError."""
        if mode:
            self.set_mode(topic, mode)
        else:
            self.reset_mode(topic)

    def _modes_changed(self) -> None:
        self._set_held_codes()
        if self._hub is not None:
            self._hub.refresh_interests()

    def _set_held_codes(self) -> None:
        self.holding.set_codes(self._codes if self.rules.in_use(SYNCHRONOUS) else frozenset())

    # -- what others ask ----------------------------------------------------------------------------------------

    async def opened(self) -> None:
        """Returns once all that an earlier process left is among `queued`; `run` must be under way."""
        for stream in list(self._streams.values()):
            await stream.opened()

    def queued(self, side: Side = Side.PRIMARY) -> int:
        """How many exchanges answered on one side wait to be mirrored."""
        return sum(stream.queued for (of, _, _), stream in self._streams.items() if of is side)

    def queued_of(self, topic: str) -> int:
        """How many of them are of one topic, on both sides."""
        return sum(stream.queued_of(topic) for stream in self._streams.values())

    def streams(self) -> Iterable[Stream]:
        """All streams."""
        return self._streams.values()

    def total(self) -> Counts:
        """All counts added up."""
        total = Counts()
        for counts in (self.elsewhere, *(stream.counts for stream in self._streams.values())):
            for name in Counts.__slots__:
                setattr(total, name, getattr(total, name) + getattr(counts, name))
        return total

    def status(self) -> dict[str, Any]:
        """For people and the console."""
        return {
            "modes": self.rules.modes(),
            "rules": {topic: self.rules.rule_mode(topic) for topic in self.rules.modes()},
            "moved": sorted(self.moved),
            "streams": [_row(stream) for stream in self._streams.values()],
            "diverged": [mark.to_dict() for mark in self.diverged],
            "diverged_others": self.diverged.others,
            "held": len(self.holding),
            "aside": [{"directory": each.directory, "exchanges": each.exchanges} for each in self._aside],
        }

    def figures(self) -> Iterator[Figure | Distribution]:
        """What is counted, by stream."""
        yield from self.elsewhere.figures(stream="none")
        for stream in self._streams.values():
            yield from stream.counts.figures(stream=stream.name)
            yield from _gauges(stream)
        yield Figure("mirror_diverged_queues", len(self.diverged), "Queues that lack something.", "gauge")
        yield Figure("mirror_held_answers", len(self.holding), "Answers held for the target.", "gauge")
        for topic, latencies in self._latencies.items():
            yield Distribution("mirror_seconds", latencies, "How long the target took.", {"topic": topic})


def _undone(exchange: Exchange) -> str:
    """Why the primary did not do what was asked, as far as is known; "" when it did."""
    answer = exchange.answer_command
    if answer is None:
        unanswered = (*SENDS, END_TRANSACTION, UPDATE_CONSUMER_OFFSET)
        return "" if exchange.code in unanswered else "without answer"
    done = STORED if exchange.code in SENDS else (ResponseCode.SUCCESS,)
    return "" if answer.code in done else "refused where it was asked"


def _gauges(stream: Stream) -> Iterator[Figure]:
    labels = {"stream": stream.name}
    is_open = stream.breaker.state is not Breaking.CLOSED
    yield Figure("mirror_queued", stream.queued, "Exchanges on their way.", "gauge", labels)
    yield Figure("mirror_queued_bytes", stream.queued_bytes, "Their size in memory.", "gauge", labels)
    yield Figure("mirror_spilled", stream.spilled, "Those of them on disk alone.", "gauge", labels)
    yield Figure("mirror_on_disk", stream.on_disk, "Those a killed process leaves.", "gauge", labels)
    yield Figure("mirror_breaker_open", float(is_open), "1 while the target is left alone.", "gauge", labels)
    yield Figure("mirror_breaker_opened_total", stream.breaker.opened_total, "How often.", labels=labels)


def _row(stream: Stream) -> dict[str, Any]:
    counts = {name: getattr(stream.counts, name) for name in Counts.__slots__}
    return {
        "name": stream.name,
        "queued": stream.queued,
        "queued_bytes": stream.queued_bytes,
        "spilled": stream.spilled,
        "on_disk": stream.on_disk,
        "lost": stream.lost,
        "breaker": stream.breaker.state.value,
        "problem": stream.problem,
        **counts,
    }
