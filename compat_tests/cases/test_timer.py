"""Timer messages: their form while they wait, their delivery, their metrics, and recalls."""

import json
import time
from collections.abc import Iterator
from struct import Struct
from typing import Any

import pytest

from codec.message import Message
from codec.recall_handle import RecallHandle
from compat_tests.cases.test_restart import read_all
from compat_tests.cases.test_transactions import COMMIT, configure, end, half
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import (
    batch_request,
    bodies,
    create_topic,
    expect_refusal,
    messages,
    pull,
    read_first_message,
    send,
    send_plain,
    send_request,
)
from compat_tests.marks import case, differs
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.send import RecallMessage, SendMessageReply
from remoting.requests.timers import GetTimerCheckPoint, GetTimerMetrics

WHEEL = "rmq_sys_wheel_timer"
LIMIT = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; or if set del msg, "
    "the delay time should be bigger than the current time"
)
CHECKPOINT = Struct(">7q")
# Long enough for what a case does before the message is due, even on a busy machine.
AHEAD_MS = 9_000
ARRIVAL_S = 40.0


def now_ms() -> int:
    return int(time.time() * 1000)


def send_later(
    broker: BlockingClient, topic: str, body: bytes, asked: dict[str, Any], **fields: Any
) -> SendMessageReply:
    """Send a message with timer properties and the topic plus the body as its unique key."""
    key = f"{topic}{body.decode()}"
    properties = {"UNIQ_KEY": key, **{name: str(value) for name, value in asked.items()}}
    return send(broker, topic, body, properties=properties, **fields)


def arrived(broker: BlockingClient, topic: str, count: int, **fields: Any) -> list[Message]:
    """Wait until a queue has `count` messages and return them."""

    def look() -> list[Message]:
        reply = pull(broker, topic, **fields)
        found = messages(reply) if reply.code == 0 else []
        return found if len(found) >= count else []

    return eventually(look, ARRIVAL_S)


def waiting(broker: BlockingClient, sent: SendMessageReply) -> Message:
    """Return a message as it is stored while it waits."""
    return arrived(broker, WHEEL, 1, offset=sent.queue_offset, max_msg_nums=1)[0]


@pytest.fixture
def recalling(broker: BlockingClient, admin_rights: None) -> Iterator[None]:
    """A broker that allows recalls."""
    configure(broker, recallMessageEnable="true")
    yield
    configure(broker, recallMessageEnable="false")


# -- waiting and delivery --------------------------------------------------------------------------------------


@case("timer", "a message waits in the wheel's topic with its slot, real topic and real queue")
def test_waiting(broker: BlockingClient, topic: str) -> None:
    deliver = (now_ms() // 1000 + 60) * 1000 + 345
    sent = send_later(broker, topic, b"a", {"TIMER_DELIVER_MS": deliver, "TAGS": "T"}, queue_id=2)
    assert sent.queue_id == 2
    stored = waiting(broker, sent)
    assert (stored.topic, stored.queue_id, stored.body) == (WHEEL, 0, b"a")
    assert stored.properties["TIMER_OUT_MS"] == str(deliver - 345)
    assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == (topic, "2")
    assert stored.properties["TIMER_DELIVER_MS"] == str(deliver)
    assert stored.tags == "T"
    exact = send_later(broker, topic, b"b", {"TIMER_DELIVER_MS": deliver - 345})
    assert waiting(broker, exact).properties["TIMER_OUT_MS"] == str(deliver - 1345)


@case("timer", "TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS: delivered, never early")
def test_delivered(broker: BlockingClient, topic: str) -> None:
    begin = now_ms()
    asked = [
        {"TIMER_DELAY_SEC": 2},
        {"TIMER_DELAY_MS": 1500},
        {"TIMER_DELIVER_MS": begin + 2500},
        {"TIMER_DELAY_MS": 1},
    ]
    for number, properties in enumerate(asked):
        send_later(broker, topic, b"%d" % number, properties)
    came = {message.body: message for message in arrived(broker, topic, len(asked))}
    for number, delay in enumerate((2000, 1500, 2500, 1)):
        assert came[b"%d" % number].store_timestamp >= begin + delay
    assert len(came) == len(asked)


@case("timer", "a message is delivered as sent, plus the times at which it entered and left the wheel")
def test_delivered_message(broker: BlockingClient, topic: str) -> None:
    more = {"TAGS": "T", "KEYS": "k1 k2", "colour": "blue"}
    send_later(broker, topic, b"a", {"TIMER_DELAY_SEC": 2, **more}, queue_id=3, flag=7, born_timestamp=5)
    (got,) = arrived(broker, topic, 1, queue_id=3, tags="T")
    assert (got.topic, got.queue_id, got.flag, got.born_timestamp) == (topic, 3, 7, 5)
    assert (got.properties["REAL_TOPIC"], got.properties["REAL_QID"]) == (topic, "3")
    assert more.items() <= got.properties.items()
    assert got.properties["TIMER_DELAY_SEC"] == "2"
    assert int(got.properties["TIMER_OUT_MS"]) % 1000 == 0
    assert int(got.properties["TIMER_ENQUEUE_MS"]) % 1000 == 0
    assert abs(int(got.properties["TIMER_DEQUEUE_MS"]) - got.store_timestamp) < 10_000


@case("timer", "a time in the past: delivered at once, as a message without a slot")
@pytest.mark.parametrize("asked", [{"TIMER_DELAY_SEC": 0}, {"TIMER_DELAY_MS": -5}, {"TIMER_DELIVER_MS": 1}])
def test_past(broker: BlockingClient, topic: str, asked: dict[str, int]) -> None:
    sent = send_later(broker, topic, b"a", asked)
    assert sent.recall_handle is None
    got = read_first_message(broker, topic)
    assert "TIMER_OUT_MS" not in got.properties
    assert asked.keys() <= got.properties.keys()


@case("timer", "refused: further ahead than timerMaxDelaySec, or not a number")
@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": 259_300},
        {"TIMER_DELAY_MS": 259_300_000},
        {"TIMER_DELIVER_MS": "99999999999999"},
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELIVER_MS": "1.5"},
        {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "x"},
    ],
)
def test_refused(broker: BlockingClient, topic: str, asked: dict[str, Any]) -> None:
    properties = {"UNIQ_KEY": "x", **{name: str(value) for name, value in asked.items()}}
    error = expect_refusal(broker, send_request(topic, properties=properties))
    assert error.code == 13
    assert LIMIT in (error.remark or "")


