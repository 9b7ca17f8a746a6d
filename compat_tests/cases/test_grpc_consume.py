"""Consuming over gRPC: simple and push consumers, what they get again, and what goes to the dead letters."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

from compat_tests.cases.grpc_fixtures import MakeTopic, start_grpc_driver
from compat_tests.clients.grpc_api import GrpcSimpleConsumer, StockGrpcClient
from compat_tests.clients.programs import ProgramResult, run_node_grpc
from compat_tests.clients.typed import create_group, iter_queue, send
from compat_tests.jars import Unavailable
from compat_tests.marks import case
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient

SHORTEST_INVISIBLE_S = 10.0
"""Servers refuse shorter invisible times in a receive."""
COUNT = 60
NODE_COUNT = 1000


def bodies(messages: list[dict[str, Any]]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


def numbered(topic: str, count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"topic": topic, "body": str(number), **fields} for number in range(count)]


def coloured(topic: str, *tags: str) -> list[dict[str, Any]]:
    """Return a small and a large message of each tag."""
    return [
        {"body": f"{tag} {size}", "tag": tag, "properties": {"size": size}, "topic": topic}
        for tag in tags
        for size in (1, 9)
    ]


def receive_all(consumer: GrpcSimpleConsumer, count: int, **options: float) -> list[dict[str, Any]]:
    """Call receive until `count` messages have come; each call asks some of the queues only."""
    found: list[dict[str, Any]] = []

    def receive() -> bool:
        found.extend(consumer.receive(**options))
        return len(found) >= count

    eventually(receive, 40)
    return found


def get_one_of_two_again(
    client: StockGrpcClient, topic: str, group: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ack the first of two messages; return the other one, and its redelivery."""
    with client.producer(topic) as producer, client.simple(group, topic) as consumer:
        producer.send(*numbered(topic, 2))
        first, second = receive_all(consumer, 2, invisible_s=SHORTEST_INVISIBLE_S)
        consumer.ack(first)
        (again,) = receive_all(consumer, 1)
        consumer.ack(again)
    assert (again["id"], again["attempt"]) == (second["id"], 2)
    return second, again


def check_change_of_invisible_time(client: StockGrpcClient, topic: str, group: str) -> None:
    with client.producer(topic) as producer, client.simple(group, topic) as consumer:
        producer.send(*numbered(topic, 1))
        (message,) = receive_all(consumer, 1, invisible_s=300)
        consumer.change_invisible(message, 1)
        (again,) = receive_all(consumer, 1)
        consumer.ack(again)
    assert (again["id"], again["attempt"]) == (message["id"], 2)


# -- simple consumers -------------------------------------------------------------------------------------------


@case(
    "grpc",
    "Java 5.1: a simple consumer gets a message that a remoting client sent, with all that belongs to it",
)
def test_message_of_a_remoting_client(
    grpc_java: StockGrpcClient, broker: BlockingClient, topic: str, group: str
) -> None:
    key = "7F00000100010000000000000000ABCD"
    properties = {"UNIQ_KEY": key, "TAGS": "red", "KEYS": "k1 k2", "colour": "blue"}
    sent_ms = time.time() * 1000
    send(broker, topic, b"hello", properties=properties)
    with grpc_java.simple(group, topic) as consumer:
        (message,) = receive_all(consumer, 1)
        consumer.ack(message)
    assert (message["body"], message["tag"], message["keys"]) == ("hello", "red", ["k1", "k2"])
    assert (message["id"], message["attempt"], message["group"]) == (key, 1, None)
    assert message["properties"]["colour"] == "blue"
    assert message["born_host"].startswith("127.0.0.1")
    assert abs(message["born_ms"] - sent_ms) < 10_000


@case("grpc", "Java 5.1: an acked message does not come again, the other one does after its invisible time")
def test_redelivery(grpc_java: StockGrpcClient, topic: str, group: str) -> None:
    second, again = get_one_of_two_again(grpc_java, topic, group)
    waited_ms = again["received_ms"] - second["received_ms"]
    assert (SHORTEST_INVISIBLE_S - 1) * 1000 < waited_ms < 30_000


