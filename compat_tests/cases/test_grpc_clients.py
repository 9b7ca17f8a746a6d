"""The stock Python and Go clients that speak gRPC: each sends, receives, and gets what failed again."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from compat_tests.cases.grpc_fixtures import MakeTopic
from compat_tests.cases.test_grpc_consume import (
    bodies,
    check_change_of_invisible_time,
    get_one_of_two_again,
    numbered,
    receive_all,
)
from compat_tests.cases.test_grpc_send import check_ends_of_transactions, stored, wait_stored
from compat_tests.clients.command_driver import CommandDriver, StockClientError
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.grpc_drivers import start_go_driver, start_python_driver
from compat_tests.clients.typed import create_group
from compat_tests.jars import Unavailable
from compat_tests.marks import case
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient

START: dict[str, Callable[[], CommandDriver]] = {
    "Python 5.1.2": lambda: start_python_driver("5.1.2"),
    "Python 5.0.9": lambda: start_python_driver("5.0.9"),
    "Go 5.1.4": lambda: start_go_driver("5.1.4"),
    "Go 5.1.3": lambda: start_go_driver("5.1.3"),
}
NEWEST = ("Python 5.1.2", "Go 5.1.4")


def client_cases(feature: str, *clients: str) -> pytest.MarkDecorator:
    """Make a case of each client, with a row of its own in the table."""
    rows = [pytest.param(name, marks=case("grpc", f"{name}: {feature}"), id=name) for name in clients]
    return pytest.mark.parametrize("client", rows, indirect=True)


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, CommandDriver]]:
    """The clients that cases have started, each in one process for all cases."""
    started: dict[str, CommandDriver] = {}
    yield started
    for driver in started.values():
        driver.close()


@pytest.fixture
def client(
    request: pytest.FixtureRequest, drivers: dict[str, CommandDriver], grpc_address: str
) -> StockGrpcClient:
    name = request.param
    if name not in drivers:
        try:
            drivers[name] = START[name]()
        except Unavailable as missing:
            skip_or_fail(str(missing))
    return StockGrpcClient(drivers[name], grpc_address)


# -- producers --------------------------------------------------------------------------------------------------


@client_cases("a message with tag, keys and properties, read by a remoting client", *NEWEST)
def test_send(client: StockGrpcClient, broker: BlockingClient, topic: str) -> None:
    with client.producer(topic) as producer:
        message = {"body": "hello", "tag": "red", "keys": ["k1", "k2"], "properties": {"colour": "blue"}}
        (receipt,) = producer.send({"topic": topic, **message})
    (found,) = wait_stored(broker, topic, 1)
    properties = found.properties
    assert (found.body, properties["TAGS"], properties["colour"]) == (b"hello", "red", "blue")
    assert (sorted(properties["KEYS"].split()), properties["UNIQ_KEY"]) == (["k1", "k2"], receipt["id"])


@client_cases("a body of 4 MiB arrives whole", *NEWEST)
def test_large_body(client: StockGrpcClient, broker: BlockingClient, topic: str) -> None:
    size = 4 * 1024 * 1024
    with client.producer(topic) as producer:
        producer.send({"topic": topic, "size": size})
    assert [len(message.body) for message in wait_stored(broker, topic, 1)] == [size]


@client_cases("a producer refuses to send to an unknown topic", "Python 5.1.2")
def test_unknown_topic(client: StockGrpcClient, server: ServerUnderTest, topic: str) -> None:
    with client.producer(topic) as producer, pytest.raises(StockClientError, match="route"):
        producer.send({"topic": server.topic_name("unknown"), "body": "x"})


@client_cases("the messages of a message group go to one queue in their order", *NEWEST)
def test_message_groups(client: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("FIFO")
    groups = [f"group{number}" for number in range(6)]
    with client.producer(topic) as producer:
        producer.send(
            *[{"topic": topic, "body": f"{number}", "group": each} for number in range(3) for each in groups]
        )
    found = wait_stored(broker, topic, 18)
    queues = set()
    for group in groups:
        mine = [message for message in found if message.properties["__SHARDINGKEY"] == group]
        assert [message.body for message in mine] == [b"0", b"1", b"2"]
        (queue,) = {message.queue_id for message in mine}
        queues.add(queue)
    assert len(queues) > 1


@client_cases("a delayed message is stored at its time, neither before nor much later", *NEWEST)
def test_delayed(client: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("DELAY")
    with client.producer(topic) as producer:
        begin_ms = time.time() * 1000
        producer.send({"topic": topic, "body": "later", "delay_ms": 4000})
    (found,) = eventually(lambda: stored(broker, topic), 15)
    assert found.body == b"later"
    assert 2900 <= found.store_timestamp - begin_ms < 10_000  # Python's client counts whole seconds.


@client_cases("a committed transaction is stored, one that is rolled back is not", *NEWEST)
def test_transactions(client: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    check_ends_of_transactions(client, broker, typed_topic("TRANSACTION"))


@client_cases("the server asks about open transactions, and the answers count", *NEWEST)
def test_check_back(client: StockGrpcClient, broker: BlockingClient, typed_topic: MakeTopic) -> None:
    topic = typed_topic("TRANSACTION")
    with client.producer(topic, transactions=True) as producer:
        for answer in ("ROLLBACK", "COMMIT"):
            producer.send_half({"topic": topic, "body": answer, "properties": {"check": answer}})
        checked = producer.checks(2, 80)
        (found,) = eventually(lambda: stored(broker, topic), 20)
    assert bodies(checked) == Counter(["ROLLBACK", "COMMIT"])
    assert found.body == b"COMMIT"


# -- consumers --------------------------------------------------------------------------------------------------


@client_cases("a simple consumer does not get an acked message again, but the other one", *NEWEST)
def test_redelivery(client: StockGrpcClient, topic: str, group: str) -> None:
    get_one_of_two_again(client, topic, group)


@client_cases("a changed invisible time brings a message back early", *NEWEST)
def test_change_invisible_time(client: StockGrpcClient, topic: str, group: str) -> None:
    check_change_of_invisible_time(client, topic, group)


@client_cases("a simple consumer of some tags, and one of an SQL92 expression", *NEWEST)
def test_filters(
    client: StockGrpcClient, server: ServerUnderTest, broker: BlockingClient, topic: str, group: str
) -> None:
    other_group = create_group(broker, server.unique_name("group"))
    messages = [{"topic": topic, "body": tag, "tag": tag, "properties": {"size": "9"}} for tag in "abc"]
    with (
        client.producer(topic) as producer,
        client.simple(group, topic, tags="a || b") as of_tags,
        client.simple(other_group, topic, sql="size > 5 AND TAGS <> 'b'") as of_expression,
    ):
        producer.send(*messages)
        assert bodies(receive_all(of_tags, 2)) == Counter("ab")
        assert bodies(receive_all(of_expression, 2)) == Counter("ac")


@client_cases("a push consumer gets each message once, and one that failed again", *NEWEST)
def test_push(client: StockGrpcClient, topic: str, group: str) -> None:
    with client.producer(topic) as producer, client.push(group, topic, failures=1) as consumer:
        producer.send(*numbered(topic, 3))
        messages = consumer.received(6, 60)
    assert bodies(messages) == Counter({"0": 2, "1": 2, "2": 2})
    assert Counter(message["attempt"] for message in messages) == Counter({1: 3, 2: 3})


@client_cases("a push consumer gets each message group in order", *NEWEST)
def test_push_message_groups(client: StockGrpcClient, typed_topic: MakeTopic, fifo_group: str) -> None:
    topic = typed_topic("FIFO")
    messages = [
        {"topic": topic, "body": f"{number}", "group": group} for number in range(3) for group in ("g1", "g2")
    ]
    with client.producer(topic) as producer, client.push(fifo_group, topic) as consumer:
        producer.send(*messages)
        deliveries = consumer.received(len(messages), 60)
    for group in ("g1", "g2"):
        assert [each["body"] for each in deliveries if each["group"] == group] == ["0", "1", "2"]


@client_cases("sends, and a simple consumer", "Python 5.0.9", "Go 5.1.3")
def test_older_simple_consumer(client: StockGrpcClient, topic: str, group: str) -> None:
    with client.producer(topic) as producer, client.simple(group, topic) as consumer:
        producer.send(*numbered(topic, 5))
        assert bodies(receive_all(consumer, 5)) == Counter(str(number) for number in range(5))


@client_cases("a push consumer gets each message once", "Go 5.1.3")
def test_older_push_consumer(client: StockGrpcClient, topic: str, group: str) -> None:
    """Python's client 5.0.9 gets nothing here, from neither server."""
    with client.producer(topic) as producer, client.push(group, topic) as consumer:
        producer.send(*numbered(topic, 5))
        assert bodies(consumer.received(5)) == Counter(str(number) for number in range(5))
