"""POP_MESSAGE (code 200050): hands messages to a consumer for an invisible time.

Waiting lives in `waiting_pops.py`, revival of messages that are not acked in `reviver.py` and `ordered_pops.py`.
Source: PopMessageProcessor, 5.4.0.
"""

import random
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from struct import Struct
from typing import Final

from codec import properties as keys
from codec.command import Command, encode_response
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.message import encode_message, iter_messages
from codec.properties import find_property
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.filters.message_filter import MessageFilter, MessageTest
from gateway.broker.limits.quotas import PULL, Quotas
from gateway.broker.messages.answer_gate import without_status
from gateway.broker.messages.damaged_records import RecordKind, RecordLocation
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.waiting_message import parse_times_and_properties
from gateway.broker.pop.checkpoint import PopCheckpoint, PopKey
from gateway.broker.pop.receipts import ORDER_REVIVE_QUEUE, is_shared_retry_topic, pop_retry_topic, retry_kind
from gateway.broker.pop.state import PopState
from gateway.broker.pop.waiting_pops import WaitingPop
from gateway.broker.waiting.waiting_requests import ANSWERED, NOTHING, UNFINISHED, WaitOutcome, keep_header
from gateway.config.process import BrokerConfig
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.requests.pop import PopMessage
from storage.queue_read import ReadResult, ReadStatus

WRONG_OFFSET: Final = (
    ReadStatus.OFFSET_TOO_SMALL,
    ReadStatus.OFFSET_OVERFLOW_BADLY,
    ReadStatus.OFFSET_FOUND_NULL,
)
SKIPPED_MESSAGES: Final = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)
EMPTY_ANSWER_FIELDS: Final = dict.fromkeys(("popTime", "invisibleTime", "reviveQid", "restNum"), "0")
"""Header fields of an answer to a pop that was not processed."""
_SIZE_AND_OFFSET: Final = Struct(">i16xq").unpack_from  # size and queue offset of a stored message


@dataclass(slots=True)
class CheckedPop:
    """A pop request whose header fields were parsed and checked."""

    command: Command
    connection: Connection
    request: PopMessage
    topic_config: TopicConfig
    message_filter: MessageFilter

    @property
    def until_ms(self) -> int:
        """Wall time (ms) at which its client gives up."""
        return self.request.born_time + self.request.poll_time


@dataclass(slots=True)
class PopResult:
    """The messages that one pop has taken so far, and the header fields that describe them.

    ``rest_count`` is the number of messages left in the queues. ``has_skipped`` is True when a filter rejected
    messages, so that trying again may find others.
    """

    pop_time: int
    revive_queue_id: int
    chunks: list[bytes | memoryview] = field(default_factory=list)
    count: int = 0
    rest_count: int = 0
    has_skipped: bool = False
    start_infos: list[str] = field(default_factory=list)
    offset_infos: list[str] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)


