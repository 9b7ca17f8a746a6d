import pytest

from gateway.broker.client_registry import ClientRegistry, GroupMember
from gateway.tests.broker_fakes import FakeClock, FakeConnection
from remoting.bodies.heartbeat import ConsumerData, SubscriptionData


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def registry(clock):
    return ClientRegistry(clock)


def consumer(*topics, group="g", model="CLUSTERING", version=1, expression="*"):
    subscriptions = [
        SubscriptionData(topic=topic, sub_string=expression, sub_version=version) for topic in topics
    ]
    return ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=subscriptions,
    )


def client(connection, name="c1"):
    return GroupMember(connection, name, "JAVA", 400)


def told(connection):
    return [notice.consumer_group for notice in connection.told]


def test_a_new_member_makes_everybody_rebalance(registry):
    one, two = FakeConnection(), FakeConnection()
    assert registry.register_consumer(client(one, "c1"), consumer("t"))
    assert registry.register_consumer(client(two, "c2"), consumer("t"))
    assert told(one) == ["g", "g"]
    assert told(two) == ["g"]
    assert registry.consumer_group("g").client_ids() == ["c1", "c2"]


def test_a_repeated_heartbeat_changes_nothing(registry):
    one = FakeConnection()
    registry.register_consumer(client(one), consumer("t"))
    assert not registry.register_consumer(client(one), consumer("t"))
    assert told(one) == ["g"]


def test_broadcasting_groups_and_quiet_groups_are_not_told(registry, clock):
    one = FakeConnection()
    registry.register_consumer(client(one), consumer("t", model="BROADCASTING"))
    registry.register_consumer(client(one), consumer("t", group="h"), notify=False)
    ClientRegistry(clock, notify_changes=False).register_consumer(client(one), consumer("t"))
    assert told(one) == []


def test_subscriptions_follow_the_latest_heartbeat(registry):
    one = FakeConnection()
    registry.register_consumer(client(one), consumer("t", "u", version=5, expression="A"))
    assert not registry.register_consumer(client(one), consumer("t", "u", version=4, expression="B"))
    assert registry.subscription("g", "t").sub_string == "A"
    assert not registry.register_consumer(client(one), consumer("t", "u", version=6, expression="C"))
    assert registry.subscription("g", "t").sub_string == "C"
    assert registry.register_consumer(client(one), consumer("t", version=7))
    assert registry.subscription("g", "u") is None
    assert registry.groups_of_topic("t") == {"g"}
    assert registry.groups_of_topic("u") == set()


def test_a_heartbeat_without_subscriptions_keeps_them(registry):
    one = FakeConnection()
    registry.register_consumer(client(one), consumer("t"))
    assert not registry.register_consumer(client(one), consumer(), subscriptions=False)
    assert registry.subscription("g", "t") is not None


def test_goodbye_tells_those_who_stay(registry):
    one, two = FakeConnection(), FakeConnection()
    registry.register_consumer(client(one, "c1"), consumer("t"))
    registry.register_consumer(client(two, "c2"), consumer("t"))
    one.told.clear()
    registry.unregister_consumer("g", two)
    assert told(one) == ["g"]
    registry.unregister_consumer("g", one)
    assert registry.consumer_group("g") is None
    assert registry.groups_of_topic("t") == set()
    registry.unregister_consumer("unknown", one)


def test_a_closed_connection_leaves_every_group(registry):
    one, two = FakeConnection(), FakeConnection()
    registry.register_consumer(client(one, "c1"), consumer("t"))
    registry.register_consumer(client(two, "c2"), consumer("t"))
    registry.register_producer("p", client(two, "p2"))
    one.told.clear()
    registry.drop_connection(two)
    assert told(one) == ["g"]
    assert registry.producers == {}
    registry.drop_connection(two)
    assert told(one) == ["g"]


def test_silent_clients_expire_and_the_others_hear_of_it(registry, clock):
    one, two = FakeConnection(), FakeConnection()
    registry.register_consumer(client(one, "c1"), consumer("t"))
    registry.register_consumer(client(two, "c2"), consumer("t"))
    registry.register_producer("p", client(two, "c2"))
    clock.pass_ms(60_000)
    registry.register_consumer(client(one, "c1"), consumer("t"))
    clock.pass_ms(60_000)
    registry.close_expired()
    assert two.closed is None
    one.told.clear()
    clock.pass_ms(1)
    registry.close_expired()
    assert two.closed == "no heartbeat"
    assert registry.consumer_group("g").client_ids() == ["c1"]
    assert registry.producers == {}
    assert told(one) == ["g"]


def test_producers_are_chosen_in_turn(registry):
    connections = [FakeConnection() for _ in range(3)]
    for number, connection in enumerate(connections):
        registry.register_producer("p", client(connection, f"p{number}"))
        registry.register_producer("p", client(connection, f"p{number}"))
    assert {registry.next_producer("p").client_id for _ in range(3)} == {"p0", "p1", "p2"}
    assert registry.next_producer("unknown") is None
    assert registry.producer_by_id("p1").connection is connections[1]
    registry.unregister_producer("p", connections[1])
    assert registry.producer_by_id("p1") is None


def test_a_connection_may_change_its_client_id(registry):
    one = FakeConnection()
    registry.register_consumer(client(one, "old"), consumer("t"))
    registry.register_consumer(client(one, "new"), consumer("t"))
    assert registry.consumer_group("g").client_ids() == ["new"]
    assert registry.consumer("g", "new").connection is one
    assert registry.consumer("g", "old") is None


def test_fingerprints_tell_whether_subscriptions_changed(registry):
    assert not registry.update_fingerprint("g", 17)
    assert not registry.update_fingerprint("g", 17)
    assert registry.update_fingerprint("g", 18)


class GonePeer(FakeConnection):
    """A peer that is gone, which the first write notices."""

    def __init__(self, registry):
        super().__init__()
        self._registry = registry

    def send_oneway(self, request):
        self._registry.drop_connection(self)


def test_many_members_that_go_together_are_all_dropped_and_do_not_nest(registry):
    stays = FakeConnection()
    registry.register_consumer(client(stays, "c0"), consumer("t"))
    registry.notify_changes = False
    gone = [GonePeer(registry) for _ in range(2000)]
    for number, connection in enumerate(gone):
        registry.register_consumer(client(connection, f"g{number}"), consumer("t"))
    registry.notify_changes = True
    registry.drop_connection(gone[0])
    assert registry.consumer_group("g").client_ids() == ["c0"]
    assert told(stays)[-1:] == ["g"]
    assert len(told(stays)) < 5
