"""Lists of connected clients for administrators, and requests that are forwarded to clients."""

from collections.abc import Mapping

from codec import fastjson
from codec.command import Command
from codec.constants import VERSION_NAMES, ResponseCode, version_name
from codec.errors import MessageFormatError
from codec.ids import decode_message_id
from gateway.broker.broker import Broker
from gateway.broker.consumers.client_registry import GroupMember
from gateway.broker.messages.stored_messages import find_stored
from gateway.broker.processors.turns import end_turn
from gateway.broker.topics.encoded_entries import fill_empty
from remoting.bodies.groups import (
    ConnectedClient,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from remoting.connection import Connection
from remoting.declare import Header
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.client import (
    ConsumeMessageDirectly,
    GetAllProducerInfo,
    GetAllProducerInfoReply,
    GetConsumerConnectionList,
    GetConsumerConnectionListReply,
    GetConsumerRunningInfo,
    GetProducerConnectionList,
    GetProducerConnectionListReply,
)

handlers: HandlerTable[Broker] = HandlerTable()

FIRST_VERSION_ANSWERING = VERSION_NAMES.index("V3_1_8_SNAPSHOT")
CLIENT_TIMEOUT_S = 10.0
"""Time that a client has to answer. Source: Broker2Client.callClient, 5.4.0."""


def _describe_connection(client: GroupMember) -> ConnectedClient:
    return ConnectedClient(
        client_id=client.client_id,
        client_addr=client.address,
        language=client.language,
        version=client.version,
        protocol=client.protocol,
    )


@GetConsumerConnectionList.on(handlers)
async def get_consumers(broker: Broker, request: GetConsumerConnectionList) -> GetConsumerConnectionListReply:
    """Return online members and subscriptions of a group.

    Source: AdminBrokerProcessor.getConsumerConnectionList, 5.4.0.
    """
    group = broker.clients.consumer_group(request.consumer_group)
    if group is None:
        remark = f"the consumer group[{request.consumer_group}] not online"
        raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    body = ConsumerConnection(
        subscription_table=group.subscriptions,
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )
    reply = GetConsumerConnectionListReply(data=body)
    reply.body = fill_empty(body, "connectionSet", await _describe_connections(group.clients))
    return reply


async def _describe_connections(members: Mapping[Connection, GroupMember]) -> list[bytes]:
    """Return the JSON of a group's members, encoded in slices."""
    described = []
    for number, client in enumerate(list(members.values())):
        described.append(_describe_connection(client).to_json())
        await end_turn(number)
    return described


@GetProducerConnectionList.on(handlers)
async def get_producers(broker: Broker, request: GetProducerConnectionList) -> GetProducerConnectionListReply:
    """Return online members of a producer group. Source: AdminBrokerProcessor.getProducerConnectionList, 5.4.0."""
    members = broker.clients.producers.get(request.producer_group)
    if members is None:
        remark = f"the producer group[{request.producer_group}] not exist"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    reply = GetProducerConnectionListReply(data=ProducerConnection())
    reply.body = fill_empty(reply.data, "connectionSet", await _describe_connections(members))
    return reply


@GetAllProducerInfo.on(handlers)
async def get_all_producers(broker: Broker, request: GetAllProducerInfo) -> GetAllProducerInfoReply:
    """Return every online producer by group. Source: AdminBrokerProcessor.getAllProducerInfo, 5.4.0."""
    groups, number = [], 0
    for group in list(broker.clients.producers):
        described = []
        for client in list(broker.clients.producers.get(group, {}).values()):
            described.append(_describe_producer(client).to_json())
            number += 1
            await end_turn(number)
        groups.append(fastjson.dumps(group) + b":[" + b",".join(described) + b"]")
    reply = GetAllProducerInfoReply(data=ProducerTableInfo())
    reply.body = fill_empty(reply.data, "data", groups)
    return reply


def _describe_producer(client: GroupMember) -> ProducerInfo:
    return ProducerInfo(
        client_id=client.client_id,
        remote_ip="/" + client.address,
        language=client.language,
        version=client.version,
        last_update_timestamp=client.last_seen_ms,
    )


@GetConsumerRunningInfo.on(handlers)
async def ask_running_info(broker: Broker, request: GetConsumerRunningInfo, call: Call) -> Header:
    """Forward a request for running information to a consumer.

    Source: AdminBrokerProcessor.getConsumerRunningInfo, 5.4.0.
    """
    ext, body = dict(call.command.ext), bytes(call.command.body)
    return await _ask_client(broker, request.consumer_group, request.client_id, request.code, ext, body)


@ConsumeMessageDirectly.on(handlers)
async def consume_directly(broker: Broker, request: ConsumeMessageDirectly, call: Call) -> Header:
    """Have a consumer consume one stored message now.

    Source: AdminBrokerProcessor.consumeMessageDirectly, 5.4.0.
    """
    ext = {**call.command.ext, "brokerName": broker.config.broker_name}
    topic = broker.topics.get(request.topic or "")
    if topic is not None:
        ext["topicSysFlag"] = str(topic.topic_sys_flag)
    group = broker.groups.find_or_create(request.consumer_group)
    if group is not None:
        ext["groupSysFlag"] = str(group.group_sys_flag)
    body = _read_stored(broker, request.msg_id or "")
    return await _ask_client(broker, request.consumer_group, request.client_id or "", request.code, ext, body)


def _read_stored(broker: Broker, message_id: str) -> bytes:
    try:
        _, _, physical_offset = decode_message_id(message_id)
    except MessageFormatError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"message id [{message_id}] is illegal") from error
    stored = find_stored(broker.store, physical_offset)
    if stored is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}"
        )
    return bytes(stored)


async def _ask_client(
    broker: Broker, group: str, client_id: str, code: int, ext: dict[str, str], body: bytes
) -> Header:
    """Forward a request to a consumer and return its answer.

    Source: AdminBrokerProcessor.callConsumer, 5.4.0.
    """
    client = broker.clients.consumer(group, client_id)
    if client is None:
        remark = f"The Consumer <{group}> <{client_id}> not online"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    if client.version < FIRST_VERSION_ANSWERING:
        remark = (
            f"The Consumer <{client_id}> Version <{version_name(client.version)}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT"
        )
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    try:
        answer = await client.connection.ask_command(Command(code, ext=ext, body=body), CLIENT_TIMEOUT_S)
    except RemotingTimeout as error:
        remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
        raise RequestError(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from error
    except RemotingClosed as error:
        remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error
    reply = Header()
    reply.code, reply.remark, reply.body = answer.code, answer.remark, bytes(answer.body)
    return reply
