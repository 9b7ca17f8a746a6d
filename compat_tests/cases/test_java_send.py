"""Sending with stock Java clients, old and new."""

from functools import partial

import pytest

from compat_tests.cases.test_retry import SCHEDULE, waiting
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import create_topic
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.offsets import GetMaxOffset


@case("send", "Java: synchronous send")
def test_sync(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        results = producer.send_numbered(topic, 20)
    assert {result["status"] for result in results} == {"SEND_OK"}
    assert len({result["msg_id"] for result in results}) == 20
    offsets = sorted((result["queue"], result["offset"]) for result in results)
    assert len(set(offsets)) == 20
    assert min(offset for _, offset in offsets) == 0


@case("send", "Java: a first send creates the topic with the client's number of queues")
def test_autocreate(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer"), defaultTopicQueueNums=3) as producer:
        assert producer.send_numbered(topic, 1)[0]["status"] == "SEND_OK"
        queues = producer.queues_of_new_topic(topic)
    assert [queue["queue"] for queue in queues] == [0, 1, 2]


@case("send", "Java: asynchronous send, 200 in flight")
def test_async(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        results = producer.send(*[{"topic": topic, "body": str(i)} for i in range(200)], mode="async")
    assert {result.get("status") for result in results} == {"SEND_OK"}
    assert len({(result["queue"], result["offset"]) for result in results}) == 200


@case("send", "Java: oneway send")
def test_oneway(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        assert (
            producer.send(*[{"topic": topic, "body": f"oneway {i}"} for i in range(10)], mode="oneway") == []
        )
        with java.push(server.unique_name("group"), topic) as consumer:
            bodies = sorted(message["body"] for message in consumer.received(11))
    assert bodies == ["0", *[f"oneway {i}" for i in range(10)]]


@case("batch", "Java: batch of 50 goes to one queue with consecutive offsets")
def test_batch(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        messages = [{"topic": topic, "body": f"{i}", "tags": f"t{i % 2}", "keys": f"k{i}"} for i in range(50)]
        (result,) = producer.send(*messages, mode="batch")
        assert result["status"] == "SEND_OK"
        assert len(result["msg_id"].split(",")) == 50
        assert len(result["offset_msg_id"].split(",")) == 50
        with java.push(group, topic) as consumer:
            received = sorted(consumer.received(50), key=lambda message: message["offset"])
    assert [message["body"] for message in received] == [str(i) for i in range(50)]
    assert [message["offset"] for message in received] == list(range(result["offset"], result["offset"] + 50))
    assert {message["queue"] for message in received} == {result["queue"]}
    assert [message["tags"] for message in received[:3]] == ["t0", "t1", "t0"]
    assert received[7]["keys"] == "k7"
    assert [message["msg_id"] for message in received] == result["msg_id"].split(",")


@case("send", "Java: queue selector")
def test_selector(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        chosen = {
            producer.send({"topic": topic, "body": "x"}, mode="selector", arg=arg)[0]["queue"]
            for arg in range(4)
        }
    assert chosen == {0, 1, 2, 3}


@case("send", "Java: send to a chosen queue")
def test_queue(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        queue = producer.queues_of_new_topic(topic)[2]
        results = producer.send(*[{"topic": topic, "body": "x"}] * 3, mode="queue", queue=queue)
    assert {result["queue"] for result in results} == {2}
    first = results[0]["offset"]
    assert [result["offset"] for result in results] == [first, first + 1, first + 2]


@case("send", "Java: properties, tags, keys, flag and times survive")
def test_properties(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    sent = {"topic": topic, "body": "héllo ✓", "tags": "red", "keys": "k1 k2", "flag": 7}
    sent["properties"] = {"colour": "grün", "number": "42"}
    with java.producer(server.unique_name("producer")) as producer:
        (result,) = producer.send(sent)
        with java.push(group, topic) as consumer:
            (message,) = consumer.received(1)
    assert message["body"] == "héllo ✓"
    assert (message["tags"], message["keys"], message["flag"]) == ("red", "k1 k2", 7)
    assert message["properties"]["colour"] == "grün"
    assert message["properties"]["number"] == "42"
    assert message["msg_id"] == result["msg_id"]
    assert (message["queue"], message["offset"]) == (result["queue"], result["offset"])
    assert abs(message["stored"] - message["born"]) < 60_000
    assert message["reconsume"] == 0


@case("bodies", "Java: bodies of 1 byte to 3 MiB, compressed by the client above 4 KiB")
def test_bodies(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    sizes = [1, 4095, 4097, 100_000, 1_000_000, 3 * 1024 * 1024]
    with java.producer(server.unique_name("producer"), maxMessageSize=4 * 1024 * 1024) as producer:
        results = producer.send(*[{"topic": topic, "size": size} for size in sizes])
        assert {result["status"] for result in results} == {"SEND_OK"}
        with java.push(group, topic) as consumer:
            received = consumer.received(len(sizes))
    assert sorted(message["size"] for message in received) == sizes


@case("bodies", "Java: big bodies uncompressed")
def test_uncompressed(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    sizes = [200_000, 900_000]
    with java.producer(server.unique_name("producer"), compressMsgBodyOverHowmuch=100_000_000) as producer:
        producer.send(*[{"topic": topic, "size": size} for size in sizes])
        with java.push(group, topic) as consumer:
            received = consumer.received(2)
    assert sorted(message["size"] for message in received) == sizes


@case("bodies", "Java: a body over the broker's limit is refused with code 13")
def test_oversize(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    settings = {"maxMessageSize": 16_000_000, "compressMsgBodyOverHowmuch": 100_000_000}
    with java.producer(server.unique_name("producer"), **settings) as producer:
        producer.send_numbered(topic, 1)
        with pytest.raises(JavaClientError) as refused:
            producer.send({"topic": topic, "size": 5_000_000})
        assert refused.value.code == 13
        assert producer.send_numbered(topic, 1)[0]["status"] == "SEND_OK"


@case("delay", "Java: level 1 is delivered no sooner than a second later")
def test_delay(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        with java.push(group, topic) as consumer:
            consumer.received(1)
            (result,) = producer.send(
                {"topic": topic, "body": "later", "delay": 1, "tags": "slow", "keys": "key9"}
            )
            assert result["status"] == "SEND_OK"
            late = [message for message in consumer.received(2, 60) if message["body"] == "later"]
    assert len(late) == 1
    assert (late[0]["topic"], late[0]["tags"], late[0]["keys"]) == (topic, "slow", "key9")
    assert late[0]["stored"] - late[0]["born"] >= 900
    assert late[0]["properties"]["REAL_TOPIC"] == topic


@case(
    "delay", "Java: messages of each of the 18 levels, and of higher ones, wait in the queue of their level"
)
def test_levels(java: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    topic = server.topic_name()
    levels = [*range(1, 19), 19, 100]
    create_topic(server, topic, 1)
    begin = {number: end_of(broker, number) for number in range(1, 19)}
    with java.producer(server.unique_name("producer")) as producer:
        sent = producer.send(*[{"topic": topic, "body": str(level), "delay": level} for level in levels])
    assert {result["status"] for result in sent} == {"SEND_OK"}
    for level in levels:
        queue = min(level, 18)
        bodies = eventually(partial(waiting, broker, queue, begin[queue], topic), 20)
        assert str(level) in [message.body.decode() for message in bodies]


def end_of(broker: BlockingClient, level: int) -> int:
    return int(broker.ask(GetMaxOffset(topic=SCHEDULE, queue_id=level - 1)).offset)


@case("reply", "Java: request and reply")
def test_request_reply(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    # The broker knows the client that waits for a reply from its heartbeats.
    with java.producer(server.unique_name("producer"), heartbeatBrokerInterval=500) as producer:
        producer.send_numbered(topic, 1)
        with java.push(group, topic, reply=True) as consumer:
            consumer.received(1)

            def ask() -> str:
                try:
                    return producer.request({"topic": topic, "body": "question"}, 2)
                except JavaClientError:
                    return ""

            assert eventually(ask, 60) == "re: question"
