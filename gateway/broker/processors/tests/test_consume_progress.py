import pytest
import trio

from codec.command import Command
from gateway.broker.statistics.traffic_rates import GROUP_GET
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from gateway.tests.cluster import pull
from remoting.bodies.progress import GetConsumerStatusBody
from remoting.bodies.queues import MessageQueue
from remoting.bodies.topics import TopicConfig
from remoting.errors import RemotingTimeout, RequestError
from remoting.requests.offsets import (
    CloneGroupOffset,
    GetBrokerConsumeStats,
    GetConsumeStats,
    InvokeBrokerToGetConsumerStatus,
    InvokeBrokerToResetOffset,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
)
from remoting.tests.longest_turn import short_turns


@pytest.fixture
def world():
    world = World()
    world.topic("t", 2)
    world.broker.groups.find_or_create("g")
    return world


def by_queue(table):
    return {(queue.topic, queue.queue_id): value for queue, value in table.items()}


def test_how_far_a_group_is(world):
    start = world.clock.ms
    for _ in range(3):
        world.put("t", 0)
        world.clock.pass_ms(10)
    world.broker.offsets.commit_offset("g", "t", 0, 2)
    table = by_queue(world.ask(GetConsumeStats(consumer_group="g")).data.offset_table)
    first, second = table["t", 0], table["t", 1]
    assert (first.broker_offset, first.consumer_offset, first.pull_offset) == (3, 2, 2)
    assert first.last_timestamp == start + 10
    assert (second.broker_offset, second.consumer_offset, second.last_timestamp) == (0, 0, 0)


def test_topics_that_members_left_are_not_counted(world):
    world.topic("u", 1)
    world.broker.offsets.commit_offset("g", "t", 0, 0)
    world.broker.offsets.commit_offset("g", "u", 0, 0)

    def topics(**more):
        table = world.ask(GetConsumeStats(consumer_group="g", **more)).data.offset_table
        return {queue.topic for queue in table}

    assert topics() == {"t", "u"}
    world.beat(FakeConnection(), "t")
    assert topics() == {"t"}
    assert topics(topic="u") == set()
    assert topics(topic_list="u;t;unknown") == {"t", "u"}


def test_how_far_every_group_is(world):
    for _ in range(3):
        world.put("t", 0)
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    request = pull("t", 0, group="g", max_msg_nums=2)
    world.handlers[request.code](world.connection, request.to_command(7))
    body = world.ask(GetBrokerConsumeStats()).data
    stats = {group: each for entry in body.consume_stats_list for group, each in entry.items()}
    assert by_queue(stats["g"][0].offset_table)["t", 0].consumer_offset == 1
    assert (body.total_diff, body.total_inflight_diff, body.broker_addr) == (2, 1, "10.0.0.9:10911")
    ordered = world.ask(GetBrokerConsumeStats(is_order=True)).data
    assert ordered.total_diff == 0


def test_offsets_far_behind_the_end_do_not_add_up_to_more_than_a_long(world):
    for queue_id in range(3):
        world.put("t", queue_id)
        world.broker.offsets.commit_offset("g", "t", queue_id, (1 << 63) - 1)
    assert world.ask(GetBrokerConsumeStats()).data.total_diff == -(1 << 63)


def reset(world, **more):
    table = world.ask(InvokeBrokerToResetOffset(group="g", topic="t", **more)).data.offset_table
    return {queue.queue_id: offset for queue, offset in table.items()}


def test_a_reset_to_a_time_counts_for_every_queue(world):
    for _ in range(3):
        world.put("t", 0)
        world.clock.pass_ms(1000)
    world.broker.offsets.commit_offset("g", "t", 0, 3)
    assert reset(world, timestamp=world.clock.ms - 1500) == {0: 2, 1: 0}
    assert world.broker.offsets.query_offset("g", "t", 0) == 2
    assert world.broker.offsets.take_reset("g", "t", 0) == 2
    assert reset(world, timestamp=-1) == {0: 3, 1: 0}


def test_a_reset_of_one_queue_to_a_number(world):
    world.put("t", 0)
    assert reset(world, queue_id=0, offset=0) == {0: 0}
    assert reset(world, queue_id=0, offset=2) == {0: 2}
    assert reset(world, queue_id=0, offset=-1, timestamp=-1) == {0: 1}
    with pytest.raises(RequestError, match=r"Target offset 3 not in consume queue range \[0-1\]"):
        reset(world, queue_id=0, offset=3)


@pytest.mark.parametrize(
    ("topic", "group", "code", "remark"),
    [("x", "g", 17, "Topic x does not exist"), ("t", "x", 26, "Group x does not exist")],
)
def test_refused_resets(world, topic, group, code, remark):
    with pytest.raises(RequestError, match=remark) as refused:
        world.ask(InvokeBrokerToResetOffset(group=group, topic=topic, timestamp=0))
    assert refused.value.code == code


def test_ages_of_what_is_to_be_consumed(world):
    start = world.clock.ms
    for _ in range(3):
        world.put("t", 0)
        world.clock.pass_ms(10)
    world.broker.offsets.commit_offset("g", "t", 0, 2)
    spans = world.ask(QueryConsumeTimeSpan(topic="t", group="g")).data.consume_time_span_set
    first = spans[0]
    assert (first.min_time_stamp, first.max_time_stamp) == (start, start + 20)
    assert (first.consume_time_stamp, first.delay_time) == (start + 10, 10)
    assert spans[1].min_time_stamp == -1
    with pytest.raises(RequestError, match=r"topic\[x\] not exist"):
        world.ask(QueryConsumeTimeSpan(topic="x", group="g"))


