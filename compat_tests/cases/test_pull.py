"""Pulling: every answer code, long polls, filters and limits, with our typed client."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codec.command import Command, encode_command
from codec.hashing import java_hash
from compat_tests.cases.test_begin import started
from compat_tests.clients.typed import (
    COMMIT,
    SUBSCRIPTION,
    WRITE,
    batch_request,
    bodies,
    connect,
    create_group,
    create_topic,
    expect_refusal,
    messages,
    pull,
    pull_request,
    send,
    send_heartbeat,
    send_many,
    send_request,
    subscription,
    topic_request,
)
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.offsets import QueryConsumerOffset
from remoting.requests.pull import PullMessageReply

FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21


def filled(broker: BlockingClient, topic: str, count: int, **fields: Any) -> None:
    content = [(str(i).encode(), fields.get("properties", {})) for i in range(count)]
    broker.ask(batch_request(topic, content))
    eventually(lambda: pull(broker, topic, count - 1).code == FOUND)


def wait_found(broker: BlockingClient, topic: str, offset: int = 0, **fields: Any) -> PullMessageReply:
    return eventually(lambda: (r := pull(broker, topic, offset, **fields)).code == FOUND and r)


@case("pull", "FOUND: messages in order, next offset, min and max offset")
def test_found(broker: BlockingClient, topic: str) -> None:
    filled(broker, topic, 10)
    reply = pull(broker, topic, 3, max_msg_nums=4)
    assert bodies(reply) == [b"3", b"4", b"5", b"6"]
    assert [message.queue_offset for message in messages(reply)] == [3, 4, 5, 6]
    assert (reply.next_begin_offset, reply.min_offset, reply.max_offset) == (7, 0, 10)
    assert reply.suggest_which_broker_id == 0


@case("pull", "LITE_PULL_MESSAGE answers as PULL_MESSAGE")
def test_lite(broker: BlockingClient, topic: str) -> None:
    filled(broker, topic, 3)
    reply = pull(broker, topic, 1, lite=True)
    assert (bodies(reply), reply.next_begin_offset) == ([b"1", b"2"], 3)


@case("pull", "NOT_FOUND at the end of a queue, at once when the pull does not wait")
def test_not_found(broker: BlockingClient, topic: str) -> None:
    filled(broker, topic, 2)
    began = time.monotonic()
    reply = pull(broker, topic, 2)
    assert time.monotonic() - began < 2
    assert (reply.code, reply.next_begin_offset, reply.min_offset, reply.max_offset) == (NOT_FOUND, 2, 0, 2)
    assert reply.body == b""


@case("pull", "NOT_FOUND in an empty queue at offset 0")
def test_empty_queue(broker: BlockingClient, topic: str) -> None:
    reply = pull(broker, topic, 0)
    assert (reply.code, reply.next_begin_offset, reply.max_offset) == (NOT_FOUND, 0, 0)


@case("pull", "OFFSET_MOVED in an empty queue beyond offset 0, next offset 0")
def test_empty_queue_beyond(broker: BlockingClient, topic: str) -> None:
    reply = pull(broker, topic, 7)
    assert (reply.code, reply.next_begin_offset) == (MOVED, 0)


@case("pull", "OFFSET_MOVED beyond the end, next offset is the end")
def test_beyond(broker: BlockingClient, topic: str) -> None:
    filled(broker, topic, 5)
    reply = pull(broker, topic, 100)
    assert (reply.code, reply.next_begin_offset, reply.max_offset) == (MOVED, 5, 5)


@case("pull", "OFFSET_MOVED for a negative offset, next offset is the beginning")
def test_negative(broker: BlockingClient, topic: str) -> None:
    filled(broker, topic, 2)
    reply = pull(broker, topic, -1)
    assert (reply.code, reply.next_begin_offset) == (MOVED, 0)


@case("pull", "RETRY_IMMEDIATELY when no message has the tag; the next offset is after them")
def test_no_match(broker: BlockingClient, topic: str) -> None:
    filled(broker, topic, 5, properties={"TAGS": "A"})
    reply = pull(broker, topic, 0, tags="B")
    assert (reply.code, reply.next_begin_offset) == (RETRY, 5)


@case("filter", "tags: one tag, several tags, all")
def test_tags(broker: BlockingClient, topic: str) -> None:
    for tag in ("A", "B", "C", "A"):
        send(broker, topic, tag.encode(), properties={"TAGS": tag})
    wait_found(broker, topic, 3)
    assert bodies(pull(broker, topic, tags="A")) == [b"A", b"A"]
    assert bodies(pull(broker, topic, tags="A || C")) == [b"A", b"C", b"A"]
    assert bodies(pull(broker, topic, tags="*")) == [b"A", b"B", b"C", b"A"]
    assert pull(broker, topic, tags="A").next_begin_offset == 4


@case("filter", "tags: the broker filters by hash, so a tag with an equal hash passes")
def test_tag_hash(broker: BlockingClient, topic: str) -> None:
    assert java_hash("Aa") == java_hash("BB")
    send(broker, topic, b"1", properties={"TAGS": "BB"})
    wait_found(broker, topic)
    assert bodies(pull(broker, topic, tags="Aa")) == [b"1"]


@case("pull", "long poll: answered as soon as a message arrives")
def test_woken(broker: BlockingClient, other: BlockingClient, topic: str) -> None:
    """Four of five answers must be prompt: on a busy machine any single one may be late."""
    took_s = []
    for offset in range(5):
        broker.send_bytes(encode_command(pull_request(topic, offset, suspend_ms=20_000).to_command(77)))
        eventually(lambda: pull(other, topic, offset).code == NOT_FOUND)  # noqa: B023 - called in this iteration
        began = time.monotonic()
        send(other, topic, b"wake")
        answer = broker.receive_command(timeout_s=10)
        took_s.append(time.monotonic() - began)
        assert (answer.opaque, answer.code) == (77, FOUND)
        assert answer.ext["nextBeginOffset"] == str(offset + 1)
    assert sorted(took_s)[3] < 1.5


@case("pull", "long poll: NOT_FOUND when its time is up")
def test_long_poll_ends(broker: BlockingClient, topic: str) -> None:
    began = time.monotonic()
    reply = pull(broker, topic, suspend_ms=1500, timeout_s=15)
    assert reply.code == NOT_FOUND
    # An official broker checks its waiting pulls every 5 s.
    assert 1.4 < time.monotonic() - began < 8


@case("pull", "long poll: a message of another queue or tag does not answer it")
def test_woken_by_own_only(broker: BlockingClient, other: BlockingClient, topic: str) -> None:
    broker.send_bytes(encode_command(pull_request(topic, tags="A", suspend_ms=20_000).to_command(78)))
    eventually(lambda: pull(other, topic).code == NOT_FOUND)
    send(other, topic, b"other queue", queue_id=1, properties={"TAGS": "A"})
    send(other, topic, b"other tag", properties={"TAGS": "B"})
    send(other, topic, b"mine", properties={"TAGS": "A"})
    answer = broker.receive_command(timeout_s=10)
    assert answer.opaque == 78
    if answer.code == RETRY:  # an official broker's scan, every 5 s, may answer first
        offset = int(answer.ext["nextBeginOffset"])
        again = pull_request(topic, offset, tags="A", suspend_ms=20_000)
        answer = broker.send_command(again.to_command())
    assert answer.code == FOUND
    assert b"mine" in bytes(answer.body)
    assert b"other" not in bytes(answer.body)


@case("pull", "long poll: many waiting pulls of one queue are all answered")
def test_many_waiting(server: ServerUnderTest, broker: BlockingClient, topic: str) -> None:
    waiting = [connect(server.broker) for _ in range(20)]
    try:
        for number, client in enumerate(waiting):
            client.send_bytes(encode_command(pull_request(topic, suspend_ms=20_000).to_command(number)))
        eventually(lambda: pull(broker, topic).code == NOT_FOUND)
        send(broker, topic, b"all")
        answers = [client.receive_command(timeout_s=10) for client in waiting]
    finally:
        for client in waiting:
            client.close()
    assert [(answer.opaque, answer.code) for answer in answers] == [(number, FOUND) for number in range(20)]


@case("pull", "long poll: a closed connection leaves the queue usable")
def test_waiting_closed(server: ServerUnderTest, broker: BlockingClient, topic: str) -> None:
    with connect(server.broker) as gone:
        gone.send_bytes(encode_command(pull_request(topic, suspend_ms=20_000).to_command(1)))
    send(broker, topic, b"x")
    assert bodies(wait_found(broker, topic)) == [b"x"]


@case("pull", "a send behind a waiting pull on the same connection is answered first")
def test_out_of_order(broker: BlockingClient, topic: str) -> None:
    broker.send_bytes(encode_command(pull_request(topic, suspend_ms=20_000).to_command(1)))
    broker.send_bytes(encode_command(send_request(topic, queue_id=1).to_command(2)))
    assert broker.receive_command().opaque == 2
    broker.send_bytes(encode_command(send_request(topic).to_command(3)))
    assert {broker.receive_command().opaque for _ in range(2)} == {1, 3}


@case("pull", "the number of messages is limited by the request")
def test_max_messages(broker: BlockingClient, topic: str) -> None:
    filled(broker, topic, 40)
    assert len(messages(pull(broker, topic, max_msg_nums=1))) == 1
    assert len(messages(pull(broker, topic, max_msg_nums=40))) == 32  # maxTransferCountOnMessageInMemory


@case("pull", "the size of an answer is limited to 256 KiB, but one message always comes")
def test_max_bytes(broker: BlockingClient, topic: str) -> None:
    send_many(broker, topic, [bytes(100_000)] * 5)
    wait_found(broker, topic, 4)
    assert len(messages(pull(broker, topic))) == 2
    send(broker, topic, bytes(1_000_000), queue_id=1)
    assert len(messages(wait_found(broker, topic, queue_id=1))) == 1


@case("pull", "a pull can commit the group's offset")
def test_commit(broker: BlockingClient, group: str, topic: str) -> None:
    filled(broker, topic, 5)
    pull(broker, topic, 4, commit_offset=3, sys_flag=SUBSCRIPTION | COMMIT, consumer_group=group)
    query = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=0)
    assert eventually(lambda: broker.ask(query).offset == 3)


@case("pull", "refused: unknown topic (17)")
def test_no_topic(broker: BlockingClient, server: ServerUnderTest) -> None:
    error = expect_refusal(broker, pull_request(server.unique_name("missing")))
    assert error.code == 17
    assert "not exist, apply first please!" in (error.remark or "")


@pytest.mark.parametrize("queue", [-1, 4])
@case("pull", "refused: queue out of range (29)")
def test_queue_range(broker: BlockingClient, topic: str, queue: int) -> None:
    error = expect_refusal(broker, pull_request(topic, queue_id=queue))
    assert error.code == 29
    assert f"queueId[{queue}] is illegal" in (error.remark or "")


@case("pull", "refused: topic without read permission (16)")
def test_write_only(broker: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    create_topic(server, name, 1, perm=WRITE)
    send(broker, name)
    error = expect_refusal(broker, pull_request(name))
    assert (error.code, error.remark) == (16, f"the topic[{name}] pulling message is forbidden")


@case("pull", "refused: group that must not consume (16)")
def test_disabled_group(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    broker.ask(
        UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=group, consume_enable=False))
    )
    error = expect_refusal(broker, pull_request(topic, consumer_group=group))
    assert (error.code, error.remark) == (16, f"subscription group no permission, {group}")


@case("pull", "refused: no subscription in the request and no heartbeat (24)")
def test_no_subscription(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    error = expect_refusal(broker, pull_request(topic, tags=None, consumer_group=server.unique_name("group")))
    assert error.code == 24


@case("pull", "without a subscription in the request the heartbeat's subscription applies")
def test_heartbeat_subscription(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, f"{group}@1", group, topic, tags="A", sub_version=1000)
    for tag in ("A", "B"):
        send(broker, topic, tag.encode(), properties={"TAGS": tag})
    wait_found(broker, topic, 1)
    reply = pull(broker, topic, tags=None, consumer_group=group, sub_version=1000)
    assert bodies(reply) == [b"A"]


@case("pull", "refused: a request with a newer subscription version than the heartbeat (25)")
def test_newer_subscription(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, f"{group}@1", group, topic, sub_version=1000)
    assert (
        expect_refusal(broker, pull_request(topic, tags=None, consumer_group=group, sub_version=1001)).code
        == 25
    )


@case("pull", "refused: a topic the group's heartbeat does not name (24)")
def test_other_topic(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group, another = server.unique_name("group"), server.topic_name()
    create_topic(server, another, 1)
    data = [subscription(another, "*", 1)]
    send_heartbeat(broker, f"{group}@1", group, topic, subscriptions=data)
    assert expect_refusal(broker, pull_request(topic, tags=None, consumer_group=group)).code == 24


@case("pull", "refused: a broadcast pull of a group that must not broadcast (16)")
def test_no_broadcast(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    config = SubscriptionGroupConfig(group_name=group, consume_broadcast_enable=False)
    broker.ask(UpdateAndCreateSubscriptionGroup(data=config))
    send_heartbeat(broker, f"{group}@1", group, topic, message_model="BROADCASTING")
    assert expect_refusal(broker, pull_request(topic, tags=None, consumer_group=group)).code == 16


@case("pull", "binary header: same answer")
def test_binary(server: ServerUnderTest, topic: str) -> None:
    with connect(server.broker, binary=True) as broker:
        filled(broker, topic, 3)
        reply = pull(broker, topic, 1)
        assert (bodies(reply), reply.next_begin_offset, reply.max_offset) == ([b"1", b"2"], 3, 3)


def without(name: str) -> Callable[[Command], None]:
    def remove(command: Command) -> None:
        command.ext.pop(name)

    return remove


def with_text(name: str, text: str) -> Callable[[Command], None]:
    return lambda command: command.ext.update({name: text})


@pytest.mark.parametrize(
    "change",
    [
        without("topic"),
        without("consumerGroup"),
        with_text("queueOffset", "ten"),
        with_text("queueId", "99999999999"),
    ],
    ids=["no topic", "no group", "offset not a number", "queue id too large"],
)
@case("pull", "a header with a missing field or an invalid number is refused, and the connection stays open")
def test_wrong_header(broker: BlockingClient, topic: str, change: Callable[[Command], None]) -> None:
    filled(broker, topic, 1)
    command = pull_request(topic).to_command()
    change(command)
    assert broker.send_command(command).code != 0
    assert pull(broker, topic).code == FOUND


@case("pull", "a suspend time without the suspend flag does not wait")
def test_no_suspend_flag(broker: BlockingClient, topic: str) -> None:
    began = time.monotonic()
    assert pull(broker, topic, sys_flag=SUBSCRIPTION, suspend_timeout_millis=10_000).code == NOT_FOUND
    assert time.monotonic() - began < 2


@case(
    "pull",
    "with slaveReadEnable a group is sent to the broker that it names, and to another one when it is behind",
)
def test_suggested_broker(server: ServerUnderTest, tmp_path: Path) -> None:
    settings = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0"}
    with started(server, settings, tmp_path) as endpoint, connect(endpoint.broker) as broker:
        create_group(broker, "readers", broker_id=3, which_broker_when_consume_slowly=4)
        broker.ask(topic_request("Read", 2))
        filled(broker, "Read", 3)
        answers = [
            pull(broker, "Read", offset, queue_id=queue_id, consumer_group="readers", tags=tags)
            for offset, queue_id, tags in ((0, 0, "*"), (3, 0, "*"), (9, 0, "*"), (0, 1, "*"), (0, 0, "none"))
        ]
    assert [(reply.code, reply.suggest_which_broker_id) for reply in answers[:4]] == [
        (FOUND, 4),
        (NOT_FOUND, 3),
        (MOVED, 3),
        (NOT_FOUND, 3),
    ]
    assert (answers[4].code, answers[4].suggest_which_broker_id) == (RETRY, 4)
