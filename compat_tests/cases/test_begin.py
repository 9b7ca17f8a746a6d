"""Start offsets of stock consumers, offset resets and clones, pausing, and several groups of one topic."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compat_tests.cases.conftest import warm_up
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import (
    committed_messages,
    connect,
    create_group,
    create_topic,
    has_route,
    send,
    send_heartbeat,
    send_many,
    topic_request,
)
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.marks import case
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.offsets import GetMaxOffset, GetMinOffset, QueryConsumerOffset, UpdateConsumerOffset

MIB = 1024 * 1024
OFTEN = [{"heartbeatBrokerInterval": 1_000}, {"heartbeatBrokerInterval": 1_370}]  # instead of every 30 s
WISHES = ["CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"]


def committed(broker: BlockingClient, group: str, topic: str, queue_id: int = 0) -> int:
    ask = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id)
    return int(broker.ask(ask).offset)


def offsets(deliveries: list[dict[str, Any]]) -> list[int]:
    """Return the offsets sorted, because concurrent consumers deliver in any order."""
    return sorted(delivery["offset"] for delivery in deliveries)


@pytest.mark.parametrize("wish", WISHES)
@case(
    "from",
    "Java: a new group starts at the beginning of a topic that never lost a message, whatever consumeFromWhere says",
)
def test_young_topic(java: JavaClient, server: ServerUnderTest, wish: str) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    settings = {"consumeFromWhere": wish}
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 10)
    with java.push(server.unique_name("group"), topic, settings=settings) as consumer:
        received = consumer.received(10, 60)
    assert offsets(received) == list(range(10))


@case("from", "Java: in a topic that lost its first messages a new group starts as consumeFromWhere says")
def test_old_topic(server: ServerUnderTest, tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": str(MIB), "brokerName": "broker-a"}
    with started(server, settings, tmp_path) as first:
        with connect(first.broker) as broker:
            broker.ask(topic_request("Old", 1))
            for number in range(30):
                send(broker, "Old", b"%02d" % number * 50_000)
        first.stop()
        (first.store / "commitlog" / "00000000000000000000").unlink()
    with started(server, settings, tmp_path) as second, connect(second.broker) as broker:
        least = broker.ask(GetMinOffset(topic="Old", queue_id=0)).offset
        assert 0 < least < 30
        with (
            stock_client(second) as java,
            java.push("first", "Old", settings=wish(0)) as one,
            java.push("last", "Old", settings=wish(1)) as two,
            java.push("time", "Old", settings={**wish(2), "consumeTimestamp": "20200101000000"}) as three,
        ):
            # A consumer has determined its start offset once it holds the queue.
            eventually(lambda: "Old" in [queue["topic"] for queue in two.queues()], 90)
            send(broker, "Old", b"new")
            left = list(range(least, 31))
            assert offsets(one.received(len(left), 120)) == left
            assert offsets(three.received(len(left), 120)) == left
            assert offsets(two.received(1, 60)) == [30]


def wish(number: int) -> dict[str, str]:
    return {"consumeFromWhere": WISHES[number]}


def started(
    server: ServerUnderTest, settings: dict[str, str], directory: Path
) -> OursEndpoint | OfficialEndpoint:
    """Return a server of the tested kind with a store of its own, not started yet."""
    if server.kind not in ("ours", "official"):
        pytest.skip("needs a store of its own, of a server on this machine")
    try:
        return (
            OursEndpoint(settings, directory)
            if server.kind == "ours"
            else OfficialEndpoint(settings, directory)
        )
    except Unavailable as missing:
        skip_or_fail(str(missing))


@contextmanager
def stock_client(endpoint: OursEndpoint | OfficialEndpoint) -> Iterator[JavaClient]:
    driver = JavaDriver("server-5.4", endpoint.namesrv)
    try:
        warm_up(JavaClient(driver, "5.4.0"))
        yield JavaClient(driver, "5.4.0")
    finally:
        driver.close()


@case("from", "Java: a group with a committed offset continues there, whatever consumeFromWhere says")
@pytest.mark.parametrize("wish", WISHES)
def test_known_group(java5: JavaClient, server: ServerUnderTest, broker: BlockingClient, wish: str) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    create_group(broker, group)
    send_many(broker, topic, (str(number).encode() for number in range(10)))
    broker.ask(UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=6))
    with java5.push(group, topic, settings={"consumeFromWhere": wish}) as consumer:
        received = consumer.received(4, 60)
    assert offsets(received) == [6, 7, 8, 9]


@case("consume", "Java: three groups of a topic get all messages each")
def test_groups(java: JavaClient, server: ServerUnderTest) -> None:
    topic, groups = server.topic_name(), [server.unique_name("group") for _ in range(3)]
    create_topic(server, topic, 4)
    with (
        java.producer(server.unique_name("producer")) as producer,
        java.push(groups[0], topic) as one,
        java.push(groups[1], topic) as two,
        java.push(groups[2], topic) as three,
    ):
        producer.send_numbered(topic, 40)
        received = [consumer.received(40, 60) for consumer in (one, two, three)]
    expected = Counter(str(number) for number in range(40))
    assert [Counter(message["body"] for message in each) for each in received] == [expected] * 3


@case("consume", "Java: a paused consumer gets only what was on its way; resumed it gets everything")
def test_pause(java: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    with java.producer(server.unique_name("producer")) as producer, java.push(group, topic) as consumer:
        producer.send({"topic": topic, "body": "first"})
        assert len(consumer.received(1, 60)) == 1
        consumer.suspend()
        producer.send({"topic": topic, "body": "on the way"})  # answers the pull that is already waiting
        before = len(consumer.received(2, 30))
        producer.send_numbered(topic, 10)
        eventually(lambda: broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset == 12, 20)
        paused = consumer.received(
            before + 1, 2
        )  # 2 s would be enough for a message to arrive if it were delivered
        consumer.resume()
        received = consumer.received(12, 60)
    assert len(paused) == before
    assert offsets(received) == list(range(12))


@case("offsets", "Java admin: reset of a group that is not online")
def test_reset_offline(java5: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    with java5.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 5)
    with java5.push(
        group, topic, wait_stop=True, settings={"persistConsumerOffsetInterval": 500}
    ) as consumer:
        assert len(consumer.received(5, 60)) == 5
        # The last commit at its stop may come before it has counted the last message as consumed.
        eventually(lambda: committed(broker, group, topic) == 5, 60)
    java5.driver.call("admin.reset", topic=topic, group=group, timestamp=hours_ago_ms())
    with java5.push(group, topic) as consumer:
        received = consumer.received(5, 60)
    assert offsets(received) == [0, 1, 2, 3, 4]


def hours_ago_ms() -> int:
    return int(time.time() * 1000) - 3_600_000


@case("offsets", "mqadmin resetOffsetByTime: a running consumer consumes again")
def test_reset_by_tool(java5: JavaClient, server: ServerUnderTest, tmp_path: Path) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    with java5.producer(server.unique_name("producer")) as producer, java5.push(group, topic) as consumer:
        producer.send_numbered(topic, 5)
        assert len(consumer.received(5, 60)) == 5
        # A 4.9 broker resets only groups that have committed an offset.
        eventually(lambda: committed_messages(server, group, topic) == 5, 20)
        options = ["-n", server.namesrv, "-g", group, "-t", topic, "-s", str(hours_ago_ms())]
        printed = run_mqadmin(tmp_path / "admin", "resetOffsetByTime", *options)
        assert "Exception" not in printed
        received = consumer.received(10, 90)
    assert offsets(received) == sorted([0, 1, 2, 3, 4] * 2)


@case("offsets", "Java admin: clone a group's offsets; the other group continues there")
def test_clone(
    java5: JavaClient, server: ServerUnderTest, broker: BlockingClient, namesrv: BlockingClient
) -> None:
    topic, group, other = server.topic_name(), server.unique_name("group"), server.unique_name("group")
    create_topic(server, topic, 1)
    for name in (group, other):
        send_heartbeat(
            broker, f"{name}@1", name, topic
        )  # creates its retry topic, without which the tool clones nothing
        eventually(partial(has_route, namesrv, f"%RETRY%{name}"), 30)
    send_many(broker, topic, (str(number).encode() for number in range(10)))
    broker.ask(UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=7))
    java5.driver.call("admin.clone", group=group, to=other, topic=topic)
    assert committed(broker, other, topic) == 7
    with java5.push(other, topic) as consumer:
        received = consumer.received(3, 60)
    assert offsets(received) == [7, 8, 9]


@case(
    "consume",
    "Java: members that subscribe to different topics: heartbeats alternate, no message comes twice",
)
def test_disagreeing_topics(java: JavaClient, server: ServerUnderTest) -> None:
    """The broker knows only the subscription of the last heartbeat, so each member gets an arbitrary part.

    The members' heartbeat intervals differ, and the second's does not divide the 3 s after which a refused pull is
    retried. Otherwise one member's pulls might always meet the other's subscription.
    """
    topics, group = [server.topic_name(), server.topic_name()], server.unique_name("group")
    for topic in topics:
        create_topic(server, topic, 2)
    with (
        java.producer(server.unique_name("producer")) as producer,
        java.push(group, topics[0], name=group + "1", wait_stop=True, settings=OFTEN[0]) as one,
        java.push(group, topics[1], name=group + "2", wait_stop=True, settings=OFTEN[1]) as two,
    ):
        for topic in topics:
            producer.send_numbered(topic, 20)
        eventually(lambda: one.received(1, 5) and two.received(1, 5), 120)
    assert {message["topic"] for message in one.delivered} == {topics[0]}
    assert {message["topic"] for message in two.delivered} == {topics[1]}
