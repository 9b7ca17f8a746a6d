"""Recall of timer messages (code 370), and queries about timers (60, 61)."""

from typing import Final

from codec import properties as keys
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.java_numbers import parse_integer_or
from codec.recall_handle import RecallHandle
from codec.topics import PERM_WRITE
from gateway.broker.broker import Broker
from gateway.broker.delayed.timer_delivery import TimerDelivery
from gateway.broker.messages.answer_gate import without_status
from gateway.broker.messages.message_writer import MessageDraft
from gateway.broker.statistics.stored_counts import MessageType
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import AnswersLater, Call, HandlerTable
from remoting.requests.send import RecallMessage, RecallMessageReply
from remoting.requests.timers import GetTimerCheckPoint, GetTimerMetrics
from storage.append import NewMessage

handlers: HandlerTable[Broker] = HandlerTable()

RECALL_TAG: Final = "_RECALL_TAG_"
_UNAVAILABLE: Final = "recall failed, broker service not available"


@RecallMessage.on(handlers)
def recall_message(broker: Broker, request: RecallMessage, call: Call) -> RecallMessageReply | AnswersLater:
    """Recall a timer message: store a recall in the same slot, which makes delivery skip the message.

    Source: RecallMessageProcessor, 5.4.0. As there, the broker does not check whether the message still waits, or ever
    existed. The answer waits until the recall is safe, as that of a send does.
    """
    region = broker.config.region_id
    try:
        unique_key = _store_recall(broker, request, call)
    except RequestError as error:
        error.fields = {keys.MSG_REGION: region}
        raise
    reply = RecallMessageReply(msg_id=unique_key, msg_region=region)
    if not broker.answer_gate.must_wait:
        return reply
    return broker.answer_gate.hold_reply(call, reply, broker.store.max_physical_offset, without_status)


def _store_recall(broker: Broker, request: RecallMessage, call: Call) -> str:
    """Store the recall and return the unique key of the recalled message. Raises RequestError."""
    _check_recall_allowed(broker, request.topic)
    handle = _decode_handle(broker, request)
    view = broker.hosts.view_of(call.connection)
    message = _recall_request(broker, request, handle)
    try:
        appended = broker.writer.write(
            message.with_changes(born_host=view.born_host, store_host=view.store_host)
        )
    except RequestError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "recall failed, execute error") from error
    broker.stats.stored[handle.topic].count_request(MessageType.DELAY, appended[2])
    return handle.unique_key


def _check_recall_allowed(broker: Broker, topic: str) -> None:
    config = broker.config
    if not config.recall_message_enable:
        raise RequestError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if broker.clock.now_ms() < config.start_accept_send_timestamp_ms:
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE)
    if not (config.broker_permission & PERM_WRITE or config.allow_recall_when_broker_not_writeable):
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE)
    if broker.topics.is_closed_to_producers(topic):
        raise RequestError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if broker.topics.get(topic) is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")


def _decode_handle(broker: Broker, request: RecallMessage) -> RecallHandle:
    try:
        handle = RecallHandle.decode(request.recall_handle)
    except MessageFormatError as error:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
    if handle.topic != request.topic:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker_name != broker.config.broker_name:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, _UNAVAILABLE)
    left_ms = parse_integer_or(handle.timestamp, -1) - broker.clock.now_ms()
    if not 0 < left_ms < broker.config.store.timer_max_delay_s * 1000:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    return handle


def _recall_request(broker: Broker, request: RecallMessage, handle: RecallHandle) -> MessageDraft:
    """Return the recall to store, a timer message itself.
    Source: RecallMessageProcessor.buildMessage and TimerMessageStore.buildDeleteKey, 5.4.0.
    """
    now_ms = broker.clock.now_ms()
    key = handle.unique_key
    if broker.config.store.append_topic_for_timer_delete_key:
        key = f"{handle.topic}+{key}"
    properties = {
        keys.TAGS: RECALL_TAG,
        keys.TIMER_DEL_UNIQKEY: key,
        keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: handle.unique_key,
        keys.TIMER_DELIVER_MS: handle.timestamp,
        keys.BORN_TIMESTAMP: str(now_ms),
    }
    if request.producer_group is not None:
        properties[keys.PRODUCER_GROUP] = request.producer_group
    return NewMessage(handle.topic, 0, b"0", properties, born_timestamp=now_ms)


@GetTimerCheckPoint.on(handlers)
def get_timer_check_point(broker: Broker, request: GetTimerCheckPoint) -> Header:
    """Return the checkpoint of the timer wheel. Source: AdminBrokerProcessor.getTimerCheckPoint, 5.4.0."""
    reply = Header()
    reply.body = _require_timers(broker, "The checkpoint is null").position.pack()
    return reply


@GetTimerMetrics.on(handlers)
def get_timer_metrics(broker: Broker, request: GetTimerMetrics) -> Header:
    """Return the counts of waiting timer messages. Source: AdminBrokerProcessor.getTimerMetrics, 5.4.0."""
    reply = Header()
    copied = broker.replication.takeover.metrics  # of the master, at a slave
    reply.body = copied or _require_timers(broker, "The timer message store is null").metrics.to_json()
    return reply


def _require_timers(broker: Broker, otherwise: str) -> TimerDelivery:
    if broker.timer_delivery is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, otherwise)
    return broker.timer_delivery
