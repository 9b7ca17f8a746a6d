"""Consumers whose broker is killed under them: ordered consumption, and retries; these cases run last."""

import time
from collections import Counter
from contextlib import ExitStack

from codec.constants import ResponseCode
from compat_tests.cases.test_ordered import by_key, send_all
from compat_tests.cases.test_restart import restart
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient, JavaPushConsumer
from compat_tests.clients.typed import (
    committed_messages,
    connect,
    create_topic,
    messages,
    pull,
    pull_request,
    send_readable,
    send_request,
)
from compat_tests.endpoints import Endpoint
from compat_tests.marks import case, differs
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import REQUEST_FAILURES, RemotingClosed
from remoting.requests.offsets import GetMaxOffset

# A message that was waiting for its next attempt when the broker was killed may wait a second time.
PATIENCE_S = 180.0
CLIENT_TIMEOUT_S = 31.0
"""Client 4.x gives a waiting pull up this long after it was sent, even if the connection has closed."""
COUNT = 60
QUEUES = 4


def distinct(consumer: JavaPushConsumer, *, times: int = 1) -> set[str]:
    """Return the bodies that were delivered at least `times` times."""
    counts = Counter(delivery["body"] for delivery in consumer.received(0))
    return {body for body, count in counts.items() if count >= times}


def recovered(java: JavaClient, producer: str, topic: str) -> None:
    """Wait until the stock producer can send again, with messages to a topic whose messages are not counted."""
    message = {"topic": topic, "body": "probe"}

    def sends() -> bool:
        try:
            (result,) = java.driver.call("send", name=producer, messages=[message], mode="sync")
        except JavaClientError:
            return False
        return str(result["status"]) == "SEND_OK"

    eventually(sends, PATIENCE_S, every_s=0.5)


@case(
    "ordered",
    "Java: SIGKILL of the broker under an orderly consumer: nothing lost, order kept per key",
)
def test_ordered(endpoint: Endpoint, server: ServerUnderTest, java5: JavaClient) -> None:
    topic, group, producer = server.topic_name(), server.unique_name("group"), server.unique_name("producer")
    create_topic(server, topic, 4)
    create_topic(server, probe := server.topic_name(), 1)
    with java5.producer(producer), java5.push(group, topic, orderly=True, failures=1) as consumer:
        send_all(java5, producer, topic, range(4), range(COUNT))
        consumer.received(20, 60)
        restart(endpoint, endpoint.crash)
        recovered(java5, producer, probe)
        send_all(java5, producer, topic, range(4), range(COUNT, COUNT + 10))
        wanted = {f"{key} {number}" for key in range(4) for number in range(COUNT + 10)}
        eventually(lambda: wanted <= distinct(consumer), PATIENCE_S, every_s=0.5)
        eventually(lambda: committed_messages(server, group, topic) == len(wanted), PATIENCE_S, every_s=0.5)
        received = consumer.received(0)
    assert by_key(received) == {key: list(range(COUNT + 10)) for key in range(4)}
    assert (
        min(Counter(delivery["body"] for delivery in received).values()) >= 2
    )  # the listener fails each message once


@case(
    "restart", "Java: idle consumers receive from every queue again after the broker was stopped and started"
)
def test_stop(endpoint: Endpoint, server: ServerUnderTest, java: JavaClient) -> None:
    topic = server.topic_name()
    create_topic(server, topic, QUEUES)
    groups = [server.unique_name("group") for _ in range(3)]
    with ExitStack() as running:
        consumers = [running.enter_context(java.push(group, topic)) for group in groups]
        fill_queues(server, topic, "before")
        for consumer in consumers:
            consumer.received(QUEUES, 60)
        restart(endpoint, endpoint.stop)
        fill_queues(server, topic, "after")
        began = time.monotonic()
        wanted = {f"after {queue}" for queue in range(QUEUES)}
        for consumer in consumers:
            eventually(lambda: wanted <= distinct(consumer), CLIENT_TIMEOUT_S + 20, every_s=0.1)  # noqa: B023
        print(f"client {java.version}: all queues are received from after {time.monotonic() - began:.1f} s")