def test_correction_offsets(world):
    for group, offset in (("a", 5), ("b", 3), ("c", 4)):
        world.broker.offsets.commit_offset(group, "t", 0, offset)

    def ask(**more):
        return world.ask(QueryCorrectionOffset(topic="t", **more)).data.correction_offsets

    assert ask(compare_group="a") == {0: 3}
    assert ask(compare_group="a", filter_groups="b,") == {0: 4}
    assert ask(compare_group="b", filter_groups="b") == {0: 2**63 - 1}


def test_clone(world):
    world.topic("u", 1)
    world.broker.offsets.commit_offset("g", "t", 0, 5)
    world.broker.offsets.commit_offset("g", "u", 0, 6)
    world.ask(CloneGroupOffset(src_group="g", dest_group="h", topic="t"))
    assert world.broker.offsets.topics_of_group("h") == {"t"}
    world.beat(FakeConnection(), "t")
    world.ask(CloneGroupOffset(src_group="g", dest_group="i"))
    assert world.broker.offsets.topics_of_group("i") == {"t"}
    world.ask(CloneGroupOffset(src_group="g", dest_group="i", offline=True))
    assert world.broker.offsets.query_offset("i", "u", 0) == 6


def test_members_are_asked_for_their_offsets(world):
    one, two, silent = FakeConnection(), FakeConnection(), FakeConnection()
    queue = MessageQueue(topic="t", broker_name="b1", queue_id=0)
    one.answer = Command(0, 1, body=GetConsumerStatusBody(message_queue_table={queue: 4}).to_json())
    two.answer = Command(0, 1, body=GetConsumerStatusBody(message_queue_table={queue: 9}).to_json())
    silent.answer = RemotingTimeout("no answer")
    for client_id, connection in (("c1", one), ("c2", two), ("c3", silent)):
        world.beat(connection, "t", client_id=client_id)
    request = InvokeBrokerToGetConsumerStatus(topic="t", group="g")
    assert world.ask_async(request).data.consumer_table == {"c1": {queue: 4}, "c2": {queue: 9}}
    request = InvokeBrokerToGetConsumerStatus(topic="t", group="g", client_addr="c2")
    assert world.ask_async(request).data.consumer_table == {"c2": {queue: 9}}
    with pytest.raises(RequestError, match=r"No Any Consumer online in the consumer group: \[x\]"):
        world.ask_async(InvokeBrokerToGetConsumerStatus(topic="t", group="x"))


def test_a_topic_that_is_listed_a_thousand_times_counts_once(world):
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    stats = world.ask(GetConsumeStats(consumer_group="g", topic_list="t;none;" * 1000)).data
    assert {queue.topic for queue in stats.offset_table} == {"t"}
    assert stats.consume_tps == world.broker.rates.count(GROUP_GET, ("g", "t")).per_second


@pytest.mark.parametrize("queue_id", [4, 2**31 - 1])
def test_a_queue_that_does_not_exist_is_not_reset(world, queue_id):
    with pytest.raises(RequestError) as refused:
        world.ask(InvokeBrokerToResetOffset(group="g", topic="t", queue_id=queue_id, offset=-1))
    assert refused.value.code == 29
    assert world.broker.offsets.queue_offsets("g", "t") is None


def test_answers_about_topics_of_another_broker_list_no_more_queues_than_the_limit():
    world = World(max_queues_per_topic=5)
    for topic in ("huge", "t"):
        queues = 2**31 - 1 if topic == "huge" else 2
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        world.broker.topics.table[topic] = config
    world.broker.groups.find_or_create("g")
    world.broker.offsets.commit_offset("g", "huge", 0, 0)
    assert len(world.ask(GetConsumeStats(consumer_group="g", topic="huge")).data.offset_table) == 5
    assert len(world.ask(QueryConsumeTimeSpan(group="g", topic="huge")).data.consume_time_span_set) == 5
    stats = world.ask(GetBrokerConsumeStats()).data.consume_stats_list
    assert [len(each.offset_table) for entry in stats for each in entry.get("g", [])] == [5]
    request = InvokeBrokerToResetOffset(group="g", topic="huge", timestamp=-1)
    assert len(world.ask(request).data.offset_table) == 5


def test_an_answer_of_too_many_queues_is_refused(monkeypatch):
    monkeypatch.setattr("gateway.broker.processors.turns.MAX_LISTED_QUEUES", 10)
    world = World()
    for number in range(4):
        world.topic(f"t{number}")
    world.broker.groups.find_or_create("g")
    for number in range(4):
        world.broker.offsets.commit_offset("g", f"t{number}", 0, 0)
    assert len(world.ask(GetConsumeStats(consumer_group="g", topic_list="t0;t1")).data.offset_table) == 8
    for request in (GetConsumeStats(consumer_group="g"), GetBrokerConsumeStats()):
        with pytest.raises(RequestError, match="would list more than 10 queues"):
            world.ask(request)


def test_the_progress_of_thousands_of_topics_is_listed_in_short_turns():
    """Each topic has fewer queues than one turn lists."""
    world = World()
    groups = [world.broker.groups.find_or_create(f"g{number}") and f"g{number}" for number in range(3)]
    for number in range(2000):
        world.topic(f"t{number}")
        for group in groups:
            world.broker.offsets.commit_offset(group, f"t{number}", 0, 0)

    async def ask_all():
        async with trio.open_nursery() as nursery:
            world.connection.nursery = nursery
            for request in (GetBrokerConsumeStats(), GetConsumeStats(consumer_group="g1")):
                with short_turns():
                    assert world.handlers[request.code](world.connection, request.to_command(7)) is None
                    while not world.connection.written:
                        await trio.lowlevel.checkpoint()
                world.connection.written.clear()

    trio.run(ask_all)