@case("timer", "TIMER_DELAY_SEC takes precedence over TIMER_DELAY_MS, and both over TIMER_DELIVER_MS")
def test_precedence(broker: BlockingClient, topic: str) -> None:
    begin = now_ms()
    far = begin + 3_000_000
    first = send_later(
        broker, topic, b"a", {"TIMER_DELAY_SEC": 100, "TIMER_DELAY_MS": 9_000_000, "TIMER_DELIVER_MS": far}
    )
    second = send_later(broker, topic, b"b", {"TIMER_DELAY_MS": 100_000, "TIMER_DELIVER_MS": far})
    for sent in (first, second):
        slot = int(waiting(broker, sent).properties["TIMER_OUT_MS"])
        assert begin + 98_000 < slot < begin + 200_000


@case("timer", "a delay level takes precedence over timer properties, which are dropped")
def test_delay_level(broker: BlockingClient, topic: str) -> None:
    send_later(
        broker, topic, b"a", {"DELAY": 1, "TIMER_DELAY_SEC": 3600, "TIMER_DELIVER_MS": now_ms() + 9_000_000}
    )
    (got,) = arrived(broker, topic, 1)
    assert {"TIMER_OUT_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"}.isdisjoint(got.properties)


@case("timer", "messages for different seconds are delivered in the order of their times")
def test_order(broker: BlockingClient, topic: str) -> None:
    begin = now_ms()
    for number in (3, 1, 2, 0):
        send_later(broker, topic, b"%d" % number, {"TIMER_DELIVER_MS": begin + 4000 + 2000 * number})
    assert [message.body for message in arrived(broker, topic, 4)] == [b"0", b"1", b"2", b"3"]


@case("timer", "a waiting pull is answered by the delivery")
def test_long_poll(broker: BlockingClient, other: BlockingClient, topic: str) -> None:
    send_later(broker, topic, b"a", {"TIMER_DELAY_SEC": 2})
    assert bodies(pull(other, topic, suspend_ms=30_000, timeout_s=40)) == [b"a"]


@case("timer", "each of many messages for the same moment is delivered once")
def test_many(broker: BlockingClient, topic: str) -> None:
    asked = {"TIMER_DELIVER_MS": now_ms() + AHEAD_MS}
    for number in range(300):
        send_later(broker, topic, b"%d" % number, asked)
    end_of = GetMaxOffset(topic=topic, queue_id=0)
    eventually(lambda: broker.ask(end_of).offset >= 300, ARRIVAL_S)
    assert sorted(map(int, read_all(broker, topic))) == list(range(300))


@case("timer", "timer properties in a batch are ignored")
def test_batch(broker: BlockingClient, topic: str) -> None:
    batch = [(b"%d" % number, {"UNIQ_KEY": f"k{number}", "TIMER_DELAY_SEC": "3600"}) for number in range(3)]
    reply = broker.ask(batch_request(topic, batch))
    assert reply.recall_handle is None
    assert [message.body for message in arrived(broker, topic, 3)] == [b"0", b"1", b"2"]


