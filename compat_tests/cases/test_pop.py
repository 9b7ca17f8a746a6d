"""Pop consumption: taking messages, long polls, filters and refusals, with our typed client."""

import time

import pytest

from codec.command import encode_command
from compat_tests.clients.popping import (
    POLLING_FULL,
    POLLING_TIMEOUT,
    parse_popped,
    parse_start_offsets,
    pop,
    pop_messages,
    pop_request,
    pop_until,
    send_each,
)
from compat_tests.clients.typed import (
    connect,
    create_group,
    create_topic,
    expect_refusal,
    send,
    send_readable,
)
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.offsets import InvokeBrokerToResetOffset, QueryConsumerOffset
from remoting.requests.pop import (
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    PopMessageReply,
)


@pytest.fixture
def queue(server: ServerUnderTest) -> str:
    """A new topic with one queue."""
    name = server.topic_name()
    create_topic(server, name, 1)
    return name


def start_pop(client: BlockingClient, topic: str, group: str, **fields: object) -> PopMessage:
    """Send a pop request without waiting for its answer."""
    request = pop_request(topic, group, **fields)
    client.send_bytes(encode_command(request.to_command(77)))
    return request


def waiting(broker: BlockingClient, topic: str, group: str, queue_id: int = -1) -> int:
    request = PollingInfo(consumer_group=group, topic=topic, queue_id=queue_id)
    return broker.ask(request).polling_num


def end_of_pop(client: BlockingClient, request: PopMessage, timeout_s: float = 40) -> PopMessageReply:
    return request.read_reply(client.receive_command(timeout_s=timeout_s))


@case("pop", "a pop takes messages of all queues, and reports their queues and start offsets")
def test_all_queues(broker: BlockingClient, topic: str, group: str) -> None:
    for number in range(8):
        send_readable(broker, topic, b"%d" % number, queue_id=number % 4)
    reply = pop(broker, topic, group, invisible_time=60_000)
    messages = parse_popped(reply, topic, group)
    assert sorted(each.body for each in messages) == [b"%d" % number for number in range(8)]
    assert (reply.code, reply.remark, reply.rest_num, reply.invisible_time) == (0, "FOUND", 0, 60_000)
    assert 0 <= reply.revive_qid < 8
    assert abs(reply.pop_time - time.time() * 1000) < 60_000
    assert parse_start_offsets(reply) == {("0", queue_id): 0 for queue_id in range(4)}
    assert sorted((reply.msg_offset_info or "").split(";")) == [f"0 {queue_id} 0,1" for queue_id in range(4)]
    assert reply.order_count_info is None
    assert all(each.message.topic == topic for each in messages)


@case("pop", "a pop of one queue takes at most the requested number, and reports the number left")
def test_one_queue(broker: BlockingClient, topic: str, group: str) -> None:
    send_each(broker, topic, [b"%d" % number for number in range(5)], queue_id=2)
    send_readable(broker, topic, b"elsewhere", queue_id=1)
    first = pop(broker, topic, group, queue_id=2, max_msg_nums=3)
    assert [each.body for each in parse_popped(first, topic, group)] == [b"0", b"1", b"2"]
    assert (first.rest_num, first.start_offset_info, first.msg_offset_info) == (2, "0 2 0", "0 2 0,1,2")
    second = pop(broker, topic, group, queue_id=2)
    assert [each.body for each in parse_popped(second, topic, group)] == [b"3", b"4"]
    assert (second.rest_num, second.start_offset_info) == (0, "0 2 3")


@case("pop", "messages popped by one consumer are invisible to another")
def test_invisible(broker: BlockingClient, other: BlockingClient, queue: str, group: str) -> None:
    send_each(broker, queue, [b"%d" % number for number in range(6)])
    mine = pop_messages(broker, queue, group, max_msg_nums=4)
    theirs = pop_messages(other, queue, group)
    assert [each.body for each in mine] == [b"0", b"1", b"2", b"3"]
    assert [each.body for each in theirs] == [b"4", b"5"]
    assert pop_messages(broker, queue, group) == []


@case("pop", "groups pop independently, and the consumer offset follows the pops")
def test_groups(broker: BlockingClient, server: ServerUnderTest, queue: str, group: str) -> None:
    second = create_group(broker, server.unique_name("group"))
    send_each(broker, queue, [b"a", b"b", b"c"])
    assert len(pop_messages(broker, queue, group, max_msg_nums=2)) == 2
    assert len(pop_messages(broker, queue, second)) == 3

    def offset(name: str) -> int:
        return broker.ask(QueryConsumerOffset(consumer_group=name, topic=queue, queue_id=0)).offset

    eventually(lambda: offset(group) == 2)
    eventually(lambda: offset(second) == 3)


