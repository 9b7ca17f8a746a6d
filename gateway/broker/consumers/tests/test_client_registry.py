import pytest
import trio
import trio.testing

from gateway.broker.consumers.client_registry import MEMBERS_PER_SLICE, ClientRegistry, GroupMember
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_fakes import FakeClock, FakeConnection
from remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.errors import RequestError


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


def send_notices(registry):
    """Notify the members of changed groups, as the registry's task does; return the number of notices."""
    return list(registry.send_notices())[-1]


def test_a_new_member_makes_everybody_rebalance(registry):
    one, two = FakeConnection(), FakeConnection()
    assert registry.register_consumer(client(one, "c1"), consumer("t"))
    send_notices(registry)
    assert registry.register_consumer(client(two, "c2"), consumer("t"))
    send_notices(registry)
    assert told(one) == ["g", "g"]
    assert told(two) == ["g"]
    assert registry.consumer_group("g").client_ids() == ["c1", "c2"]
    assert registry.consumer_group("g").sorted_client_ids() == ["c1", "c2"]


def test_a_repeated_heartbeat_changes_nothing(registry):
    one = FakeConnection()
    registry.register_consumer(client(one), consumer("t"))
    send_notices(registry)
    assert not registry.register_consumer(client(one), consumer("t"))
    assert send_notices(registry) == 0
    assert told(one) == ["g"]


def test_broadcasting_groups_and_quiet_groups_are_not_told(registry, clock):
    one = FakeConnection()
    registry.register_consumer(client(one), consumer("t", model="BROADCASTING"))
    registry.register_consumer(client(one), consumer("t", group="h"), notify=False)
    quiet = ClientRegistry(clock, notify_changes=False)
    quiet.register_consumer(client(one), consumer("t"))
    assert (send_notices(registry), send_notices(quiet)) == (0, 0)


def test_members_that_join_together_are_told_once(registry):
    for number in range(1000):
        registry.register_consumer(client(FakeConnection(), f"c{number}"), consumer("t"))
    assert send_notices(registry) == 1000
    assert send_notices(registry) == 0


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
    send_notices(registry)
    registry.unregister_consumer("g", two)
    registry.unregister_consumer("g", FakeConnection())
    assert send_notices(registry) == 1
    assert told(one) == ["g", "g"]
    assert registry.consumer_group("g").sorted_client_ids() == ["c1"]
    registry.unregister_consumer("g", one)
    assert registry.consumer_group("g") is None
    assert registry.groups_of_topic("t") == set()
    registry.unregister_consumer("unknown", one)
    assert send_notices(registry) == 0


def test_a_closed_connection_leaves_every_group(registry):
    one, two = FakeConnection(), FakeConnection()
    registry.register_consumer(client(one, "c1"), consumer("t"))
    registry.register_consumer(client(two, "c2"), consumer("t"))
    registry.register_producer("p", client(two, "p2"))
    send_notices(registry)
    registry.drop_connection(two)
    assert send_notices(registry) == 1
    assert told(one) == ["g", "g"]
    assert registry.producers == {}
    registry.drop_connection(two)
    assert send_notices(registry) == 0


def test_silent_clients_expire_and_the_others_hear_of_it(registry, clock):
    one, two = FakeConnection(), FakeConnection()
    registry.register_consumer(client(one, "c1"), consumer("t"))
    registry.register_consumer(client(two, "c2"), consumer("t"))
    registry.register_producer("p", client(two, "c2"))
    clock.pass_ms(60_000)
    registry.register_consumer(client(one, "c1"), consumer("t"))
    clock.pass_ms(60_000)
    list(registry.close_expired())
    assert two.closed is None
    send_notices(registry)
    clock.pass_ms(1)
    list(registry.close_expired())
    assert two.closed == "no heartbeat"
    assert registry.consumer_group("g").client_ids() == ["c1"]
    assert registry.producers == {}
    assert send_notices(registry) == 1
    assert told(one) == ["g", "g"]


