"""Every declared request with extreme values in every field, sent to a whole broker or namesrv.

Whatever is sent is answered, never by way of an unexpected exception. The background tasks go on, others are served as
before, and the tables can be saved and loaded again.
"""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import trio

import remoting.requests  # noqa: F401 - declares all requests
from codec.batch import encode_batch
from codec.command import Command, encode_response
from codec.ids import decode_message_id
from codec.java_numbers import I32
from codec.message import decode_message
from gateway.broker.processors import all_handlers
from gateway.namesrv.processors import handlers as namesrv_handlers
from gateway.tests.cluster import NAMESRV, Cluster, Node, bodies, message, pull, simulated
from gateway.tests.extreme_values import (
    CLIENT,
    ENTRY,
    GROUP,
    MALFORMED,
    PRODUCERS,
    RAW_BODIES,
    TOPIC,
    extreme_bodies,
    extreme_headers,
    usual_body,
    usual_headers,
)
from gateway.tests.popping import pop_request
from gateway.tests.transacting import COMMIT, ROLLBACK
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from remoting.bodies.registration import RegisterBrokerBody
from remoting.connection import Connection
from remoting.declare import REQUESTS, Request
from remoting.errors import RemotingClosed, RemotingTimeout
from remoting.requests.admin import UpdateBrokerConfig
from remoting.requests.client import ConsumeMessageDirectly, HeartBeat
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.namesrv import RegisterBroker
from remoting.requests.query import QueryMessage, ViewMessageById
from remoting.requests.replication import PutMessagesAtOffsets
from remoting.requests.send import ConsumerSendMsgBack, SendBatchMessage, SendMessageV2, SendReplyMessageV2
from remoting.requests.staging import StageMessages
from remoting.requests.topics import UpdateAndCreateTopic
from remoting.requests.transaction import EndTransaction, ResumeCheckHalfMessage
from storage.files import MemoryFiles

SETTINGS: dict[str, Any] = {
    "max_suspend_ms": 1_000, "timer_wheel_enable": True, "mirror_target": True, "staged_publish": True,
    "recall_message_enable": True, "enable_property_filter": True, "enable_broadcast_offset_store": True,
}  # fmt: skip
UNDECIDED = {EndTransaction.code}
"""Codes of requests that officially get no answer when their producer is undecided."""
CONFIG_BODIES = tuple(
    f"{key}={value}".encode()
    for key in (
        "maxMessageSize",
        "sendQuotaMessages",
        "maxSuspendTimeMillis",
        "brokerPermission",
        "regionId",
        "x",
    )
    for value in ("", "-1", "9" * 400, "x" * 9999, "\\uD800", "1_0")
)


CONFIRMING = {code: lambda _, command: encode_response(command.opaque, 0, {}) for code in (307, 309, 326)}
"""A client's handlers for what the broker asks: running information, consuming a message, taking a reply."""


async def prepare(cluster: Cluster, node: Node) -> dict[str, str]:
    """Give the broker something of everything that requests refer to; return the values that name it."""
    client = cluster.dial(node.address, CONFIRMING)
    consumer = ConsumerData(
        group_name=GROUP,
        consume_type="CONSUME_PASSIVELY",
        message_model="BROADCASTING",
        subscription_data_set=[SubscriptionData(topic=TOPIC)],
    )
    producer = ProducerData(group_name=PRODUCERS)
    await client.ask(
        HeartBeat(
            data=HeartbeatData(client_id=CLIENT, producer_data_set=[producer], consumer_data_set=[consumer])
        )
    )
    for number in range(8):
        first = await client.ask(message(TOPIC, queue_id=number % 2))
    for properties in ({"DELAY": "1"}, {"TIMER_DELAY_SEC": "60"}):
        await client.ask(message(TOPIC, properties=properties))
    half = await client.ask(message(TOPIC, properties={"TRAN_MSG": "true", "PGROUP": PRODUCERS}))
    for order in (False, True):
        await client.ask(
            pop_request(TOPIC, "ORDERED" if order else GROUP, order=order, max_msg_nums=2, queue_id=0)
        )
    await client.ask(pull(TOPIC, group="PULLERS", commit=1))
    stage = StageMessages(
        writer="w", batch=0, stage="s", number=0, topic=TOPIC, queue_id=0, sys_flag=0, born_timestamp=0
    )
    stage.body = encode_batch([ENTRY])
    await client.ask(stage)
    await client.ask(message("copies"))
    receipt = f"0 {cluster.clock.now_ms()} 10000 0 0 {node.broker.config.broker_name} 0 0"
    return {
        "ViewMessageById.offset": physical_offset(first.msg_id),
        "ConsumerSendMsgBack.offset": physical_offset(first.msg_id),
        "ConsumeMessageDirectly.msg_id": first.msg_id,
        "EndTransaction.commit_log_offset": physical_offset(half.msg_id),
        "EndTransaction.tran_state_table_offset": str(half.queue_offset),
        "ResumeCheckHalfMessage.msg_id": half.msg_id,
        "AckMessage.extra_info": receipt,
        "ChangeMessageInvisibletime.extra_info": receipt,
        "PopMessage.queue_id": "1",
        "PutMessagesAtOffsets.topic": "copies",
    }