@case("pop", "no messages and no time to wait: POLLING_TIMEOUT")
def test_nothing(broker: BlockingClient, topic: str, group: str) -> None:
    reply = pop(broker, topic, group)
    assert (reply.code, reply.remark, reply.rest_num) == (POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", 0)
    assert (reply.start_offset_info, reply.msg_offset_info, reply.body) == ("", "", b"")


@pytest.mark.parametrize("queue_id", [-1, 3])
@case("pop", "a pop waits for a message and is answered when one comes")
def test_wait(broker: BlockingClient, other: BlockingClient, topic: str, group: str, queue_id: int) -> None:
    request = start_pop(other, topic, group, poll_time=30_000, queue_id=queue_id)
    eventually(lambda: waiting(broker, topic, group, queue_id) == 1)
    send_readable(broker, topic, b"here", queue_id=3)
    reply = end_of_pop(other, request)
    assert [each.body for each in parse_popped(reply, topic, group)] == [b"here"]
    assert waiting(broker, topic, group, queue_id) == 0


@case("pop", "a waiting pop of one queue is not answered by messages in other queues")
def test_wait_for_one_queue(broker: BlockingClient, other: BlockingClient, topic: str, group: str) -> None:
    request = start_pop(other, topic, group, poll_time=30_000, queue_id=1)
    eventually(lambda: waiting(broker, topic, group, 1) == 1)
    send_readable(broker, topic, b"not this", queue_id=0)
    send_readable(broker, topic, b"this", queue_id=1)
    assert [each.body for each in parse_popped(end_of_pop(other, request), topic, group)] == [b"this"]


@case("pop", "of two waiting pops, one gets the message and the other keeps waiting")
def test_two_wait(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, queue: str, group: str
) -> None:
    with connect(server.broker) as third:
        requests = [(client, start_pop(client, queue, group, poll_time=30_000)) for client in (other, third)]
        eventually(lambda: waiting(broker, queue, group) == 2)
        send(broker, queue, b"one")
        eventually(lambda: waiting(broker, queue, group) == 1)
        send(broker, queue, b"two")
        replies = [parse_popped(end_of_pop(client, request), queue, group) for client, request in requests]
    assert sorted(each.body for reply in replies for each in reply) == [b"one", b"two"]


@case("pop", "a pop that waits without a message is answered POLLING_TIMEOUT when its time is up")
def test_wait_in_vain(broker: BlockingClient, topic: str, group: str) -> None:
    started = time.monotonic()
    reply = pop(broker, topic, group, poll_time=2_000, timeout_s=40)
    assert (reply.code, reply.remark) == (POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert time.monotonic() - started > 1.9


@case("pop", "while 1,025 pops of a group wait for a queue, the next one is answered POLLING_FULL at once")
def test_polling_full(broker: BlockingClient, other: BlockingClient, topic: str, group: str) -> None:
    for _ in range(1_025):
        start_pop(other, topic, group, poll_time=20_000, queue_id=0)
    eventually(lambda: waiting(broker, topic, group, 0) == 1_025)
    assert pop(broker, topic, group, poll_time=20_000, queue_id=0).code == POLLING_FULL
    assert pop(broker, topic, group, poll_time=500, queue_id=1).code == POLLING_TIMEOUT


@case("pop", "a pop that arrives long after its client gave up is not processed")
def test_too_late(broker: BlockingClient, queue: str, group: str) -> None:
    send_readable(broker, queue)
    request = pop_request(queue, group, poll_time=1_000, born_time=int(time.time() * 1000) - 10_000)
    reply = broker.ask(request)
    assert (reply.code, reply.body) == (POLLING_TIMEOUT, b"")
    assert (reply.remark or "").endswith("pop message is timeout too much")


@case("pop", "a new group with init mode MAX starts a short queue at its beginning")
def test_init_mode_max(broker: BlockingClient, queue: str, group: str) -> None:
    send_each(broker, queue, [b"0", b"1", b"2"])
    assert [each.body for each in pop_messages(broker, queue, group, init_mode=1)] == [b"0", b"1", b"2"]


@case("pop", "tags: messages of other tags are skipped for good")
def test_tags(broker: BlockingClient, queue: str, group: str) -> None:
    for number, tag in enumerate(("A", "B", "A", "C", "B")):
        send_readable(broker, queue, b"%d" % number, properties={"TAGS": tag})
    reply = pop(broker, queue, group, exp="A || C")
    assert [each.body for each in parse_popped(reply, queue, group)] == [b"0", b"2", b"3"]
    assert (reply.start_offset_info, reply.msg_offset_info) == ("0 0 0", "0 0 0,2,3")
    assert pop_messages(broker, queue, group, exp="*") == []


@case("pop", "tags: a pop keeps waiting while only messages of other tags arrive")
def test_tags_wait(broker: BlockingClient, other: BlockingClient, queue: str, group: str) -> None:
    request = start_pop(other, queue, group, poll_time=30_000, exp="B")
    eventually(lambda: waiting(broker, queue, group) == 1)
    send(broker, queue, b"a", properties={"TAGS": "A"})
    send(broker, queue, b"b", properties={"TAGS": "B"})
    assert [each.body for each in parse_popped(end_of_pop(other, request), queue, group)] == [b"b"]


@case("pop", "SQL92 filters")
def test_sql(broker: BlockingClient, queue: str, group: str) -> None:
    for number in range(6):
        send_readable(broker, queue, b"%d" % number, properties={"a": str(number)})
    found = pop_messages(broker, queue, group, exp_type="SQL92", exp="a > 2 AND a <> 4")
    assert [each.body for each in found] == [b"3", b"5"]


@case("pop", "an invalid filter expression is refused")
def test_bad_expression(broker: BlockingClient, queue: str, group: str) -> None:
    error = expect_refusal(broker, pop_request(queue, group, exp_type="SQL92", exp="a >"))
    assert (error.code, error.remark) == (23, "parse the consumer's subscription failed")


@case("pop", "refusals: too many messages, an unknown topic, a wrong queue, a group that may not consume")
def test_refusals(broker: BlockingClient, server: ServerUnderTest, topic: str, group: str) -> None:
    error = expect_refusal(broker, pop_request(topic, group, max_msg_nums=33))
    assert error.code == 29
    assert (error.remark or "").endswith("pop message's num is greater than 32")
    error = expect_refusal(broker, pop_request("compat_no_such_topic", group))
    assert error.code == 17
    assert (error.remark or "").startswith("topic[compat_no_such_topic] not exist, apply first please!")
    error = expect_refusal(broker, pop_request(topic, group, queue_id=4))
    assert error.code == 29
    assert (error.remark or "").startswith(f"queueId[4] is illegal, topic:[{topic}]")
    stopped = create_group(broker, server.unique_name("group"), consume_enable=False)
    error = expect_refusal(broker, pop_request(topic, stopped))
    assert (error.code, error.remark) == (16, f"subscription group no permission, {stopped}")


@case("pop", "after an offset reset a group pops from the new offset")
def test_reset(broker: BlockingClient, queue: str, group: str) -> None:
    send_each(broker, queue, [b"%d" % number for number in range(5)])
    assert len(pop_until(broker, queue, group, 5)) == 5
    broker.ask(
        InvokeBrokerToResetOffset(topic=queue, group=group, queue_id=0, offset=3, timestamp=-1, is_force=True)
    )
    assert [each.body for each in pop_until(broker, queue, group, 2)] == [b"3", b"4"]


@case("pop", "PEEK_MESSAGE shows messages and takes none")
def test_peek(broker: BlockingClient, queue: str, group: str) -> None:
    request = PeekMessage(topic=queue, queue_id=0, max_msg_nums=2, consumer_group=group)
    reply = broker.ask(request)
    assert (reply.code, reply.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    send_each(broker, queue, [b"0", b"1", b"2"])
    for _ in range(2):
        reply = broker.ask(request)
        assert (reply.code, reply.rest_num) == (0, 3)
        assert reply.body.count(queue.encode()) == 2
    assert len(pop_messages(broker, queue, group)) == 3
    assert broker.ask(request).code == 19


def notification(topic: str, group: str, **fields: int) -> Notification:
    return Notification(
        consumer_group=group, topic=topic, **{"queue_id": -1, "poll_time": 0, "born_time": 0, **fields}
    )


@case("pop", "NOTIFICATION: tells if there is a message, at once or when one arrives")
def test_notification(broker: BlockingClient, other: BlockingClient, topic: str, group: str) -> None:
    assert not broker.ask(notification(topic, group)).has_msg
    request = notification(topic, group, poll_time=30_000)
    other.send_bytes(encode_command(request.to_command(5)))
    # No request tells if it waits already; it is answered in either case.
    send_readable(broker, topic, queue_id=2)
    assert request.read_reply(other.receive_command(timeout_s=40)).has_msg
    assert broker.ask(notification(topic, group)).has_msg
    assert broker.ask(notification(topic, group, queue_id=2)).has_msg
    assert not broker.ask(notification(topic, group, queue_id=1)).has_msg
    assert len(pop_messages(broker, topic, group)) == 1
    eventually(lambda: not broker.ask(notification(topic, group)).has_msg)


@case("pop", "NOTIFICATION that waits without a message")
def test_notification_in_vain(broker: BlockingClient, topic: str, group: str) -> None:
    started = time.monotonic()
    reply = broker.ask(notification(topic, group, poll_time=1_500), timeout_s=40)
    assert (reply.has_msg, reply.polling_full) == (False, False)
    assert time.monotonic() - started > 1.4
