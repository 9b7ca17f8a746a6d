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
from gateway.shadow.mirror.answer_holder import SYNCHRONOUS_MODES, AnswerHolder
from gateway.shadow.mirror.backlog import Backlog, BacklogEntry
from gateway.shadow.mirror.circuit_breaker import BreakerState as Breaking
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.mirror_stream import MirrorStream
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import (
    ASYNC,
    OFF,
    SYNC_BEST_EFFORT,
    TARGET_PRIMARY,
    MirrorRule,
    MirrorSettings,
)
from gateway.shadow.mirror.spill_directory import SetAsideDirectory, StreamKey
from gateway.shadow.mirror.stream_account import StreamCounts
from gateway.shadow.traffic.exchange import Codes, Exchange, Hub, Side
from gateway.shadow.traffic.outcome import Fate, Outcome, OutcomeListener, Writer
from gateway.shadow.traffic.request_policy import END_TRANSACTION, SENDS, UPDATE_CONSUMER_OFFSET
from gateway.shadow.traffic.subject import Subject, subject_of

log = logging.getLogger(__name__)

_MAX_LATENCY_TOPICS: Final = 1_000
_MESSAGE_CODES: Final = SENDS | {END_TRANSACTION}


class ProbedWriter(Writer, Protocol):
    """A writer that can ask its target something harmless."""

    async def probe(self) -> None: ...


class Making(Protocol):
    """What makes writers and their queues."""

    def writer(self, side: Side, broker: str, counts: Callable[[], StreamCounts]) -> ProbedWriter:
        """For what a broker answered, on which side."""

    def backlog(self, place: StreamKey, rule: MirrorRule) -> Backlog:
        """For the stream of a rule and broker."""

    def left(self, rules: MirrorRules) -> list[StreamKey]:
        """The streams an earlier run left something for."""

    async def aside(self) -> list[SetAsideDirectory]:
        """What earlier runs left for another configuration."""

    def ended(self, exchange: Exchange, subject: Subject) -> None:
        """Is told of an END_TRANSACTION that did not get to the target."""

    def half_topic(self, exchange: Exchange, subject: Subject) -> str:
        """The topic of a half message that was sent before this process began; "" when it is not known."""