@case("grpc", "Java 5.1: a changed invisible time brings a message back early")
def test_change_invisible_time(grpc_java: StockGrpcClient, topic: str, group: str) -> None:
    check_change_of_invisible_time(grpc_java, topic, group)


@case("grpc", "Java 5.1: one receive brings as many messages as it asks for, at most")
def test_batch_size(grpc_java: StockGrpcClient, broker: BlockingClient, topic: str, group: str) -> None:
    for number in range(20):
        send(broker, topic, str(number).encode())
    with grpc_java.simple(group, topic) as consumer:
        messages = eventually(lambda: consumer.receive(count=8), 20)
    assert len(messages) == 8


@case("grpc", "Java 5.1: a simple consumer of some tags, and one of an SQL92 expression")
def test_filters(
    grpc_java: StockGrpcClient, server: ServerUnderTest, broker: BlockingClient, topic: str, group: str
) -> None:
    other_group = create_group(broker, server.unique_name("group"))
    messages = coloured(topic, "red", "green", "blue")
    with (
        grpc_java.producer(topic) as producer,
        grpc_java.simple(group, topic, tags="red || blue") as of_tags,
        grpc_java.simple(other_group, topic, sql="size > 5 AND TAGS <> 'blue'") as of_expression,
    ):
        producer.send(*messages)
        assert bodies(receive_all(of_tags, 4)) == Counter(["red 1", "red 9", "blue 1", "blue 9"])
        assert bodies(receive_all(of_expression, 2)) == Counter(["red 9", "green 9"])


@case("grpc", "Java 5.1: a delayed message comes to a simple consumer at its time")
def test_delayed(grpc_java: StockGrpcClient, typed_topic: MakeTopic, group: str) -> None:
    topic = typed_topic("DELAY")
    with grpc_java.producer(topic) as producer, grpc_java.simple(group, topic) as consumer:
        begin_ms = time.time() * 1000
        producer.send({"topic": topic, "body": "later", "delay_ms": 3000})
        (message,) = receive_all(consumer, 1)
        consumer.ack(message)
    assert message["received_ms"] - begin_ms > 2900
    assert abs(message["deliver_at_ms"] - begin_ms - 3000) < 1500


# -- push consumers ---------------------------------------------------------------------------------------------


@case("grpc", "Java 5.1: push consumers of one group share the messages, each goes to one of them once")
def test_shared_group(grpc_java: StockGrpcClient, topic: str, group: str) -> None:
    with (
        grpc_java.producer(topic) as producer,
        grpc_java.push(group, topic) as one,
        grpc_java.push(group, topic) as two,
    ):
        producer.send(*numbered(topic, COUNT))
        eventually(lambda: len(one.received(0, 0)) + len(two.received(0, 0)) >= COUNT, 60)
        messages = one.received(0, 0) + two.received(0, 0)
    assert bodies(messages) == Counter(str(number) for number in range(COUNT))


@case("grpc", "Java 5.1: a push consumer of some tags, and one of an SQL92 expression")
def test_push_filters(
    grpc_java: StockGrpcClient, server: ServerUnderTest, broker: BlockingClient, topic: str, group: str
) -> None:
    other_group = create_group(broker, server.unique_name("group"))
    messages = coloured(topic, "red", "green")
    with (
        grpc_java.producer(topic) as producer,
        grpc_java.push(group, topic, tags="red") as of_tags,
        grpc_java.push(other_group, topic, sql="size > 5") as of_expression,
    ):
        producer.send(*messages)
        assert bodies(of_tags.received(2)) == Counter(["red 1", "red 9"])
        assert bodies(of_expression.received(2)) == Counter(["red 9", "green 9"])


@case("grpc", "Java 5.1: a push consumer gets a message that failed again, with its attempt")
def test_push_retry(grpc_java: StockGrpcClient, topic: str, group: str) -> None:
    with grpc_java.producer(topic) as producer, grpc_java.push(group, topic, failures=1) as consumer:
        producer.send(*numbered(topic, 3))
        messages = consumer.received(6, 60)
    assert bodies(messages) == Counter({"0": 2, "1": 2, "2": 2})
    assert Counter(message["attempt"] for message in messages) == Counter({1: 3, 2: 3})
    assert len({message["id"] for message in messages}) == 3


