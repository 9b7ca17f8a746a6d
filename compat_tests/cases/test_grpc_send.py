"""Sending over gRPC: what the stock 5.x client sends is read with remoting, and what it refuses to send."""

import time

import pytest

from codec.message import Message
from compat_tests.cases.grpc_fixtures import MakeTopic
from compat_tests.cases.test_config import changed
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.typed import iter_queue
from compat_tests.marks import case, needs_admin
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient

BODY_LIMIT = 4 * 1024 * 1024
QUEUES = range(4)
MESSAGE_TYPE_MISMATCH = "Current message type not match with topic accept message types"


def stored(broker: BlockingClient, topic: str) -> list[Message]:
    """Return the messages of a topic, queue by queue."""
    return [message for queue in QUEUES for message in iter_queue(broker, topic, queue)]


def wait_stored(broker: BlockingClient, topic: str, count: int) -> list[Message]:
    """Return the messages of a topic once there are as many; the official server fills its queues a little late."""
    return eventually(lambda: found if len(found := stored(broker, topic)) >= count else None, 10)


@case("grpc", "Java 5.1: a message with tag, keys and properties, read by a remoting client")
def test_send(grpc_java: StockGrpcClient, broker: BlockingClient, topic: str) -> None:
    with grpc_java.producer(topic) as producer:
        message = {"body": "hello", "tag": "red", "keys": ["k1", "k2"], "properties": {"colour": "blue"}}
        (receipt,) = producer.send({"topic": topic, **message})
    (found,) = wait_stored(broker, topic, 1)
    assert found.body == b"hello"
    properties = found.properties
    assert (properties["TAGS"], properties["KEYS"], properties["colour"]) == ("red", "k1 k2", "blue")
    assert properties["UNIQ_KEY"] == receipt["id"]


@case("grpc", "Java 5.1: a topic that the client learns of with its first message")
def test_send_without_declared_topic(grpc_java: StockGrpcClient, broker: BlockingClient, topic: str) -> None:
    with grpc_java.producer() as producer:
        producer.send({"topic": topic, "body": "hello"})
    assert [message.body for message in wait_stored(broker, topic, 1)] == [b"hello"]


@case("grpc", "Java 5.1: a producer that closes gets its last answers at once")
def test_close(grpc_java: StockGrpcClient, topic: str) -> None:
    for _ in range(10):  # the last answer may overtake the client's goodbye
        with grpc_java.producer(topic):
            begin_s = time.monotonic()
        assert time.monotonic() - begin_s < 5


@case("grpc", "Java 5.1: a body of 4 MiB arrives whole, the client refuses one byte more and none at all")
def test_body_sizes(grpc_java: StockGrpcClient, broker: BlockingClient, topic: str) -> None:
    with grpc_java.producer(topic) as producer:
        producer.send({"topic": topic, "size": BODY_LIMIT})
        with pytest.raises(JavaClientError, match=f"max size={BODY_LIMIT} bytes"):
            producer.send({"topic": topic, "size": BODY_LIMIT + 1})
        with pytest.raises(JavaClientError, match="body should not be empty"):
            producer.send({"topic": topic, "body": ""})
    assert [len(message.body) for message in wait_stored(broker, topic, 1)] == [BODY_LIMIT]


@case("grpc", "Java 5.1: a send to an unknown topic is refused with TOPIC_NOT_FOUND, and creates none")
def test_unknown_topic(grpc_java: StockGrpcClient, server: ServerUnderTest, topic: str) -> None:
    unknown = server.topic_name("unknown")
    with grpc_java.producer(topic) as producer, pytest.raises(JavaClientError) as refused:
        producer.send({"topic": unknown, "body": "x"})
    assert (refused.value.type, refused.value.code) == ("NotFoundException", 40402)


@case("grpc", "Java 5.1: a producer of an unknown topic does not start")
def test_producer_of_an_unknown_topic(grpc_java: StockGrpcClient, server: ServerUnderTest) -> None:
    with pytest.raises(JavaClientError) as refused, grpc_java.producer(server.topic_name("unknown")):
        pass
    assert refused.value.code == 40402