class Mirror:
    """An `Observer` with a `Holder` (`holding`); `join` makes both known. `run` must be running.

    Listeners added with `listen` hear every outcome. What no rule takes counts as skipped in `elsewhere`.
    """

    def __init__(
        self,
        rules: MirrorRules,
        settings: MirrorSettings,
        making: Making,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.rules = rules
        self.diverged = DivergedQueues(settings.diverged_marks)
        self.answer_holder = AnswerHolder(settings.hold_ms / 1000, settings.held_answers)
        self.unmatched = StreamCounts()
        self.moved_topics: set[str] = set()
        """Topics that a move has switched off: what the target stores of them is lacking nowhere."""
        self._settings = settings
        self._factory = making
        self._now_ms = now_ms
        self._listeners: list[OutcomeListener] = []
        self._streams: dict[StreamKey, MirrorStream] = {}
        self._set_aside: list[SetAsideDirectory] = []
        self._resumed_ends: dict[tuple[Side, str, tuple[str, int]], int] = {}
        """Of each queue of which an earlier run left something: the offset behind it."""
        self._rules_of_halves: OrderedDict[tuple[Side, str, str], tuple[int, str]] = OrderedDict()
        self._latencies: dict[str, Latencies] = {}
        self._hub: Hub | None = None
        self._nursery: trio.Nursery | None = None
        self._codes = rules.mirrored_codes()
        self._update_held_codes()

    # -- the hub's side -----------------------------------------------------------------------------------------

    def attach_to(self, hub: Hub) -> None:
        """Adds observer and holder to a hub."""
        self._hub = hub
        hub.add_observer(self)
        hub.set_holder(self.answer_holder)

    def add_outcome_listener(self, listener: OutcomeListener) -> None:
        """Adds a listener; it is called for every outcome."""
        self._listeners.append(listener)

    def codes(self) -> Codes:
        """See `Observer`."""
        return self._codes

    def observe(self, exchange: Exchange) -> None:
        """See `Observer`."""
        found = self._find_taker(exchange)
        if isinstance(found, str):
            self.unmatched.observed += 1
            self.unmatched.skipped += 1
            self._publish_outcome(Outcome(exchange, Fate.SKIPPED, found))
            return
        index, subject = found
        stream = self._stream_for(exchange.side, exchange.broker, index)
        mode = self.rules.effective_mode(index, subject.topic)
        left_alone = stream.breaker.state is Breaking.OPEN
        self.answer_holder.expect_answer(exchange, ASYNC if mode == SYNC_BEST_EFFORT and left_alone else mode)
        reason = self._reason_to_skip(exchange, subject, index, mode)
        if reason:
            self._publish_outcome(stream.count_skipped(exchange, reason))
        else:
            stream.offer_exchange(exchange, subject)

    def _find_taker(self, exchange: Exchange) -> tuple[int, Subject] | str:
        """The rule that takes an exchange, or why there is none."""
        if exchange.reverse or not exchange.broker:
            return "not a request to a broker"
        try:
            subject, _ = subject_of(exchange), exchange.answer_command
        except (ValueError, KeyError, TypeError, AttributeError):
            return "not understood"
        if exchange.code == END_TRANSACTION and exchange.side is Side.TARGET:
            subject = self._with_real_topic(exchange, subject)
        index = self._find_rule(exchange, subject)
        return "no rule" if index is None else (index, subject)

    def _with_real_topic(self, exchange: Exchange, subject: Subject) -> Subject:
        """The end of a transaction with its real topic, whose mode counts: a client that was asked names another."""
        known = self._rules_of_halves.get((exchange.side, exchange.broker, subject.unique_key))
        topic = known[1] if known is not None else self._factory.half_topic(exchange, subject)
        return replace(subject, topic=topic or subject.topic)

    def _find_rule(self, exchange: Exchange, subject: Subject) -> int | None:
        """A transaction is ended by the rule that took its half message."""
        place = exchange.side, exchange.broker, subject.unique_key
        if exchange.code == END_TRANSACTION:
            known = self._rules_of_halves.get(place)
            if known is not None:
                return known[0]
            topic = subject.topic or self._factory.half_topic(exchange, subject)
            subject = Subject(topic, subject.group, unique_key=subject.unique_key)
        index = self.rules.find_rule(exchange.code, subject, exchange.client)
        if subject.half and index is not None:
            self._rules_of_halves[place] = index, subject.topic
            if len(self._rules_of_halves) > self._settings.half_messages:
                self._rules_of_halves.popitem(last=False)
        return index

    def _reason_to_skip(self, exchange: Exchange, subject: Subject, index: int, mode: str) -> str:
        """Why an exchange that a rule takes is not for the target; "" when it is."""
        reason = _reason_not_done(exchange)
        if reason:
            return reason
        lacking = ""
        moved = subject.topic in self.moved_topics
        if mode == OFF and moved and exchange.side is Side.TARGET:
            return "moved: the target has it"
        if mode == OFF:
            lacking = "its producers have moved" if moved else "the mode is off"
        elif exchange.side is Side.TARGET and mode != TARGET_PRIMARY:
            lacking = f"answered by the target, and the mode is {mode}"
            if exchange.code == END_TRANSACTION:
                return lacking  # If the primary lacks something, its half message has been marked.
        elif exchange.answer is None and exchange.code in SENDS:
            lacking = self._reason_unanswered(exchange, index)
        if lacking:
            self._mark_diverged(exchange, subject, lacking)
            return lacking
        return "" if self.rules.is_sampled(index, exchange.code, subject) else "not in the sample"

    def _reason_unanswered(self, exchange: Exchange, index: int) -> str:
        if not exchange.request_command.is_oneway:
            return "nobody knows whether it was stored: the connection ended first"
        return "" if self.rules.rules[index].oneway == "send" else "a send without answer"

    # -- streams ------------------------------------------------------------------------------------------------

    def _stream_for(self, side: Side, broker: str, index: int) -> MirrorStream:
        place = side, broker, index
        stream = self._streams.get(place)
        if stream is None:
            stream = self._streams[place] = self._new_stream(*place)
            if self._nursery is not None:
                self._nursery.start_soon(stream.run)
        return stream

    def _new_stream(self, side: Side, broker: str, index: int) -> MirrorStream:
        name = f"{side.value}-{broker}-{index}"
        writer = self._factory.writer(side, broker, lambda: stream.counts)
        backlog = self._factory.backlog((side, broker, index), self.rules.rules[index])
        stream = MirrorStream(name, writer, self._settings, self._on_outcome, writer.probe, backlog)
        return stream

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs all streams, those that come later too, until cancelled."""
        for place in self._factory.left(self.rules):
            self._stream_for(*place)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(tireless, self.answer_holder.run)
                nursery.start_soon(tireless, self._report_set_aside)
                for stream in self._streams.values():
                    nursery.start_soon(stream.run)
                task_status.started()
        finally:
            self._nursery = None

    async def _report_set_aside(self) -> None:
        """Queues lack what is set aside."""
        self._set_aside = await self._factory.aside()
        for each in self._set_aside:
            for place, (count, offset) in each.queues.items():
                reason = f"set aside, for another configuration: {each.directory}"
                self.diverged.mark_diverged(*place, self._now_ms(), reason, count=count, offset=offset)

    def _on_outcome(self, entry: BacklogEntry, outcome: Outcome) -> None:
        exchange = outcome.exchange
        if entry.subject.offset >= 0 and (entry.resumed or self._resumed_ends):
            self._check_resume_gap(entry)
        if outcome.fate in (Fate.REFUSED, Fate.DROPPED) and exchange.code in _MESSAGE_CODES:
            self._mark_diverged(exchange, entry.subject, outcome.reason)
            if exchange.code == END_TRANSACTION:
                self._factory.ended(exchange, entry.subject)
        elif outcome.fate is Fate.MIRRORED:
            self._latencies_of(entry.subject.topic).record(outcome.latency_s)
        self._publish_outcome(outcome)

    def _publish_outcome(self, outcome: Outcome) -> None:
        self.answer_holder.on_outcome(outcome)
        for listener in self._listeners:
            try:
                listener(outcome)
            except Exception:
                log.exception("a listener for outcomes failed")

    def _mark_diverged(self, exchange: Exchange, subject: Subject, reason: str) -> None:
        if exchange.code not in _MESSAGE_CODES:
            return
        topic, queue_id = subject.topic, subject.queue_id
        if exchange.code == END_TRANSACTION and not topic:
            topic = self._rules_of_halves.get((exchange.side, exchange.broker, subject.unique_key), (0, ""))[
                1
            ]
        self.diverged.mark_diverged(
            exchange.broker,
            topic,
            queue_id,
            self._now_ms(),
            reason,
            count=subject.count,
            offset=subject.offset,
        )

    def _check_resume_gap(self, entry: BacklogEntry) -> None:
        """What came in last before the process was killed was in no file yet; the next offset of its queue tells."""
        exchange, subject = entry.exchange, entry.subject
        place = exchange.side, exchange.broker, subject.queue
        if entry.resumed:
            self._resumed_ends[place] = max(self._resumed_ends.get(place, 0), subject.offset + subject.count)
            return
        expected = self._resumed_ends.pop(place, subject.offset)
        if expected < subject.offset:
            reason = "lost when the gateway ended, or never seen by it"
            lacking = subject.offset - expected
            now_ms = self._now_ms()
            self.diverged.mark_diverged(
                exchange.broker, *subject.queue, now_ms, reason, count=lacking, offset=expected
            )

    def _latencies_of(self, topic: str) -> Latencies:
        if topic not in self._latencies and len(self._latencies) >= _MAX_LATENCY_TOPICS:
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
        self._on_modes_changed()

    def reset_mode(self, topic: str) -> None:
        """Gives a topic the mode of its rule again."""
        self.rules.reset_mode(topic)
        self._on_modes_changed()

    def apply_mode(self, topic: str, mode: str) -> None:
        """Sets a mode, or with "" that of the rule. Raises ValueError."""
        if mode:
            self.set_mode(topic, mode)
        else:
            self.reset_mode(topic)

    def _on_modes_changed(self) -> None:
        self._update_held_codes()
        if self._hub is not None:
            self._hub.refresh_interests()

    def _update_held_codes(self) -> None:
        self.answer_holder.set_codes(
            self._codes if self.rules.any_mode_in_use(SYNCHRONOUS_MODES) else frozenset()
        )

    # -- what others ask ----------------------------------------------------------------------------------------

    async def wait_until_opened(self) -> None:
        """Returns once all that an earlier process left is among `queued`; `run` must be under way."""
        for stream in list(self._streams.values()):
            await stream.wait_until_opened()

    def count_queued(self, side: Side = Side.PRIMARY) -> int:
        """How many exchanges answered on one side wait to be mirrored."""
        return sum(stream.queued for (of, _, _), stream in self._streams.items() if of is side)

    def count_queued_of(self, topic: str) -> int:
        """How many of them are of one topic, on both sides."""
        return sum(stream.count_queued_of(topic) for stream in self._streams.values())

    def streams(self) -> Iterable[MirrorStream]:
        """All streams."""
        return self._streams.values()

    def total_counts(self) -> StreamCounts:
        """All counts added up."""
        total = StreamCounts()
        for counts in (self.unmatched, *(stream.counts for stream in self._streams.values())):
            for name in StreamCounts.__slots__:
                setattr(total, name, getattr(total, name) + getattr(counts, name))
        return total

    def status(self) -> dict[str, Any]:
        """For people and the console."""
        return {
            "modes": self.rules.mode_overrides(),
            "rules": {topic: self.rules.rule_mode(topic) for topic in self.rules.mode_overrides()},
            "moved": sorted(self.moved_topics),
            "streams": [_stream_row(stream) for stream in self._streams.values()],
            "diverged": [mark.to_dict() for mark in self.diverged],
            "diverged_others": self.diverged.others,
            "held": len(self.answer_holder),
            "aside": [{"directory": each.directory, "exchanges": each.exchanges} for each in self._set_aside],
        }

    def figures(self) -> Iterator[Figure | Distribution]:
        """What is counted, by stream."""
        yield from self.unmatched.figures(stream="none")
        for stream in self._streams.values():
            yield from stream.counts.figures(stream=stream.name)
            yield from _stream_gauges(stream)
        yield Figure("mirror_diverged_queues", len(self.diverged), "Queues that lack something.", "gauge")
        yield Figure("mirror_held_answers", len(self.answer_holder), "Answers held for the target.", "gauge")
        for topic, latencies in self._latencies.items():
            yield Distribution("mirror_seconds", latencies, "How long the target took.", {"topic": topic})


def _reason_not_done(exchange: Exchange) -> str:
    """Why the primary did not do what was asked, as far as is known; "" when it did."""
    answer = exchange.answer_command
    if answer is None:
        unanswered = (*SENDS, END_TRANSACTION, UPDATE_CONSUMER_OFFSET)
        return "" if exchange.code in unanswered else "without answer"
    done = STORED if exchange.code in SENDS else (ResponseCode.SUCCESS,)
    return "" if answer.code in done else "refused where it was asked"


def _stream_gauges(stream: MirrorStream) -> Iterator[Figure]:
    labels = {"stream": stream.name}
    is_open = stream.breaker.state is not Breaking.CLOSED
    yield Figure("mirror_queued", stream.queued, "Exchanges on their way.", "gauge", labels)
    yield Figure("mirror_queued_bytes", stream.queued_bytes, "Their size in memory.", "gauge", labels)
    yield Figure("mirror_spilled", stream.spilled, "Those of them on disk alone.", "gauge", labels)
    yield Figure("mirror_on_disk", stream.on_disk, "Those a killed process leaves.", "gauge", labels)
    yield Figure("mirror_breaker_open", float(is_open), "1 while the target is left alone.", "gauge", labels)
    yield Figure("mirror_breaker_opened_total", stream.breaker.opened_total, "How often.", labels=labels)


def _stream_row(stream: MirrorStream) -> dict[str, Any]:
    counts = {name: getattr(stream.counts, name) for name in StreamCounts.__slots__}
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
