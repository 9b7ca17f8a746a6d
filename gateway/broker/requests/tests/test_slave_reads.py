"""Pulls at a slave, and where a master sends consumers that are behind. The master is played by a flag."""

from dataclasses import replace

import pytest
import trio

from codec.constants import ResponseCode
from gateway.config.replication import ReplicationSettings
from gateway.tests.cluster import bodies, pull, settle, simulated
from remoting.errors import RequestError
from storage.append import NewMessage

BUSY, RETRY, NOT_FOUND, MOVED = 2, 20, 19, 21
READABLE = {"slave_read_enable": True}


class World:
    """A broker that has a master as long as ``has_master`` is True."""

    def __init__(self, node, client):
        self.broker, self.client = node.broker, client
        self.has_master = True
        self.broker.pull_handler._slave_reads._follows_master = lambda: self.has_master

    def store(self, count):
        """Store messages as they come from the master."""
        for number in range(count):
            self.broker.store.append(NewMessage("orders", 0, b"%d" % number, b""))
            self.broker.long_polls.mark_grown("orders", 0)
        self.broker.long_polls.answer_marked()

    async def pull(self, offset=0, **more):
        """Return code, suggested broker and next offset of the answer."""
        reply = await self.client.ask(pull(offset=offset, **more), timeout_s=60)
        return reply.code, reply.suggest_which_broker_id, reply.next_begin_offset


async def started(cluster, role="SLAVE", count=3, **settings):
    node = await cluster.add_broker(
        broker_id=0 if role != "SLAVE" else 2, replication=ReplicationSettings(broker_role=role, **settings)
    )
    node.broker.topics.create_for_send("orders", "TBW102", 4, 0)
    world = World(node, cluster.dial(node.address))
    world.store(count)
    return world


def fall_behind(world):
    """Make every message count as one that is not in memory."""
    world.broker.store.config = replace(world.broker.store.config, access_in_memory_percent=0)


@simulated
async def test_a_slave_serves_no_pull_while_it_follows_its_master(cluster):
    world = await started(cluster)
    with pytest.raises(RequestError) as refused:
        await world.pull()
    assert refused.value.code == BUSY
    assert refused.value.remark == "[REJECTREQUEST]system busy, start flow control for a while"


@simulated
async def test_a_slave_serves_the_backlog_of_a_lost_master(cluster):
    world = await started(cluster)
    world.has_master = False
    reply = await world.client.ask(pull())
    assert (bodies(reply), reply.suggest_which_broker_id) == ([b"0", b"1", b"2"], 2)


@simulated
async def test_a_slave_that_has_not_found_its_master_serves_pulls(cluster):
    node = await cluster.add_broker(broker_id=2, replication=ReplicationSettings(broker_role="SLAVE"))
    world = World(node, cluster.dial(node.address))
    world.has_master = node.broker.replication.follows_master
    node.broker.topics.create_for_send("orders", "TBW102", 4, 0)
    assert await world.pull() == (NOT_FOUND, 2, 0)


@simulated
async def test_a_readable_slave_sends_who_has_caught_up_to_the_master(cluster):
    world = await started(cluster, **READABLE)
    assert await world.pull() == (0, 0, 3)
    assert await world.pull(3, wait_ms=5000) == (RETRY, 0, 3)
    assert await world.pull(7) == (RETRY, 0, 7)
    assert await world.pull(0, tags="none") == (RETRY, 0, 3)
    assert await world.pull(0, queue_id=1) == (RETRY, 0, 0)
    assert await world.pull(5, queue_id=1) == (RETRY, 0, 5)


@simulated
async def test_a_readable_slave_corrects_offsets_where_it_is_allowed_to(cluster):
    world = await started(cluster, **READABLE, offset_check_in_slave=True)
    assert await world.pull(7) == (RETRY, 0, 3)
    world.has_master = False
    assert await world.pull(7) == (MOVED, 2, 3)
    assert await world.pull(5, queue_id=1) == (MOVED, 2, 0)


@simulated
async def test_a_slave_keeps_who_is_behind(cluster):
    world = await started(cluster, **READABLE)
    fall_behind(world)
    assert await world.pull() == (0, 1, 3)
    world.broker.groups.find_or_create("GID").which_broker_when_consume_slowly = 3
    assert await world.pull() == (0, 3, 3)


@pytest.mark.parametrize("settings", [{}, READABLE])
@simulated
async def test_without_a_master_a_pull_at_the_end_waits(cluster, settings):
    world = await started(cluster, **settings)
    world.has_master = False
    answers = []

    async def ask(offset):
        answers.append((await world.pull(offset, wait_ms=5000), cluster.clock.now_ms() - start_ms))

    start_ms = cluster.clock.now_ms()
    cluster.nursery.start_soon(ask, 3)
    cluster.nursery.start_soon(ask, 7)
    await trio.sleep(1)
    assert not answers
    world.store(1)
    await settle()
    assert answers == [((0, 2, 4), 1000)]
    await trio.sleep(5)
    assert answers[1:] == [((NOT_FOUND, 2, 7), 5000)], "what is beyond the end may be at the master"


@simulated
async def test_a_waiting_pull_goes_to_the_master_that_has_come_back(cluster):
    world = await started(cluster, **READABLE)
    world.has_master = False
    answers = []

    async def ask():
        answers.append(await world.pull(3, wait_ms=5000))

    cluster.nursery.start_soon(ask)
    await trio.sleep(1)
    world.has_master = True
    await trio.sleep(5)
    assert answers == [(RETRY, 0, 3)]


@simulated
async def test_without_a_master_an_offset_before_the_beginning_is_moved(cluster):
    world = await started(cluster, count=0)
    world.has_master = False
    world.broker.store.skip_offsets("orders", 0, 5)
    world.store(1)
    queue = world.broker.store._find_queue("orders", 0)
    queue.delete_before(world.broker.store.max_physical_offset - 1)
    minimum = world.broker.store.min_offset("orders", 0)
    assert minimum > 1
    assert await world.pull(1) == (MOVED, 2, minimum)


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
@simulated
async def test_a_master_sends_who_is_behind_to_a_slave(cluster, role):
    world = await started(cluster, role, **READABLE)
    group = world.broker.groups.find_or_create("GID")
    assert await world.pull() == (0, 0, 3)
    group.broker_id = 4
    assert await world.pull() == (0, 4, 3)
    assert await world.pull(3) == (NOT_FOUND, 4, 3)
    assert await world.pull(7) == (MOVED, 4, 3)
    fall_behind(world)
    group.which_broker_when_consume_slowly = 3
    assert await world.pull() == (0, 3, 3)
    assert await world.pull(3) == (NOT_FOUND, 4, 3)


@simulated
async def test_a_master_whose_slaves_are_not_read_keeps_everybody(cluster):
    world = await started(cluster, "ASYNC_MASTER")
    world.broker.groups.find_or_create("GID").broker_id = 4
    fall_behind(world)
    assert await world.pull() == (0, 0, 3)
    assert await world.pull(7) == (ResponseCode.PULL_OFFSET_MOVED, 0, 3)


@simulated
async def test_a_reset_moves_a_consumer_at_a_slave_too(cluster):
    world = await started(cluster, **READABLE)
    world.broker.offsets.assign_reset("GID", "orders", 0, 1)
    assert await world.pull(3) == (MOVED, 0, 1)
