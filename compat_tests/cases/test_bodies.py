"""Unusual bodies: empty, as large as allowed, compressed by each method; and batches that are too large."""

import zlib
from typing import Any

import pytest

from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient, JavaProducer
from compat_tests.clients.typed import (
    batch_request,
    create_topic,
    expect_refusal,
    messages,
    pull,
    read_first_message,
    send_request,
)
from compat_tests.marks import case, differs
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient

LIMIT = 4 * 1024 * 1024
RAW = {"maxMessageSize": 2 * LIMIT, "compressMsgBodyOverHowmuch": 4 * LIMIT}
ILLEGAL = 13
# The Java driver's text for the body of 300,000 bytes that it generates.
CHECKSUM = f"crc:{zlib.crc32(bytes(ord('a') + number * 31 % 26 for number in range(300_000)))}"


@case("bodies", "a single message with no body is refused (13), as stock producers refuse it themselves")
@differs(reason="officially a NullPointerException, code 1, which makes stock producers try again")
def test_none(broker: BlockingClient, topic: str) -> None:
    assert expect_refusal(broker, send_request(topic, b"")).code == ILLEGAL
    assert pull(broker, topic).max_offset == 0


@case("bodies", "a message with no body that comes in a batch is stored and read")
def test_none_in_batch(broker: BlockingClient, topic: str) -> None:
    broker.ask(batch_request(topic, [(b"", {"TAGS": "t", "KEYS": "k"}), (b"y", {})]))
    first, second = eventually(lambda: len(found := messages(pull(broker, topic))) == 2 and found, 20)
    assert (first.body, first.tags, first.keys, first.queue_offset) == (b"", "t", ["k"], 0)
    assert (second.body, second.queue_offset) == (b"y", 1)


@case("bodies", "Java: a message with no body is consumed, retried after a failure, and found by key")
def test_none_consumed(java5: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    """Needs a 5.x client: 4.9 fails with a null pointer on a missing body."""
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    properties = {"TAGS": "t", "KEYS": "nothing", "UNIQ_KEY": server.unique_name("id")}
    broker.ask(batch_request(topic, [(b"", properties)]))
    with java5.push(group, topic, failures=1, delay_level=1) as consumer:
        received = consumer.received(2, 60)
    assert [(m["size"], m["tags"], m["reconsume"]) for m in received] == [(0, "t", 0), (0, "t", 1)]
    with java5.producer(server.unique_name("producer")) as producer:
        (message,) = eventually(lambda: query(producer, topic, "nothing"), 30)
    assert message["size"] == 0


def query(producer: JavaProducer, topic: str, key: str) -> list[dict[str, Any]]:
    try:
        return producer.query(topic, key)
    except JavaClientError:  # no such key yet
        return []


@case("bodies", "Java: a body of exactly maxMessageSize, uncompressed, and one byte more (13)")
def test_limit(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    with java.producer(server.unique_name("producer"), **RAW) as producer:
        producer.send({"topic": topic, "size": LIMIT})
        with pytest.raises(JavaClientError) as refused:
            producer.send({"topic": topic, "size": LIMIT + 1})
        with java.push(group, topic) as consumer:
            received = consumer.received(1, 60)
    assert refused.value.code == ILLEGAL
    assert [message["size"] for message in received] == [LIMIT]


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
@case("bodies", "Java: bodies compressed with zlib, lz4 and zstd arrive unchanged")
def test_compressed(java5: JavaClient, server: ServerUnderTest, broker: BlockingClient, kind: str) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 1)
    with java5.producer(server.unique_name("producer"), compressType=kind) as producer:
        producer.send({"topic": topic, "size": 300_000}, {"topic": topic, "body": "short"})
        with java5.push(group, topic) as consumer:
            received = consumer.received(2, 60)
    assert {message["size"]: message["body"] for message in received} == {5: "short", 300_000: CHECKSUM}
    stored = read_first_message(broker, topic, max_msg_nums=1)
    methods = {"LZ4": 1, "ZSTD": 2, "ZLIB": 3}
    assert (stored.sys_flag & 1, stored.sys_flag >> 8 & 7) == (1, methods[kind])
    assert len(stored.body) < 100_000


@case("batch", "Java: a batch of more than maxMessageSize is refused and stores nothing")
def test_batch_limit(java: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    with java.producer(server.unique_name("producer"), **RAW) as producer:
        with pytest.raises(JavaClientError):
            producer.send(*[{"topic": topic, "size": 900_000}] * 5, mode="batch")
        producer.send(*[{"topic": topic, "size": 900_000}] * 4, mode="batch")
    assert read_first_message(broker, topic, max_msg_nums=1).queue_offset == 0
    assert eventually(lambda: pull(broker, topic).max_offset == 4, 20)


@case("batch", "a batch of more than maxMessageSize is refused with 13, as a single message is")
@differs(reason="officially an unexpected exception, code 1, which makes stock producers try again")
def test_batch_limit_code(broker: BlockingClient, topic: str) -> None:
    assert expect_refusal(broker, batch_request(topic, [(b"x" * 900_000, {})] * 5)).code == ILLEGAL


@case("batch", "Java: the client refuses a batch with several topics or with delays")
def test_batch_rules(java: JavaClient, server: ServerUnderTest) -> None:
    topic, another = server.topic_name(), server.topic_name()
    with java.producer(server.unique_name("producer")) as producer:
        for second in ({"topic": another, "body": "x"}, {"topic": topic, "body": "x", "delay": 1}):
            with pytest.raises(JavaClientError):
                producer.send({"topic": topic, "body": "x"}, second, mode="batch")
        (sent,) = producer.send(*[{"topic": topic, "body": "x"}] * 2, mode="batch")
    assert sent["status"] == "SEND_OK"
