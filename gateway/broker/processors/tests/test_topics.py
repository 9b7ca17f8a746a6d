import pytest
import trio

from gateway.broker.processors.turns import ITEMS_PER_TURN
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World, answer_of
from remoting.bodies.queues import MessageQueue
from remoting.bodies.topics import CreateTopicListRequestBody, TopicConfig
from remoting.errors import RequestError
from remoting.requests.topics import (
    CleanExpiredConsumequeue,
    CleanUnusedTopic,
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)
from storage.queue_set import QUEUES_PER_SLICE


@pytest.fixture
def world():
    return World()


def create(world, topic, **more):
    wanted = {
        "topic": topic,
        "default_topic": "TBW102",
        "read_queue_nums": 2,
        "write_queue_nums": 3,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
        **more,
    }
    return world.ask(UpdateAndCreateTopic(**wanted))


def test_create_then_change(world):
    changed = []
    world.broker.topics.add_listener(changed.append)
    create(world, "t", attributes="+message.type=FIFO")
    create(world, "t", perm=4, order=True)
    topic = world.ask(GetTopicConfig(topic="t")).data
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order) == (2, 3, 4, True)
    assert topic.attributes == {"message.type": "FIFO"}
    assert len(changed) == 2


def test_the_same_again_changes_nothing(world):
    create(world, "t")
    before = world.broker.topics.version.counter
    create(world, "t")
    assert world.broker.topics.version.counter == before


