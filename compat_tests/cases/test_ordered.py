"""Ordered messages with stock clients: one order per key, hand-over of queues, dead letters, order topics."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from compat_tests.clients.java_api import JavaClient, JavaPushConsumer
from compat_tests.clients.typed import create_topic, messages, pull
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.namesrv import DeleteKvConfig, GetRouteInfoByTopic, PutKvConfig, UpdateNamesrvConfig

# The queue locks of a dead consumer last for a minute; the other members retry periodically.
LEASE_S = 240.0
ORDER_TOPICS = "ORDER_TOPIC_CONFIG"

Delivery = dict[str, Any]


def by_key(deliveries: Sequence[Delivery]) -> dict[int, list[int]]:
    """Return the numbers of each key in the order of their first deliveries; bodies are "key number"."""
    found: dict[int, dict[int, None]] = defaultdict(dict)
    for delivery in deliveries:
        key, number = map(int, delivery["body"].split())
        found[key][number] = None
    return {key: list(numbers) for key, numbers in found.items()}


def count(deliveries: Sequence[Delivery]) -> int:
    return sum(map(len, by_key(deliveries).values()))


def send_by_key(java: JavaClient, name: str, topic: str, key: int, numbers: range) -> Future[Any]:
    """Start sending the messages of one key, all to the queue that the selector picks for the key."""
    batch = [{"topic": topic, "body": f"{key} {number}"} for number in numbers]
    return java.driver.start_call("send", name=name, messages=batch, mode="selector", arg=key)


def send_all(java: JavaClient, name: str, topic: str, keys: range, numbers: range) -> None:
    for sending in [send_by_key(java, name, topic, key, numbers) for key in keys]:
        assert {result["status"] for result in sending.result(60)} == {"SEND_OK"}


def held(consumer: JavaPushConsumer, topic: str) -> int:
    return sum(queue["topic"] == topic for queue in consumer.queues())


def share(one: JavaPushConsumer, two: JavaPushConsumer, topic: str) -> None:
    eventually(lambda: (held(one, topic), held(two, topic)) == (2, 2), 90)


@case("ordered", "Java: concurrent producers that choose queues by key: strict order per key")
def test_by_key(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 4)
    names = [server.unique_name("producer") for _ in range(3)]
    with (
        java.producer(names[0]),
        java.producer(names[1]),
        java.producer(names[2]),
        java.push(group, topic, orderly=True) as consumer,
    ):
        sending = [send_by_key(java, names[key % 3], topic, key, range(40)) for key in range(9)]
        queues = [{result["queue"] for result in one.result(60)} for one in sending]
        received = eventually(lambda: count(r := consumer.received(360, 5)) == 360 and r, 120)
    assert queues == [{key % 4} for key in range(9)]
    assert by_key(received) == {key: list(range(40)) for key in range(9)}


@case("ordered", "Java: a consumer that leaves hands over its queues at once, and the order is kept")
def test_leave(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 4)
    producer = server.unique_name("producer")
    with java.producer(producer), java.push(group, topic, name=group + "1", orderly=True) as one:
        with java.push(group, topic, name=group + "2", orderly=True, wait_stop=True) as two:
            share(one, two, topic)
            send_all(java, producer, topic, range(4), range(10))
            two.received(1, 60)
            sending = [send_by_key(java, producer, topic, key, range(10, 40)) for key in range(4)]
        assert all(sent.result(60) for sent in sending)
        left = len({delivery["msg_id"] for delivery in two.delivered})
        received = eventually(lambda: (r := one.received(160 - left, 5)) and whole(two, r), 120)
    assert by_key(received) == {key: list(range(40)) for key in range(4)}


def whole(gone: JavaPushConsumer, rest: Sequence[Delivery]) -> list[Delivery]:
    """Return all deliveries by time, once all 160 messages have come; [] before."""
    every = sorted([*gone.delivered, *rest], key=lambda delivery: (delivery["at"], delivery["offset"]))
    return every if len({delivery["msg_id"] for delivery in every}) == 160 else []


@case("ordered", "Java: the queues of a dead consumer go to another one when their locks expire")
def test_die(java5: JavaClient, doomed: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 4)
    producer = server.unique_name("producer")
    with java5.producer(producer), java5.push(group, topic, orderly=True) as one:
        doomed.driver.call(
            "push.start", name="two", group=group, orderly=True, subscriptions=[{"topic": topic}]
        )
        two = JavaPushConsumer(doomed.driver, "two")
        share(one, two, topic)
        send_all(java5, producer, topic, range(4), range(10))
        first = eventually(lambda: count(r := one.received(0) + two.received(0)) == 40 and r, 90)
        doomed.driver.kill()
        send_all(java5, producer, topic, range(4), range(10, 20))
        second = eventually(lambda: has_all(r := one.received(0)[:], range(10, 20)) and r, LEASE_S)
    assert by_key(first) == {key: list(range(10)) for key in range(4)}
    assert {key: [n for n in numbers if n >= 10] for key, numbers in by_key(second).items()} == {
        key: list(range(10, 20)) for key in range(4)
    }


def has_all(deliveries: Sequence[Delivery], numbers: range) -> bool:
    found = by_key(deliveries)
    return all(set(numbers) <= set(found.get(key, [])) for key in range(4))


@case(
    "ordered",
    "Java: after maxReconsumeTimes a message becomes a dead letter, and the next ones are delivered",
)
def test_dead_letter(java: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    with (
        java.producer(server.unique_name("producer")) as producer,
        java.push(group, topic, orderly=True, failures=-1, settings={"maxReconsumeTimes": 2}) as consumer,
    ):
        producer.send(*[{"topic": topic, "body": f"m{number}"} for number in range(3)])
        received = consumer.received(9, 90)
        dead = eventually(lambda: len(found := read_dead(broker, f"%DLQ%{group}")) >= 3 and found, 60)
    assert [delivery["body"] for delivery in received] == ["m0"] * 3 + ["m1"] * 3 + ["m2"] * 3
    assert [delivery["reconsume"] for delivery in received] == [0, 1, 2] * 3
    assert [message.body for message in dead] == [b"m0", b"m1", b"m2"]
    assert {message.properties["RETRY_TOPIC"] for message in dead} == {topic}


def read_dead(broker: BlockingClient, topic: str) -> list[Any]:
    try:
        return messages(pull(broker, topic))
    except RequestError:  # no dead letter yet
        return []


@pytest.fixture
def order_topics(namesrv: BlockingClient, admin_rights: None) -> Iterator[None]:
    """A namesrv that returns the order configuration of topics, which is off by default."""
    namesrv.ask(UpdateNamesrvConfig(body=b"orderMessageEnable=true"))
    yield
    namesrv.ask(UpdateNamesrvConfig(body=b"orderMessageEnable=false"))


@pytest.mark.usefixtures("order_topics")
@case("ordered", "Java: the order configuration of a topic decides which queues a producer uses")
def test_order_configuration(java: JavaClient, server: ServerUnderTest, namesrv: BlockingClient) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 4)
    name = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas[0].broker_name
    namesrv.ask(PutKvConfig(namespace=ORDER_TOPICS, key=topic, value=f"{name}:2"))
    try:
        with java.producer(server.unique_name("producer")) as producer:
            assert [queue["queue"] for queue in producer.queues(topic)] == [0, 1]
            sent = producer.send_numbered(topic, 8)
            assert {result["queue"] for result in sent} == {0, 1}
            with java.push(server.unique_name("group"), topic, orderly=True) as consumer:
                received = consumer.received(8, 60)
    finally:
        namesrv.ask(DeleteKvConfig(namespace=ORDER_TOPICS, key=topic))
    assert sorted(delivery["body"] for delivery in received) == [str(number) for number in range(8)]