@case("timer", "a transactional timer message waits for its time after the commit")
@differs(reason="officially the half message itself goes to the wheel, and its real topic is lost")
def test_transaction(broker: BlockingClient, topic: str) -> None:
    sent = half(broker, topic, f"{topic}k", properties={"TIMER_DELAY_SEC": "2"})
    begin = now_ms()
    broker.ask(end(sent, COMMIT))
    (got,) = arrived(broker, topic, 1)
    assert got.store_timestamp >= begin + 2000


# -- metrics -----------------------------------------------------------------------------------------------------


def metric(broker: BlockingClient, topic: str) -> int | None:
    counts = json.loads(broker.ask(GetTimerMetrics()).body)["timingCount"]
    return counts[topic]["count"] if topic in counts else None


@case("timer", "GET_TIMER_METRICS: number of waiting messages per topic")
def test_metrics(broker: BlockingClient, topic: str) -> None:
    for number in range(3):
        send_later(broker, topic, b"%d" % number, {"TIMER_DELIVER_MS": now_ms() + AHEAD_MS})
    eventually(lambda: metric(broker, topic) == 3)
    arrived(broker, topic, 3)
    eventually(lambda: metric(broker, topic) == 0)


@case("timer", "GET_TIMER_CHECK_POINT: read position in the wheel's topic")
def test_check_point(broker: BlockingClient, topic: str) -> None:
    sent = send_later(broker, topic, b"a", {"TIMER_DELAY_SEC": 3600})

    def is_read() -> bool:
        fields = CHECKPOINT.unpack(broker.ask(GetTimerCheckPoint()).body)
        return bool(fields[2] > sent.queue_offset and fields[3] == fields[2])

    # The official server reads once a second, and flushes its whole wheel to disk in between.
    eventually(is_read, 60)


@case("timer", "brokerStatus: number of waiting messages, and the wheel's lag")
def test_status(broker: BlockingClient, topic: str) -> None:
    for number in range(3):
        send_later(broker, topic, b"%d" % number, {"TIMER_DELAY_SEC": 3600})

    def is_read() -> bool:
        table = broker.ask(GetBrokerRuntimeInfo()).data.table
        float(table["timerEnqueueTps"]), float(table["timerDequeueTps"])
        behind = (int(table["timerOffsetBehind"]), int(table["timerReadBehind"]) < 10)
        return int(table["timerCongestNum"]) >= 3 and behind == (0, True)

    eventually(is_read)


# -- recall ------------------------------------------------------------------------------------------------------


def recall(topic: str, handle: str) -> RecallMessage:
    return RecallMessage(topic=topic, recall_handle=handle, producer_group="compat_producer")


@case("timer", "the answer to a send contains the recall handle")
def test_handle(broker: BlockingClient, topic: str) -> None:
    sent = send_later(broker, topic, b"a", {"TIMER_DELAY_SEC": 3600})
    handle = RecallHandle.decode(sent.recall_handle or "")
    slot = int(waiting(broker, sent).properties["TIMER_OUT_MS"])
    assert (handle.topic, handle.timestamp, handle.unique_key) == (topic, str(slot + 1), f"{topic}a")
    assert send(broker, topic).recall_handle is None
    assert send(broker, topic, properties={"DELAY": "1"}).recall_handle is None


@case("timer", "RECALL_MESSAGE: recalled messages are not delivered, the others are")
@pytest.mark.usefixtures("recalling")
def test_recall(broker: BlockingClient, topic: str) -> None:
    deliver = now_ms() + AHEAD_MS
    sent = [send_later(broker, topic, b"%d" % number, {"TIMER_DELIVER_MS": deliver}) for number in range(4)]
    send_later(broker, topic, b"last", {"TIMER_DELIVER_MS": deliver + 4000})
    for number in (1, 2):
        reply = broker.ask(recall(topic, sent[number].recall_handle or ""))
        assert (reply.msg_id, reply.msg_region) == (f"{topic}{number}", "DefaultRegion")
    came = [message.body for message in arrived(broker, topic, 3)]
    assert (sorted(came[:2]), came[2:]) == ([b"0", b"3"], [b"last"])


@case("timer", "a recall of a message that never existed is accepted and changes nothing")
@pytest.mark.usefixtures("recalling")
def test_recall_nothing(broker: BlockingClient, topic: str) -> None:
    sent = send_later(broker, topic, b"a", {"TIMER_DELIVER_MS": now_ms() + AHEAD_MS})
    handle = RecallHandle.decode(sent.recall_handle or "")._replace(unique_key="other")
    assert broker.ask(recall(topic, handle.encode())).msg_id == "other"
    arrived(broker, topic, 1)


@case("timer", "recall refused: disabled by default")
def test_recall_disabled(broker: BlockingClient, topic: str) -> None:
    error = expect_refusal(broker, recall(topic, "x"))
    assert (error.code, error.remark) == (16, "recall failed, operation is forbidden")


