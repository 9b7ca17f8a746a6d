"""What of a capture is replayed, and in which order: the steps of a replay.

Not responsible for sending anything (replay is) nor for how a request is changed (retarget is).
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from codec.capture import CaptureBlock, CaptureRecord, Damage
from codec.errors import FrameError
from gateway.shadow.capture.reader import CaptureReader
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.shadow.traffic.request_policy import (
    END_TRANSACTION,
    RECALL_MESSAGE,
    SENDS,
    UPDATE_CONSUMER_OFFSET,
    Way,
    policy_of,
    topic_left_out,
)
from gateway.shadow.traffic.resend import recalled_key
from gateway.shadow.traffic.subject import Subject, subject_of
from remoting.bodies.routes import TopicRouteData
from remoting.declare import REQUESTS
from remoting.errors import RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic

PULL_CODES = frozenset((11, 361))
"""Replayed, at mapped offsets and without waiting, only when asked for by their codes: they change nothing."""
_MAX_KNOWN_ROUTES = 10_000
Lane = tuple[str, str, int]
"""Broker, topic and queue: steps of one lane go one after the other."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which exchanges are replayed. Times are ms since 1970, `until_ms` exclusive; None and no codes: any."""

    from_ms: int | None = None
    until_ms: int | None = None
    topics: frozenset[str] | None = None
    codes: frozenset[int] = frozenset()


class ReplayStep:
    """One exchange that is replayed; `after` must be answered before it is sent, `behind` be sent.

    `due_us` orders all steps and is where in time the step belongs; us since 1970. Both lists of others are numbers
    of steps. A barrier waits for all before it, and all behind it wait for it.
    """

    __slots__ = (
        "after_answers",
        "after_sending",
        "answered_us",
        "asked_us",
        "barrier",
        "block",
        "code",
        "connection",
        "due_us",
        "file_index",
        "lane",
        "offset",
        "record_number",
        "wall_ms",
    )

    def __init__(
        self, file: int, block: CaptureBlock, number: int, record: CaptureRecord, base_us: int
    ) -> None:
        self.file_index = file
        self.block = block
        self.record_number = number
        self.code = record.code
        self.wall_ms = record.wall_ms
        self.asked_us = self.due_us = record.asked_us + base_us
        self.answered_us = self.asked_us + record.forwarded_us + record.answered_us
        self.connection: tuple[int, int] = (0, 0)
        self.lane: Lane | None = None
        self.offset = -1
        self.barrier = False
        self.after_answers: tuple[int, ...] = ()
        self.after_sending = -1


@dataclass(slots=True)
class ReplayPlan:
    """Steps in order, and what was found on the way.

    `queues` tells how many a topic needs, by broker and topic; `groups` are the (broker, group) whose offsets are set.
    """

    steps: list[ReplayStep] = field(default_factory=list)
    skipped: Counter[tuple[int, str]] = field(default_factory=Counter)
    damage: list[tuple[str, Damage]] = field(default_factory=list)
    queue_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    groups: set[tuple[str, str]] = field(default_factory=set)
    bytes_by_code: Counter[int] = field(default_factory=Counter)

    @property
    def brokers(self) -> list[str]:
        """The primary's brokers that something was asked of."""
        return sorted({step.lane[0] for step in self.steps if step.lane is not None})

    @property
    def duration_s(self) -> float:
        """From the first step to the last, as captured."""
        return (self.steps[-1].due_us - self.steps[0].due_us) / 1e6 if self.steps else 0.0


def to_exchange(record: CaptureRecord) -> Exchange:
    """A record as the exchange it was, as far as the mirror's functions look at it."""
    return Exchange(
        record.code,
        record.request,
        record.answer,
        connection=record.connection,
        client=record.client,
        upstream=record.upstream,
        broker=record.broker,
        wall_ms=record.wall_ms,
        asked_s=0.0,
        forwarded_s=0.0,
        answered_s=0.0,
        reverse=record.reverse,
        side=Side.TARGET if record.by_target else Side.PRIMARY,
    )


def plan_replay(files: Sequence[CaptureReader], record_filter: RecordFilter) -> ReplayPlan:
    """Reads all files once. Each step takes some 600 bytes of memory until the replay ends."""
    maker = _PlanBuilder(record_filter)
    for number, file in enumerate(files):
        maker.read_file(number, file)
    maker.apply_route_queues()
    maker.plan.steps = _sort_steps(maker.steps)
    _link_dependencies(maker.plan.steps)
    return maker.plan