def physical_offset(message_id: str) -> str:
    return str(decode_message_id(message_id)[2])


def usual_raw_body(request: type[Request[Any]], node: Node) -> bytes:
    """Return a body that the handler accepts."""
    if request is PutMessagesAtOffsets:
        return b"".join(map(bytes, node.broker.store.read("copies", 0, 0, 1).chunks))
    if request is UpdateBrokerConfig:
        return b"sendQuotaMessages=1000000"
    if request is RegisterBroker:
        return json.dumps(usual_body(RegisterBrokerBody)).encode()
    return encode_batch([ENTRY]) if request.BODY is None else json.dumps(usual_body(request.BODY)).encode()


async def usual_commands(cluster: Cluster, node: Node, code: int) -> list[Command]:
    """Return commands of a code that a prepared broker accepts."""
    request, known = REQUESTS[code], await prepare(cluster, node)
    body = usual_raw_body(request, node)
    return [Command(code, ext=ext, body=body) for ext in usual_headers(request, known)]


def commands_of(usual: Command, request: type[Request[Any]]) -> Iterator[tuple[str, Command]]:
    """Yield every extreme command of one code, with a name that says what is extreme."""
    for name, ext in extreme_headers(request, usual.ext):
        yield name, Command(request.code, ext=ext, body=usual.body)
    typed = RegisterBrokerBody if request is RegisterBroker else request.BODY
    for name, changed in extreme_bodies(typed):
        yield name, Command(request.code, ext=dict(usual.ext), body=changed)
    if request.BODY is None:
        others = (*RAW_BODIES, *(CONFIG_BODIES if request is UpdateBrokerConfig else MALFORMED))
        for changed in others:
            yield f"body {changed[:20]!r}", Command(request.code, ext=dict(usual.ext), body=changed)


