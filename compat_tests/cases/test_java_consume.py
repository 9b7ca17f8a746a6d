"""Consuming with stock Java clients, old and new."""

import time
from collections import Counter
from typing import Any

import pytest

from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import committed_messages
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


@case("consume", "Java: push, concurrently, each message once")
def test_push(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 100)
    with java.push(group, topic) as consumer:
        assert Counter(bodies(consumer.received(100))) == Counter(str(i) for i in range(100))


@case("consume", "Java: push continues where its group stopped")
def test_resume(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 12)
        with java.push(
            group, topic, wait_stop=True, settings={"persistConsumerOffsetInterval": 500}
        ) as consumer:
            assert len(consumer.received(12)) == 12
            # The official broker sometimes loses one of a group's first, concurrent commits; a running client commits
            # again.
            eventually(
                lambda: committed_messages(server, group, topic) == 12, 60
            )  # it begins 10 s after its start
        producer.send({"topic": topic, "body": "next"})
        with java.push(group, topic) as consumer:
            assert bodies(consumer.received(1)) == ["next"]


@case("consume", "Java: a waiting consumer gets a message at once")
def test_latency(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 4)
        with java.push(group, topic) as consumer:
            consumer.received(4)
            producer.send_numbered(topic, 10)
            messages = consumer.received(14)[4:]
    # A waiting pull is answered in milliseconds; without long polling it would take 15 s.
    assert sorted(message["at"] - message["stored"] for message in messages)[5] < 5000


