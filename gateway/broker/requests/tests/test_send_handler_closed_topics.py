"""No way in writes to a topic on whose messages the broker acts: each request that stores a message is tried."""

from collections.abc import Callable
from typing import Any

import pytest

from codec.batch import encode_batch
from codec.constants import MAGIC_V1
from codec.message import Message, encode_message
from codec.recall_handle import RecallHandle
from codec.topics import TRANS_HALF_TOPIC, is_closed_to_producers
from gateway.tests.broker_world import World
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.replication import PutMessagesAtOffsets
from remoting.requests.send import (
    ConsumerSendMsgBack,
    RecallMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)
from remoting.requests.staging import StageMessages
from remoting.requests.transaction import EndTransaction, ResumeCheckHalfMessage

REVIVE_LOG = "rmq_sys_REVIVE_LOG_c1"
CLOSED = [
    REVIVE_LOG,
    "rmq_sys_wheel_timer",
    "rmq_sys_SYNC_BROKER_MEMBER_b1",
    "rmq_sys_anything",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
]
OPEN = [
    "orders",
    "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_TRACE_DATA_eu-1",
    "c1_REPLY_TOPIC",
    "BenchmarkTest",
    "c1",
    "b1",
    "%RETRY%g",
    "%DLQ%g",
]
FORBIDDEN = 16
NOT_FOUND = (1, "Find prepared transaction message failed")


@pytest.fixture
def world() -> World:
    world = World(
        recall_message_enable=True, staged_publish=True, mirror_target=True, timer_wheel_enable=True
    )
    world.topic("t")
    return world


def refusal(ask: Callable[[Request[Any]], Any], request: Request[Any]) -> tuple[int, str | None]:
    with pytest.raises(RequestError) as refused:
        ask(request)
    return refused.value.code, refused.value.remark


def send(
    topic: str, properties: str = "", kind: Any = SendMessageV2, body: bytes = b'{"t":"t","c":"g"}'
) -> Any:
    request = kind(
        producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_timestamp=1, flag=0, properties=f"UNIQ_KEY\x01U1\x02TAGS\x01ck\x02PGROUP\x01p\x02{properties}",
    )  # fmt: skip
    request.body = body
    return request


def end_of(physical_offset: int) -> EndTransaction:
    return EndTransaction(
        producer_group="p", tran_state_table_offset=0, commit_log_offset=physical_offset, commit_or_rollback=8
    )


def real(topic: str) -> dict[str, str]:
    return {"UNIQ_KEY": "U1", "PGROUP": "p", "TAGS": "ck", "REAL_TOPIC": topic, "REAL_QID": "0"}


@pytest.mark.parametrize("topic", CLOSED)
def test_each_form_of_a_send_is_refused(world: World, topic: str) -> None:
    batch = send(topic, kind=SendBatchMessage, body=encode_batch([(0, b"x", b"UNIQ_KEY\x01U1\x02")]))
    wanted = (FORBIDDEN, f"Sending message to topic[{topic}] is forbidden.")
    for request in (
        send(topic),
        send(topic, kind=SendMessage),
        batch,
        send(topic, "TRAN_MSG\x01true\x02"),
        send(topic, "DELAY\x011\x02"),
        send(topic, "TIMER_DELAY_SEC\x0160\x02"),
        send(topic, f"REAL_TOPIC\x01{topic}\x02REAL_QID\x010\x02TIMER_OUT_MS\x011\x02"),
    ):
        assert refusal(world.ask, request) == wanted
    for kind in (SendReplyMessage, SendReplyMessageV2):
        assert refusal(world.ask_async, send(topic, kind=kind)) == wanted
    assert world.broker.store.topics() == set()


@pytest.mark.parametrize("topic", CLOSED)
def test_staged_and_offset_preserving_messages_and_recalls_are_refused(world: World, topic: str) -> None:
    staged = StageMessages(
        writer="w", batch=0, stage="s", number=0, topic=topic, queue_id=0, sys_flag=0, born_timestamp=0
    )
    staged.body = encode_batch([(0, b"x", b"UNIQ_KEY\x01U1\x02")])
    assert refusal(world.ask_async, staged)[0] == FORBIDDEN
    assert refusal(world.ask, PutMessagesAtOffsets(topic=topic, queue_id=0, first_offset=0))[0] == FORBIDDEN
    handle = RecallHandle(topic, "b1", str(world.clock.now_ms() + 5_000), "U1").encode()
    assert refusal(world.ask, RecallMessage(topic=topic, recall_handle=handle))[0] == FORBIDDEN
    assert world.broker.store.topics() == set()


