"""SEND_REPLY_MESSAGE (codes 324, 325): push a reply message to the client that waits for it, and store it.

Requests are ordinary messages that name their client. The reply is pushed through the connection by which that client
is known as a producer, and stored as well unless `storeReplyMessageEnable` is false. Source: ReplyMessageProcessor,
5.4.0.
"""

import logging

from codec.constants import ResponseCode
from codec.properties import MESSAGE_REPLY_TO_CLIENT, PUSH_REPLY_TIME, decode_properties, properties_text
from gateway.broker.broker import Broker
from gateway.broker.requests.send_handler import SendHeader
from gateway.namesrv.addresses import join_address
from remoting.connection import Connection
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.send import (
    PushReplyMessageToClient,
    SendMessageReply,
    SendReplyMessage,
    SendReplyMessageV2,
)

log = logging.getLogger(__name__)
handlers: HandlerTable[Broker] = HandlerTable()

CLIENT_TIMEOUT_S = 10.0
"""Time that the waiting client has to confirm. Source: Broker2Client.callClient, 5.4.0."""


@SendReplyMessageV2.on(handlers)
@SendReplyMessage.on(handlers)
async def send_reply(
    broker: Broker, request: SendReplyMessage | SendReplyMessageV2, call: Call
) -> SendMessageReply:
    """Push the reply message, and store it whether the push worked or not.

    Refusals have the header fields of the answer that they replace, as officially.
    """
    common = broker.send_handler.common_answer_fields
    try:
        header = broker.send_handler.read_header(call.connection, call.command)
    except RequestError as error:
        error.fields = common
        raise
    properties = decode_properties(header.properties)
    problem = await _push_reply(broker, request, call, header, properties)
    reply = SendMessageReply(msg_id="0", queue_id=header.queue_id, queue_offset=0)
    if broker.config.store_reply_message_enable:
        _store_reply(broker, call, header, properties, reply)
    if problem:
        raise RequestError(ResponseCode.SYSTEM_ERROR, problem, {**reply.to_ext(), **common})
    return reply


async def _push_reply(
    broker: Broker,
    request: SendReplyMessage | SendReplyMessageV2,
    call: Call,
    header: SendHeader,
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
    push = _push_request(broker, request, call.connection, header, properties)
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
    header: SendHeader,
    properties: dict[str, str],
) -> PushReplyMessageToClient:
    return PushReplyMessageToClient(
        producer_group=request.producer_group,
        topic=header.topic,
        default_topic=request.default_topic,
        default_topic_queue_nums=request.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=properties_text(properties),
        reconsume_times=header.reconsume_times,
        unit_mode=bool(request.unit_mode),
        born_host=join_address(*connection.remote),
        store_host=join_address(*broker.hosts.address_for(connection)),
        store_timestamp=broker.clock.now_ms(),
    )


def _store_reply(
    broker: Broker, call: Call, header: SendHeader, properties: dict[str, str], reply: SendMessageReply
) -> None:
    """Store the reply in its topic. A reply that cannot be stored has still been delivered."""
    try:
        offset, physical_offset, _, _ = broker.writer.write(header.new_message(call.command.body, properties))
    except RequestError as problem:
        log.warning("reply message not stored", extra={"topic": header.topic, "reason": problem.remark})
        return
    reply.msg_id, reply.queue_offset = header.view.message_id(physical_offset), offset