@case("filter", "Java: tags, A || B")
def test_tags(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        for tag in ("red", "green", "blue"):
            producer.send(*[{"topic": topic, "body": f"{tag}{i}", "tags": tag} for i in range(5)])
        producer.send({"topic": topic, "body": "untagged"})
        with java.push(group, subscriptions=[{"topic": topic, "tags": "red || blue"}]) as consumer:
            consumer.received(10)
            producer.send({"topic": topic, "body": "end", "tags": "blue"})
            received = bodies(consumer.received(11))
    assert Counter(received) == Counter([f"{tag}{i}" for tag in ("red", "blue") for i in range(5)] + ["end"])


@case("filter", "Java: tags with equal hashes are told apart")
def test_tag_collision(java: JavaClient, server: ServerUnderTest) -> None:
    """The broker filters by String.hashCode, which is equal for "Aa" and "BB", so the client must drop one."""
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send(
            {"topic": topic, "body": "1", "tags": "BB"}, {"topic": topic, "body": "2", "tags": "Aa"}
        )
        with java.push(group, subscriptions=[{"topic": topic, "tags": "Aa"}]) as consumer:
            assert bodies(consumer.received(1)) == ["2"]


@case("ordered", "Java: orderly, in order per queue")
def test_orderly(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        for number in range(60):
            producer.send({"topic": topic, "body": str(number)}, mode="selector", arg=number % 3)
        with java.push(group, topic, orderly=True) as consumer:
            received = consumer.received(61)
    assert len(received) == 61
    for queue in range(4):
        offsets = [message["offset"] for message in received if message["queue"] == queue]
        assert offsets == list(range(len(offsets)))


@case("ordered", "Java: orderly, a failed message is retried before the next ones")
def test_orderly_retry(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        queue = producer.queues_of_new_topic(topic)[0]
        sent = producer.send(
            *[{"topic": topic, "body": f"o{i}"} for i in range(3)], mode="queue", queue=queue
        )
        with java.push(group, topic, orderly=True, failures=1) as consumer:
            received = consumer.received(8)
    assert {result["queue"] for result in sent} == {0}
    assert [body for body in bodies(received) if body != "0"] == ["o0", "o0", "o1", "o1", "o2", "o2"]


@case("consume", "Java: two consumers of a group share the queues")
def test_two_consumers(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        with (
            java.push(group, topic, name=group + "1") as one,
            java.push(group, topic, name=group + "2") as two,
        ):

            def shares() -> list[int]:
                return [sum(q["topic"] == topic for q in consumer.queues()) for consumer in (one, two)]

            eventually(lambda: shares() == [2, 2], 30)
            producer.send_numbered(topic, 40)
            eventually(lambda: len({each["msg_id"] for each in one.received(0) + two.received(0)}) == 41, 20)


@case("consume", "Java: when a consumer leaves, the other takes over its queues")
def test_takeover(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        with java.push(group, topic, name=group + "1") as one:
            with java.push(group, topic, name=group + "2") as two:
                eventually(lambda: sum(q["topic"] == topic for q in two.queues()) == 2, 30)
            eventually(lambda: sum(q["topic"] == topic for q in one.queues()) == 4, 30)
            producer.send_numbered(topic, 8)
            eventually(lambda: len({each["msg_id"] for each in one.received(0)}) >= 8, 20)


@case("consume", "Java: broadcasting, every consumer gets every message")
def test_broadcast(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")

    def settings(number: int) -> dict[str, str]:
        return {"messageModel": "BROADCASTING", "instanceName": f"{group}{number}"}

    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        with (
            java.push(group, topic, name=group + "1", settings=settings(1)) as one,
            java.push(group, topic, name=group + "2", settings=settings(2)) as two,
        ):
            eventually(lambda: one.queues() and two.queues(), 20)
            producer.send(*[{"topic": topic, "body": f"b{i}"} for i in range(12)])
            for consumer in (one, two):
                got = [b for b in bodies(consumer.received(13)) if b != "0"]
                assert Counter(got) == Counter(f"b{i}" for i in range(12))


@case("retry", "Java: consume later, the message comes again through the retry topic")
def test_consume_later(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        (sent,) = producer.send({"topic": topic, "body": "again", "tags": "tag", "keys": "key"})
        with java.push(group, topic, failures=2, delay_level=1) as consumer:
            received = consumer.received(3, 40)
    assert bodies(received) == ["again"] * 3
    assert [message["reconsume"] for message in received] == [0, 1, 2]
    assert {message["topic"] for message in received} == {topic}
    assert {message["msg_id"] for message in received} == {sent["msg_id"]}
    assert {(message["tags"], message["keys"]) for message in received} == {("tag", "key")}
    assert received[2]["properties"]["RETRY_TOPIC"] == topic


@case("retry", "Java: dead letter after the last retry")
def test_dead_letter(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    dead = f"%DLQ%{group}"
    with java.producer(server.unique_name("producer")) as producer:
        (sent,) = producer.send({"topic": topic, "body": "hopeless"})
        settings = {"maxReconsumeTimes": 1}
        with java.push(group, topic, failures=-1, delay_level=1, settings=settings) as consumer:
            assert len(consumer.received(2, 30)) == 2
            queues = eventually(lambda: dead_queues(producer, dead), 20)
    with java.pull(server.unique_name("reader")) as reader:
        answer = eventually(lambda: (r := reader.pull(queues[0], 0)) and r["status"] == "FOUND" and r, 20)
    (message,) = answer["messages"]
    assert message["body"] == "hopeless"
    assert message["topic"] == dead
    assert message["properties"]["RETRY_TOPIC"] == topic
    assert message["properties"]["UNIQ_KEY"] == sent["msg_id"]


def dead_queues(producer: Any, topic: str) -> list[dict[str, Any]]:
    """Return the one queue of a dead letter topic; [] while it has no route."""
    try:
        queues: list[dict[str, Any]] = producer.queues(topic)
    except JavaClientError:
        return []
    return queues


@case("consume", "Java: lite pull, subscribe")
def test_lite_subscribe(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 30)
    with java.lite(group, topic) as consumer:
        assert Counter(bodies(consumer.poll(30))) == Counter(str(i) for i in range(30))


@case("consume", "Java: lite pull, assign, seek and commit")
def test_lite_assign(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        queue = producer.queues_of_new_topic(topic)[3]
        first = producer.send(
            *[{"topic": topic, "body": f"m{i}"} for i in range(6)], mode="queue", queue=queue
        )
        start = first[0]["offset"]
    with java.lite(group, topic, assign=[queue], settings={"autoCommit": False}) as consumer:
        assert bodies(consumer.poll(6))[-6:] == [f"m{i}" for i in range(6)]
        consumer.call("seek", queue=queue, offset=start + 4)
        assert bodies(consumer.poll(2)) == ["m4", "m5"]
        consumer.call("commit")
        eventually(lambda: consumer.call("committed", queue=queue) == start + 6, 10)


@case("pull", "Java: pull consumer, statuses and offsets")
def test_pull(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    before_ms = int(time.time() * 1000) - 60_000
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        queue = producer.queues_of_new_topic(topic)[1]
        sent = producer.send(*[{"topic": topic, "body": str(i)} for i in range(5)], mode="queue", queue=queue)
    first, last = sent[0]["offset"], sent[-1]["offset"]
    with java.pull(group) as consumer:
        answer = consumer.pull(queue, first, count=3)
        assert (answer["status"], bodies(answer["messages"])) == ("FOUND", ["0", "1", "2"])
        assert (answer["next"], answer["max"]) == (first + 3, last + 1)
        assert consumer.pull(queue, last + 1)["status"] == "NO_NEW_MSG"
        beyond = consumer.pull(queue, last + 100)
        assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", last + 1)
        offsets = consumer.offsets(queue, before_ms)
        assert (offsets["min"], offsets["max"], offsets["search"]) == (0, last + 1, 0)
        assert offsets["earliest_ms"] > before_ms
        consumer.commit(queue, first + 2)
        assert eventually(lambda: consumer.offsets(queue)["committed"] == first + 2, 5)


@case("pull", "Java: pull with a tag that no message has")
def test_pull_no_match(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        queue = producer.queues_of_new_topic(topic)[0]
        producer.send(*[{"topic": topic, "body": "x", "tags": "A"}] * 3, mode="queue", queue=queue)
    with java.pull(group) as consumer:
        answer = consumer.pull(queue, 0, tags="B")
        assert answer["status"] == "NO_MATCHED_MSG"
        assert answer["next"] >= 3


@case("pull", "Java: a blocking pull is answered by a message that arrives")
def test_pull_block(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        queue = producer.queues_of_new_topic(topic)[0]
        with java.pull(group) as consumer:
            end = consumer.offsets(queue)["max"]
            waiting = java.driver.start_call("pull", name=group, queue=queue, offset=end, block=True)
            producer.send({"topic": topic, "body": "now"}, mode="queue", queue=queue)
            answer = waiting.result(20)
    assert (answer["status"], bodies(answer["messages"])) == ("FOUND", ["now"])


@case("query", "Java: query by key, by unique key and view by id")
def test_query(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        sent = producer.send(*[{"topic": topic, "body": f"{i}", "keys": f"order-{i} all"} for i in range(5)])
        eventually(lambda: len(_query(producer, topic, "all")) == 5, 10)
        (found,) = _query(producer, topic, "order-3")
        assert found["body"] == "3"
        viewed = producer.view(topic, sent[2]["offset_msg_id"])
        assert (viewed["body"], viewed["queue"], viewed["offset"]) == (
            "2",
            sent[2]["queue"],
            sent[2]["offset"],
        )
        by_unique = eventually(lambda: _view(producer, topic, sent[4]["msg_id"]), 10)
        assert by_unique["body"] == "4"


def _query(producer: Any, topic: str, key: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = producer.query(topic, key)
    except JavaClientError:  # the client reports an empty result as an error
        return []
    return found


def _view(producer: Any, topic: str, message_id: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = producer.view(topic, message_id)
    except JavaClientError:
        return {}
    return found


@case("query", "Java: an unused key is not found")
def test_query_nothing(java: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
        with pytest.raises(JavaClientError) as missing:
            producer.query(topic, "nobody-used-this")
    assert missing.value.code in (17, 208)  # 4.9: topic not exist, 5.x: no message
