import pytest

from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from remoting.errors import RequestError
from remoting.requests.client import CheckClientConfig, GetConsumerListByGroup, UnregisterClient


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
    assert [notice.consumer_group for notice in world.connection.told] == ["g"]


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
    other.told.clear()
    world.ask(UnregisterClient(client_id="c1", producer_group="p", consumer_group="g"))
    assert world.broker.clients.producers == {}
    assert world.ask(GetConsumerListByGroup(consumer_group="g")).data.consumer_id_list == ["c2"]
    assert len(other.told) == 1


def test_only_tag_subscriptions_are_accepted(world):
    def check(kind):
        subscription = SubscriptionData(topic="t", sub_string="a > 1", expression_type=kind)
        return world.ask(CheckClientConfig(data=CheckClientRequestBody(subscription_data=subscription)))

    assert check("TAG") is None
    assert world.ask(CheckClientConfig()) is None
    with pytest.raises(RequestError, match="The broker does not support consumer to filter message by SQL92"):
        check("SQL92")
