"""Acks, invisible times and redelivery of popped messages, with our typed client."""

import time

from compat_tests.clients.popping import (
    PoppedMessage,
    ack,
    ack_request,
    batch_ack,
    change_invisible_time,
    invisible_time_request,
    pop_messages,
    pop_until,
    send_each,
)
from compat_tests.clients.typed import create_topic, expect_refusal, send_plain, send_readable
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest
from remoting.blocking import BlockingClient
from remoting.requests.pop import BatchAckMessage
from remoting.requests.topics import GetTopicConfig

SOON_MS, LONG_MS = 3_000, 600_000
IN_TIME_MS = 10_000  # long enough for an ack, even where everything is slow
# An official broker revives expired messages periodically, and about 10 s later if its revive queue gets nothing new.
AGAIN_S = 60


def fresh(broker: BlockingClient, server: ServerUnderTest, count: int) -> str:
    """Create a topic with one queue and the messages 0, 1, …"""
    topic = server.topic_name()
    create_topic(server, topic, 1)
    send_each(broker, topic, [b"%d" % number for number in range(count)])
    return topic


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return sorted(each.body for each in messages)


@case("pop", "messages not acked in time come again, acked ones do not")
def test_ack(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 5)
    first = pop_until(broker, topic, group, 5, invisible_time=IN_TIME_MS)
    for each in first:
        if each.body in (b"1", b"3"):
            ack(broker, group, each)
    again = pop_until(broker, topic, group, 3, AGAIN_S)
    assert bodies(again) == [b"0", b"2", b"4"]
    assert pop_messages(broker, topic, group) == []


@case("pop", "a redelivered message has its original topic, a count, and a receipt handle of its retry topic")
def test_retried_message(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 2)
    send_readable(broker, topic, b"again", queue_id=1, properties={"TAGS": "t", "KEYS": "k", "own": "1"})
    (first,) = pop_until(broker, topic, group, 1, invisible_time=SOON_MS)
    (again,) = pop_until(broker, topic, group, 1, AGAIN_S, invisible_time=LONG_MS)
    message = again.message
    assert (message.topic, message.body, message.tags, message.queue_id) == (topic, b"again", "t", 0)
    assert (message.reconsume_times, message.queue_offset) == (1, 0)
    assert {key: message.properties[key] for key in ("KEYS", "own", "ORIGIN_GROUP")} == {
        "KEYS": "k",
        "own": "1",
        "ORIGIN_GROUP": group,
    }
    first_pop = first.receipt.split(" ")[1]
    assert message.properties["1ST_POP_TIME"] == first_pop
    start, pop_time, invisible, revive, kind, name, queue, offset = again.receipt.split(" ")
    assert (start, invisible, kind, name, queue, offset) == ("0", str(LONG_MS), "1", "broker-a", "0", "0")
    assert int(pop_time) > int(first_pop)
    assert 0 <= int(revive) < 8
    retry = broker.ask(GetTopicConfig(topic=f"%RETRY%{group}_{topic}")).data
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


@case("pop", "a message that is never acked comes again and again with an increasing count")
def test_again_and_again(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 1)
    for times in range(3):
        (each,) = pop_until(broker, topic, group, 1, AGAIN_S, invisible_time=1_000)
        assert each.message.reconsume_times == times
    # Every retry uses the same retry topic; there is no retry topic of a retry topic.
    assert each.topic == f"%RETRY%{group}_{topic}"
    assert each.message.properties["1ST_POP_TIME"]


@case("pop", "a waiting pop is answered by a redelivered message")
def test_waits_for_retry(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 1)
    assert len(pop_until(broker, topic, group, 1, invisible_time=SOON_MS)) == 1
    again = pop_messages(broker, topic, group, poll_time=40_000, timeout_s=60)
    assert [each.message.reconsume_times for each in again] == [1]


@case("pop", "BATCH_ACK_MESSAGE acks messages of several pops")
def test_batch_ack(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 6)
    pops = [pop_until(broker, topic, group, 2, max_msg_nums=2, invisible_time=IN_TIME_MS) for _ in range(3)]
    batch_ack(broker, group, topic, [pops[0][0], *pops[1], pops[2][1]])
    assert bodies(pop_until(broker, topic, group, 2, AGAIN_S)) == [b"1", b"4"]


