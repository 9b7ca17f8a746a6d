"""Requests of producers, of consumers that return a message, and of responders that send a reply message.

Sends themselves are the hot path: their handler gets the raw command, no typed header is built.

In request-reply, requests are ordinary messages that name their client. The reply (codes 324, 325) is pushed through
the connection by which that client is known as a producer, and stored as well unless `storeReplyMessageEnable` is
false.
"""

import logging

from codec.constants import ResponseCode
from codec.properties import MESSAGE_REPLY_TO_CLIENT, PUSH_REPLY_TIME, decode_properties, properties_text
from codec.topics import PERM_WRITE
from gateway.broker.broker import Broker
from gateway.broker.messages.answer_gate import without_status
from gateway.broker.messages.stored_messages import find_message
from gateway.broker.requests.send_handler import SentMessage
from gateway.namesrv.addresses import join_address
from remoting.connection import Connection, Handler
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.handler_table import AnswersLater, Call, HandlerTable
from remoting.requests.send import (
    ConsumerSendMsgBack,
    PushReplyMessageToClient,
    SendBatchMessage,
    SendMessage,
    SendMessageReply,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)

log = logging.getLogger(__name__)
handlers: HandlerTable[Broker] = HandlerTable()

CLIENT_TIMEOUT_S = 10.0
"""Time that the waiting client has to confirm. Source: Broker2Client.callClient, 5.4.0."""


@handlers.register_raw(SendMessage.code, SendMessageV2.code, SendBatchMessage.code)
def send(broker: Broker) -> Handler:
    """Return the handler of one message or one batch, which reads its header fields itself."""
    return broker.send_handler.send


@ConsumerSendMsgBack.on(handlers)
def send_back(broker: Broker, request: ConsumerSendMsgBack, call: Call) -> AnswersLater | None:
    """Store the message again, in the retry topic or as a dead letter.

    Deviation: the answer waits for the disk and for replicas as that of a send does, because the consumer takes the
    message for consumed then. A time limit that passes is not shown, as the official broker waits for neither.
    Source: AbstractSendMessageProcessor.consumerSendMsgBack, 5.4.0.
    """
    broker.retry_rules.require_group(request.group)
    if not broker.config.broker_permission & PERM_WRITE:
        host = broker.hosts.address_for(call.connection)[0]
        raise RequestError(ResponseCode.NO_PERMISSION, f"the broker[{host}] sending message is forbidden")
    broker.retry_rules.check_retry_topic(request)
    failed = find_message(broker.store, request.offset)
    if failed is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {request.offset}")
    message = broker.retry_rules.make_retry_message(request, call.command.version, failed)
    if message is not None:
        message.store_host = broker.hosts.view_of(call.connection).store_host
        broker.answer_gate.check_append()
        broker.writer.write(message)
        broker.stats.sent_back[request.group, request.origin_topic or message.topic].count_messages(1, 0)
        if broker.answer_gate.must_wait:
            position = broker.store.max_physical_offset
            return broker.answer_gate.hold_reply(call, None, position, without_status)
    return None


@SendReplyMessageV2.on(handlers)
@SendReplyMessage.on(handlers)
async def send_reply(
    broker: Broker, request: SendReplyMessage | SendReplyMessageV2, call: Call
) -> SendMessageReply:
    """Push the reply message, and store it whether the push worked or not.

    Refusals have the header fields of the answer that they replace, as in the official broker.
    """
    common = broker.send_handler.common_answer_fields
    try:
        message = broker.send_handler.read_message(call.connection, call.command)
    except RequestError as error:
        error.fields = common
        raise
    properties = decode_properties(message.properties)
    problem = await _push_reply(broker, request, call, message, properties)
    reply = SendMessageReply(msg_id="0", queue_id=message.queue_id, queue_offset=0)
    if broker.config.store_reply_message_enable:
        _store_reply(broker, call, message, properties, reply)
    if problem:
        raise RequestError(ResponseCode.SYSTEM_ERROR, problem, {**reply.to_ext(), **common})
    return reply


async def _push_reply(
    broker: Broker,
    request: SendReplyMessage | SendReplyMessageV2,
    call: Call,
    message: SentMessage,
    properties: dict[str, str],
) -> str:
    """Push the reply to the client that asked; return the problem, "" if the client has it."""
    client_id = properties.get(MESSAGE_REPLY_TO_CLIENT)
    if client_id is None:
        return f"reply message properties[{MESSAGE_REPLY_TO_CLIENT}] is null"
    client = broker.clients.producer_by_id(client_id)
    if client is None:
        return f"push reply message fail, channel of <{client_id}> not found."
    properties[PUSH_REPLY_TIME] = str(broker.clock.now_ms())
    push = _push_request(broker, request, call.connection, message, properties)
    push.body = bytes(call.command.body)
    try:
        await client.connection.ask(push, CLIENT_TIMEOUT_S)
    except (RequestError, RemotingClosed, RemotingTimeout) as problem:
        log.warning("reply message not delivered", extra={"client": client_id, "reason": str(problem)})
        return f"push reply message to {client_id}fail."
    return ""


def _push_request(
    broker: Broker,
    request: SendReplyMessage | SendReplyMessageV2,
    connection: Connection,
    message: SentMessage,
    properties: dict[str, str],
) -> PushReplyMessageToClient:
    return PushReplyMessageToClient(
        producer_group=request.producer_group,
        topic=message.topic,
        default_topic=request.default_topic,
        default_topic_queue_nums=request.default_topic_queue_nums,
        queue_id=message.queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=properties_text(properties),
        reconsume_times=message.reconsume_times,
        unit_mode=bool(request.unit_mode),
        born_host=join_address(*connection.remote),
        store_host=join_address(*broker.hosts.address_for(connection)),
        store_timestamp=broker.clock.now_ms(),
    )


def _store_reply(
    broker: Broker, call: Call, message: SentMessage, properties: dict[str, str], reply: SendMessageReply
) -> None:
    """Store the reply in its topic. A reply that cannot be stored has still been delivered."""
    try:
        offset, physical_offset, _, _ = broker.writer.write(message.replace_properties(properties))
    except RequestError as problem:
        log.warning("reply message not stored", extra={"topic": message.topic, "reason": problem.remark})
        return
    reply.msg_id = broker.hosts.view_of(call.connection).message_id(physical_offset)
    reply.queue_offset = offset
