"""Handles offset-preserving appends: a shadow gateway sends messages of another broker with their queue offsets.

The messages are stored as they are, since the other broker has already processed delays, transactions and timers.
"""

from typing import Final

from codec.constants import FAQ, ResponseCode
from codec.java_numbers import I64
from codec.topics import SYSTEM_PREFIX, SYSTEM_TOPICS
from gateway.broker.broker import Broker
from gateway.broker.messages.message_writer import store_refusal
from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.topics.name_validation import closed_topic_refusal
from remoting.errors import RequestError
from remoting.handler_table import AnswersLater, Call, HandlerTable
from remoting.requests.replication import UNEXPECTED_OFFSET, PutMessagesAtOffsets, PutMessagesAtOffsetsReply
from storage.errors import MessageIllegal, OffsetGap, QueueDiverged, StoreFull
from storage.offset_preserving_append import OffsetPreservingResult

handlers: HandlerTable[Broker] = HandlerTable()

MAX_QUEUE_OFFSET: Final = I64.high // 32
"""Entries of 20 bytes up to this offset, and many more, have a position in their file that Java can hold."""


@PutMessagesAtOffsets.on(handlers)
def put_messages_at_offsets(
    broker: Broker, request: PutMessagesAtOffsets, call: Call
) -> PutMessagesAtOffsetsReply | AnswersLater:
    """Store those messages that the queue does not have yet. Refuse the request unless ``mirrorTarget`` is set."""
    _check_request(broker, request)
    try:
        done = _append_messages(broker, request, call)
    except OffsetGap as error:
        reply = PutMessagesAtOffsetsReply(next_offset=error.expected)
        reply.code, reply.remark = UNEXPECTED_OFFSET, str(error)
        return reply
    reply = PutMessagesAtOffsetsReply(next_offset=done.next_offset)
    if not done.messages:
        return reply
    broker.long_polls.mark_grown(request.topic, request.queue_id)
    broker.stats.stored[request.topic].count_request(MessageType.NORMAL, done.size_bytes, done.messages)
    if not broker.answer_gate.must_wait:
        return reply
    return broker.answer_gate.hold_reply(call, reply, broker.store.max_physical_offset)


def _check_request(broker: Broker, request: PutMessagesAtOffsets) -> None:
    if not broker.config.store.mirror_target:
        remark = f" request type {request.code} not supported: mirrorTarget is not set at this broker"
        raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
    topic = request.topic
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX):
        raise closed_topic_refusal(topic)
    config = broker.topics.get(topic)
    if config is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}"
        )
    if not 0 <= request.queue_id < max(config.read_queue_nums, config.write_queue_nums):
        remark = f"request queueId[{request.queue_id}] is illegal, topic[{topic}] has fewer queues"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
    if not 0 <= request.first_offset <= MAX_QUEUE_OFFSET:
        remark = f"offset {request.first_offset} is not between 0 and {MAX_QUEUE_OFFSET}"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)


def _append_messages(broker: Broker, request: PutMessagesAtOffsets, call: Call) -> OffsetPreservingResult:
    """Append the messages. Raises OffsetGap, RequestError."""
    max_bytes = broker.config.store.max_message_size_bytes
    try:
        if broker.store.disk_full:
            raise StoreFull("nearly full")
        return broker.store.append_preserving_offsets(
            request.topic,
            request.queue_id,
            request.first_offset,
            memoryview(request.body),
            store_host=broker.hosts.view_of(call.connection).store_host,
            reset=request.reset,
        )
    except StoreFull as error:
        raise store_refusal(error, max_bytes) from error
    except MessageIllegal as error:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
    except QueueDiverged as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