@case("pop", "BATCH_ACK_MESSAGE: the acked messages of a pop do not come again")
def test_batch_ack_counts(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 6)
    first = pop_until(broker, topic, group, 6, invisible_time=IN_TIME_MS)
    batch_ack(broker, group, topic, [each for each in first if each.body not in (b"2", b"5")])
    again = pop_until(broker, topic, group, 2, AGAIN_S)
    assert bodies(again) == [b"2", b"5"]
    batch_ack(broker, group, topic, again)
    assert pop_messages(broker, topic, group) == []


@case("pop", "BATCH_ACK_MESSAGE without messages is refused")
def test_empty_batch(broker: BlockingClient) -> None:
    assert send_plain(broker, BatchAckMessage.code).code == 208


@case("pop", "CHANGE_MESSAGE_INVISIBLETIME makes a message visible later or sooner")
def test_change(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 2)
    sooner, longer = pop_until(broker, topic, group, 2, invisible_time=20_000)
    before = int(time.time() * 1000)
    reply = change_invisible_time(broker, group, longer, LONG_MS)
    assert reply.invisible_time == LONG_MS
    assert reply.pop_time >= before - 1_000
    assert reply.revive_qid == int(longer.receipt.split(" ")[3])
    change_invisible_time(broker, group, sooner, 1_000)
    again = pop_until(broker, topic, group, 1, AGAIN_S)
    assert bodies(again) == [b"0"]
    # Wait until the first pop's time is over as well, with a margin for the official broker, which checks late.
    left_s = int(longer.receipt.split(" ")[1]) / 1000 + 20 - time.time()
    assert (
        pop_messages(broker, topic, group, poll_time=max(0, int(left_s * 1000)) + 8_000, timeout_s=60) == []
    )


@case("pop", "a message with a changed invisible time is acked with its new receipt handle")
def test_ack_after_change(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 2)
    acked, left = pop_until(broker, topic, group, 2, invisible_time=LONG_MS)
    for each in (acked, left):
        change_invisible_time(broker, group, each, IN_TIME_MS)
    ack(broker, group, acked)
    assert bodies(pop_until(broker, topic, group, 1, AGAIN_S)) == [b"1"]
    assert pop_messages(broker, topic, group, poll_time=5_000, timeout_s=60) == []


@case("pop", "acks are refused for unknown topics, wrong queues and offsets that do not exist")
def test_refused_acks(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 3)
    each = pop_until(broker, topic, group, 3)[0]
    error = expect_refusal(broker, ack_request(group, each, topic="compat_no_such_topic"))
    assert error.code == 17
    error = expect_refusal(broker, ack_request(group, each, queue_id=1))
    assert error.code == 13
    assert (error.remark or "").startswith(f"queueId[1] is illegal, topic:[{topic}]")
    error = expect_refusal(broker, ack_request(group, each, offset=4))
    remark = f"offset is illegal, key:{topic}@0, commit:4, store:0~3"
    assert (error.code, error.remark) == (208, remark)
    error = expect_refusal(broker, invisible_time_request(group, each, 1_000, topic="compat_no_such_topic"))
    assert error.code == 17
    assert expect_refusal(broker, invisible_time_request(group, each, 1_000, queue_id=-1)).code == 13
    assert expect_refusal(broker, invisible_time_request(group, each, 1_000, offset=3)).code == 208
    ack(broker, group, each)
    ack(broker, group, each)  # a second time changes nothing


@case("pop", "a malformed receipt handle is refused")
def test_bad_receipt(broker: BlockingClient, server: ServerUnderTest, group: str) -> None:
    topic = fresh(broker, server, 1)
    (each,) = pop_until(broker, topic, group, 1)
    assert expect_refusal(broker, ack_request(group, each, extra_info="0 1")).code == 1
    assert expect_refusal(broker, ack_request(group, each, extra_info="a b c d e f g")).code == 1
