"""Offsets of queues and of consumer groups, with our typed client."""

import time

import pytest

from compat_tests.clients.typed import (
    batch_request,
    create_group,
    expect_refusal,
    messages,
    pull,
    send,
    send_plain,
)
from compat_tests.marks import case, read_only
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.offsets import (
    CloneGroupOffset,
    GetConsumeStats,
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToResetOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from remoting.requests.topics import GetTopicStatsInfo


def query(broker: BlockingClient, group: str, topic: str, queue: int = 0, **fields: bool) -> int:
    request = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue, **fields)
    return broker.ask(request).offset


def update(broker: BlockingClient, group: str, topic: str, offset: int, queue: int = 0) -> None:
    request = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue, commit_offset=offset)
    broker.ask(request)


def fill(broker: BlockingClient, topic: str, count: int) -> None:
    broker.ask(batch_request(topic, [(b"x", {})] * count))
    eventually(lambda: pull(broker, topic, count - 1).code == 0)


@case("offsets", "min and max of a queue")
def test_min_max(broker: BlockingClient, topic: str) -> None:
    assert broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset == 0
    fill(broker, topic, 7)
    assert broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset == 7
    assert broker.ask(GetMinOffset(topic=topic, queue_id=0)).offset == 0
    assert broker.ask(GetMaxOffset(topic=topic, queue_id=1)).offset == 0


@case("offsets", "earliest store time of a queue")
def test_earliest(broker: BlockingClient, topic: str) -> None:
    before = time.time() * 1000
    fill(broker, topic, 2)
    earliest = broker.ask(GetEarliestMsgStoretime(topic=topic, queue_id=0)).timestamp
    assert before - 60_000 < earliest < time.time() * 1000 + 60_000
    assert broker.ask(GetEarliestMsgStoretime(topic=topic, queue_id=1)).timestamp == -1


@case("offsets", "search by time: before, between and after the messages")
def test_search(broker: BlockingClient, topic: str) -> None:
    fill(broker, topic, 3)
    eventually(lambda: int(time.time() * 1000) > messages(pull(broker, topic))[2].store_timestamp + 20)
    send(broker, topic, b"late")
    eventually(lambda: pull(broker, topic, 3).code == 0)
    late = messages(pull(broker, topic, 3))[0].store_timestamp

    def search(timestamp: int) -> int:
        request = SearchOffsetByTimestamp(topic=topic, queue_id=0, timestamp=timestamp)
        return broker.ask(request).offset

    assert search(0) == 0
    assert search(late - 10) == 3
    assert search(late) == 3
    assert search(late + 3_600_000) == 4


@case("offsets", "search by time: the upper boundary gives the last of equal times")
def test_search_upper(broker: BlockingClient, topic: str) -> None:
    fill(broker, topic, 5)
    stored = [message.store_timestamp for message in messages(pull(broker, topic))]
    for boundary, expected in (
        ("LOWER", stored.index(stored[2])),
        ("UPPER", 4 - stored[::-1].index(stored[2])),
    ):
        request = SearchOffsetByTimestamp(
            topic=topic, queue_id=0, timestamp=stored[2], boundary_type=boundary
        )
        assert broker.ask(request).offset == expected


@case("offsets", "commit and query")
def test_commit(broker: BlockingClient, group: str, topic: str) -> None:
    fill(broker, topic, 5)
    update(broker, group, topic, 4)
    assert query(broker, group, topic) == 4
    update(broker, group, topic, 2)  # backwards is allowed
    assert query(broker, group, topic) == 2


@case("offsets", "commit oneway")
def test_commit_oneway(broker: BlockingClient, group: str, topic: str) -> None:
    fill(broker, topic, 3)
    broker.send_oneway(UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=3))
    assert eventually(lambda: query(broker, group, topic) == 3)


