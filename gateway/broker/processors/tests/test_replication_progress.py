"""Progress of consumers that a slave returns to its master."""

from dataclasses import replace

import pytest

from codec.topics import TRANS_GROUP
from gateway.broker.pop.receipts import REVIVE_GROUP
from gateway.tests.broker_world import World
from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.requests.replication import RaiseConsumerOffsets


@pytest.fixture
def world():
    world = World()
    world.topic("t")
    world.broker.groups.find_or_create("g")
    for _ in range(10):
        world.put("t")
    return world


def raise_offsets(world, **offsets):
    table = {key.replace("_at_", "@"): queues for key, queues in offsets.items()}
    world.ask(RaiseConsumerOffsets(data=ConsumerOffsetSerializeWrapper(offset_table=table)))
    return world.broker.offsets.table


def test_offsets_are_raised_and_never_lowered(world):
    world.broker.offsets.commit_offset("g", "t", 0, 4)
    assert raise_offsets(world, t_at_g={0: 6}) == {"t@g": {0: 6}}
    assert raise_offsets(world, t_at_g={0: 5}) == {"t@g": {0: 6}}


def test_an_offset_stays_within_its_queue(world):
    assert raise_offsets(world, t_at_g={0: 99, 1: 0}) == {"t@g": {0: 10, 1: 0}}


def test_a_group_that_began_to_consume_at_the_slave_is_created(world):
    assert raise_offsets(world, t_at_new={0: 3}) == {"t@new": {0: 3}}
    assert "new" in world.broker.groups


def test_unknown_topics_are_left_out_and_groups_that_nobody_may_create(world):
    world.broker.groups.auto_create = False
    assert raise_offsets(world, gone_at_g={0: 1}, t_at_gone={0: 1}, nonsense={0: 1}) == {}
    assert "gone" not in world.broker.groups


def test_a_reset_that_waits_wins(world):
    world.broker.offsets.assign_reset("g", "t", 0, 2)
    assert raise_offsets(world, t_at_g={0: 9}) == {"t@g": {0: 2}}


def test_what_a_limit_refuses_is_left_out(world):
    world.broker.offsets.commit_offset("g", "t", 0, 4)
    world.broker.groups.limits = replace(world.broker.groups.limits, max_groups=1)
    world.broker.offsets.limits = replace(world.broker.offsets.limits, max_committed_offsets=1)
    assert raise_offsets(world, t_at_new={0: 3}, t_at_g={0: 6}) == {"t@g": {0: 6}}
    world.topic("u")
    assert raise_offsets(world, u_at_g={0: 0}, t_at_g={0: 7}) == {"t@g": {0: 7}}


def test_progress_of_pops_is_left_out(world):
    """A slave of an earlier version, which was master before, returns it: the records of these pops may be cut."""
    world.broker.offsets.commit_offset("g", "t", 0, 4)
    world.broker.pop.state.reviver.popped_keys.add("t@g")
    assert raise_offsets(world, t_at_g={0: 6}, t_at_new={0: 3}) == {"t@g": {0: 4}, "t@new": {0: 3}}


def test_progress_of_the_brokers_own_groups_is_left_out(world):
    assert raise_offsets(world, **{f"t_at_{group}": {0: 3} for group in (REVIVE_GROUP, TRANS_GROUP)}) == {}
