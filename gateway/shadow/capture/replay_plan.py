"""Plans a replay: which captured exchanges are sent to the target, in which order, and what each one waits for.

The captured order of requests is not enough: concurrent sends to a queue are stored in another order than they were
sent. So the sends of one queue are sorted by the queue offset the primary gave them, and each step waits for the
previous one of its queue (its lane) and for the answers its client had when it sent the request. `replay.py` sends the
steps, `retarget.py` rewrites them.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from codec.capture import CaptureBlock, CaptureRecord, Damage
from codec.errors import FrameError
from gateway.shadow.capture.reader import CaptureFileReader
from gateway.shadow.clusters.cluster import MAX_QUEUES_PER_TOPIC
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.shadow.traffic.request_policy import (
    END_TRANSACTION,
    RECALL_MESSAGE,
    SEND_CODES,
    UPDATE_CONSUMER_OFFSET,
    Treatment,
    policy_of,
    topic_exclusion_reason,
)
from gateway.shadow.traffic.resend import recalled_unique_key
from gateway.shadow.traffic.subject import Subject, subject_of
from remoting.bodies.routes import TopicRouteData
from remoting.declare import REQUESTS
from remoting.errors import RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic

PULL_CODES = frozenset((11, 361))
"""Replayed only when selected by their codes, at mapped offsets and without long polling: pulls change nothing."""
_MAX_LEARNED_ROUTES = 10_000
_MAX_UNANSWERED = 1_000
"""Unanswered requests of one client that later ones are ordered by; real clients have far fewer."""
Lane = tuple[str, str, int]
"""Broker, topic and queue id; steps of one lane run one after the other."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Selects the exchanges to replay. Times are ms since 1970, `until_ms` exclusive; None and no codes: any."""

    from_ms: int | None = None
    until_ms: int | None = None
    topics: frozenset[str] | None = None
    codes: frozenset[int] = frozenset()


class ReplayStep:
    """One exchange to replay.

    `after_answers` are the numbers of steps that must be answered before this one is sent, `after_sending` is one that
    must be sent. `due_us` (us since 1970) places the step in time and orders all steps. A barrier waits for all steps
    before it, and all later steps wait for it.
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
    """The steps in order, and the requests and damage that were left out.

    `queue_counts` is the number of queues a topic needs, by broker and topic; `groups` are the (broker, group) pairs
    whose offsets are set.
    """

    steps: list[ReplayStep] = field(default_factory=list)
    skipped: Counter[tuple[int, str]] = field(default_factory=Counter)
    damage: list[tuple[str, Damage]] = field(default_factory=list)
    queue_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    groups: set[tuple[str, str]] = field(default_factory=set)
    bytes_by_code: Counter[int] = field(default_factory=Counter)

    @property
    def brokers(self) -> list[str]:
        """Names of the primary's brokers that received requests."""
        return sorted({step.lane[0] for step in self.steps if step.lane is not None})

    @property
    def duration_s(self) -> float:
        """Captured time from the first step to the last."""
        return (self.steps[-1].due_us - self.steps[0].due_us) / 1e6 if self.steps else 0.0


def to_exchange(record: CaptureRecord) -> Exchange:
    """Return a record as the exchange it was, with the fields that the mirror's functions use."""
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


def plan_replay(files: Sequence[CaptureFileReader], record_filter: RecordFilter) -> ReplayPlan:
    """Read all files once and return the plan. Each step takes some 600 bytes of memory until the replay ends."""
    builder = _PlanBuilder(record_filter)
    for number, file in enumerate(files):
        builder.read_file(number, file)
    builder.apply_route_queues()
    builder.plan.steps = _sort_steps(builder.steps)
    _link_dependencies(builder.plan.steps)
    return builder.plan


def matches_filter(record: CaptureRecord, record_filter: RecordFilter) -> bool:
    """Return whether a record is selected."""
    early = record_filter.from_ms is not None and record.wall_ms < record_filter.from_ms
    late = record_filter.until_ms is not None and record.wall_ms >= record_filter.until_ms
    other_topic = record_filter.topics is not None and record.topic not in record_filter.topics
    other_code = bool(record_filter.codes) and record.code not in record_filter.codes
    return not (early or late or other_topic or other_code)


