"""The mirror itself: chooses rule, mode and stream for each exchange, and acts on its outcome.

    hub → observe → rule, mode → stream → outcome → held answers, diverged marks, listeners

There is one `MirrorStream` per side, broker and rule, made when it is first needed. This module decides which exchanges
enter a stream and what follows from an outcome; streams and writers bring exchanges to the target.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

import trio

from codec.constants import STORED_CODES, ResponseCode
from gateway.runtime.metrics import Distribution, LatencyHistogram, Metric
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.mirror.answer_holder import SYNCHRONOUS_MODES, AnswerHolder
from gateway.shadow.mirror.backlog import BacklogEntry
from gateway.shadow.mirror.circuit_breaker import BreakerState
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.mirror_factory import MirrorFactory
from gateway.shadow.mirror.mirror_stream import MirrorStream
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import (
    OFF,
    STRICT_DUAL,
    SYNC_BEST_EFFORT,
    TARGET_PRIMARY,
    MirrorSettings,
)
from gateway.shadow.mirror.spill_directory import SetAsideDirectory, StreamKey
from gateway.shadow.mirror.stream_account import StreamAccount, StreamCounts
from gateway.shadow.traffic.exchange import Codes, Exchange, Hub, ReleaseAnswer, Side
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind, OutcomeListener
from gateway.shadow.traffic.request_policy import END_TRANSACTION, SEND_CODES, UPDATE_CONSUMER_OFFSET
from gateway.shadow.traffic.subject import Subject, subject_of

log = logging.getLogger(__name__)

_MAX_LATENCY_TOPICS: Final = 200
MAX_STREAMS: Final = 1_024
"""Streams of rules and brokers: route data can name ever new brokers."""
MAX_STATUS_MARKS: Final = 1_000
"""Diverged queues listed in `/status`; all count."""
_MESSAGE_CODES: Final = SEND_CODES | {END_TRANSACTION}
NO_RULE: Final = -1


class RuleMatch(NamedTuple):
    """The rule that applies to an exchange, by index, and the subject of the exchange.

    If no rule applies, ``rule`` is `NO_RULE` and ``reason`` says why.
    """

    rule: int
    subject: Subject
    reason: str = ""


class SkipReason(NamedTuple):
    """The reason why an exchange with a matching rule is not mirrored.

    ``is_missing`` tells whether the target lacks a message because of that.
    """

    text: str
    is_missing: bool


class HalfRule(NamedTuple):
    """The rule and the topic of a half message."""

    rule: int
    topic: str


class Mirror:
    """The `Holder` of the hub: mirrors what it observes, and holds answers in the synchronous modes.

    Exchanges are mirrored while `run` is running; until then they wait in their streams.

    Exchanges that no rule matches are counted as skipped in `unmatched`.
    """

    def __init__(
        self,
        rules: MirrorRules,
        settings: MirrorSettings,
        factory: MirrorFactory,
        diverged: DivergedQueues,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.tasks = TaskSupervisor("mirror")
        self.rules = rules
        self.diverged = diverged
        self.answer_holder = AnswerHolder(settings.hold_ms / 1000, settings.held_answers)
        self.unmatched = StreamCounts()
        self.moved_topics: set[str] = set()
        """Topics that a move has switched off: messages that the target stores for them do not count as diverged."""
        self._settings = settings
        self._factory = factory
        self._now_ms = now_ms
        self._listeners: list[OutcomeListener] = []
        self._streams: dict[StreamKey, MirrorStream] = {}
        self._set_aside: list[SetAsideDirectory] = []
        self._resumed_ends: dict[tuple[Side, str, tuple[str, int]], int] = {}
        """For each queue with resumed messages, the offset after the last of them."""
        self._rules_of_halves: OrderedDict[tuple[Side, str, str], HalfRule] = OrderedDict()
        """Rule and topic of recent half messages, by side, broker and unique key."""
        self._latencies: dict[str, LatencyHistogram] = {}
        self._hub: Hub | None = None
        self._nursery: trio.Nursery | None = None
        self._codes = rules.mirrored_codes()
        self._holdable_codes = frozenset[int]()
        self._update_holdable_codes()

    # -- observing -----------------------------------------------------------------------------------------------

    def attach_to(self, hub: Hub) -> None:
        """Observe the exchanges of a hub, and hold answers for it."""
        self._hub = hub
        hub.set_holder(self)

    def add_outcome_listener(self, listener: OutcomeListener) -> None:
        """Call a listener for every outcome."""
        self._listeners.append(listener)

    def codes(self) -> Codes:
        """Return the request codes that some rule mirrors."""
        return self._codes

    def holdable_codes(self) -> Codes:
        """Return the request codes whose answers may be held: none while no synchronous mode is in use."""
        return self._holdable_codes

    def observe(self, exchange: Exchange, release: ReleaseAnswer | None = None) -> bool:
        """Offer an exchange to the stream of its rule, or count it as skipped.

        Return True if its answer is held, and ``release`` will be called with the frame that the client gets.
        """
        match = self._match_rule(exchange)
        if match.rule == NO_RULE:
            self._skip_unmatched(exchange, match.reason)
            return False
        # A stream per side, broker and rule: within it the order holds, and no stream waits for another.
        key = exchange.side, exchange.broker, match.rule
        if len(self._streams) >= MAX_STREAMS and key not in self._streams:
            self._skip_unmatched(exchange, "too many brokers")
            return False
        stream = self._stream_for(*key)
        mode = self.rules.effective_mode(match.rule, match.subject.topic)
        # While the breaker is open, the target is not even tried: a client of sync-best-effort would wait for nothing.
        breaker_is_open = stream.breaker.state is BreakerState.OPEN
        must_hold = mode == STRICT_DUAL or (mode == SYNC_BEST_EFFORT and not breaker_is_open)
        # Also exchanges that are left out go through their stream, so that its counts add up.
        skip = self._find_skip_reason(exchange, match, mode)
        outcome: Outcome | None
        if skip is None:
            outcome = stream.offer_exchange(exchange, match.subject)
        else:
            if skip.is_missing:
                self._mark_diverged(exchange, match.subject, skip.text)
            outcome = stream.skip_exchange(exchange, skip.text)
            self._publish_outcome(outcome)
        if release is None or not must_hold:
            return False
        return self.answer_holder.hold_answer(exchange, release, outcome, is_strict=mode == STRICT_DUAL)

    def _skip_unmatched(self, exchange: Exchange, reason: str) -> None:
        self.unmatched.observed += 1
        self.unmatched.skipped += 1
        self._publish_outcome(Outcome(exchange, OutcomeKind.SKIPPED, reason))

    def _match_rule(self, exchange: Exchange) -> RuleMatch:
        """Return the rule that applies to an exchange, or the reason why none does."""
        if exchange.reverse or not exchange.broker:
            return RuleMatch(NO_RULE, Subject(), "not a request to a broker")
        try:
            # The answer is decoded here too, so that nothing after this has to expect a damaged one.
            subject, _ = subject_of(exchange), exchange.answer_command
        except (ValueError, KeyError, TypeError, AttributeError):
            return RuleMatch(NO_RULE, Subject(), "the request or its answer cannot be decoded")
        if exchange.code == END_TRANSACTION and exchange.side is Side.TARGET:
            subject = self._with_real_topic(exchange, subject)
        index = self._find_rule(exchange, subject)
        return RuleMatch(NO_RULE, subject, "no rule") if index is None else RuleMatch(index, subject)

    def _with_real_topic(self, exchange: Exchange, subject: Subject) -> Subject:
        """Give the end of a transaction its real topic, whose mode counts.

        A client that answers a check-back names the system topic of half messages instead.
        """
        half = self._rules_of_halves.get((exchange.side, exchange.broker, subject.unique_key))
        topic = half.topic if half is not None else self._factory.find_half_topic(exchange, subject)
        return replace(subject, topic=topic or subject.topic)

    def _find_rule(self, exchange: Exchange, subject: Subject) -> int | None:
        """Return the first matching rule; the end of a transaction belongs to the rule of its half message."""
        half_key = exchange.side, exchange.broker, subject.unique_key
        if exchange.code == END_TRANSACTION:
            half = self._rules_of_halves.get(half_key)
            if half is not None:
                return half.rule
            # The half message may be older than this process: the state file knows its topic, and so its rule.
            topic = subject.topic or self._factory.find_half_topic(exchange, subject)
            subject = Subject(topic, subject.group, unique_key=subject.unique_key)
        index = self.rules.find_rule(exchange.code, subject, exchange.client)
        # Remembered for the end of the transaction, which does not always name the topic that rules select by.
        if subject.half and index is not None:
            self._rules_of_halves[half_key] = HalfRule(index, subject.topic)
            if len(self._rules_of_halves) > self._settings.half_messages:
                self._rules_of_halves.popitem(last=False)
        return index

    def _find_skip_reason(self, exchange: Exchange, match: RuleMatch, mode: str) -> SkipReason | None:
        """Return why an exchange with a matching rule is not mirrored; None if it is."""
        subject = match.subject
        reason = _reason_without_effect(exchange)
        if reason:
            return SkipReason(reason, is_missing=False)
        moved = subject.topic in self.moved_topics
        # The message is where the topic has moved to: nothing is missing anywhere.
        if mode == OFF and moved and exchange.side is Side.TARGET:
            return SkipReason("moved: the target has it", is_missing=False)
        if mode == OFF:
            return SkipReason("its producers have moved" if moved else "the mode is off", is_missing=True)
        if exchange.side is Side.TARGET and mode != TARGET_PRIMARY:
            # The end of a transaction marks nothing: if the primary misses a message, its half message was marked.
            is_missing = exchange.code != END_TRANSACTION
            return SkipReason(f"answered by the target, and the mode is {mode}", is_missing)
        if exchange.answer is None and exchange.code in SEND_CODES:
            # The primary may never have got it. Sent to the target, it would be stored there only.
            if not exchange.request_command.is_oneway:
                ended_early = "the connection ended before the answer, so it is unknown whether it was stored"
                return SkipReason(ended_early, is_missing=True)
            if self.rules.rules[match.rule].oneway != "send":
                return SkipReason("a send without answer", is_missing=True)
        if not self.rules.is_sampled(match.rule, exchange.code, subject):
            return SkipReason("not in the sample", is_missing=False)
        return None

    # -- streams ------------------------------------------------------------------------------------------------

    def _stream_for(self, side: Side, broker: str, index: int) -> MirrorStream:
        key = side, broker, index
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = self._new_stream(*key)
            if self._nursery is not None:
                self._nursery.start_soon(stream.run)
        return stream

    def _new_stream(self, side: Side, broker: str, index: int) -> MirrorStream:
        name = f"{side.value}-{broker}-{index}"
        account = StreamAccount(name, self._on_outcome)
        writer = self._factory.make_writer(side, broker, account.counts)
        backlog = self._factory.make_backlog((side, broker, index), self.rules.rules[index], account)
        return MirrorStream(name, self._settings, writer, backlog, account, self.tasks)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all streams until cancelled, including those made later."""
        # Made now, and not at their first exchange: what an earlier run left must not wait for a new message.
        for key in self._factory.find_resumable_streams(self.rules):
            self._stream_for(*key)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                keep_running = self.tasks.keep_running
                nursery.start_soon(keep_running, "release held answers", self.answer_holder.run)
                nursery.start_soon(keep_running, "report set-aside files", self._report_set_aside)
                for stream in self._streams.values():
                    nursery.start_soon(stream.run)
                task_status.started()
        finally:
            self._nursery = None

    async def _report_set_aside(self) -> None:
        """Mark the queues whose messages were set aside as diverged."""
        self._set_aside = await self._factory.find_set_aside()
        for directory in self._set_aside:
            for queue, (count, offset) in directory.queues.items():
                reason = f"set aside, for another configuration: {directory.directory}"
                self.diverged.mark_diverged(*queue, self._now_ms(), reason, count=count, offset=offset)

    def _on_outcome(self, entry: BacklogEntry, outcome: Outcome) -> None:
        exchange = outcome.exchange
        # Cheap in normal operation: the table is empty unless spill files were resumed.
        if entry.subject.offset >= 0 and (entry.resumed or self._resumed_ends):
            self._check_resume_gap(entry)
        # Only messages and ends of transactions can be missing; a lost consumer offset is made good by the next commit.
        if outcome.kind in (OutcomeKind.REFUSED, OutcomeKind.DROPPED) and exchange.code in _MESSAGE_CODES:
            self._mark_diverged(exchange, entry.subject, outcome.reason)
            if exchange.code == END_TRANSACTION:
                # The target will ask for the decision later (check-back), and then gets it.
                self._factory.note_undelivered_end(exchange, entry.subject)
        elif outcome.kind is OutcomeKind.MIRRORED:
            self._latencies_of(entry.subject.topic).record(outcome.latency_s)
        self._publish_outcome(outcome)

    def _publish_outcome(self, outcome: Outcome) -> None:
        # The waiting client comes first; listeners only record.
        self.answer_holder.on_outcome(outcome)
        for listener in self._listeners:
            try:
                listener(outcome)
            except Exception:
                log.exception("an outcome listener failed")

    def _mark_diverged(self, exchange: Exchange, subject: Subject, reason: str) -> None:
        if exchange.code not in _MESSAGE_CODES:
            return
        topic, queue_id = subject.topic, subject.queue_id
        if exchange.code == END_TRANSACTION and not topic:
            half = self._rules_of_halves.get((exchange.side, exchange.broker, subject.unique_key))
            topic = "" if half is None else half.topic
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
        """Mark messages as diverged that an earlier process received but had not written to disk when it was killed.

        They leave a gap between the last resumed offset of a queue and the first new one.
        """
        exchange, subject = entry.exchange, entry.subject
        queue = exchange.side, exchange.broker, subject.queue
        if entry.resumed:
            self._resumed_ends[queue] = max(self._resumed_ends.get(queue, 0), subject.offset + subject.count)
            return
        # Removed: only the first new message of a queue can show the gap.
        expected = self._resumed_ends.pop(queue, subject.offset)
        if expected < subject.offset:
            reason = "lost when the gateway was killed, or never seen by it"
            missing = subject.offset - expected
            now_ms = self._now_ms()
            self.diverged.mark_diverged(
                exchange.broker, *subject.queue, now_ms, reason, count=missing, offset=expected
            )

    def _latencies_of(self, topic: str) -> LatencyHistogram:
        # Clients make up topics: all beyond the limit share one histogram without a name.
        if topic not in self._latencies and len(self._latencies) >= _MAX_LATENCY_TOPICS:
            topic = ""
        return self._latencies.setdefault(topic, LatencyHistogram())

    # -- modes --------------------------------------------------------------------------------------------------

    def set_mode(self, topic: str, mode: str) -> None:
        """Switch the mode of a topic from now on. Raises ValueError for an unknown mode.

        No message is lost by a switch: exchanges that are queued go on to the target whatever the mode becomes, and
        held answers stay held until their message is there or `hold_ms` has passed. From then on:

        - `off`: messages are left out, and their queues are marked as diverged. After `off`, messages are mirrored
          again, and the marks stay.
        - async and the synchronous modes differ only in whether answers are held.
        - `target-primary`: exchanges that the target answers go back to the primary, and those that the primary still
          answers go to the target. After this mode, messages that the target answers are left out, and their queues
          are marked.
        """
        self.rules.set_mode(topic, mode)
        self._on_modes_changed()

    def reset_mode(self, topic: str) -> None:
        """Clear the override, so that the mode of the rule applies to a topic again."""
        self.rules.reset_mode(topic)
        self._on_modes_changed()

    def apply_mode(self, topic: str, mode: str) -> None:
        """Set the mode of a topic; "" clears the override. Raises ValueError for an unknown mode."""
        if mode:
            self.set_mode(topic, mode)
        else:
            self.reset_mode(topic)

    def _on_modes_changed(self) -> None:
        self._update_holdable_codes()
        # The proxy caches which codes it has to look at and whose answers may be held.
        if self._hub is not None:
            self._hub.refresh_interests()

    def _update_holdable_codes(self) -> None:
        uses_holder = self.rules.any_mode_in_use(SYNCHRONOUS_MODES)
        self._holdable_codes = self._codes if uses_holder else frozenset[int]()

    # -- status -------------------------------------------------------------------------------------------------

    async def wait_until_opened(self) -> None:
        """Return once exchanges of an earlier process count as queued; `run` must be under way."""
        for stream in list(self._streams.values()):
            await stream.wait_until_opened()

    def count_queued(self, side: Side = Side.PRIMARY) -> int:
        """Return the number of waiting exchanges that one side answered."""
        return sum(
            stream.queued for (answered_by, _, _), stream in self._streams.items() if answered_by is side
        )

    def count_queued_of(self, topic: str) -> int:
        """Return the number of waiting exchanges of a topic, whichever side answered them."""
        return sum(stream.count_queued_of(topic) for stream in self._streams.values())

    def streams(self) -> Iterable[MirrorStream]:
        """Return all streams."""
        return self._streams.values()

    def total_counts(self) -> StreamCounts:
        """Return the sum of all counts."""
        total = StreamCounts()
        for counts in (self.unmatched, *(stream.counts for stream in self._streams.values())):
            for name in StreamCounts.__slots__:
                setattr(total, name, getattr(total, name) + getattr(counts, name))
        return total

    def status(self) -> dict[str, Any]:
        """Return modes, streams, diverged queues and set-aside directories as JSON."""
        return {
            "modes": self.rules.mode_overrides(),
            "rules": {topic: self.rules.rule_mode(topic) for topic in self.rules.mode_overrides()},
            "moved": sorted(self.moved_topics),
            "streams": [_stream_row(stream) for stream in self._streams.values()],
            "diverged": [mark.to_dict() for mark in islice(self.diverged, MAX_STATUS_MARKS)],
            "diverged_queues": len(self.diverged),
            "diverged_others": self.diverged.unlisted,
            "held": len(self.answer_holder),
            "set_aside": [
                {"directory": directory.directory, "exchanges": directory.exchanges}
                for directory in self._set_aside
            ],
        }

    def metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of all streams."""
        yield from self.unmatched.metrics(stream="none")
        for stream in self._streams.values():
            yield from stream.counts.metrics(stream=stream.name)
            yield from _stream_gauges(stream)
        yield Metric(
            "mirror_diverged_queues",
            len(self.diverged),
            "Queues of which the target lacks messages.",
            "gauge",
        )
        yield Metric(
            "mirror_held_answers",
            len(self.answer_holder),
            "Client answers held until the target has the message.",
            "gauge",
        )
        for topic, latencies in self._latencies.items():
            yield Distribution(
                "mirror_seconds", latencies, "Time the target took, in seconds.", {"topic": topic}
            )


def _reason_without_effect(exchange: Exchange) -> str:
    """Return why a request had no effect where it was sent; "" when it had one, or may have had one."""
    answer = exchange.answer_command
    if answer is None:
        # These are sent oneway too, and may have been carried out although no answer came.
        unanswered = (*SEND_CODES, END_TRANSACTION, UPDATE_CONSUMER_OFFSET)
        return "" if exchange.code in unanswered else "without answer"
    done = STORED_CODES if exchange.code in SEND_CODES else (ResponseCode.SUCCESS,)
    return "" if answer.code in done else "refused where it was sent"


def _stream_gauges(stream: MirrorStream) -> Iterator[Metric]:
    labels = {"stream": stream.name}
    is_open = stream.breaker.state is not BreakerState.CLOSED
    yield Metric("mirror_queued", stream.queued, "Exchanges waiting for the target.", "gauge", labels)
    yield Metric(
        "mirror_queued_bytes", stream.queued_bytes, "Bytes of waiting exchanges in memory.", "gauge", labels
    )
    yield Metric(
        "mirror_spilled", stream.spilled, "Waiting exchanges that are only on disk.", "gauge", labels
    )
    yield Metric(
        "mirror_on_disk",
        stream.on_disk,
        "Waiting exchanges on disk, which survive a SIGKILL.",
        "gauge",
        labels,
    )
    yield Metric(
        "mirror_breaker_open", float(is_open), "1 while the circuit breaker is open.", "gauge", labels
    )
    yield Metric(
        "mirror_breaker_opened_total",
        stream.breaker.opened_total,
        "Times the circuit breaker opened.",
        labels=labels,
    )


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
