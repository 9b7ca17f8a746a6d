from logging import WARNING

import pytest

from gateway.tests.broker_world import World
from gateway.tests.cluster import pull
from gateway.tests.popping import pop_request
from remoting.errors import RequestError
from remoting.requests.offsets import (
    CloneGroupOffset,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToResetOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)


@pytest.fixture
def world():
    world = World()
    world.topic("t")
    world.broker.groups.find_or_create("g")
    return world


def query(world, **more):
    return world.ask(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0, **more)).offset


def commit(world, offset, **more):
    wanted = {"consumer_group": "g", "topic": "t", "queue_id": 0, "commit_offset": offset, **more}
    return world.ask(UpdateConsumerOffset(**wanted))


def refusal(function, *args, **more):
    with pytest.raises(RequestError) as refused:
        function(*args, **more)
    return refused.value.code, refused.value.remark


def test_a_committed_offset_is_answered(world):
    commit(world, 12)
    assert query(world) == 12


def test_a_new_group_starts_at_zero_where_the_first_message_is_still_there(world):
    not_found = (22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
    assert refusal(query, world) == not_found
    world.put("t")
    assert query(world) == 0
    not_zero = (22, "Not found, do not set to zero, maybe this group boot first")
    assert refusal(query, world, set_zero_if_not_found=False) == not_zero
    assert query(world, set_zero_if_not_found=True) == 0


def test_commits_need_an_existing_group_and_topic(world):
    assert refusal(commit, world, 1, consumer_group="x") == (26, "Group x not exist!")
    assert refusal(commit, world, 1, topic="x") == (17, "Topic x not exist!")


def test_a_commit_during_a_reset_is_ignored(world):
    world.broker.offsets.assign_reset("g", "t", 0, 3)
    commit(world, 12)
    assert query(world) == 3
    world.broker.offsets.take_reset("g", "t", 0)
    commit(world, 12)
    assert query(world) == 12


def test_where_a_queue_begins_and_ends(world):
    assert world.ask(GetMaxOffset(topic="t", queue_id=0)).offset == 0
    for _ in range(3):
        world.put("t")
    assert world.ask(GetMaxOffset(topic="t", queue_id=0)).offset == 3
    assert world.ask(GetMinOffset(topic="t", queue_id=0)).offset == 0


def test_search_by_time(world):
    assert world.ask(GetEarliestMsgStoretime(topic="t", queue_id=0)).timestamp == -1
    start = world.clock.ms
    for _ in range(3):
        world.put("t")
        world.clock.pass_ms(10)
    assert world.ask(GetEarliestMsgStoretime(topic="t", queue_id=0)).timestamp == start

    def search(at, boundary=None):
        request = SearchOffsetByTimestamp(topic="t", queue_id=0, timestamp=start + at, boundary_type=boundary)
        return world.ask(request).offset

    assert [search(at) for at in (-5, 0, 5, 10, 20)] == [0, 0, 1, 1, 2]
    assert [search(at, "upper") for at in (5, 15)] == [0, 1]


def test_tables_for_other_brokers(world):
    commit(world, 12)
    table = world.ask(GetAllConsumerOffset()).data
    assert table.offset_table == {"t@g": {0: 12}}
    world.put("t", properties={"DELAY": "1"})
    world.clock.pass_ms(1000)
    world.broker.delay_service.deliver_due(world.clock.ms)
    assert b'"offsetTable":{1:1}' in world.ask(GetAllDelayOffset()).body


OWN = [
    ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC"),
    ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    ("CID_RMQ_SYS_REVIVE_GROUP", "rmq_sys_REVIVE_LOG_c1"),
    ("CID_RMQ_SYS_REVIVE_SEEN", "rmq_sys_REVIVE_LOG_c1"),
]


@pytest.mark.parametrize(("group", "topic"), OWN)
def test_nobody_but_the_broker_moves_the_offsets_of_its_own_groups(group, topic):
    world = World()
    world.put(topic)
    world.broker.groups.find_or_create(group)
    world.broker.groups.find_or_create("source")
    world.broker.offsets.commit_offset("source", topic, 0, 1)
    before = world.broker.offsets.query_offset(group, topic, 0)
    for request in (
        UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=1),
        InvokeBrokerToResetOffset(group=group, topic=topic, queue_id=0, offset=1),
        CloneGroupOffset(src_group="source", dest_group=group, topic=topic, offline=True),
        CloneGroupOffset(src_group="source", dest_group=group, offline=True),
        pull(topic, 0, group=group, commit=1),
        pop_request(topic, group),
        pop_request(topic, group, order=True),
    ):
        with pytest.raises(RequestError) as refused:
            world.ask(request)
        assert (refused.value.code, "the broker's own" in (refused.value.remark or "")) == (16, True)
    assert world.broker.offsets.query_offset(group, topic, 0) == before
    world.ask(UpdateConsumerOffset(consumer_group="source", topic=topic, queue_id=0, commit_offset=0))
    world.broker.topics.create_for_send("t", "TBW102", 4)
    world.ask(UpdateConsumerOffset(consumer_group=group, topic="t", queue_id=0, commit_offset=1))


@pytest.mark.parametrize("name", ["../../x", "a@b", "", " ", "\0", "x" * 121, "ü"])
def test_offsets_are_not_cloned_to_a_group_that_cannot_exist(name):
    world = World()
    world.topic("t")
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    with pytest.raises(RequestError, match="The specified group"):
        world.ask(CloneGroupOffset(src_group="g", dest_group=name, topic="t", offline=True))
    assert set(world.broker.offsets.table) == {"t@g"}


def test_refusals_and_negative_offsets_of_clients_are_no_errors_in_the_log(world, caplog):
    """Idle Go consumers commit -1 again and again."""
    for offset in (-1, -1, 5, -1):
        commit(world, offset)
    refusal(commit, world, 1, consumer_group="x")
    refusal(commit, world, 1, topic="x")
    assert not [record for record in caplog.records if record.exc_info or record.levelno > WARNING]
