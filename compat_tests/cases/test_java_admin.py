"""Operations of the official 5.4 admin tools, through DefaultMQAdminExt."""

import time

import pytest

from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import committed_messages
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually


@case("admin", "Java admin: create and delete a topic")
def test_topic_life(java5: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    java5.driver.call("admin.create_topic", topic=topic, queues=5)
    with java5.producer(server.unique_name("producer")) as producer:
        queues = eventually(lambda: _queues(producer, topic), 10)
        assert len(queues) == 5
        assert producer.send_numbered(topic, 5)[0]["status"] == "SEND_OK"
    assert topic in java5.driver.call("admin.topics")
    java5.driver.call("admin.delete_topic", topic=topic)
    eventually(lambda: topic not in java5.driver.call("admin.topics"), 10)


def _queues(producer, topic):
    try:
        return producer.queues(topic)
    except JavaClientError:
        return []


@case("admin", "Java admin: topic status shows min and max offsets")
def test_topic_status(java5: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java5.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        queue = producer.queues_of_new_topic(topic)[2]
        sent = producer.send(*[{"topic": topic, "body": "x"}] * 4, mode="queue", queue=queue)
    status = java5.driver.call("admin.topic_status", topic=topic)
    assert set(status) == {"0", "1", "2", "3"}
    assert status["2"] == [0, sent[-1]["offset"] + 1]


@case("admin", "Java admin: consumer connections, running info, consume directly")
def test_consumer_info(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java5.producer(server.unique_name("producer")) as producer:
        (sent,) = producer.send_numbered(topic, 1)
        with java5.push(group, topic) as consumer:
            consumer.received(1)
            connections = eventually(lambda: _connections(java5, group), 10)
            assert list(connections.values()) == ["JAVA"]
            (client,) = connections
            assert (
                java5.driver.call("admin.running", group=group, client=client) == 2
            )  # topic and retry topic
            result = java5.driver.call(
                "admin.consume_directly",
                group=group,
                client=client,
                topic=topic,
                msg_id=sent["offset_msg_id"],
            )
            assert result == "CR_SUCCESS"
            assert [message["body"] for message in consumer.received(2)] == ["0", "0"]


def _connections(java: JavaClient, group: str):
    try:
        return java.driver.call("admin.connections", group=group)
    except JavaClientError:
        return {}


@case("admin", "Java admin: consumer connections of a group that is not online")
def test_not_online(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java5.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        with java5.push(group, topic, wait_stop=True) as consumer:
            consumer.received(1)
    with pytest.raises(JavaClientError) as refused:
        java5.driver.call("admin.connections", group=group)
    assert refused.value.code == 206


@case("admin", "Java admin: consume statistics show the lag")
def test_consume_stats(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java5.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 4)
        with java5.push(group, topic, wait_stop=True) as consumer:
            consumer.received(4)
        producer.send_numbered(topic, 4)
    stats = eventually(lambda: java5.driver.call("admin.consume_stats", group=group), 10)
    ours = {queue: offsets for queue, offsets in stats.items() if queue.startswith(topic)}
    assert sum(broker for _, broker in ours.values()) == 8
    assert sum(consumer for consumer, _ in ours.values()) == 4


@case("admin", "Java admin: reset a running consumer to a time, and it consumes again")
def test_reset(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java5.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 8)
        with java5.push(group, topic) as consumer:
            assert len(consumer.received(8)) == 8
            eventually(lambda: _connections(java5, group), 10)
            # A 4.9 broker resets only groups that have committed an offset.
            eventually(lambda: committed_messages(server, group, topic) == 8, 20)
            timestamp = int(time.time() * 1000) - 3_600_000
            assert java5.driver.call("admin.reset", topic=topic, group=group, timestamp=timestamp) == 4
            assert len(consumer.received(16, 40)) == 16