def test_others_have_their_turn_while_expired_clients_are_closed(registry, clock):
    for number in range(10 * MEMBERS_PER_SLICE):
        registry.register_consumer(client(FakeConnection(), f"c{number}"), consumer("t"))
    clock.pass_ms(121_000)
    assert len(list(registry.close_expired())) >= 10
    assert registry.consumers == {}


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
    gone = [GonePeer(registry) for _ in range(2000)]
    for number, connection in enumerate(gone):
        registry.register_consumer(client(connection, f"g{number}"), consumer("t"))
    send_notices(registry)
    assert registry.consumer_group("g").client_ids() == ["c0"]
    assert send_notices(registry) == 1
    assert told(stays) == ["g", "g"]


def is_empty(registry):
    """Tell whether nothing is left of any client."""
    left = (registry.consumers, registry.producers, registry._memberships, registry._producers_by_id)
    return not any(left) and registry._member_count == registry._subscription_bytes == 0


def test_nothing_is_left_of_closed_connections(registry):
    connections = [FakeConnection() for _ in range(20)]
    for number, connection in enumerate(connections):
        for group in range(number % 5 + 1):
            name = f"g{group}"
            registry.register_consumer(
                client(connection, f"c{number}"), consumer("t", f"t{number}", group=name)
            )
            registry.register_producer(name, client(connection, f"c{number}"))
    registry.unregister_producer("g0", connections[4])
    assert registry.producer_by_id("c4").connection is connections[4], "a member of other groups"
    for connection in connections:
        registry.drop_connection(connection)
    assert is_empty(registry)


def register_many(registry, number, groups=1, topics=("t",), connection=None):
    connection = connection or FakeConnection()
    for group in range(groups):
        registry.register_consumer(client(connection, f"c{number}"), consumer(*topics, group=f"g{group}"))
    return connection


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"max_clients": 3}, "maxClients"),
        ({"max_members_per_group": 3}, "maxMembersPerGroup"),
        ({"max_members": 3}, "maxMembers"),
    ],
)
def test_members_beyond_a_limit_are_refused_and_those_that_are_known_stay(registry, limits, key):
    registry.limits = BrokerLimits(**limits)
    known = [register_many(registry, number) for number in range(3)]
    with pytest.raises(RequestError, match=f"raise {key}"):
        register_many(registry, 9)
    for number, connection in enumerate(known):
        register_many(registry, number, connection=connection)
    assert registry.consumer_group("g0").client_ids() == ["c0", "c1", "c2"]
    registry.drop_connection(known[0])
    register_many(registry, 9)
    for connection in [*registry._memberships]:
        registry.drop_connection(connection)
    assert is_empty(registry)


@pytest.mark.parametrize("limits", [{"max_clients": 3}, {"max_members_per_group": 3}, {"max_members": 3}])
def test_producers_count_as_members(registry, limits):
    registry.limits = BrokerLimits(**limits)
    for number in range(3):
        registry.register_producer("p", client(FakeConnection(), f"p{number}"))
    with pytest.raises(RequestError, match="or raise max"):
        registry.register_producer("p", client(FakeConnection(), "p3"))
    assert len(registry.producers["p"]) == 3


def test_groups_and_subscriptions_beyond_a_limit_are_refused(registry):
    one = FakeConnection()
    registry.limits = BrokerLimits(max_groups_per_client=2, max_subscriptions_per_group=2)
    register_many(registry, 1, groups=2, connection=one)
    with pytest.raises(RequestError, match="raise maxGroupsPerClient"):
        register_many(registry, 1, groups=3, connection=one)
    with pytest.raises(RequestError, match="raise maxSubscriptionsPerGroup"):
        register_many(registry, 1, topics=("t", "u", "v"), connection=one)
    registry.limits = BrokerLimits(max_subscription_bytes=64 * 1024)
    with pytest.raises(RequestError, match="raise maxSubscriptionBytes"):
        register_many(registry, 1, topics=[f"t{n}" for n in range(200)], connection=one)
    assert set(registry.consumer_group("g0").subscriptions) == {"t"}
    register_many(registry, 1, topics=("t", "u"), connection=one)
    registry.drop_connection(one)
    assert is_empty(registry)


def test_the_task_collects_changes_that_come_together(registry):
    connections = [FakeConnection() for _ in range(100)]

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.run)
            await trio.testing.wait_all_tasks_blocked()
            for number, connection in enumerate(connections):
                registry.register_consumer(client(connection, f"c{number}"), consumer("t"))
                await trio.sleep(0.001)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert all(connection.told for connection in connections)
    assert 100 <= sum(len(connection.told) for connection in connections) <= 100 * 12
