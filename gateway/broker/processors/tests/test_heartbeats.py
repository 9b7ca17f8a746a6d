from itertools import pairwise

import pytest
import trio

from gateway.auth.access_control import CONSUMES_ONLY
from gateway.broker.processors.heartbeats import GROUPS_PER_SLICE
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World, answer_of, count_garbage_of_refusals
from remoting.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from remoting.errors import RequestError
from remoting.requests.client import CheckClientConfig, GetConsumerListByGroup, HeartBeat, UnregisterClient


@pytest.fixture
def world():
    return World()


def test_a_heartbeat_registers_and_creates_the_retry_topic(world):
    reply = world.beat(world.connection, "t", producers=["p"])
    assert (reply.is_support_heart_beat_v2, reply.is_sub_change) == (True, True)
    assert world.ask(GetConsumerListByGroup(consumer_group="g")).data.consumer_id_list == ["c1"]
    assert world.broker.topics.get("%RETRY%g").write_queue_nums == 1
    assert world.broker.groups.get("g") is not None
    assert world.broker.clients.next_producer("p").client_id == "c1"
    assert list(world.broker.clients.send_notices()) == [1]
    assert [notice.consumer_group for notice in world.connection.told] == ["g"]


def test_a_user_who_may_only_consume_does_not_become_a_producer(world):
    """Stock consumers list a producer group; producers read half messages when they are asked about them."""
    connection = world.connection
    connection.state[CONSUMES_ONLY] = True
    world.beat(connection, "t", producers=["p"])
    assert world.ask(GetConsumerListByGroup(consumer_group="g")).data.consumer_id_list == ["c1"]
    assert world.broker.clients.next_producer("p") is None
    connection.state[CONSUMES_ONLY] = False
    world.beat(connection, "t", producers=["p"])
    assert world.broker.clients.next_producer("p").client_id == "c1"
    connection.state[CONSUMES_ONLY] = True
    world.beat(connection, "t", producers=["p"])
    assert world.broker.clients.next_producer("p") is None


def test_a_refused_heartbeat_is_freed_without_the_garbage_collector(world):
    data = HeartbeatData(client_id="c1", producer_data_set=[ProducerData(group_name="x" * 1000)])
    assert count_garbage_of_refusals(world, HeartBeat(data=data)) == 0


def test_a_group_without_members_is_refused_in_the_official_words(world):
    with pytest.raises(RequestError, match="no consumer for this group, g") as refused:
        world.ask(GetConsumerListByGroup(consumer_group="g"))
    assert refused.value.code == 1


def test_the_retry_topic_of_a_group_with_an_ordered_topic_is_ordered(world):
    world.topic("t").order = True
    world.beat(world.connection, "t")
    assert world.broker.topics.get("%RETRY%g").order


def test_a_group_that_may_not_exist_is_passed_over_silently():
    world = World(auto_create_subscription_group=False)
    world.beat(world.connection, "t")
    assert world.broker.clients.consumers == {}


def test_pull_consumers_can_be_kept_out():
    world = World(reject_pull_consumer_enable=True)
    world.beat(world.connection, "t", consume_type="CONSUME_ACTIVELY")
    assert world.broker.clients.consumers == {}


def test_a_second_version_heartbeat_may_leave_subscriptions_out(world):
    assert world.beat(world.connection, "t", fingerprint=5).is_sub_change is False
    assert world.beat(world.connection, fingerprint=5, without=True).is_sub_change is False
    assert world.broker.clients.subscription("g", "t") is not None
    assert world.beat(world.connection, fingerprint=6, without=True).is_sub_change is True


def test_a_broker_that_forgot_asks_for_subscriptions_again(world):
    assert world.beat(world.connection, fingerprint=5, without=True).is_sub_change is True
    assert world.beat(world.connection, "t", fingerprint=5).is_sub_change is False


