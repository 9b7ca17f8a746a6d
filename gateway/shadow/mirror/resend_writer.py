"""The target writer that sends the clients' requests again, to a target of any kind.

Theory of operation
-------------------
Problem: reproduce at the target what the primary did, in the same order per queue and without duplicates, although the
target may fail at any moment, so that a request may have been carried out without its answer ever arriving.

Order. A batch is split at administrative requests (topics, groups), which nothing may overtake. Between them, messages
go in *lanes*: one lane per queue, written one message after the other, and up to `MAX_PARALLEL_LANES` lanes side by
side. The end of a transaction joins the lane of its half message. Consumer offsets are written after all messages.

Doubt. Before a request is sent, its exchange is marked as in doubt; the answer clears the mark. When the stream offers
an exchange that is in doubt (the deadline passed, the connection broke, or an earlier process left it on disk), the
writer first searches the target for it, by its unique key among the last messages of its queue (`find_message`), and
sends it only if it is not there. A request that the target carries out after that search still makes a duplicate.

Retries. `write` raises when the target fails; the stream calls it again with the same exchanges. Outcomes reached
before the failure are kept in `_finished`, so that nothing that succeeded is repeated.

State. The writer records in the direction's `MirrorState` what the target's answers say: where each message is stored
(offset map) and which half messages are open. After a crash the state may be up to `state_interval_ms` old;
offsets are then translated to earlier ones, and half messages sent since then are unknown. Queueing, deadlines and
giving up are the stream's work (`mirror_stream.py`).
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import trio

from codec import properties as keys
from codec.command import Command
from codec.constants import STORED_CODES, ResponseCode
from codec.errors import MessageFormatError
from codec.ids import decode_message_id
from codec.java_numbers import I32, parse_integer_or, parse_java_integer
from codec.message import Message, iter_messages
from codec.properties import decode_properties
from codec.sysflag import TRANSACTION_COMMIT
from codec.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from gateway.runtime.parallel import process_in_parallel
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, MAX_QUEUES_PER_TOPIC, Cluster
from gateway.shadow.clusters.metadata_sync import copy_topic
from gateway.shadow.clusters.sync_steps import SyncAction
from gateway.shadow.mirror.check_back_producer import CheckBackProducer, build_end_request
from gateway.shadow.mirror.consumer_offsets import ConsumerOffsetWriter
from gateway.shadow.mirror.half_messages import FINAL_DECISIONS, HalfMessage
from gateway.shadow.mirror.mirror_direction import MirrorState
from gateway.shadow.mirror.offset_map import OffsetMap
from gateway.shadow.mirror.stream_account import StreamCounts
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind, refused_outcome
from gateway.shadow.traffic.request_policy import (
    END_TRANSACTION,
    RECALL_MESSAGE,
    SEND_CODES,
    UPDATE_CONSUMER_OFFSET,
    topic_exclusion_reason,
)
from gateway.shadow.traffic.resend import (
    is_temporary_refusal,
    recall_from_target,
    recalled_unique_key,
    repeat_command,
    send_to_queue,
)
from gateway.shadow.traffic.subject import Subject, header_field_name, subject_of
from remoting.errors import RequestError
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.pull import read_only_pull

DEFAULT_SEARCH_MESSAGES: Final = 32
_PULL_FOUND: Final = 0
MAX_PARALLEL_LANES: Final = 32
"""Queues of the target that are written to at the same time."""
_MAX_RECALL_HANDLES: Final = 10_000
MAX_HANDLE_CHARS: Final = 4_096
_TOPIC_RETRY_S: Final = 2.0
"""Delay before another attempt to create a topic, because each attempt queries the primary too."""
MAX_KNOWN_NAMES: Final = 100_000
"""Topics and queues that are kept in tables; beyond it the tables begin again, which costs one look each."""
_DELETE_TOPIC: Final = 215
_TOPIC_ADMIN_CODES: Final = frozenset({17, 18, _DELETE_TOPIC})
"""Requests that create, change or delete topics."""


class ResendWriter:
    """A `TargetWriter` for one broker of the source and its counterpart.

    ``broker`` is the primary's name of the broker. Topics that the target lacks are copied from ``source``;
    ``source_name`` returns the broker's name there. All writers of a direction share ``state``. ``earlier`` is the
    offset map of the opposite direction. ``counts`` counts messages found at the target instead of being sent again.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        broker: str,
        target_broker: str,
        state: MirrorState,
        producer: CheckBackProducer,
        counts: StreamCounts,
        earlier: OffsetMap | None = None,
        source_name: Callable[[], str] | None = None,
    ) -> None:
        self._source = source
        self._source_name = source_name or (lambda: broker)
        self._target = target
        self._broker = broker
        self._target_broker = target_broker
        self._state = state
        self._producer = producer
        self._counts = counts
        self._offset_writer = ConsumerOffsetWriter(
            source, target, broker, target_broker, state.offsets, earlier
        )
        self._known_topics: set[str] = set()
        self._topic_retry_at_s: dict[str, float] = {}
        self._last_target_offsets: dict[tuple[str, int], int] = {}
        self._recall_handles: OrderedDict[str, str] = OrderedDict()
        self._finished: dict[Exchange, Outcome] = {}

    async def write(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """Send exchanges to the target and return their outcomes. Raises CLUSTER_ERRORS of `cluster`, LookupError.

        Outcomes reached before a failure are remembered until the stream offers the same exchange again.
        """
        # One after the other: a message must not reach the target before its topic, nor after the topic was deleted.
        for segment in _split_at_admin_requests(exchanges):
            await self._write_segment(segment)
        return [self._finished.pop(exchange) for exchange in exchanges]

    async def _write_segment(self, exchanges: Sequence[Exchange]) -> None:
        lanes: dict[object, list[Exchange]] = {}
        halves: dict[str, object] = {}
        commits = []
        for exchange in exchanges:
            # Written by an earlier attempt of this batch, which failed at another exchange.
            if exchange in self._finished:
                continue
            if exchange.code == UPDATE_CONSUMER_OFFSET:
                commits.append(exchange)
            else:
                lanes.setdefault(self._lane_key(exchange, halves), []).append(exchange)
        await self._write_lanes(list(lanes.values()))
        # After all messages: an offset can only be translated once the messages before it are in the map.
        await self._write_lanes([[commit] for commit in commits])

    def _lane_key(self, exchange: Exchange, halves: dict[str, object]) -> object:
        """Return the key of the lane of an exchange.

        ``halves`` are the lanes of half messages in the same segment, whose ends must not overtake them.
        """
        subject = subject_of(exchange)
        if exchange.code == END_TRANSACTION:
            half = self._state.halves.find_half(self._broker, subject.unique_key)
            lane = (half.topic, half.queue_id) if half is not None else subject.unique_key
            return halves.get(subject.unique_key, lane)
        if subject.half:
            halves[subject.unique_key] = subject.queue
        return subject.queue

    async def _write_lanes(self, lanes: Sequence[Sequence[Exchange]]) -> None:
        """Write lanes side by side. Raises the first problem, after all lanes have ended."""
        # The usual case at low load, without the cost of tasks.
        if len(lanes) < 2:
            for lane in lanes:
                await self._write_lane(lane)
            return
        problems: list[Exception] = []

        async def try_lane(lane: Sequence[Exchange]) -> None:
            try:
                await self._write_lane(lane)
            except (*CLUSTER_ERRORS, LookupError) as problem:
                problems.append(problem)

        await process_in_parallel(lanes, try_lane, MAX_PARALLEL_LANES)
        # The other lanes have run to their end, so what they wrote is in `_finished` and not repeated.
        if problems:
            raise problems[0]

    async def _write_lane(self, lane: Sequence[Exchange]) -> None:
        for exchange in lane:
            started_s = trio.current_time()
            outcome = await self._handler_of(exchange.code)(exchange, subject_of(exchange))
            outcome.latency_s = trio.current_time() - started_s
            # Noted at once: if a later exchange of the lane fails, this one is not written again.
            self._finished[exchange] = outcome

    def _handler_of(self, code: int) -> Callable[[Exchange, Subject], Awaitable[Outcome]]:
        if code in SEND_CODES:
            return self._send_message
        if code == END_TRANSACTION:
            return self._end_transaction
        if code == UPDATE_CONSUMER_OFFSET:
            return self._offset_writer.write_commit
        return self._recall_message if code == RECALL_MESSAGE else self._repeat_request

    # -- messages -----------------------------------------------------------------------------------------------

    async def _send_message(self, exchange: Exchange, subject: Subject) -> Outcome:
        reason = topic_exclusion_reason(subject.topic)
        if reason:
            return Outcome(exchange, OutcomeKind.SKIPPED, reason)
        if _may_be_delivered(exchange) and await self._was_delivered(exchange, subject):
            return Outcome(exchange, OutcomeKind.MIRRORED, "found at the target")
        # Brokers create unknown topics with default queues, so the topic must exist with the primary's queues before.
        await self._ensure_topic(subject.topic)
        if subject.half:
            # Before the half message: the target may ask for its end as soon as it has stored it.
            await self._producer.register_group(self._target_broker, subject.group)
        answer = await self._request_target(exchange, send_to_queue(exchange, subject, self._target_broker))
        # Deleted at the target meanwhile: the next send creates it again.
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._known_topics.discard(subject.topic)
        if answer.code not in STORED_CODES:
            return refused_outcome(exchange, answer.code, answer.remark, answer)
        self._record_stored(exchange, subject, answer)
        return Outcome(exchange, OutcomeKind.MIRRORED, answer=answer)

    def _record_stored(self, exchange: Exchange, subject: Subject, answer: Command) -> None:
        """Record where the target stored a message. Raises OSError when its answer does not contain the place."""
        try:
            offset = parse_java_integer(answer.ext["queueOffset"])
            if subject.half:
                physical = decode_message_id(answer.ext["msgId"])[2]
                self._remember_half(subject, offset, physical)
            elif subject.offset >= 0:
                self._record_offsets(subject, offset)
        except (KeyError, ValueError) as error:
            raise OSError(f"cannot understand the target's answer to a send: {error!r}") from error
        handle = answer.ext.get("recallHandle", "")
        if 0 < len(handle) <= MAX_HANDLE_CHARS:
            self._recall_handles[subject.unique_key] = handle
            if len(self._recall_handles) > _MAX_RECALL_HANDLES:
                self._recall_handles.popitem(last=False)

    def _record_offsets(self, subject: Subject, offset: int) -> None:
        queue = self._broker, subject.topic, subject.queue_id
        self._state.offsets.add_range(queue, subject.offset, offset, subject.count)
        if len(self._last_target_offsets) >= MAX_KNOWN_NAMES:
            self._last_target_offsets.clear()
        self._last_target_offsets[subject.queue] = offset + subject.count - 1

    def _remember_half(self, subject: Subject, queue_offset: int, physical_offset: int) -> None:
        half = HalfMessage(
            self._broker,
            subject.unique_key,
            subject.group,
            subject.topic,
            subject.queue_id,
            queue_offset,
            physical_offset,
        )
        self._state.halves.add_half(half)

    async def _was_delivered(self, exchange: Exchange, subject: Subject) -> bool:
        """Tell whether the target has stored a message although its answer was lost; if so, record its offsets."""
        if not subject.unique_key:
            return False
        # What this process knows to be stored before it need not be searched.
        after = self._last_target_offsets.get(subject.queue, -1) if subject.offset >= 0 else -1
        storage_queue = storage_queue_of(exchange, subject)
        depth = max(DEFAULT_SEARCH_MESSAGES, exchange.search_depth)
        message = await find_message(
            self._target, self._target_broker, *storage_queue, subject.unique_key, after, depth
        )
        if message is None:
            return False
        self._counts.found += 1
        if subject.half:
            self._remember_half(subject, message.queue_offset, message.physical_offset)
        elif subject.offset >= 0:
            self._record_offsets(subject, message.queue_offset)
        return True

    async def _ensure_topic(self, topic: str) -> None:
        """Create a topic as it is on the primary, once. A refusal is ignored: the send after it reports more."""
        if topic in self._known_topics or trio.current_time() < self._topic_retry_at_s.get(topic, -math.inf):
            return
        self._forget_names()
        if await self._copy_topic(topic):
            self._known_topics.add(topic)
            self._topic_retry_at_s.pop(topic, None)
        else:
            self._topic_retry_at_s[topic] = trio.current_time() + _TOPIC_RETRY_S

    def _forget_names(self) -> None:
        """Make room in the tables of topics, whose names clients make up."""
        if len(self._known_topics) >= MAX_KNOWN_NAMES:
            self._known_topics.clear()
        if len(self._topic_retry_at_s) >= MAX_KNOWN_NAMES:
            now_s = trio.current_time()
            self._topic_retry_at_s = {
                name: at_s for name, at_s in self._topic_retry_at_s.items() if at_s > now_s
            }
            if len(self._topic_retry_at_s) >= MAX_KNOWN_NAMES:
                self._topic_retry_at_s.clear()

    async def _copy_topic(self, topic: str) -> bool:
        """Copy a topic's configuration, and tell whether the target has it now."""
        # The name of the source's broker can depend on the brokers that it has.
        if not self._source.brokers:
            await self._source.refresh()
        name = self._source_name()
        if name not in self._source.brokers:
            await self._source.refresh()
        try:
            step = await copy_topic(self._source, self._target, name, self._target_broker, topic)
        except RequestError:
            return False
        return step.action not in (SyncAction.FAILED, SyncAction.LEFT_OUT)

    # -- transactions -------------------------------------------------------------------------------------------

    async def _end_transaction(self, exchange: Exchange, subject: Subject) -> Outcome:
        if subject.number not in FINAL_DECISIONS:
            return Outcome(exchange, OutcomeKind.SKIPPED, "the producer has not decided yet")
        half = self._state.halves.find_half(self._broker, subject.unique_key)
        if half is None:
            return Outcome(exchange, OutcomeKind.SKIPPED, "its half message is unknown")
        if half.ended:
            return Outcome(exchange, OutcomeKind.SKIPPED, "the transaction was ended before")
        # Recorded before it is sent: if sending fails, a check-back of the target is answered with it.
        half.record_decision(subject.number, trio.current_time())
        self._state.halves.note_change()
        # A commit that is carried out twice may deliver the message twice.
        if not _may_be_delivered(exchange) or not await self._is_committed(half, exchange.search_depth):
            answer = await self._request_target(exchange, self._build_end_command(half))
            if answer.code != ResponseCode.SUCCESS:
                return refused_outcome(exchange, answer.code, answer.remark, answer)
        half.ended = True
        return Outcome(exchange, OutcomeKind.MIRRORED)

    def _build_end_command(self, half: HalfMessage) -> Command:
        return build_end_request(half, self._target_broker, half.end, half.copy).to_command()

    async def _is_committed(self, half: HalfMessage, depth: int) -> bool:
        if half.end != TRANSACTION_COMMIT:
            return False
        message = await find_message(
            self._target,
            self._target_broker,
            half.topic,
            half.queue_id,
            half.unique_key,
            depth=max(depth, DEFAULT_SEARCH_MESSAGES),
        )
        if message is None:
            return False
        self._counts.found += 1
        return True

    # -- recalls, topics, groups --------------------------------------------------------------------------------

    async def _recall_message(self, exchange: Exchange, subject: Subject) -> Outcome:
        try:
            command = recall_from_target(exchange.request_command, self._target_broker)
        except ValueError:
            return Outcome(exchange, OutcomeKind.SKIPPED, "not a recall handle")
        handle = self._recall_handles.get(recalled_unique_key(exchange.request_command))
        if handle is not None:
            command.ext["recallHandle"] = handle
        return _outcome_of(exchange, await self._request_target(exchange, command))

    async def _repeat_request(self, exchange: Exchange, subject: Subject) -> Outcome:
        if exchange.code in _TOPIC_ADMIN_CODES:
            # The request may have created, changed or deleted topics: each is looked at again before the next send.
            self._known_topics.clear()
            if _has_absurd_queues(exchange.request_command):
                return Outcome(exchange, OutcomeKind.SKIPPED, "more queues than are copied")
            if exchange.code == _DELETE_TOPIC:
                self._state.offsets.forget_topic(subject.topic)
        return _outcome_of(
            exchange,
            await self._request_target(
                exchange, repeat_command(exchange.request_command, self._target_broker)
            ),
        )

    async def _request_target(self, exchange: Exchange, command: Command) -> Command:
        """Send a command to the target, marking the exchange as in doubt meanwhile.

        Raises CLUSTER_ERRORS of `cluster`, and RequestError when the target refuses temporarily (busy, no disk space).
        """
        # The connection is opened before the mark is set: a target that cannot be reached has carried out nothing.
        address = await self._target.find_master(self._target_broker)
        await self._target.connection(address)
        # Until the answer arrives, nobody knows whether the target has carried out the request. If this attempt fails,
        # or its deadline passes, the mark stays with the exchange, and the next attempt searches first.
        exchange.is_in_doubt = True
        answer = await self._target.ask_command(address, command)
        exchange.is_in_doubt = False
        # Raised, not returned: the stream waits and tries again, so that neither a full disk nor a change of the master
        # costs a message. A slave answers the end of a transaction with a code that is a status of a stored send.
        is_refused_by_slave = (
            answer.code == ResponseCode.SLAVE_NOT_AVAILABLE and command.code not in SEND_CODES
        )
        if is_refused_by_slave or is_temporary_refusal(answer.code, answer.remark):
            raise RequestError(answer.code, answer.remark)
        return answer


def _has_absurd_queues(request: Command) -> bool:
    return any(
        parse_integer_or(request.ext.get(name), 0) > MAX_QUEUES_PER_TOPIC
        for name in ("readQueueNums", "writeQueueNums")
    )


def _may_be_delivered(exchange: Exchange) -> bool:
    """Tell whether this process or an earlier one may have delivered an exchange already."""
    return exchange.is_in_doubt or exchange.search_depth > 0


def _outcome_of(exchange: Exchange, answer: Command) -> Outcome:
    if answer.code != ResponseCode.SUCCESS:
        return refused_outcome(exchange, answer.code, answer.remark, answer)
    return Outcome(exchange, OutcomeKind.MIRRORED, answer=answer)


def _split_at_admin_requests(exchanges: Sequence[Exchange]) -> Iterator[list[Exchange]]:
    """Split before and after requests that change topics, groups or timers, because nothing may overtake those."""
    segment: list[Exchange] = []
    for exchange in exchanges:
        if exchange.code in SEND_CODES or exchange.code in (END_TRANSACTION, UPDATE_CONSUMER_OFFSET):
            segment.append(exchange)
            continue
        if segment:
            yield segment
        yield [exchange]
        segment = []
    if segment:
        yield segment


async def find_message(
    target: Cluster,
    broker: str,
    topic: str,
    queue_id: int,
    unique_key: str,
    after: int = -1,
    depth: int = DEFAULT_SEARCH_MESSAGES,
) -> Message | None:
    """Search the last ``depth`` messages of a queue, beyond offset ``after``; return None without a match.

    A refusal counts as not found. Raises the other errors of CLUSTER_ERRORS of `cluster`.
    """
    try:
        end = (await target.ask_broker(broker, GetMaxOffset(topic=topic, queue_id=queue_id))).offset
        # A queue that ends before what is known to be stored lost it with its former master.
        begin = max(after + 1 if after < end else 0, end - depth, 0)
        while begin < end:
            reply = await target.ask_broker(
                broker, read_only_pull(topic, queue_id, begin, DEFAULT_SEARCH_MESSAGES)
            )
            for message in _decode_messages(reply.code, reply.body):
                if message.properties.get(keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == unique_key:
                    return message
            if reply.next_begin_offset <= begin:
                break
            begin = reply.next_begin_offset
    except (RequestError, MessageFormatError):
        return None
    return None


def _decode_messages(code: int, body: bytes) -> Iterator[Message]:
    return iter_messages(body) if code == _PULL_FOUND and body else iter(())


def storage_queue_of(exchange: Exchange, subject: Subject) -> tuple[str, int]:
    """Return the topic and queue that a sent message is first stored in, which may be of a system topic."""
    if subject.half:
        return TRANS_HALF_TOPIC, 0
    if subject.delayed:
        properties = decode_properties(
            exchange.request_command.ext.get(header_field_name(exchange.code, "properties")) or ""
        )
        level = properties.get(keys.DELAY_TIME_LEVEL, "")
        number = parse_integer_or(level, 0, I32)
        return (SCHEDULE_TOPIC, number - 1) if number > 0 else (TIMER_TOPIC, 0)
    return subject.queue
