import pytest

from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.offsets import (
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
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