@case("grpc", "Java 5.1: the messages of a message group go to one queue in their order")
def test_message_groups(grpc_java: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("FIFO")
    groups = [f"group{number}" for number in range(6)]
    with grpc_java.producer(topic) as producer:
        producer.send(
            *[
                {"topic": topic, "body": f"{group} {number}", "group": group}
                for number in range(5)
                for group in groups
            ]
        )
    found = wait_stored(broker, topic, 30)
    queues = {
        group: {m.queue_id for m in found if m.properties["__SHARDINGKEY"] == group} for group in groups
    }
    assert {len(numbers) for numbers in queues.values()} == {1}
    assert len(set.union(*queues.values())) > 1
    for group in groups:
        bodies = [m.body.decode() for m in found if m.properties["__SHARDINGKEY"] == group]
        assert bodies == [f"{group} {number}" for number in range(5)]


@case("grpc", "Java 5.1: a delayed message is stored at its time, neither before nor much later")
def test_delayed(grpc_java: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("DELAY")
    with grpc_java.producer(topic) as producer:
        begin = time.time()
        producer.send({"topic": topic, "body": "later", "delay_ms": 3000})
    (found,) = eventually(lambda: stored(broker, topic), 15)
    assert found.body == b"later"
    assert 2900 <= found.store_timestamp - begin * 1000 < 9000


@case("grpc", "Java 5.1: a recalled message is not delivered")
@needs_admin("changes settings of the broker")
def test_recall(grpc_java: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("DELAY")
    with grpc_java.producer(topic) as producer, changed(broker, recallMessageEnable="true"):
        (receipt,) = producer.send({"topic": topic, "body": "recalled", "delay_ms": 4000})
        producer.send({"topic": topic, "body": "kept", "delay_ms": 5000})
        assert producer.recall(topic, receipt["recall_handle"]) == receipt["id"]
    eventually(lambda: stored(broker, topic), 20)
    assert [message.body for message in stored(broker, topic)] == [b"kept"]


@case("grpc", "Java 5.1: a recall with a handle that is none is refused")
def test_recall_of_nothing(grpc_java: StockGrpcClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("DELAY")
    with grpc_java.producer(topic) as producer, pytest.raises(JavaClientError) as refused:
        producer.recall(topic, "no handle")
    assert refused.value.type == "InternalErrorException"


@case("grpc", "Java 5.1: a committed transaction is stored, one that is rolled back is not")
def test_transactions(grpc_java: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    check_ends_of_transactions(grpc_java, broker, typed_topic("TRANSACTION"))


def check_ends_of_transactions(client: StockGrpcClient, broker: BlockingClient, topic: str) -> None:
    with client.producer(topic, transactions=True) as producer:
        producer.send_half({"topic": topic, "body": "no"}, "rollback")
        receipt = producer.send_half({"topic": topic, "body": "yes"}, "commit")
    (found,) = wait_stored(broker, topic, 1)
    assert (found.body, found.properties["UNIQ_KEY"]) == (b"yes", receipt["id"])


@case("grpc", "Java 5.1: the client refuses a message whose type the topic does not accept")
@pytest.mark.parametrize(
    ("accepted", "fields"),
    [
        ("NORMAL", {"group": "g"}),
        ("NORMAL", {"delay_ms": 5000}),
        ("FIFO", {}),
        ("DELAY", {}),
        ("TRANSACTION", {}),
    ],
)
def test_wrong_type(
    grpc_java: StockGrpcClient, typed_topic: MakeTopic, accepted: str, fields: dict[str, object]
) -> None:
    topic = typed_topic(accepted)
    with (
        grpc_java.producer(topic) as producer,
        pytest.raises(JavaClientError, match=MESSAGE_TYPE_MISMATCH),
    ):
        producer.send({"topic": topic, "body": "x", **fields})