class PopHandler:
    """Answers pops, at once or when a message arrives."""

    def __init__(
        self,
        config: BrokerConfig,
        tables: BrokerTables,
        services: MessageServices,
        state: PopState,
        quotas: Quotas,
    ) -> None:
        self.config = config
        self._clock = services.store.clock
        self._store = services.store
        self._answers = services.answer_gate
        self._got = services.stats.delivered
        self._damaged = services.damaged
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._filter_cache = tables.filter_cache
        self._reviver = state.reviver
        self._ordered_pops = state.ordered_pops
        self._waiting_pops = state.waiting_pops
        self._pop_offsets = state.pop_offsets
        self._checks = state.checks
        self._quotas = quotas
        self._revive_queue_turn = count()

    def pop(self, connection: Connection, command: Command) -> bytes | None:
        """Return the answer to a pop, or None while it waits for a message or the disk. Raises RequestError."""
        request = PopMessage.from_command(command)
        request.born_time = request.born_time or self._clock.now_ms()
        late = self._checks.late_remark(connection, request)
        if late is not None:
            return encode_response(
                command.opaque, ResponseCode.POLLING_TIMEOUT, dict(EMPTY_ANSWER_FIELDS), b"", late
            )
        topic_config, selection = self._checks.check_pop(connection, request)
        pop = CheckedPop(command, connection, request, topic_config, selection)
        pop_result = self._take_messages(pop)
        if not pop_result.count:
            return self._wait_or_answer(pop, pop_result)
        if pop_result.rest_count > 0:
            self._waiting_pops.mark_for_retry(request.topic, request.consumer_group, request.queue_id)
        return self._answer_when_safe(pop, pop_result)

    # -- waiting --------------------------------------------------------------------------------------------

    def _wait_or_answer(self, pop: CheckedPop, pop_result: PopResult) -> bytes | None:
        request = pop.request
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        waiting = self._waiting_pops.count_waiting(topic, group, queue_id)
        code = self._waiting_pops.refusal_code(waiting, request.born_time, request.poll_time)
        if code is None and not self._may_hold(pop):
            code = ResponseCode.POLLING_FULL
        if code is not None:
            return self._encode_answer(pop, pop_result, code)
        self._waiting_pops.hold_pop(_HeldPop(self, pop), topic, group, queue_id, pop.until_ms)
        if pop_result.has_skipped:
            self._waiting_pops.mark_for_retry(topic, group, queue_id)
        return None

    def _may_hold(self, pop: CheckedPop) -> bool:
        """Tell whether there is room for the pop's header and filter; if so, the filter is held in the cache."""
        key = pop.message_filter.key
        if not keep_header(pop.command, "exp", None if key is None else key[1]):
            return False
        if key is not None:
            pop.request.exp = key[1]
        pop.command.ext = {}
        return self._filter_cache.hold(pop.message_filter)

    def try_held(self, held: "_HeldPop") -> bytes | None:
        """Take messages for a waiting pop and return its answer; None without a message, or until it is durable."""
        pop_result = self._take_messages(held.pop)
        if not pop_result.count:
            held.outcome = UNFINISHED if pop_result.has_skipped else NOTHING
            return None
        held.outcome = ANSWERED
        return self._answer_when_safe(held.pop, pop_result)

    def answer_expired(self, pop: CheckedPop) -> bytes | None:
        """Return the answer to a waiting pop at its deadline, with messages if there are any. Raises RequestError.

        Its topic may be deleted, or created again since.
        """
        self._checks.check_topic_exists(pop.request.topic)
        pop_result = self._take_messages(pop)
        if pop_result.count:
            return self._answer_when_safe(pop, pop_result)
        return self._encode_answer(pop, pop_result, ResponseCode.POLLING_TIMEOUT)

    def release_held(self, pop: CheckedPop) -> None:
        """Give up the filter of a pop that waits no longer."""
        self._filter_cache.release(pop.message_filter)

    # -- taking ---------------------------------------------------------------------------------------------

    def _take_messages(self, pop: CheckedPop) -> PopResult:
        """Take messages from the topic and its retry topic. A random share of pops takes from the retry topic first."""
        request, chance = pop.request, random.randrange(100)
        revive_queue_id = (
            ORDER_REVIVE_QUEUE
            if request.order
            else next(self._revive_queue_turn) % self.config.pop.revive_queue_num
        )
        pop_result = PopResult(self._clock.now_ms(), revive_queue_id)
        retry = None if request.order else self._retry_topic(request, chance)
        retry_first = chance < self.config.pop.pop_from_retry_probability
        if not request.order and self._checks.is_priority_pop(
            pop.topic_config, request.consumer_group, chance
        ):
            retry_first = chance < self.config.pop.pop_from_retry_probability_for_priority
            chance = 0
        if retry is not None and retry_first:
            self._take_from_topic(pop, pop_result, retry, chance)
        if request.queue_id < 0:
            self._take_from_topic(pop, pop_result, pop.topic_config, chance)
        else:
            self._take_from_queue(pop, pop_result, request.topic, request.queue_id)
        if retry is not None and not retry_first and pop_result.count < request.max_msg_nums:
            self._take_from_topic(pop, pop_result, retry, chance)
        return pop_result

    def _retry_topic(self, request: PopMessage, chance: int) -> TopicConfig | None:
        """Return the retry topic for one pop: the new name, or alternately the old one if both may be in use."""
        v2 = self.config.pop.enable_retry_topic_v2
        if v2 and self.config.pop.retrieve_message_from_pop_retry_topic_v1 and chance % 2 == 0:
            v2 = False
        return self._topics.get(pop_retry_topic(request.topic, request.consumer_group, v2=v2))

    def _take_from_topic(
        self, pop: CheckedPop, pop_result: PopResult, topic: TopicConfig, chance: int
    ) -> None:
        """Take from the queues of a topic in ascending or descending order, starting at a random one."""
        queues = self._topics.queue_ids(topic.read_queue_nums)
        for number in reversed(queues) if self.config.pop.priority_order_asc else queues:
            self._take_from_queue(pop, pop_result, topic.topic_name, (number + chance) % len(queues))

    def _take_from_queue(self, pop: CheckedPop, pop_result: PopResult, topic: str, queue_id: int) -> None:
        request = pop.request
        group, room = request.consumer_group, request.max_msg_nums - pop_result.count
        offset = self._pop_offsets.next_offset(topic, group, queue_id, request.init_mode)
        # Unacked messages of another attempt block an ordered queue.
        if request.order and self._ordered_pops.is_blocked(
            request.attempt_id, topic, group, queue_id, request.invisible_time
        ):
            return
        end = self._store.max_offset(topic, queue_id)
        if room <= 0 or offset == end or self._exceeds_inflight_limit(request, topic, queue_id):
            pop_result.rest_count += end - offset
            return
        result = self._read_queue(pop, topic, queue_id, offset, room)
        if result.status in WRONG_OFFSET:
            # The group's offset is outside of the queue, after an expiry for example: go on where the store says.
            offset = result.next_offset
            self._offsets.commit_offset(group, topic, queue_id, offset)
            result = self._read_queue(pop, topic, queue_id, offset, room)
        if result.count and not self._record_taken(pop, pop_result, topic, queue_id, offset, result):
            # Without a record they cannot be handed out; the group's offset stays, so a later pop takes them.
            pop_result.rest_count += result.count
            return
        if result.status in SKIPPED_MESSAGES and result.next_offset > offset:
            # The filter rejected all messages read: the group is past them.
            pop_result.has_skipped = True
            self._offsets.commit_offset(group, topic, queue_id, result.next_offset)
        pop_result.rest_count += result.max_offset - result.next_offset

    def _read_queue(self, pop: CheckedPop, topic: str, queue_id: int, offset: int, room: int) -> ReadResult:
        message_filter, request = pop.message_filter, pop.request
        message_test, sql_selector = message_filter.message, message_filter.sql_selector
        if topic != request.topic and is_shared_retry_topic(request.topic, request.consumer_group, topic):
            message_test = partial(_is_retried_for, request.consumer_group.encode(), message_test)
            sql_selector = None  # It would select the other group's messages too.
        return self._store.read(
            topic, queue_id, offset, room, 1 << 30, message_filter.tags, message_test, sql_selector
        )

    def _exceeds_inflight_limit(self, request: PopMessage, topic: str, queue_id: int) -> bool:
        """Return True if a group has more unacked messages of a queue than the in-flight limit allows."""
        if request.order or not self.config.pop.enable_pop_message_threshold:
            return False
        count = self._reviver.count_outstanding(topic, request.consumer_group, queue_id)
        return count > self.config.pop.pop_inflight_message_threshold

    def _record_taken(
        self,
        pop: CheckedPop,
        pop_result: PopResult,
        topic: str,
        queue_id: int,
        start: int,
        result: ReadResult,
    ) -> bool:
        """Record that a consumer holds the messages read, and add them to the result.

        Returns False when the revive topic refuses the record.
        """
        request = pop.request
        group, offsets = request.consumer_group, _queue_offsets(result)
        if request.order:
            pop_result.order_counts += self._ordered_pops.record_pop(
                request.attempt_id,
                topic,
                group,
                queue_id,
                pop_result.pop_time,
                request.invisible_time,
                offsets,
            )
            self._pop_offsets.wake_when_visible(topic, group, queue_id)
            # Only acks move the offset of an ordered pop, so it stays at the first message.
            self._offsets.commit_offset(group, topic, queue_id, start)
        else:
            # The record comes first: if the broker crashes before the offset is saved, the messages are revived.
            key = PopKey(topic, group, queue_id, start, pop_result.pop_time, self.config.broker_name)
            point = PopCheckpoint(key, request.invisible_time, [offset - start for offset in offsets])
            try:
                self._reviver.record_pop(pop_result.revive_queue_id, point)
            except RequestError:
                return False
            self._offsets.commit_offset(group, topic, queue_id, result.next_offset)
        kind = retry_kind(topic)
        pop_result.start_infos.append(f"{kind} {queue_id} {start}")
        pop_result.offset_infos.append(f"{kind} {queue_id} {','.join(map(str, offsets))}")
        pop_result.count += result.count
        self._got[group, topic].count_messages(result.count, result.size_bytes)
        if self._quotas.pulling:
            self._quotas.consume(PULL, request.topic, result.count, result.size_bytes)
        if topic == request.topic or self.config.pop.pop_response_return_actual_retry_topic:
            pop_result.chunks += result.chunks
        else:
            pop_result.chunks += self._encode_with_receipts(pop, pop_result, start, result)
        return True

    def _encode_with_receipts(
        self, pop: CheckedPop, pop_result: PopResult, start: int, result: ReadResult
    ) -> list[bytes]:
        """Encode messages of a retry topic under their original topic, with receipt handles for the retry topic.

        As in the official broker, a message whose properties leave no room for its receipt handle is left out.
        """
        request, encoded = pop.request, []
        for chunk in result.chunks:
            for message in iter_messages(chunk):
                location = RecordLocation.of_message(message)
                kind, name = retry_kind(message.topic), self.config.broker_name
                receipt = (
                    f"{start} {pop_result.pop_time} {request.invisible_time} {pop_result.revive_queue_id} "
                    f"{kind} {name} {message.queue_id} {message.queue_offset}"
                )
                message.properties.setdefault(keys.POP_CK, receipt)
                message.topic = request.topic
                try:
                    encoded.append(encode_message(message))
                except MessageFormatError as error:
                    self._damaged.skip(RecordKind.POPPED_MESSAGE, location, error)
        return encoded

    # -- answering ------------------------------------------------------------------------------------------

    def _answer_when_safe(self, pop: CheckedPop, pop_result: PopResult) -> bytes | None:
        """Return the answer with messages; None when it waits until the pop's record is on disk and on replicas.

        A record that does not get there in time is stored nevertheless, so the messages are handed out.
        """
        answer = self._encode_answer(pop, pop_result, ResponseCode.SUCCESS)
        if not self._answers.must_wait:
            return answer
        return self._answers.hold(pop.connection, answer, self._store.max_physical_offset, without_status)

    @staticmethod
    def _encode_answer(pop: CheckedPop, pop_result: PopResult, code: int) -> bytes:
        ext = {
            "popTime": str(pop_result.pop_time),
            "invisibleTime": str(pop.request.invisible_time),
            "reviveQid": str(pop_result.revive_queue_id),
            "restNum": str(pop_result.rest_count),
            "startOffsetInfo": ";".join(pop_result.start_infos),
            "msgOffsetInfo": ";".join(pop_result.offset_infos),
        }
        if pop.request.order:
            ext["orderCountInfo"] = ";".join(pop_result.order_counts)
        status = ReadStatus.FOUND if code == ResponseCode.SUCCESS else ReadStatus.NO_MESSAGE_IN_QUEUE
        return encode_response(pop.command.opaque, code, ext, b"".join(pop_result.chunks), status.name)


