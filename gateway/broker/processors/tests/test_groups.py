import pytest
import trio

from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from remoting.errors import RequestError
from remoting.requests.groups import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    QuerySubscriptionByConsumer,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
)
from storage.errors import StoreFull
from storage.files import MemoryFiles


@pytest.fixture
def world():
    return World()


def create(world, name, **more):
    return world.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=name, **more)))


def test_create_change_and_read(world):
    create(world, "g")
    create(world, "g", retry_max_times=3, consume_broadcast_enable=False)
    group = world.ask(GetSubscriptionGroupConfig(group="g")).data
    assert (group.retry_max_times, group.consume_broadcast_enable) == (3, False)


def test_refused_groups(world):
    with pytest.raises(RequestError, match="illegal characters") as refused:
        create(world, "a b")
    assert refused.value.code == 29
    with pytest.raises(RequestError, match="unsupported key: x") as refused:
        create(world, "g", attributes={"+x": "1"})
    assert refused.value.code == 1
    closed = World(auto_create_subscription_group=False)
    with pytest.raises(RequestError, match="No group in this broker") as refused:
        closed.ask(GetSubscriptionGroupConfig(group="g"))
    assert refused.value.code == 26


def test_several_at_once_are_all_or_none(world):
    def ask(*names):
        groups = [SubscriptionGroupConfig(group_name=name) for name in names]
        return world.ask(
            UpdateAndCreateSubscriptionGroupList(data=SubscriptionGroupList(group_config_list=groups))
        )

    ask("a", "b")
    ask()
    with pytest.raises(RequestError):
        ask("c", "")
    assert {"a", "b"} <= world.broker.groups.table.keys()
    assert "c" not in world.broker.groups


def test_all_groups_with_their_flags(world):
    create(world, "g")
    world.ask(UpdateAndGetGroupForbidden(group="g", topic="t", readable=False))
    reply = world.ask(GetAllSubscriptionGroupConfig())
    assert reply.total_group_num == len(reply.data.subscription_group_table) == 9
    assert reply.data.forbidden_table == {"g": {"t": 4}}
    page = world.ask(GetAllSubscriptionGroupConfig(group_seq=0, max_group_num=2)).data
    assert len(page.subscription_group_table) == 2
    assert page.forbidden_table == {}


def test_forbidding_a_topic(world):
    def ask(readable=None):
        return world.ask(UpdateAndGetGroupForbidden(group="g", topic="t", readable=readable)).data.readable

    assert [ask(), ask(False), ask(), ask(True)] == [True, False, False, True]


def test_delete_keeps_offsets_unless_asked(world):
    create(world, "g")
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    world.ask(DeleteSubscriptionGroup(group_name="g"))
    assert "g" not in world.broker.groups
    assert world.broker.offsets.query_offset("g", "t", 0) == 1
    world.ask(DeleteSubscriptionGroup(group_name="g", clean_offset=True))
    assert world.broker.offsets.query_offset("g", "t", 0) == -1


def test_deleted_offsets_stay_deleted_when_the_process_is_killed():
    """A group of the same name would have gone on where the deleted one ended."""
    files = MemoryFiles()
    world = World(files=files)
    world.topic("t")
    create(world, "g")
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    trio.run(world.broker.offsets.save_changes)
    world.ask(DeleteSubscriptionGroup(group_name="g", clean_offset=True))
    killed = World(files=files)
    assert killed.broker.offsets.query_offset("g", "t", 0) == -1


def test_a_deletion_whose_offsets_cannot_be_written_is_not_success(world, monkeypatch):
    create(world, "g")
    world.broker.offsets.commit_offset("g", "t", 0, 1)

    async def fail():
        raise StoreFull("no room")

    monkeypatch.setattr(world.broker.offsets, "save_changes", fail)
    with pytest.raises(RequestError, match="the group is deleted, but its offsets are not yet"):
        world.ask(DeleteSubscriptionGroup(group_name="g", clean_offset=True))


def test_a_groups_subscription(world):
    world.beat(FakeConnection(), "t")
    body = world.ask(QuerySubscriptionByConsumer(group="g", topic="t")).data
    assert (body.group, body.topic, body.subscription_data.sub_string) == ("g", "t", "*")
    assert world.ask(QuerySubscriptionByConsumer(group="g", topic="x")).data.subscription_data is None


@pytest.mark.parametrize(
    ("group", "topic"), [("../../x", "t"), ("g", "../../x"), ("x" * 121, "t"), ("g", "x" * 128)]
)
def test_nothing_is_forbidden_for_names_that_cannot_exist(world, group, topic):
    with pytest.raises(RequestError) as refused:
        world.ask(UpdateAndGetGroupForbidden(group=group, topic=topic, readable=False))
    assert refused.value.code == 29
    assert world.broker.groups.forbidden == {}