def test_goodbye(world):
    other = FakeConnection()
    world.beat(world.connection, "t", producers=["p"])
    world.beat(other, "t", client_id="c2")
    list(world.broker.clients.send_notices())
    other.told.clear()
    world.ask(UnregisterClient(client_id="c1", producer_group="p", consumer_group="g"))
    assert world.broker.clients.producers == {}
    assert world.ask(GetConsumerListByGroup(consumer_group="g")).data.consumer_id_list == ["c2"]
    list(world.broker.clients.send_notices())
    assert len(other.told) == 1


def test_only_tag_subscriptions_are_accepted_without_property_filters():
    world = World(enable_property_filter=False)

    def check(kind):
        subscription = SubscriptionData(topic="t", sub_string="a > 1", expression_type=kind)
        return world.ask(CheckClientConfig(data=CheckClientRequestBody(subscription_data=subscription)))

    assert check("TAG") is None
    assert world.ask(CheckClientConfig()) is None
    with pytest.raises(RequestError, match="The broker does not support consumer to filter message by SQL92"):
        check("SQL92")


def beat_of(groups=(), producers=(), client_id="c1", **consumer):
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[ConsumerData(group_name=group, **consumer) for group in groups],
        producer_data_set=[ProducerData(group_name=group) for group in producers],
    )
    return HeartBeat(data=data)


def test_a_heartbeat_of_many_groups_is_registered_in_slices(world):
    turns = []

    async def others():
        while len(world.broker.clients.consumers) < 500:
            turns.append(len(world.broker.clients.consumers))
            await trio.lowlevel.checkpoint()

    async def main():
        async with trio.open_nursery() as nursery:
            world.connection.nursery = nursery
            nursery.start_soon(others)
            command = beat_of([f"g{n}" for n in range(500)], ["p"]).to_command(7)
            assert world.handlers[HeartBeat.code](world.connection, command) is None

    trio.run(main)
    assert answer_of(world.connection.written.pop()).code == 0
    assert len(world.broker.clients.consumers) == 500
    assert world.broker.clients.next_producer("p") is not None
    assert max(after - before for before, after in pairwise(turns)) <= 2 * GROUPS_PER_SLICE


def test_more_groups_than_a_client_may_have_are_refused_before_they_are_read():
    world = World(max_groups_per_client=10)
    with pytest.raises(RequestError, match="raise maxGroupsPerClient"):
        world.ask(beat_of([f"g{n}" for n in range(6)], [f"p{n}" for n in range(5)]))
    assert world.broker.clients.consumers == {}
    world.ask(beat_of([f"g{n}" for n in range(5)], [f"p{n}" for n in range(5)]))


def test_a_group_that_is_refused_does_not_keep_others_from_being_registered():
    world = World(max_groups=10)
    with pytest.raises(RequestError, match="raise maxSubscriptionGroups"):
        world.ask(beat_of(["a", "b", "c"], ["p"]))
    assert list(world.broker.clients.consumers) == ["a", "b"]
    assert world.broker.clients.next_producer("p") is not None
    with pytest.raises(RequestError, match="raise maxSubscriptionGroups"):
        world.ask(beat_of(["c", "b"], client_id="c2"), FakeConnection())
    assert world.broker.clients.consumer_group("b").client_ids() == ["c1", "c2"]


@pytest.mark.parametrize(
    "request_of_a_stranger",
    [
        beat_of(["g"], client_id="c" * 1025),
        beat_of(producers=["p" * 256]),
        beat_of(["g"], message_model="CLUSTERING" * 100),
    ],
)
def test_texts_that_no_client_sends_are_refused(world, request_of_a_stranger):
    with pytest.raises(RequestError, match="is longer than") as refused:
        world.ask(request_of_a_stranger)
    assert len(refused.value.remark) < 200
    assert (world.broker.clients.consumers, world.broker.clients.producers) == ({}, {})


def test_a_group_is_not_created_by_leaving_it(world):
    world.ask(UnregisterClient(client_id="c1", consumer_group="new"))
    assert "new" not in world.broker.groups