def fill_queues(server: ServerUnderTest, topic: str, text: str) -> None:
    """Send one message to each queue, so that every queue's pull is seen to work."""
    with connect(server.broker) as broker:
        for queue in range(QUEUES):
            broker.ask(send_request(topic, f"{text} {queue}".encode(), queue_id=queue))


@differs(reason="the official broker closes the connection; Java clients 4.x and Go then wait for 30 s")
@case("restart", "a pull that waits is answered when the broker stops")
def test_waiting_pull(
    endpoint: Endpoint, server: ServerUnderTest, broker: BlockingClient, topic: str
) -> None:
    send_readable(broker, topic)
    requests = pull_request(topic, 1, suspend_ms=30_000), GetMaxOffset(topic=topic, queue_id=0)
    broker.start_commands([request.to_command() for request in requests])
    assert broker.receive_next_answer().ext.get("offset") == "1", "the pull waits by now"
    restart(endpoint, endpoint.stop)
    try:
        code = broker.receive_next_answer().code
    except RemotingClosed:
        code = None
    assert code == ResponseCode.PULL_NOT_FOUND


@case("retry", "Java: SIGKILL of the broker while messages wait for their next attempt: each comes again")
def test_retry(endpoint: Endpoint, server: ServerUnderTest, java5: JavaClient) -> None:
    topic, group, producer = server.topic_name(), server.unique_name("group"), server.unique_name("producer")
    create_topic(server, topic, 4)
    create_topic(server, probe := server.topic_name(), 1)
    wanted = {str(number) for number in range(COUNT)}
    with java5.producer(producer) as sender, java5.push(group, topic, failures=2, delay_level=2) as consumer:
        sender.send_numbered(topic, COUNT)
        eventually(lambda: wanted <= distinct(consumer), 60)
        restart(endpoint, endpoint.crash)
        recovered(java5, producer, probe)
        # Two failures and a success; a broker killed between a send back and its answer counts the attempt twice.
        eventually(lambda: wanted <= distinct(consumer, times=3), PATIENCE_S, every_s=0.5)
        eventually(lambda: committed_messages(server, group, topic) == COUNT, PATIENCE_S, every_s=0.5)
        received = consumer.received(0)
    assert {delivery["topic"] for delivery in received} == {topic}
    assert {delivery["body"] for delivery in received} == wanted


@case("retry", "Java: SIGKILL of the broker on the way to the dead letters: each message gets there")
def test_dead_letters(endpoint: Endpoint, server: ServerUnderTest, java5: JavaClient) -> None:
    topic, group, producer = server.topic_name(), server.unique_name("group"), server.unique_name("producer")
    create_topic(server, topic, 4)
    create_topic(server, probe := server.topic_name(), 1)
    settings, dead = {"maxReconsumeTimes": 1}, f"%DLQ%{group}"
    with (
        java5.producer(producer) as sender,
        java5.push(group, topic, failures=-1, delay_level=1, settings=settings) as consumer,
    ):
        sender.send(*[{"topic": topic, "body": f"before {number}"} for number in range(10)])
        early = eventually(lambda: len(found := dead_letters(server, dead)) >= 10 and found, 90)
        sender.send(*[{"topic": topic, "body": f"during {number}"} for number in range(30)])
        consumer.received(25, 60)
        restart(endpoint, endpoint.crash)
        recovered(java5, producer, probe)
        sender.send(*[{"topic": topic, "body": f"after {number}"} for number in range(10)])
        wanted = {f"before {n}" for n in range(10)} | {f"during {n}" for n in range(30)}
        wanted |= {f"after {n}" for n in range(10)}
        eventually(lambda: wanted <= set(dead_letters(server, dead)), PATIENCE_S, every_s=0.5)
    late = dead_letters(server, dead)
    assert late[: len(early)] == early
    assert set(late) == wanted


def dead_letters(server: ServerUnderTest, topic: str) -> list[str]:
    """Return all bodies in the one queue of a dead letter topic that can be read now."""
    found: list[str] = []
    try:
        with connect(server.broker) as broker:
            while (reply := pull(broker, topic, len(found))).code == 0:
                found += [message.body.decode() for message in messages(reply)]
    except REQUEST_FAILURES:
        pass
    return found