@pytest.mark.parametrize("topic", OPEN)
def test_topics_that_clients_and_official_tools_write_to_stay_open(world: World, topic: str) -> None:
    world.broker.groups.find_or_create("g")
    world.ask(send(topic))
    assert [each.body for each in world.stored(topic)] == [b'{"t":"t","c":"g"}']


def test_the_configured_trace_topic_is_open_whatever_its_name_is() -> None:
    world = World(msg_trace_topic_name="rmq_sys_our_trace", trace_topic_enable=True)
    world.ask(send("rmq_sys_our_trace"))
    assert len(world.stored("rmq_sys_our_trace")) == 1
    assert is_closed_to_producers("rmq_sys_our_trace")


@pytest.mark.parametrize("topic", [REVIVE_LOG, "../../t", "a/b", "", "x" * 128])
def test_the_end_of_a_plain_message_with_the_properties_of_a_half_message_writes_nothing(
    world: World, topic: str
) -> None:
    _, physical = world.put("t", properties=real(topic))
    before = world.broker.store.max_physical_offset
    assert refusal(world.ask, end_of(physical)) == NOT_FOUND
    assert world.broker.store.max_physical_offset == before


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [
        (REVIVE_LOG, (FORBIDDEN, f"Sending message to topic[{REVIVE_LOG}] is forbidden.")),
        ("../../t", NOT_FOUND),
        ("x" * 128, NOT_FOUND),
    ],
)
def test_a_half_message_whose_real_topic_is_closed_or_no_topic_is_not_committed(
    world: World, topic: str, wanted: tuple[int, str]
) -> None:
    """A store of another broker may hold such half messages."""
    _, physical = world.put(TRANS_HALF_TOPIC, properties=real(topic))
    assert refusal(world.ask, end_of(physical)) == wanted
    assert world.broker.store.topics() == {TRANS_HALF_TOPIC}


def fake_message(world: World, size: int | None = None) -> tuple[bytes, int]:
    """Return a body that looks like a stored half message, and the physical offset at which it will be."""
    world.put("t", body=b"x" * 400)
    probe = world.stored("t")[0]
    start = world.broker.store.max_physical_offset + (probe.size - 400 - len(b"\x01t\0\0"))
    fake = Message(TRANS_HALF_TOPIC, b"forged", real(REVIVE_LOG), magic=MAGIC_V1)
    fake.physical_offset = start
    body = bytearray(encode_message(fake))
    if size is not None:
        body[:4] = size.to_bytes(4)
    return bytes(body), start


def test_bytes_of_a_body_that_look_like_a_half_message_are_not_one(world: World) -> None:
    body, physical = fake_message(world)
    world.put("t", body=body)
    assert world.broker.store.message_at(physical) is not None, "the forgery is at its place"
    assert refusal(world.ask, end_of(physical)) == NOT_FOUND
    message_id = "0A00000900002A9F" + physical.to_bytes(8).hex().upper()
    assert refusal(world.ask, ResumeCheckHalfMessage(msg_id=message_id))[0] == 1
    assert world.broker.store.topics() == {"t"}


def test_an_offset_into_a_body_with_a_forged_size_is_answered_like_any_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    body, physical = fake_message(world, size=0x7FFFFFFF)
    world.put("t", body=body)
    assert refusal(world.ask, end_of(physical)) == NOT_FOUND
    back = ConsumerSendMsgBack(offset=physical, group="g", delay_level=0)
    assert refusal(world.ask, back) == (1, f"look message by offset failed, {physical}")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("topic", ["t", "%RETRY%g", TRANS_HALF_TOPIC])
def test_only_a_given_up_message_is_checked_again(world: World, topic: str) -> None:
    _, physical = world.put(topic, properties=real("t"))
    before = len(world.stored(TRANS_HALF_TOPIC))
    message_id = "0A00000900002A9F" + physical.to_bytes(8).hex().upper()
    assert refusal(world.ask, ResumeCheckHalfMessage(msg_id=message_id))[0] == 1
    assert len(world.stored(TRANS_HALF_TOPIC)) == before


@pytest.mark.parametrize("more", ["", "TRAN_MSG\x01true\x02"])
def test_a_message_cannot_recall_another_where_recalls_are_forbidden(more: str) -> None:
    world = World(timer_wheel_enable=True)
    world.topic("t")
    recall = send("t", f"TIMER_DELAY_SEC\x0160\x02TIMER_DEL_UNIQKEY\x01victim\x02{more}")
    if more:
        reply = world.ask(recall)
        physical = int(reply.msg_id[-16:], 16)
        refused = refusal(world.ask, end_of(physical))
    else:
        refused = refusal(world.ask, recall)
    assert refused == (FORBIDDEN, "recall failed, operation is forbidden")
    assert world.stored("rmq_sys_wheel_timer") == []