class _HeldPop(WaitingPop):
    """A waiting pop. ``outcome`` is that of the last try."""

    __slots__ = ("_handler", "outcome", "pop")

    def __init__(self, handler: PopHandler, pop: CheckedPop) -> None:
        super().__init__(pop.connection, is_ordered=bool(pop.request.order))
        self._handler = handler
        self.pop = pop
        self.outcome = NOTHING

    def try_answer(self) -> WaitOutcome:
        if self.connection.answer_late(self.pop.command, partial(self._handler.try_held, self)):
            return ANSWERED
        return self.outcome

    def expire(self) -> None:
        self.connection.answer_late(self.pop.command, partial(self._handler.answer_expired, self.pop))

    def release(self) -> None:
        self._handler.release_held(self.pop)


def _is_retried_for(group: bytes, message_test: MessageTest | None, view: memoryview) -> bool:
    """Tell whether a message of a retry topic was popped by a group before, and passes the test."""
    _, _, _, properties = parse_times_and_properties(view)
    origin = find_property(properties, keys.ORIGIN_GROUP.encode())
    return origin in (None, group) and (message_test is None or message_test(view))


def _queue_offsets(result: ReadResult) -> list[int]:
    """Return the queue offsets of the messages read."""
    offsets = []
    for chunk in result.chunks:
        position = 0
        while position < len(chunk):
            size, offset = _SIZE_AND_OFFSET(chunk, position)
            offsets.append(offset)
            position += size
    return offsets
