"""Dead letters of a group that moves, returns and moves again: none stays on a side that nobody uses any more."""

import contextlib
from collections import Counter

import pytest
import trio

from gateway.shadow.cutover.tests.test_mover import (
    BACK,
    DONE,
    C,
    D,
    M,
    P,
    S,
    broker,
    load,
    refusal_reason,
    take_step,
    world,
)
from gateway.shadow.tests.replicated_clusters import ReplicatedClusters
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.shadow.traffic.exchange import Side
from gateway.tests.cluster import message
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.send import SendMessageV2
from storage.append import NewMessage

DEAD = "%DLQ%GID"
RETRY = "%RETRY%GID"


@contextlib.asynccontextmanager
async def replicated_world(primary, target, **more):
    """A gateway whose target gets topic and dead letters by replication, as long as the moves do not stop it."""
    clusters = ReplicatedClusters(primary, target, discover_ms=100)
    await clusters.restart_target()
    async with world(primary, target, **more) as (gateway, nursery):

        def selects_queue(broker_name, topic, queue_id):
            return topic in ("orders", DEAD) and topic not in gateway.mirror.stopped

        clusters.feeds._selects_queue = selects_queue
        gateway.mirror.observe = lambda exchange: None
        nursery.start_soon(clusters.feeds.run)
        yield clusters, gateway, nursery


def give_up(side, *bodies):
    """Store dead letters as a broker does for a group that failed with messages too often."""
    server = broker(side)
    if server.topics.get(DEAD) is None:
        server.topics.update([TopicConfig(topic_name=DEAD, read_queue_nums=1, write_queue_nums=1)])
    for body in bodies:
        properties = b"UNIQ_KEY\x01" + body + b"\x02ORIGIN_MESSAGE_ID\x01o\x02"
        server.store.append(NewMessage(DEAD, 0, body, properties))
    server.long_polls.mark_grown(DEAD, 0)
    server.long_polls.answer_marked()


def dead_letters(clusters, side):
    return [bytes(message[3]) for message in clusters.stored_messages(side, DEAD)]


def numbered(prefix, count):
    return [b"%s%d" % (prefix, number) for number in range(count)]


@two_clusters
async def test_dead_letters_follow_a_group_back_and_forth(primary, target):
    """Those of the target stayed there after a rollback, and later ones of the primary never reached the target."""
    async with (
        replicated_world(primary, target) as (clusters, gateway, nursery),
        load(gateway, nursery),
    ):
        give_up(primary, *numbered(b"before", 4))
        await clusters.wait_until_equal(DEAD, 1)
        for wanted in (C, P, D, S):
            assert await take_step(gateway, "orders") is wanted
        await trio.sleep(1)
        give_up(target, *numbered(b"moved", 40))
        assert await take_step(gateway, "orders", way="rollback") is BACK
        assert await take_step(gateway, "orders", way="rollback") is M
        assert dead_letters(clusters, primary) == numbered(b"before", 4) + numbered(b"moved", 40)
        give_up(primary, *numbered(b"back", 10))
        # Copies stand at the offsets of their originals, so replication continues.
        with trio.fail_after(60):
            while dead_letters(clusters, primary) != dead_letters(clusters, target):
                await trio.sleep(0.1)
        for wanted in (C, P, D, S, DONE):
            assert await take_step(gateway, "orders") is wanted
        expected = numbered(b"before", 4) + numbered(b"moved", 40) + numbered(b"back", 10)
        assert dead_letters(clusters, target) == dead_letters(clusters, primary) == expected


@two_clusters
async def test_dead_letters_of_both_sides_are_united_and_none_is_doubled(primary, target):
    """A group that consumes another topic at the primary gets dead letters on both sides at a time."""
    async with (
        replicated_world(primary, target) as (clusters, gateway, nursery),
        load(gateway, nursery),
    ):
        give_up(primary, b"first")
        await clusters.wait_until_equal(DEAD, 1)
        for wanted in (C, P, D, S):
            assert await take_step(gateway, "orders") is wanted
        await trio.sleep(1)
        give_up(primary, b"here 1", b"here 2")
        give_up(target, b"there 1", b"there 2", b"there 3")
        assert await take_step(gateway, "orders", way="rollback") is BACK
        assert await take_step(gateway, "orders", way="rollback") is M
        assert len(dead_letters(clusters, primary)) == 6
        for wanted in (C, P, D, S, DONE):
            assert await take_step(gateway, "orders") is wanted
        expected = Counter([b"first", b"here 1", b"here 2", b"there 1", b"there 2", b"there 3"])
        assert Counter(dead_letters(clusters, primary)) == Counter(dead_letters(clusters, target)) == expected


@two_clusters
async def test_dead_letters_that_only_the_primary_has_reach_the_target_before_done(primary, target):
    async with (
        replicated_world(primary, target) as (clusters, gateway, nursery),
        load(gateway, nursery),
    ):
        for wanted in (C, P, D, S):
            assert await take_step(gateway, "orders") is wanted
        await trio.sleep(1)
        give_up(primary, b"late")
        (plan,) = await gateway.mover.plan_steps("orders")
        (check,) = [check for check in plan.checks if check.name == "dead letters"]
        assert (check.ok, check.measured) == (True, "GID: 1 only at the primary; the step copies them")
        assert await take_step(gateway, "orders") is DONE
        assert dead_letters(clusters, target) == [b"late"]