@case("grpc", "Java 5.1: a message that fails as often as its group allows goes to the dead letters")
def test_dead_letters(
    grpc_java: StockGrpcClient, server: ServerUnderTest, broker: BlockingClient, topic: str
) -> None:
    group = create_group(broker, server.unique_name("group"), retry_max_times=1)
    with grpc_java.producer(topic) as producer, grpc_java.push(group, topic, failures=-1) as consumer:
        (receipt,) = producer.send({"topic": topic, "body": "bad"})
        attempts = [message["attempt"] for message in consumer.received(2, 60)]
        (dead,) = eventually(lambda: list(iter_queue(broker, f"%DLQ%{group}", 0)), 60)
        assert len(consumer.received(0, 0)) == 2
    assert attempts == [1, 2]
    assert (dead.body, dead.properties["UNIQ_KEY"]) == (b"bad", receipt["id"])


@case("grpc", "Java 5.1: a push consumer gets each message group in order, also after failures")
def test_message_groups(grpc_java: StockGrpcClient, typed_topic: MakeTopic, fifo_group: str) -> None:
    topic = typed_topic("FIFO")
    groups = ("g1", "g2", "g3")
    messages = [
        {"topic": topic, "body": f"{group} {number}", "group": group}
        for number in range(4)
        for group in groups
    ]
    with grpc_java.producer(topic) as producer, grpc_java.push(fifo_group, topic, failures=1) as consumer:
        producer.send(*messages)
        deliveries = consumer.received(2 * len(messages), 60)
    for group in groups:
        mine = [(each["body"], each["attempt"]) for each in deliveries if each["group"] == group]
        assert mine == [(f"{group} {number}", attempt) for number in range(4) for attempt in (1, 2)]


# -- other clients ----------------------------------------------------------------------------------------------


@case("grpc", "Java 5.0: sends, and a push and a simple consumer")
def test_java_50(
    grpc_address: str, server: ServerUnderTest, broker: BlockingClient, topic: str, group: str
) -> None:
    other_group = create_group(broker, server.unique_name("group"))
    with closing(start_grpc_driver(grpc_address, "5.0.8")) as driver:
        client = StockGrpcClient(driver, grpc_address)
        with (
            client.producer(topic) as producer,
            client.push(group, topic) as pushed,
            client.simple(other_group, topic) as simple,
        ):
            producer.send(*numbered(topic, 5))
            expected = Counter(str(number) for number in range(5))
            assert bodies(receive_all(simple, 5)) == expected
            assert bodies(pushed.received(5)) == expected


@case("grpc", "Node rocketmq-client-nodejs 1.0.8: 1,000 messages exactly once")
def test_node(grpc_address: str, topic: str) -> None:
    try:
        result = run_node_grpc(grpc_address, topic, NODE_COUNT, 150)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    assert result == ProgramResult(sent=NODE_COUNT, distinct=NODE_COUNT, deliveries=NODE_COUNT)


# -- transactions that nobody ended -----------------------------------------------------------------------------


@case("grpc", "Java 5.1: the server asks about open transactions, and the answers count")
def test_check_back(grpc_java: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("TRANSACTION")
    with grpc_java.producer(topic, transactions=True) as producer:
        for answer in ("ROLLBACK", "COMMIT"):
            producer.send_half({"topic": topic, "body": answer, "properties": {"check": answer}})
        checked = producer.checks(2, 80)
        (found,) = eventually(stored(broker, topic), 20)
    assert bodies(checked) == Counter(["ROLLBACK", "COMMIT"])
    assert found.body == b"COMMIT"


def stored(broker: BlockingClient, topic: str) -> Callable[[], list[Any]]:
    """Return a probe for the messages of a topic."""
    return lambda: [message for queue in range(4) for message in iter_queue(broker, topic, queue)]