@case("timer", "recall refused: unknown topic, invalid handle, handle of another topic or broker")
@pytest.mark.usefixtures("recalling")
def test_recall_refused(server: ServerUnderTest, broker: BlockingClient, topic: str) -> None:
    sent = send_later(broker, topic, b"a", {"TIMER_DELAY_SEC": 3600})
    handle = RecallHandle.decode(sent.recall_handle or "")
    elsewhere = server.topic_name()
    create_topic(server, elsewhere, 1)
    unavailable, invalid = "recall failed, broker service not available", "recall handle is invalid"
    for request, code, remark in [
        (recall("no_such_topic", "x"), 17, "recall failed, the topic[no_such_topic] not exist"),
        (recall(topic, ""), 604, invalid),
        (recall(topic, "no base64 at all"), 604, invalid),
        (recall(topic, "djIgYSBiIGMgZA=="), 604, invalid),
        (recall(elsewhere, sent.recall_handle or ""), 604, "recall failed, topic not match"),
        (recall(topic, handle._replace(broker_name="other").encode()), 604, unavailable),
    ]:
        error = expect_refusal(broker, request)
        assert (error.code, error.remark) == (code, remark)


@case("timer", "answers to recalls have the region, without which clients leave no trace of them")
@pytest.mark.usefixtures("recalling")
def test_region_of_a_recall(broker: BlockingClient, topic: str) -> None:
    request = recall(topic, "no base64 at all")
    answer = send_plain(broker, request.code, **request.to_ext())
    assert (answer.code, answer.ext) == (604, {"MSG_REGION": "DefaultRegion"})


@case("timer", "recall refused: time in the past, too far ahead, or not a number")
@pytest.mark.usefixtures("recalling")
@pytest.mark.parametrize("timestamp", ["1000", "x", "-1", "99999999999999"])
def test_recall_time(broker: BlockingClient, topic: str, timestamp: str) -> None:
    sent = send_later(broker, topic, b"a", {"TIMER_DELAY_SEC": 3600})
    handle = RecallHandle.decode(sent.recall_handle or "")._replace(timestamp=timestamp)
    error = expect_refusal(broker, recall(topic, handle.encode()))
    assert (error.code, error.remark) == (604, "recall failed, timestamp invalid")


# -- stock clients -----------------------------------------------------------------------------------------------


@case("timer", "Java client: setDelayTimeSec, setDelayTimeMs, setDeliverTimeMs")
def test_java(java5: JavaClient, topic: str, group: str) -> None:
    begin = now_ms()
    asked = [{"delay_s": 3}, {"delay_ms": 2500}, {"deliver_ms": begin + 4000}]
    with java5.push(group, topic) as consumer, java5.producer(f"p_{group}") as producer:
        results = producer.send(
            *[{"topic": topic, "body": str(number), **each} for number, each in enumerate(asked)]
        )
        assert all(result["status"] == "SEND_OK" for result in results)
        got = {each["body"]: each for each in consumer.received(3, ARRIVAL_S)}
    assert set(got) == {"0", "1", "2"}
    for number, delay in enumerate((3000, 2500, 4000)):
        assert got[str(number)]["stored"] >= begin + delay


@case("timer", "Java client: producer.recallMessage")
@pytest.mark.usefixtures("recalling")
def test_java_recall(java5: JavaClient, topic: str, group: str) -> None:
    deliver = now_ms() + AHEAD_MS
    with java5.push(group, topic) as consumer, java5.producer(f"p_{group}") as producer:
        first, second = producer.send(
            *[{"topic": topic, "body": body, "deliver_ms": deliver} for body in ("gone", "here")]
        )
        assert producer.recall(topic, first["recall_handle"]) == first["msg_id"]
        producer.send({"topic": topic, "body": "last", "deliver_ms": deliver + 4000})
        got = [each["body"] for each in consumer.received(2, ARRIVAL_S)]
    assert sorted(got) == ["here", "last"]
    assert second["recall_handle"]


@case("timer", "a timer message that fails is delivered again")
def test_java_retry(java5: JavaClient, topic: str, group: str) -> None:
    with java5.push(group, topic, failures=1, delay_level=1) as consumer:
        with java5.producer(f"p_{group}") as producer:
            producer.send({"topic": topic, "body": "again", "delay_s": 1})
        got = consumer.received(2, ARRIVAL_S)
    assert [each["body"] for each in got] == ["again", "again"]
    assert [each["reconsume"] for each in got] == [0, 1]


@case("timer", "a delivered timer message keeps its unique key")
def test_read(broker: BlockingClient, topic: str) -> None:
    send_later(broker, topic, b"a", {"TIMER_DELAY_MS": 700})
    assert read_first_message(broker, topic).unique_key == f"{topic}a"
