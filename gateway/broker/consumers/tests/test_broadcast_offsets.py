"""Ages at which silent clients are forgotten. A conformance case covers the behaviour that clients see."""

from dataclasses import replace

import pytest

from gateway.broker.consumers.broadcast_offsets import BroadcastMember, broadcast_group
from gateway.broker.processors.live_config import apply_broker_config
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from gateway.tests.cluster import pull
from gateway.tests.configs import change_config

GROUP, TOPIC = "g", "t"


@pytest.fixture
def world():
    world = World()
    world.topic(TOPIC)
    for number in range(10):
        world.put(TOPIC, body=b"%d" % number)
    return world


def join(world, client_id):
    connection = FakeConnection()
    world.beat(connection, TOPIC, group=GROUP, client_id=client_id, message_model="BROADCASTING")
    return connection


def pulled(world, client_id, offset):
    world.broker.broadcasts.record_pull(BroadcastMember(client_id, by_proxy=False), GROUP, TOPIC, 0, offset)


def kept(world):
    list(world.broker.broadcasts.commit_and_expire())
    return world.broker.offsets.query_offset(broadcast_group(GROUP), TOPIC, 0)


def test_the_smallest_offset_counts_and_an_earlier_pull_changes_nothing(world):
    join(world, "a")
    join(world, "b")
    pulled(world, "a", 6)
    pulled(world, "b", 4)
    pulled(world, "b", 2)
    assert kept(world) == 4


def test_a_client_that_is_gone_counts_for_two_minutes(world):
    pulled(world, "a", 3)
    world.clock.pass_ms(119_000)
    pulled(world, "b", 7)
    assert kept(world) == 3
    world.clock.pass_ms(1_000)
    assert kept(world) == 7


def test_a_client_that_is_there_counts_for_five(world):
    join(world, "a")
    pulled(world, "a", 3)
    world.clock.pass_ms(299_000)
    pulled(world, "b", 7)
    assert kept(world) == 3
    world.clock.pass_ms(1_000)
    assert kept(world) == 3
    assert kept(world) == 7


def test_only_clients_of_broadcasting_groups_are_members_unless_switched_off(world):
    connection, other = join(world, "a"), FakeConnection()
    world.beat(other, TOPIC, group="clustering", client_id="b")
    broadcasts = world.broker.broadcasts
    assert broadcasts.find_member(connection, GROUP, None) == BroadcastMember("a", by_proxy=False)
    assert broadcasts.find_member(other, GROUP, None) is None
    assert broadcasts.find_member(other, "clustering", None) is None
    assert broadcasts.find_member(other, "nobody", None) is None
    assert broadcasts.find_member(other, "nobody", "p") == BroadcastMember("p", by_proxy=True)
    apply_broker_config(world.broker, replace(world.broker.config, enable_broadcast_offset_store=False))
    assert broadcasts.find_member(connection, GROUP, None) is None


def test_a_queue_whose_beginning_is_gone_starts_at_its_end(world):
    broadcasts, by_proxy = world.broker.broadcasts, BroadcastMember("p", by_proxy=True)
    assert broadcasts.corrected_offset(by_proxy, GROUP, TOPIC, 0, -1) == 0
    assert broadcasts.corrected_offset(by_proxy, GROUP, TOPIC, 1, -1) == 0
    assert broadcasts.corrected_offset(by_proxy, GROUP, TOPIC, 0, 5) == -1
    assert broadcasts.corrected_offset(BroadcastMember("a", by_proxy=False), GROUP, TOPIC, 0, -1) == -1


def test_clients_of_a_proxy_are_recorded_up_to_a_number_and_a_length(world):
    few = change_config(world.broker.config, max_members_per_group=3)
    apply_broker_config(world.broker, few)
    broadcasts, connection = world.broker.broadcasts, FakeConnection()
    assert broadcasts.find_member(connection, GROUP, "x" * 1025) is None
    for number in range(9):
        member = broadcasts.find_member(connection, GROUP, f"client-{number}")
        assert broadcasts.corrected_offset(member, GROUP, TOPIC, 0, 5) == -1
        broadcasts.record_pull(member, GROUP, TOPIC, 0, 9 - number)
    assert kept(world) == 7


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
def test_a_pull_far_outside_of_the_queue_leaves_an_offset_inside_of_it(world, offset):
    connection = join(world, "a")
    request = pull(TOPIC, offset, group=GROUP)
    assert world.handlers[request.code](connection, request.to_command(7)) is not None
    assert 0 <= kept(world) <= 10
    world.broker.offsets.persist()
