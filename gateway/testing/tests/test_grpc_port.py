"""The stock Python client that speaks gRPC, on RocketMQ in memory: moved time, brokers that go and return, reset."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.grpc_drivers import start_python_driver
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from gateway.testing import RocketMQ
from gateway.testing.tests.clients import split_address

MINUTE_S = 60


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    try:
        driver = start_python_driver("5.1.2")
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with closing(driver):
        yield driver


@pytest.fixture
def stock(driver: Any, mq: RocketMQ) -> StockGrpcClient:
    return StockGrpcClient(driver, mq.grpc_address)


def typed(mq: RocketMQ, topic: str, message_type: str) -> str:
    mq.create_topic(topic, queues=1, attributes={"message.type": message_type})
    return topic


def test_a_message_is_sent_seen_and_consumed(mq: RocketMQ, stock: StockGrpcClient) -> None:
    topic = typed(mq, "orders", "NORMAL")
    with stock.producer(topic) as producer, stock.simple("GID", topic) as consumer:
        producer.send({"topic": topic, "body": "hello", "tag": "new"})
        (seen,) = mq.wait_for(topic)
        assert (seen.body, seen.tags) == (b"hello", "new")
        (message,) = eventually(consumer.receive, 30)
        assert message["body"] == "hello"
        consumer.ack(message)
        mq.wait_until_consumed("GID", topic)


def test_the_time_of_a_delay_moves_with_the_servers(mq: RocketMQ, stock: StockGrpcClient) -> None:
    """Also after an earlier move: a minute is a minute from the sending on."""
    topic = typed(mq, "later", "DELAY")
    with stock.producer(topic) as producer:
        for count in (1, 2):
            producer.send({"topic": topic, "body": str(count), "delay_ms": MINUTE_S * 1000})
            mq.wait_for("rmq_sys_wheel_timer", count)
            assert len(mq.messages(topic)) == count - 1
            mq.advance(MINUTE_S + 1)
            assert len(mq.messages(topic)) == count


def test_an_invisible_message_comes_again_when_the_time_is_moved(
    mq: RocketMQ, stock: StockGrpcClient
) -> None:
    topic = typed(mq, "again", "NORMAL")
    with stock.producer(topic) as producer, stock.simple("GID", topic) as consumer:
        producer.send({"topic": topic, "body": "x"})
        assert [each["attempt"] for each in eventually(consumer.receive, 30)] == [1]
        started_s = time.monotonic()
        mq.advance(MINUTE_S)
        assert [each["attempt"] for each in eventually(consumer.receive, 30)] == [2]
        assert time.monotonic() - started_s < MINUTE_S - 5


def test_an_open_transaction_is_asked_about(mq: RocketMQ, stock: StockGrpcClient) -> None:
    topic = typed(mq, "halves", "TRANSACTION")
    with stock.producer(topic, transactions=True) as producer:
        producer.send_half({"topic": topic, "body": "x", "properties": {"check": "COMMIT"}})
        assert mq.messages(topic) == []

        def decided() -> bool:
            mq.advance(MINUTE_S)
            return bool(mq.messages(topic))

        eventually(decided, 30)


def test_the_address_stays_when_brokers_go_and_return(mq: RocketMQ, stock: StockGrpcClient) -> None:
    topic = typed(mq, "kept", "NORMAL")
    address = mq.grpc_address
    with stock.producer(topic) as producer:
        producer.send({"topic": topic, "body": "before"})
    mq.stop_broker()
    mq.start_broker()
    assert mq.grpc_address == address
    with stock.producer(topic) as producer:
        producer.send({"topic": topic, "body": "after"})
    assert [message.body for message in mq.messages(topic)] == [b"before", b"after"]
    mq.reset()
    assert mq.grpc_address == address
    typed(mq, topic, "NORMAL")
    with stock.producer(topic) as producer:
        producer.send({"topic": topic, "body": "new"})
    assert [message.body for message in mq.messages(topic)] == [b"new"]


def test_the_port_can_be_chosen() -> None:
    with RocketMQ() as first:
        port = split_address(first.grpc_address)[1]
    with RocketMQ(settings={"grpcServerPort": str(port)}) as second:
        assert second.grpc_address == f"127.0.0.1:{port}"