class _PlanBuilder:
    """Turns records into steps."""

    def __init__(self, record_filter: RecordFilter) -> None:
        self.plan = ReplayPlan()
        self.steps: list[ReplayStep] = []
        self._filter = record_filter
        self._bases: dict[int, int] = {}
        self._lane_by_key: dict[str, Lane] = {}
        self._route_queue_counts: dict[tuple[str, str], int] = {}
        self._learned_routes: set[tuple[str, bytes]] = set()

    def read_file(self, number: int, file: CaptureFileReader) -> None:
        """Add the selected records of one file."""
        record_filter = self._filter
        # Older clients name no topic when they end a transaction; without their half message those are skipped anyway.
        topics = None if record_filter.topics is None else record_filter.topics | {""}
        ends = replace(record_filter, topics=None)
        run = file.header.run if file.header is not None else -1 - number
        for block_or_damage in file.read_blocks(
            from_ms=record_filter.from_ms, until_ms=record_filter.until_ms, topics=topics
        ):
            if isinstance(block_or_damage, Damage):
                self.plan.damage.append((file.path, block_or_damage))
                continue
            block, records = block_or_damage
            for at, record in enumerate(records):
                # Puts the monotonic clocks of all runs on one axis: each is aligned to its first record's wall time.
                base = self._bases.setdefault(run, record.wall_ms * 1000 - record.asked_us)
                if record.code == GetRouteInfoByTopic.code:
                    self._learn_route(record)
                nameless_end = record.code == END_TRANSACTION and not record.topic
                if matches_filter(record, ends if nameless_end else record_filter):
                    self._add_step(ReplayStep(number, block, at, record, base), run, record)

    def _learn_route(self, record: CaptureRecord) -> None:
        """Learn a topic's number of queues from a captured route: clients may not have sent to all of them."""
        try:
            answer = to_exchange(record).answer_command
            body = bytes(answer.body) if answer is not None and answer.code == 0 else b""
            if not body or (record.topic, body) in self._learned_routes:
                return
            for queue in TopicRouteData.from_json(body).queue_datas or []:
                topic_at_broker = (queue.broker_name, record.topic)
                queues = min(queue.write_queue_nums, MAX_QUEUES_PER_TOPIC)
                self._route_queue_counts[topic_at_broker] = max(
                    self._route_queue_counts.get(topic_at_broker, 0), queues
                )
        except (FrameError, RequestError, ValueError):
            return
        if len(self._learned_routes) < _MAX_LEARNED_ROUTES:
            self._learned_routes.add((record.topic, body))

    def apply_route_queues(self) -> None:
        """Raise the number of queues of each topic to that of its captured routes."""
        queues = self.plan.queue_counts
        for topic_at_broker in queues:
            queues[topic_at_broker] = max(
                queues[topic_at_broker], self._route_queue_counts.get(topic_at_broker, 0)
            )

    def _add_step(self, step: ReplayStep, run: int, record: CaptureRecord) -> None:
        step.connection = (run, record.connection)
        try:
            reason = self._reason_left_out(step, record)
        except (FrameError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"the request cannot be decoded: {type(error).__name__}"
        if reason:
            self.plan.skipped[record.code, reason] += 1
            return
        self.steps.append(step)
        self.plan.bytes_by_code[record.code] += len(record.request)

    def _reason_left_out(self, step: ReplayStep, record: CaptureRecord) -> str:
        """Return why a record is not replayed; "" if it is, and then set the lane of its step."""
        code = record.code
        if record.reverse:
            return "a request of the broker to its client"
        if not record.broker:
            return "a request to a namesrv, or a message whose broker only the primary's Proxy knows"
        if code not in PULL_CODES or code not in self._filter.codes:
            policy = policy_of(code)
            if policy.treatment is Treatment.LEFT_OUT:
                return policy.reason
        exchange = to_exchange(record)
        subject = subject_of(exchange)
        refused = _refusal_reason(exchange)
        if refused:
            return refused
        if code in SEND_CODES:
            return self._plan_send(step, exchange, subject)
        if code in (END_TRANSACTION, RECALL_MESSAGE):
            key = (
                subject.unique_key
                if code == END_TRANSACTION
                else recalled_unique_key(exchange.request_command)
            )
            step.lane = self._lane_by_key.get(key)
            return "" if step.lane is not None else "the message it is about was not captured, or not stored"
        if code == UPDATE_CONSUMER_OFFSET or code in PULL_CODES:
            step.lane = (record.broker, subject.topic, subject.queue_id)
            reason = topic_exclusion_reason(subject.topic)
            if not reason:
                self.plan.groups.add((record.broker, subject.group))
            return reason
        step.lane, step.barrier = (record.broker, "", -1), True
        return ""

    def _plan_send(self, step: ReplayStep, exchange: Exchange, subject: Subject) -> str:
        answer = exchange.answer_command
        if answer is None and not exchange.request_command.is_oneway:
            return "no answer was captured: it may not have been stored"
        reason = topic_exclusion_reason(subject.topic)
        if reason:
            return reason
        if not 0 <= subject.queue_id < MAX_QUEUES_PER_TOPIC:
            return "a topic cannot have a queue with its queue id"
        step.lane = (exchange.broker, subject.topic, subject.queue_id)
        step.offset = subject.offset
        if subject.half or subject.delayed:
            self._lane_by_key[subject.unique_key] = step.lane
        topic = (exchange.broker, subject.topic)
        self.plan.queue_counts[topic] = max(self.plan.queue_counts.get(topic, 1), subject.queue_id + 1)
        return ""


def _refusal_reason(exchange: Exchange) -> str:
    """Return how the primary refused a request; "" when it did not."""
    answer, declared = exchange.answer_command, REQUESTS.get(exchange.code)
    if answer is None or answer.code in (declared.ACCEPT_CODES if declared is not None else (0,)):
        return ""
    return f"was refused with code {answer.code}"


def _sort_steps(steps: list[ReplayStep]) -> list[ReplayStep]:
    """Return steps by request time, except that sends of one queue keep the order in which the primary stored them.

    A send that was requested before another but stored after it becomes due together with that one, so no step ever has
    to wait for one that comes later.
    """
    steps.sort(key=lambda step: step.asked_us)
    lanes: dict[Lane | None, list[ReplayStep]] = {}
    for step in steps:
        lanes.setdefault(step.lane, []).append(step)
    entries: list[tuple[int, int, ReplayStep]] = []
    for lane in lanes.values():
        for position, step in enumerate(_storage_order(lane)):
            entries.append((step.due_us, position, step))
    entries.sort(key=lambda entry: entry[:2])
    return [step for _, _, step in entries]


def _storage_order(lane: list[ReplayStep]) -> list[ReplayStep]:
    """Order one queue's steps by offset; steps without an offset stay at their request time."""
    generations = _queue_generations(lane)
    with_offset = sorted(
        (step for step in lane if step.offset >= 0), key=lambda step: (generations[id(step)], step.offset)
    )
    latest = 0
    for step in with_offset:
        latest = step.due_us = max(latest, step.due_us)
    without_offset = [step for step in lane if step.offset < 0]
    return list(heapq.merge(with_offset, without_offset, key=lambda step: step.due_us))


def _queue_generations(lane: Iterable[ReplayStep]) -> dict[int, int]:
    """Number the generations of a queue: it starts again at offset 0 when, for example, its topic is deleted and
    recreated.

    A new generation starts where an offset is not above one that was answered before this step was requested. An answer
    in the same microsecond does not count as before.
    """
    generations: dict[int, int] = {}
    generation, answered_offset = 0, -1
    answers: list[tuple[int, int]] = []
    for step in lane:
        if step.offset < 0:
            continue
        while answers and answers[0][0] < step.asked_us:
            answered_offset = max(answered_offset, heapq.heappop(answers)[1])
        if step.offset <= answered_offset:
            generation, answered_offset, answers = generation + 1, -1, []
        heapq.heappush(answers, (step.answered_us, step.offset))
        generations[id(step)] = generation
    return generations


def _link_dependencies(steps: Sequence[ReplayStep]) -> None:
    """Set what each step waits for: the previous step of its lane, and the answers its client had when it sent the
    request.

    A client that sent requests without waiting for answers does not wait now either; they are only sent in its order.
    """
    last_of_lane: dict[Lane, int] = {}
    last_of_connection: dict[tuple[int, int], int] = {}
    unanswered: dict[tuple[int, int], list[int]] = {}
    for number, step in enumerate(steps):
        dependencies = set()
        if step.lane is not None and step.lane in last_of_lane:
            dependencies.add(last_of_lane[step.lane])
        # What the client did after an answer may depend on it: a send after a topic was created, for instance.
        open_numbers = unanswered.setdefault(step.connection, [])
        dependencies.update(
            open_number for open_number in open_numbers if steps[open_number].answered_us <= step.asked_us
        )
        still_open = [open_number for open_number in open_numbers if open_number not in dependencies]
        unanswered[step.connection] = [*still_open[-_MAX_UNANSWERED:], number]
        step.after_answers = tuple(sorted(dependencies))
        step.after_sending = last_of_connection.get(step.connection, -1)
        last_of_connection[step.connection] = number
        if step.lane is not None:
            last_of_lane[step.lane] = number


def count_by_code(steps: Collection[ReplayStep]) -> Counter[int]:
    """Count steps by request code."""
    return Counter(step.code for step in steps)