@pytest.mark.parametrize(
    ("topic", "more", "code", "remark"),
    [
        (
            "a b",
            {},
            29,
            "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ("TBW102", {}, 29, "The topic[TBW102] is conflict with system topic."),
        ("rmq_sys_x", {}, 29, "The topic[rmq_sys_x] is conflict with system topic."),
        ("t", {"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
        (
            "t",
            {"attributes": "+cleanup.policy=COMPACTION"},
            29,
            "cleanup.policy=COMPACTION is not supported by this broker.",
        ),
        (
            "t",
            {"attributes": "+queue.type=BatchCQ"},
            29,
            "queue.type=BatchCQ is not supported by this broker.",
        ),
        ("t", {"attributes": "+colour=red"}, 1, "unsupported key: colour"),
        ("t", {"attributes": "colour=red"}, 1, "add/alter attribute format is wrong: colour"),
        (
            "t",
            {"attributes": "-queue.type"},
            1,
            "only add attribute is supported while creating topic. key: queue.type",
        ),
        ("t", {"topic_filter_type": "TRIPLE"}, 1, "topicFilterType = [TRIPLE] value invalid"),
    ],
)
def test_refused_topics(world, topic, more, code, remark):
    with pytest.raises(RequestError) as refused:
        create(world, topic, **more)
    assert (refused.value.code, refused.value.remark) == (code, remark)


def test_several_at_once_are_all_or_none(world):
    def ask(*names):
        body = CreateTopicListRequestBody(topic_config_list=[TopicConfig(topic_name=name) for name in names])
        return world.ask(UpdateAndCreateTopicList(data=body))

    ask("a", "b")
    assert {"a", "b"} <= world.broker.topics.table.keys()
    with pytest.raises(RequestError, match="illegal characters"):
        ask("c", "d?")
    assert "c" not in world.broker.topics
    ask("a", "c")
    assert "c" in world.broker.topics


def test_delete_takes_messages_offsets_and_pop_retry_topics_along(world):
    world.topic("t")
    world.topic("%RETRY%g+t")
    world.put("t")
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    world.ask(DeleteTopicInBroker(topic="t"))
    assert "t" not in world.broker.topics
    assert "%RETRY%g+t" not in world.broker.topics
    assert world.broker.store.max_offset("t", 0) == 0
    assert world.broker.offsets.query_offset("g", "t", 0) == -1
    world.ask(DeleteTopicInBroker(topic="t"))
    with pytest.raises(RequestError, match="conflict with system topic"):
        world.ask(DeleteTopicInBroker(topic="BenchmarkTest"))
    with pytest.raises(RequestError, match=r"The specified topic is blank\."):
        world.ask(DeleteTopicInBroker(topic=" "))


def test_an_unknown_topic(world):
    with pytest.raises(RequestError, match=r"No topic in this broker\. topic: x") as refused:
        world.ask(GetTopicConfig(topic="x"))
    assert refused.value.code == 17
    with pytest.raises(RequestError, match=r"topic\[x\] not exist"):
        world.ask(GetTopicStatsInfo(topic="x"))


def test_all_topics_whole_and_in_pages(world):
    whole = world.ask(GetAllTopicConfig())
    assert whole.total_topic_num == len(whole.data.topic_config_table) == len(world.broker.topics.table)
    version = whole.data.data_version.to_json().decode()
    first = world.ask(GetAllTopicConfig(topic_seq=0, max_topic_num=5)).data.topic_config_table
    second = world.ask(GetAllTopicConfig(topic_seq=5, max_topic_num=5, data_version=version))
    assert [*first, *second.data.topic_config_table] == sorted(world.broker.topics.table)[:10]
    stale = world.ask(GetAllTopicConfig(topic_seq=5, max_topic_num=5, data_version='{"counter":99}'))
    assert stale.data.topic_config_table.keys() == first.keys()


def test_where_queues_begin_and_end(world):
    world.topic("t", 2)
    world.put("t", 1)
    world.clock.pass_ms(5)
    world.put("t", 1)
    table = world.ask(GetTopicStatsInfo(topic="t")).data.offset_table
    ends = {
        queue.queue_id: (at.min_offset, at.max_offset, at.last_update_timestamp)
        for queue, at in table.items()
    }
    assert ends == {0: (0, 0, 0), 1: (0, 2, world.clock.ms)}
    assert next(iter(table)) == MessageQueue(topic="t", broker_name="b1", queue_id=0)


def test_who_consumes_what(world):
    world.beat(FakeConnection(), "t", group="online")
    world.broker.offsets.commit_offset("left", "t", 0, 1)
    assert world.ask(QueryTopicConsumeByWho(topic="t")).data.group_list == ["left", "online"]
    topics = world.ask(QueryTopicsByConsumer(group="left")).data
    assert (topics.topic_list, topics.broker_addr) == (["t"], "10.0.0.9:10911")


def test_system_topics(world):
    listed = world.ask(GetSystemTopicListFromBroker()).data.topic_list
    assert {"TBW102", "c1", "b1", "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_c1"} <= set(listed)


def test_cleaning_up_removes_queues_of_forgotten_topics_only(world):
    world.topic("kept")
    world.put("kept")
    world.put("forgotten")
    world.put("kept", properties={"DELAY": "1"})
    world.ask(CleanUnusedTopic())
    world.ask(CleanExpiredConsumequeue())
    assert {topic for topic, _ in world.broker.store.queue_keys()} == {"kept", "SCHEDULE_TOPIC_XXXX"}


def table_of_another_broker(world, **queues):
    """Put a topic into the table that no request could create."""
    config = TopicConfig(topic_name="huge", **queues)
    world.broker.topics.table["huge"] = config
    return config


def test_queues_beyond_the_limit_are_not_listed():
    world = World(max_queues_per_topic=5)
    with pytest.raises(RequestError, match="raise maxQueuesPerTopic"):
        create(world, "huge", read_queue_nums=2**31 - 1)
    table_of_another_broker(world, read_queue_nums=2**31 - 1, write_queue_nums=2**31 - 1)
    table = world.ask(GetTopicStatsInfo(topic="huge")).data.offset_table
    assert sorted(queue.queue_id for queue in table) == [0, 1, 2, 3, 4]


def count_turns(world, request, done):
    """Return how often another task ran while a request was served."""
    turns = 0

    async def others():
        nonlocal turns
        while not world.connection.written:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def main():
        async with trio.open_nursery() as nursery:
            world.connection.nursery = nursery
            nursery.start_soon(others)
            assert world.handlers[request.code](world.connection, request.to_command(7)) is None

    trio.run(main)
    world.connection.nursery = None
    done(request.read_reply(answer_of(world.connection.written.pop())))
    return turns


def test_others_have_their_turn_while_many_queues_are_listed_and_deleted(world):
    create(world, "wide", read_queue_nums=4096, write_queue_nums=4096)
    for queue_id in range(0, 4096, 7):
        world.put("wide", queue_id)

    def check(reply):
        ends = {queue.queue_id: offset.max_offset for queue, offset in reply.data.offset_table.items()}
        assert (len(ends), ends[7], ends[8]) == (4096, 1, 0)

    assert count_turns(world, GetTopicStatsInfo(topic="wide"), check) >= 4096 // ITEMS_PER_TURN // 2
    deleted = DeleteTopicInBroker(topic="wide")
    assert count_turns(world, deleted, lambda reply: None) >= 585 // QUEUES_PER_SLICE // 2
    assert "wide" not in world.broker.store.topics()


def test_others_have_their_turn_while_many_topics_are_created(world):
    configs = [TopicConfig(topic_name=f"t{number}") for number in range(1000)]
    request = UpdateAndCreateTopicList(data=CreateTopicListRequestBody(topic_config_list=configs))
    assert count_turns(world, request, lambda reply: None) >= 2 * 1000 // ITEMS_PER_TURN // 2
    assert {f"t{number}" for number in range(1000)} <= world.broker.topics.table.keys()


def test_counters_go_with_their_topic(world):
    create(world, "t")
    world.broker.stats.stored["t"].count_message(10)
    world.broker.stats.delivered["g", "t"].count_messages(1, 10)
    world.ask(DeleteTopicInBroker(topic="t"))
    assert ("t" in world.broker.stats.stored, ("g", "t") in world.broker.stats.delivered) == (False, False)