def matches_filter(record: CaptureRecord, record_filter: RecordFilter) -> bool:
    """Whether a record is one of those."""
    early = record_filter.from_ms is not None and record.wall_ms < record_filter.from_ms
    late = record_filter.until_ms is not None and record.wall_ms >= record_filter.until_ms
    other_topic = record_filter.topics is not None and record.topic not in record_filter.topics
    other_code = bool(record_filter.codes) and record.code not in record_filter.codes
    return not (early or late or other_topic or other_code)


class _PlanBuilder:
    """Picks steps out of records."""

    def __init__(self, record_filter: RecordFilter) -> None:
        self.plan = ReplayPlan()
        self.steps: list[ReplayStep] = []
        self._filter = record_filter
        self._bases: dict[int, int] = {}
        self._lane_by_key: dict[str, Lane] = {}
        self._routes: dict[tuple[str, str], int] = {}
        self._known_routes: set[tuple[str, bytes]] = set()

    def read_file(self, number: int, file: CaptureReader) -> None:
        """All that is wanted of one file."""
        wanted = self._filter
        # The ends of transactions of older clients name no topic; without their halves they are left out anyway.
        topics = None if wanted.topics is None else wanted.topics | {""}
        ends = replace(wanted, topics=None)
        run = file.header.run if file.header is not None else -1 - number
        for found in file.read_blocks(from_ms=wanted.from_ms, until_ms=wanted.until_ms, topics=topics):
            if isinstance(found, Damage):
                self.plan.damage.append((file.path, found))
                continue
            block, records = found
            for at, record in enumerate(records):
                # One clock for files of several runs: their monotonic ones, moved to the first record's wall time.
                base = self._bases.setdefault(run, record.wall_ms * 1000 - record.asked_us)
                if record.code == GetRouteInfoByTopic.code:
                    self._learn_route(record)
                nameless_end = record.code == END_TRANSACTION and not record.topic
                if matches_filter(record, ends if nameless_end else wanted):
                    self._add_step(ReplayStep(number, block, at, record, base), run, record)

    def _learn_route(self, record: CaptureRecord) -> None:
        """Clients asked how many queues a topic has; those that nobody sent to are among them."""
        try:
            answer = to_exchange(record).answer_command
            body = bytes(answer.body) if answer is not None and answer.code == 0 else b""
            if not body or (record.topic, body) in self._known_routes:
                return
            for queue in TopicRouteData.from_json(body).queue_datas or []:
                place = (queue.broker_name, record.topic)
                self._routes[place] = max(self._routes.get(place, 0), queue.write_queue_nums)
        except (FrameError, RequestError, ValueError):
            return
        if len(self._known_routes) < _MAX_KNOWN_ROUTES:
            self._known_routes.add((record.topic, body))

    def apply_route_queues(self) -> None:
        """Topics get as many queues as they had, where that is known."""
        queues = self.plan.queue_counts
        for place in queues:
            queues[place] = max(queues[place], self._routes.get(place, 0))

    def _add_step(self, step: ReplayStep, run: int, record: CaptureRecord) -> None:
        step.connection = (run, record.connection)
        try:
            reason = self._reason_left_out(step, record)
        except (FrameError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"the request cannot be understood: {type(error).__name__}"
        if reason:
            self.plan.skipped[record.code, reason] += 1
            return
        self.steps.append(step)
        self.plan.bytes_by_code[record.code] += len(record.request)

    def _reason_left_out(self, step: ReplayStep, record: CaptureRecord) -> str:
        """Why a record is not replayed; "" for those that are, whose step knows its lane then."""
        code = record.code
        if record.reverse:
            return "a question of the broker to its client"
        if not record.broker:
            return "asked a namesrv"
        if code not in PULL_CODES or code not in self._filter.codes:
            policy = policy_of(code)
            if policy.way is Way.LEFT_OUT:
                return policy.reason
        exchange = to_exchange(record)
        subject = subject_of(exchange)
        refused = _refusal_reason(exchange)
        if refused:
            return refused
        if code in SENDS:
            return self._plan_send(step, exchange, subject)
        if code in (END_TRANSACTION, RECALL_MESSAGE):
            key = subject.unique_key if code == END_TRANSACTION else recalled_key(exchange.request_command)
            step.lane = self._lane_by_key.get(key)
            return "" if step.lane is not None else "the message it is about was not captured, or not stored"
        if code == UPDATE_CONSUMER_OFFSET or code in PULL_CODES:
            step.lane = (record.broker, subject.topic, subject.queue_id)
            reason = topic_left_out(subject.topic)
            if not reason:
                self.plan.groups.add((record.broker, subject.group))
            return reason
        step.lane, step.barrier = (record.broker, "", -1), True
        return ""

    def _plan_send(self, step: ReplayStep, exchange: Exchange, subject: Subject) -> str:
        answer = exchange.answer_command
        if answer is None and not exchange.request_command.is_oneway:
            return "no answer was captured: it may not have been stored"
        reason = topic_left_out(subject.topic)
        if reason:
            return reason
        step.lane = (exchange.broker, subject.topic, subject.queue_id)
        step.offset = subject.offset
        if subject.half or subject.delayed:
            self._lane_by_key[subject.unique_key] = step.lane
        topic = (exchange.broker, subject.topic)
        self.plan.queue_counts[topic] = max(self.plan.queue_counts.get(topic, 1), subject.queue_id + 1)
        return ""


def _refusal_reason(exchange: Exchange) -> str:
    """How the primary refused a request; "" when it did not."""
    answer, declared = exchange.answer_command, REQUESTS.get(exchange.code)
    if answer is None or answer.code in (declared.ACCEPT_CODES if declared is not None else (0,)):
        return ""
    return f"was refused with code {answer.code}"


def _sort_steps(steps: list[ReplayStep]) -> list[ReplayStep]:
    """By the time they were asked, but sends of one queue as the primary stored them.

    A send that was asked before another and stored behind it becomes due with the other. So a step never has to wait
    for one that comes later in the order.
    """
    steps.sort(key=lambda step: step.asked_us)
    lanes: dict[Lane | None, list[ReplayStep]] = {}
    for step in steps:
        lanes.setdefault(step.lane, []).append(step)
    places: list[tuple[int, int, ReplayStep]] = []
    for lane in lanes.values():
        for place, step in enumerate(_storage_order(lane)):
            places.append((step.due_us, place, step))
    places.sort(key=lambda each: each[:2])
    return [step for _, _, step in places]


def _storage_order(lane: list[ReplayStep]) -> list[ReplayStep]:
    """One queue's steps, given as they were asked: by offset, and those without one where they were asked."""
    eras = _queue_generations(lane)
    known = sorted(
        (step for step in lane if step.offset >= 0), key=lambda step: (eras[id(step)], step.offset)
    )
    latest = 0
    for step in known:
        latest = step.due_us = max(latest, step.due_us)
    others = [step for step in lane if step.offset < 0]
    return list(heapq.merge(known, others, key=lambda step: step.due_us))


def _queue_generations(lane: Iterable[ReplayStep]) -> dict[int, int]:
    """A number for each step that grows whenever the queue began anew, such as with its topic.

    It did when an offset is not behind one that had been told before this step was asked; in the same microsecond is
    not before.
    """
    eras: dict[int, int] = {}
    era, told = 0, -1
    answers: list[tuple[int, int]] = []
    for step in lane:
        if step.offset < 0:
            continue
        while answers and answers[0][0] < step.asked_us:
            told = max(told, heapq.heappop(answers)[1])
        if step.offset <= told:
            era, told, answers = era + 1, -1, []
        heapq.heappush(answers, (step.answered_us, step.offset))
        eras[id(step)] = era
    return eras


def _link_dependencies(steps: Sequence[ReplayStep]) -> None:
    """What each step waits for: the one before in its queue, and what its client knew when it asked.

    A client that did not wait for an answer before it asked again does not wait for it now; its requests only are
    sent in the order in which it asked.
    """
    last_of_lane: dict[Lane, int] = {}
    last_of_connection: dict[tuple[int, int], int] = {}
    unanswered: dict[tuple[int, int], list[int]] = {}
    for number, step in enumerate(steps):
        after = set()
        if step.lane is not None and step.lane in last_of_lane:
            after.add(last_of_lane[step.lane])
        open_ones = unanswered.setdefault(step.connection, [])
        known = [each for each in open_ones if steps[each].answered_us <= step.asked_us]
        after.update(known)
        unanswered[step.connection] = [each for each in open_ones if each not in known] + [number]
        step.after_answers = tuple(sorted(after))
        step.after_sending = last_of_connection.get(step.connection, -1)
        last_of_connection[step.connection] = number
        if step.lane is not None:
            last_of_lane[step.lane] = number


def count_by_code(steps: Collection[ReplayStep]) -> Counter[int]:
    """Steps by request code."""
    return Counter(step.code for step in steps)