@case("offsets", "offsets are separate for each queue and group")
def test_apart(broker: BlockingClient, server: ServerUnderTest, group: str, topic: str) -> None:
    one, two = group, create_group(broker, server.unique_name("group"))
    fill(broker, topic, 5)
    update(broker, one, topic, 1)
    update(broker, one, topic, 0, queue=1)
    update(broker, two, topic, 3)
    assert [query(broker, one, topic), query(broker, one, topic, 1), query(broker, two, topic)] == [1, 0, 3]


@case("offsets", "a new group of a topic that has all its messages starts at 0")
def test_new_group(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    fill(broker, topic, 3)
    assert query(broker, server.unique_name("group"), topic) == 0


@case("offsets", "a new group without setZeroIfNotFound: no offset found (22)")
def test_new_group_not_found(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    fill(broker, topic, 3)
    request = QueryConsumerOffset(
        consumer_group=server.unique_name("group"), topic=topic, queue_id=0, set_zero_if_not_found=False
    )
    assert expect_refusal(broker, request).code == 22


@case("offsets", "a commit is refused for an unknown topic (17) and for an unknown group (26)")
def test_unknown(broker: BlockingClient, server: ServerUnderTest, group: str, topic: str) -> None:
    missing = server.unique_name("missing")
    request = UpdateConsumerOffset(consumer_group=group, topic=missing, queue_id=0, commit_offset=1)
    assert expect_refusal(broker, request).code == 17
    request = UpdateConsumerOffset(consumer_group=missing, topic=topic, queue_id=0, commit_offset=1)
    assert expect_refusal(broker, request).code == 26


@read_only
@pytest.mark.parametrize("code", [30, 31, 32])
@case(
    "offsets", "an offset request for an unknown topic is answered or refused, and the connection stays open"
)
def test_unknown_topic_questions(
    broker: BlockingClient, server: ServerUnderTest, topic: str, code: int
) -> None:
    answer = send_plain(broker, code, topic=server.unique_name("missing"), queueId="0")
    assert answer.code in (0, 1, 17)
    assert broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset == 0


@read_only
@case("offsets", "a queue id that is not a number is refused")
def test_not_a_number(broker: BlockingClient, topic: str) -> None:
    assert send_plain(broker, 30, topic=topic, queueId="none").code == 1
    assert send_plain(broker, 30, topic=topic, queueId="1.5").code == 1


@case("offsets", "consume statistics of a group")
def test_consume_stats(broker: BlockingClient, group: str, topic: str) -> None:
    fill(broker, topic, 6)
    update(broker, group, topic, 4)
    table = broker.ask(GetConsumeStats(consumer_group=group, topic=topic)).data.offset_table
    progress = {
        queue.queue_id: (offset.broker_offset, offset.consumer_offset) for queue, offset in table.items()
    }
    assert progress[0] == (6, 4)


@case("offsets", "topic statistics")
def test_topic_stats(broker: BlockingClient, topic: str) -> None:
    fill(broker, topic, 6)
    table = broker.ask(GetTopicStatsInfo(topic=topic)).data.offset_table
    assert {queue.queue_id: (o.min_offset, o.max_offset) for queue, o in table.items()} == {
        0: (0, 6),
        1: (0, 0),
        2: (0, 0),
        3: (0, 0),
    }
    assert {queue.topic for queue in table} == {topic}


@case("offsets", "copy a group's offsets to another")
def test_clone(broker: BlockingClient, server: ServerUnderTest, group: str, topic: str) -> None:
    source, target = group, create_group(broker, server.unique_name("group"))
    fill(broker, topic, 5)
    update(broker, source, topic, 3)
    broker.ask(CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=True))
    assert query(broker, target, topic) == 3


@case("offsets", "reset of a group that is not online")
def test_reset_offline(broker: BlockingClient, group: str, topic: str) -> None:
    fill(broker, topic, 5)
    update(broker, group, topic, 5)
    request = InvokeBrokerToResetOffset(topic=topic, group=group, timestamp=0, is_force=True)
    table = broker.ask(request).data.offset_table
    assert {queue.queue_id: offset for queue, offset in table.items()} == {0: 0, 1: 0, 2: 0, 3: 0}
    assert query(broker, group, topic) == 0
