"""Orderly pops: one batch of a queue at a time, repeated attempts, delivery counts, and unblocking of a queue."""

from typing import Any

import pytest

from codec.command import encode_command
from compat_tests.clients.popping import (
    ORDERED_REVIVE_QUEUE_ID,
    POLLING_TIMEOUT,
    PoppedMessage,
    ack,
    ack_request,
    batch_ack,
    change_invisible_time,
    parse_popped,
    pop,
    pop_messages,
    pop_request,
    pop_until,
    send_each,
)
from compat_tests.clients.typed import create_topic, expect_refusal
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.offsets import QueryConsumerOffset
from remoting.requests.pop import PollingInfo


@pytest.fixture
def queue(server: ServerUnderTest, broker: BlockingClient) -> str:
    """A new topic with one queue and the messages 0 to 5."""
    name = server.topic_name()
    create_topic(server, name, 1)
    send_each(broker, name, [b"%d" % number for number in range(6)])
    return name


def take_in_order(broker: BlockingClient, topic: str, group: str, **fields: Any) -> list[PoppedMessage]:
    return pop_messages(broker, topic, group, order=True, **fields)


def offset_of(broker: BlockingClient, topic: str, group: str) -> int:
    return broker.ask(QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=0)).offset


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return [each.body for each in messages]


@case("pop", "in order: a queue is blocked until its popped messages are acked")
def test_blocked(broker: BlockingClient, other: BlockingClient, queue: str, group: str) -> None:
    reply = pop(broker, queue, group, order=True, max_msg_nums=2)
    assert (reply.revive_qid, reply.order_count_info, reply.start_offset_info) == (
        ORDERED_REVIVE_QUEUE_ID,
        "0 0 0",
        "0 0 0",
    )
    first = parse_popped(reply, queue, group)
    assert bodies(first) == [b"0", b"1"]
    assert pop(other, queue, group, order=True).code == POLLING_TIMEOUT
    assert offset_of(broker, queue, group) == 0
    ack(broker, group, first[0])
    assert pop(other, queue, group, order=True).code == POLLING_TIMEOUT
    assert offset_of(broker, queue, group) == 1
    ack(broker, group, first[1])
    assert offset_of(broker, queue, group) == 2
    assert bodies(take_in_order(other, queue, group, max_msg_nums=3)) == [b"2", b"3", b"4"]


@case("pop", "in order: queues do not block each other")
def test_queues(broker: BlockingClient, topic: str, group: str) -> None:
    for queue_id in range(4):
        send_each(broker, topic, [b"a", b"b"], queue_id=queue_id)
    assert len(take_in_order(broker, topic, group, queue_id=1)) == 2
    assert len(take_in_order(broker, topic, group)) == 6
    assert take_in_order(broker, topic, group) == []


@case("pop", "in order: the same attempt gets the same messages again")
def test_attempt(broker: BlockingClient, queue: str, group: str) -> None:
    first = take_in_order(broker, queue, group, max_msg_nums=2, attempt_id="one")
    again = pop(broker, queue, group, order=True, max_msg_nums=2, attempt_id="one")
    assert bodies(parse_popped(again, queue, group)) == bodies(first)
    assert again.order_count_info == "0 0 0"
    assert take_in_order(broker, queue, group, attempt_id="two") == []


@case("pop", "in order: messages not acked in time come again to any member, with their count")
def test_time_over(broker: BlockingClient, queue: str, group: str) -> None:
    first = take_in_order(broker, queue, group, max_msg_nums=2, invisible_time=1_000)
    replies = []

    def look() -> bool:
        replies.append(pop(broker, queue, group, order=True, max_msg_nums=2, invisible_time=60_000))
        return replies[-1].code == 0

    eventually(look, 30)
    assert bodies(parse_popped(replies[-1], queue, group)) == [b"0", b"1"]
    counts = sorted((replies[-1].order_count_info or "").split(";"))
    assert counts == ["0 0 1", "0 qo0%0 1", "0 qo0%1 1"]
    ack(broker, group, first[0])  # the receipt handle has expired: changes nothing
    assert offset_of(broker, queue, group) == 0


@case("pop", "in order: a waiting pop is answered when the earlier messages are acked")
def test_wakes_at_ack(broker: BlockingClient, other: BlockingClient, queue: str, group: str) -> None:
    first = take_in_order(broker, queue, group, max_msg_nums=2)
    request = pop_request(queue, group, order=True, poll_time=30_000)
    other.send_bytes(encode_command(request.to_command(3)))
    info = PollingInfo(consumer_group=group, topic=queue, queue_id=-1)
    eventually(lambda: broker.ask(info).polling_num == 1)
    for each in first:
        ack(broker, group, each)
    reply = request.read_reply(other.receive_command(timeout_s=40))
    assert bodies(parse_popped(reply, queue, group)) == [b"2", b"3", b"4", b"5"]


@case("pop", "in order: a waiting pop is answered when earlier messages become visible again")
def test_wakes_in_time(broker: BlockingClient, queue: str, group: str) -> None:
    assert len(take_in_order(broker, queue, group, invisible_time=2_000)) == 6
    again = take_in_order(broker, queue, group, poll_time=30_000, timeout_s=60)
    assert len(again) == 6


@case("pop", "in order: a batch ack, and an ack of a message that was not popped")
def test_acks(broker: BlockingClient, queue: str, group: str) -> None:
    first = take_in_order(broker, queue, group, max_msg_nums=3)
    error = expect_refusal(broker, ack_request(group, first[0], offset=5))
    assert error.code == 13
    assert f"offset is illegal, key:{queue}@{group}@0, old:0, commit:5, next:-1, " in (error.remark or "")
    batch_ack(broker, group, queue, first)
    assert offset_of(broker, queue, group) == 3


@case("pop", "in order: a changed invisible time makes messages visible sooner or later")
def test_change(broker: BlockingClient, queue: str, group: str) -> None:
    first = take_in_order(broker, queue, group, max_msg_nums=2, invisible_time=60_000)
    reply = change_invisible_time(broker, group, first[0], 1_000)
    assert (reply.pop_time, reply.revive_qid) == (
        int(first[0].receipt.split(" ")[1]),
        ORDERED_REVIVE_QUEUE_ID,
    )
    change_invisible_time(broker, group, first[1], 500)
    again = pop_until(broker, queue, group, 2, 30, order=True, max_msg_nums=2)
    assert bodies(again) == [b"0", b"1"]