async def send_all(cluster: Cluster, node: Node, usual: list[Command]) -> list[str]:
    """Send every extreme form of some commands one by one; return the names of those without an answer."""
    silent, client = [], cluster.dial(node.address)
    extreme = [named for command in usual for named in commands_of(command, REQUESTS[command.code])]
    for name, command in (*(("usual", command) for command in usual), *extreme):
        try:
            await client.ask_command(command, 30)
        except RemotingTimeout:
            silent.append(name)
        except RemotingClosed:
            silent.append(f"{name}: connection closed")
            client = cluster.dial(node.address)
    return silent


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log records about unexpected exceptions, each with its exception."""
    return sorted(
        {
            f"{record.getMessage()}: {record.exc_info[1]!r}"[:300]
            for record in caplog.records
            if record.levelno >= logging.ERROR and record.exc_info
        }
    )


def name_of(code: int) -> str:
    return REQUESTS[code].__name__


ALL_CODES = sorted(all_handlers().request_codes())


@pytest.mark.parametrize("code", ALL_CODES, ids=name_of)
@simulated
async def test_a_broker_answers_and_goes_on(
    cluster: Cluster, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, **SETTINGS)
    silent = await send_all(cluster, node, await usual_commands(cluster, node, code))
    assert silent == [] or code in UNDECIDED
    await trio.sleep(400)
    assert failures(caplog) == []
    await check_served(cluster, node)
    tables = await stop_and_describe(node)
    again = await cluster.add_broker(files=files, **SETTINGS)
    assert describe(again) == tables
    await trio.sleep(10)
    await check_served(cluster, again)
    assert failures(caplog) == []


@pytest.mark.parametrize(
    "code", [SendMessageV2.code, SendBatchMessage.code, SendReplyMessageV2.code], ids=name_of
)
@simulated
async def test_whatever_is_stored_can_be_used(
    cluster: Cluster, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, **SETTINGS)
    usual = await usual_commands(cluster, node, code)
    client = cluster.dial(node.address)
    answers = [
        await client.ask_command(command, 30)
        for each in usual
        for _, command in commands_of(each, REQUESTS[code])
    ]
    stored = [name for answer in answers for name in answer.ext.get("msgId", "0").split(",") if name != "0"]
    assert len(stored) > 100
    for request in uses_of_messages(node, stored):
        await answer_of(client, request)
    for _ in range(3):
        for request in uses_of_queues(node):
            await answer_of(client, request)
        await trio.sleep(20)
    assert failures(caplog) == []
    await check_served(cluster, node)
    await node.stop()
    again = await cluster.add_broker(files=files, **SETTINGS)
    await trio.sleep(400)
    await check_served(cluster, again)
    assert failures(caplog) == []


SHAPES = [(0, 0), (0, 4), (4, 0), (-1, -1), (1, 1), (16, 2), (I32.high, I32.high), (I32.low, 4)]


@pytest.mark.parametrize(("read", "write"), SHAPES)
@simulated
async def test_topics_and_groups_of_any_shape_serve_every_request(
    cluster: Cluster, read: int, write: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, **SETTINGS)
    commands = [each for code in ALL_CODES for each in await usual_commands(cluster, node, code)]
    client = cluster.dial(node.address)
    retry = f"%RETRY%{GROUP}"
    for topic in (TOPIC, "fresh", retry, f"{retry}+{TOPIC}", f"{retry}_{TOPIC}", f"%DLQ%{GROUP}"):
        await answer_of(
            client,
            UpdateAndCreateTopic(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=read,
                write_queue_nums=write,
                perm=6,
                topic_filter_type="SINGLE_TAG",
            ),
        )
    group = SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=write, retry_max_times=read)
    await answer_of(client, UpdateAndCreateSubscriptionGroup(data=group))
    for command in commands:
        await answer_of(client, command)
    for queue_id in (-1, 0, 3, I32.high, I32.low):
        for topic in (TOPIC, "fresh", retry):
            await answer_of(client, message(topic, queue_id=queue_id))
        await answer_of(client, message(f"new-{queue_id}", queue_id=queue_id, default_topic_queue_nums=read))
    for request in uses_of_queues(node):
        await answer_of(client, request)
    await trio.sleep(400)
    assert failures(caplog) == []
    await check_served(cluster, node)
    await node.stop()
    await cluster.add_broker(files=files, **SETTINGS)
    await trio.sleep(10)
    assert failures(caplog) == []


async def answer_of(client: Connection, asked: Command | Request[Any]) -> Command:
    """Return the answer, whatever it is."""
    return await client.ask_command(asked if isinstance(asked, Command) else asked.to_command(), 60)


def uses_of_messages(node: Node, message_ids: list[str]) -> Iterator[Request[Any]]:
    """Yield all requests that name a stored message."""
    for message_id in message_ids:
        place = decode_message_id(message_id)[2]
        found = node.broker.store.message_at(place)
        assert found is not None
        stored = decode_message(found)
        yield ViewMessageById(offset=place)
        for level in (-1, 0, 1):
            yield ConsumerSendMsgBack(
                offset=place, group=GROUP, delay_level=level, max_reconsume_times=I32.high
            )
        for decision in (COMMIT, ROLLBACK):
            yield EndTransaction(
                producer_group=PRODUCERS,
                tran_state_table_offset=stored.queue_offset,
                commit_log_offset=place,
                commit_or_rollback=decision,
                from_transaction_check=True,
            )
        yield ResumeCheckHalfMessage(msg_id=message_id)
        yield ConsumeMessageDirectly(
            consumer_group=GROUP, client_id=CLIENT, msg_id=message_id, topic=stored.topic
        )
        for key in [stored.unique_key or "x", *stored.keys][:3]:
            yield QueryMessage(
                topic=stored.topic, key=key[:60_000], max_num=64, begin_timestamp=0, end_timestamp=1 << 62
            )


def uses_of_queues(node: Node) -> Iterator[Request[Any]]:
    """Yield pulls with each kind of filter and pops of every queue of every topic."""
    for topic, config in list(node.broker.topics.table.items()):
        for queue_id in range(min(config.read_queue_nums, 4)):
            for kind, expression in (("TAG", "*"), ("TAG", "a || b"), ("SQL92", "a > 1 OR KEYS IS NOT NULL")):
                yield pull(topic, queue_id=queue_id, group="READER", tags=expression, expression_type=kind)
        for order in (False, True):
            group = "ORDERED-POPPER" if order else "POPPER"
            yield pop_request(topic, group, order=order, invisible_time=1_000)


async def check_served(cluster: Cluster, node: Node) -> None:
    """Check that a client who has nothing to do with all that is served."""
    client = cluster.dial(node.address)
    sent = await client.ask(message("others", body=b"as always"))
    reply = await client.ask(pull("others", sent.queue_offset, queue_id=sent.queue_id, group="OTHERS"))
    assert bodies(reply) == [b"as always"]


def describe(node: Node) -> dict[str, Any]:
    """Return the tables that are files."""
    broker = node.broker
    return {
        "topics": {name: config.to_value() for name, config in broker.topics.table.items()},
        "groups": {name: config.to_value() for name, config in broker.groups.table.items()},
        "forbidden": dict(broker.groups.forbidden),
        "offsets": {key: dict(queues) for key, queues in broker.offsets.table.items()},
        "modes": broker.pop.request_modes.snapshot().to_value(),
    }


async def stop_and_describe(node: Node) -> dict[str, Any]:
    await node.stop()
    return describe(node)


@pytest.mark.parametrize("code", sorted(namesrv_handlers.request_codes()), ids=name_of)
@simulated
async def test_a_namesrv_answers_and_goes_on(
    cluster: Cluster, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(**SETTINGS)
    assert await send_all(cluster, namesrv, await usual_commands(cluster, node, code)) == []
    await trio.sleep(400)
    assert failures(caplog) == []
    assert NAMESRV in cluster.nodes