@two_clusters
async def test_an_interrupted_copy_continues_without_doubles(primary, target):
    async with (
        replicated_world(primary, target) as (clusters, gateway, nursery),
        load(gateway, nursery),
    ):
        for wanted in (C, P, D, S):
            assert await take_step(gateway, "orders") is wanted
        await trio.sleep(1)
        give_up(target, *numbered(b"moved", 9))
        assert await take_step(gateway, "orders", way="rollback") is BACK
        await trio.sleep(1)
        asked, sent = primary.ask_broker, []

        async def failing(name, request, timeout_s=None):
            reply = await asked(name, request, timeout_s)
            if isinstance(request, SendMessageV2) and request.topic == DEAD:
                sent.append(request)
                if len(sent) == 4:
                    raise OSError("the answer is lost")
            return reply

        primary.ask_broker = failing
        assert "the answer is lost" in await refusal_reason(gateway, "orders", way="rollback")
        assert gateway.mover.move_file.get_move("orders").state is BACK
        gateway.restart()
        assert await take_step(gateway, "orders", way="rollback") is M
        assert dead_letters(clusters, primary) == numbered(b"moved", 9)
        assert len(sent) == 9


@two_clusters
async def test_dead_letters_that_cannot_be_copied_refuse_the_step_unless_allowed(primary, target):
    async with (
        replicated_world(primary, target) as (clusters, gateway, nursery),
        load(gateway, nursery),
    ):
        for wanted in (C, P, D, S):
            assert await take_step(gateway, "orders") is wanted
        await trio.sleep(1)
        give_up(target, b"moved")
        assert await take_step(gateway, "orders", way="rollback") is BACK
        await trio.sleep(1)
        asked = primary.ask_broker

        async def refusing(name, request, timeout_s=None):
            if isinstance(request, SendMessageV2) and request.topic == DEAD:
                raise RequestError(16, "no permission")
            return await asked(name, request, timeout_s)

        primary.ask_broker = refusing
        reason = await refusal_reason(gateway, "orders", way="rollback")
        assert "%DLQ%GID" in reason
        assert "no permission" in reason
        assert await take_step(gateway, "orders", way="rollback", allow=["dead-letters"]) is M
        assert dead_letters(clusters, primary) == []


@two_clusters
async def test_a_target_with_offsets_of_its_own_returns_its_dead_letters_once(primary, target):
    async with (
        world(primary, target, preserves_offsets=False) as (gateway, nursery),
        load(gateway, nursery),
    ):
        give_up(primary, b"first")
        for number in (1, 2):
            for wanted in (C, P, D, S):
                assert await take_step(gateway, "orders") is wanted
                await trio.sleep(0.5)
            give_up(target, b"moved %d" % number)
            await trio.sleep(20)
            assert await take_step(gateway, "orders", way="rollback") is BACK
            assert await take_step(gateway, "orders", way="rollback", wait_s=60) is M
        store = broker(primary).store
        assert store.max_offset(DEAD, 0) == 3
        for wanted in (C, P, D, S):
            assert await take_step(gateway, "orders") is wanted
            await trio.sleep(0.5)
        (plan,) = await gateway.mover.plan_steps("orders")
        (check,) = [check for check in plan.checks if check.name == "dead letters"]
        assert check.ok
        assert "GID: 1 only at the primary" in check.measured
        assert 'kind "ours"' in check.reason


# -- other messages of a group that wait somewhere --------------------------------------------------------------


@pytest.mark.parametrize("waits_in", ["the retry topic", "a delay level"])
@two_clusters
async def test_retries_of_a_group_without_consumers_are_not_skipped(primary, target, waits_in):
    """Its offset at the target was set after them, so that nobody ever consumed them."""
    async with world(primary, target) as (gateway, _):
        broker(primary).topics.update([TopicConfig(topic_name=RETRY, read_queue_nums=1, write_queue_nums=1)])
        broker(primary).offsets.commit_offset("GID", "orders", 0, 0)
        if waits_in == "the retry topic":
            broker(primary).store.append(NewMessage(RETRY, 0, b"failed", b""))
            broker(primary).offsets.commit_offset("GID", RETRY, 0, 0)
        else:
            await primary.ask_broker("broker-a", message(RETRY, b"failed", properties={"DELAY": "18"}))
        await take_step(gateway, "orders")
        await take_step(gateway, "orders")
        reason = await refusal_reason(gateway, "orders", "GID")
        assert "GID has not consumed all of %RETRY%GID" in reason or "1 at the primary" in reason


@two_clusters
async def test_a_step_of_another_topic_does_not_mirror_the_groups_dead_letters_again(primary, target):
    """The group consumes one topic at the target and another at the primary."""
    async with world(primary, target, "orders", "bills") as (gateway, nursery):
        first, second = load(gateway, nursery), load(gateway, nursery, "bills")
        async with first, second:
            for _ in range(3):
                await take_step(gateway, "orders")
            assert await take_step(gateway, "orders", allow=["apart"]) is S
            assert {DEAD, RETRY} <= gateway.mirror.stopped
            for wanted in (C, P):
                assert await take_step(gateway, "bills") is wanted
            assert {DEAD, RETRY} <= gateway.mirror.stopped
            gateway.restart()
            assert {DEAD, RETRY} <= gateway.mirror.stopped
            assert gateway.mover.move_file.get_move("orders").consumer_side("GID") is Side.TARGET
            for wanted in (D, S):
                assert await take_step(gateway, "bills") is wanted
