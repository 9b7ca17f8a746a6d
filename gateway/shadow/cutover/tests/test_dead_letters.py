"""Dead letters of a group that moves, returns and moves again: none stays on a side that nobody uses any more."""

import contextlib
from collections import Counter

import pytest
import trio

from codec.message import Message
from gateway.shadow.clusters.cluster_pair import QueueRange
from gateway.shadow.cutover import dead_letters as dead_letters_module
from gateway.shadow.cutover.dead_letters import DeadLetters
from gateway.shadow.cutover.moves import Move, MoveState
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
from gateway.shadow.replication.queue_copier import QueueCopier
from gateway.shadow.tests.replicated_clusters import ReplicatedClusters
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.shadow.traffic.exchange import Side
from gateway.tests.cluster import message
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.pull import PullMessage
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


@two_clusters
async def test_letters_that_arrive_during_a_copy_do_not_refuse_the_step(primary, target):
    """The check after the copy counted them as missing, and nothing copied them: refused for as long as they came."""
    async with world(primary, target) as (gateway, _):
        give_up(target, *numbered(b"moved", 3))
        asked = primary.ask_broker

        async def growing(name, request, timeout_s=None):
            if isinstance(request, SendMessageV2):
                give_up(target, b"later " + request.body)
            return await asked(name, request, timeout_s)

        primary.ask_broker = growing
        letters = DeadLetters(gateway.checks.clusters, are_replicated=True)
        check = await letters.copy_missing(Move("orders"), "GID", Side.PRIMARY)
        assert (check.ok, check.measured) == (True, "GID: 3 copied to the primary")
        primary.ask_broker = asked
        check = await letters.copy_missing(Move("orders"), "GID", Side.PRIMARY)
        assert (check.ok, check.measured) == (True, "GID: 3 copied to the primary")


@pytest.mark.parametrize("idle_pulls", [0, 1])
@two_clusters
async def test_nothing_is_sent_while_the_target_is_a_beginning_of_the_primary(
    primary, target, idle_pulls, monkeypatch
):
    """Replication puts these letters too, at their offsets: what was sent besides would be there twice."""
    await ReplicatedClusters(primary, target, discover_ms=100).restart_target()
    async with world(primary, target) as (gateway, _):
        give_up(primary, *numbered(b"early", 3))
        copy_once, pulls, asked, sent = QueueCopier.copy_once, [], target.ask_broker, []

        async def copy_late(copier, wait_ms):
            pulls.append(copier)
            if len(pulls) <= idle_pulls:
                return 0
            copied_messages = await copy_once(copier, wait_ms)
            give_up(primary, b"late")
            return copied_messages

        async def counting(name, request, timeout_s=None):
            if isinstance(request, SendMessageV2):
                sent.append(request)
            return await asked(name, request, timeout_s)

        monkeypatch.setattr(QueueCopier, "copy_once", copy_late)
        target.ask_broker = counting
        letters = DeadLetters(gateway.checks.clusters, are_replicated=True)
        check = await letters.copy_missing(Move("orders"), "GID", Side.TARGET)
        assert (check.ok, check.measured) == (True, "GID: 3 copied to the target")
        assert broker(target).store.max_offset(DEAD, 0) == 3
        assert not sent


@pytest.mark.parametrize("are_replicated", [True, False])
@two_clusters
async def test_letters_are_not_read_to_count_them_if_the_target_has_none(primary, target, are_replicated):
    async with world(primary, target) as (gateway, _):
        give_up(primary, *numbered(b"early", 5))
        asked, pulls = primary.ask_broker, []

        async def counting(name, request, timeout_s=None):
            if isinstance(request, PullMessage):
                pulls.append(request)
            return await asked(name, request, timeout_s)

        primary.ask_broker = counting
        letters = DeadLetters(gateway.checks.clusters, are_replicated)
        check = await letters.plan_copy(Move("orders"), "GID")
        assert "GID: 5 only at the primary" in check.measured
        assert not pulls


@two_clusters
async def test_too_many_letters_are_an_upper_bound_in_a_plan_and_refuse_a_copy(primary, target, monkeypatch):
    async with world(primary, target) as (gateway, _):
        give_up(primary, *numbered(b"here", 4))
        give_up(target, *numbered(b"there", 5))
        letters = DeadLetters(gateway.checks.clusters, are_replicated=True)
        check = await letters.plan_copy(Move("orders"), "GID")
        assert check.measured == "GID: 4 only at the primary; the step copies them"
        monkeypatch.setattr(dead_letters_module, "MAX_COMPARED_LETTERS", 3)
        check = await letters.plan_copy(Move("orders"), "GID")
        assert check.measured == "GID: at most 4 only at the primary; the step copies them"
        check = await letters.copy_missing(Move("orders"), "GID", Side.TARGET)
        assert not check.ok
        assert "4 and 5 messages at broker-a are too many to compare" in check.reason
        assert "--allow dead-letters" in check.reason
        monkeypatch.setattr(dead_letters_module, "MAX_COMPARED_LETTERS", 4)
        assert (await letters.copy_missing(Move("orders"), "GID", Side.TARGET)).ok


class ListedQueues:
    """Both sides of a pair with one queue each: the first offset, and the bodies from there on."""

    def __init__(self, primary, target):
        self.queues = {Side.PRIMARY: primary, Side.TARGET: target}

    async def queue_ranges(self, side, broker, topic):
        low, bodies = self.queues[side]
        return {0: QueueRange(low, low + len(bodies))}

    async def read_messages(self, side, broker, topic, queue_id, start, stop):
        low, bodies = self.queues[side]
        for offset in range(max(start, low), min(stop, low + len(bodies))):
            yield Message(topic=topic, queue_offset=offset, body=bodies[offset - low].encode())


@pytest.mark.parametrize(
    ("goal", "primary", "target", "missing"),
    [
        (Side.PRIMARY, (0, "ab"), (0, "abcd"), "cd"),
        # Both sides got letters in another order; the first ones of the target were deleted by age.
        (Side.PRIMARY, (0, "abxcd"), (2, "cdx"), ""),
        (Side.PRIMARY, (0, "abxcd"), (2, "cdxy"), "y"),
        # The target has nothing any more at the offsets of the primary, whose letters are copies.
        (Side.PRIMARY, (0, "abc"), (4, "bcd"), "d"),
        # A letter that the group gave up on twice stays one of two; equal beginnings count for neither side.
        (Side.PRIMARY, (0, "ax"), (0, "aa"), "a"),
        (Side.TARGET, (3, "dex"), (0, "exadey"), ""),
        (Side.TARGET, (3, "ded"), (0, "eeadey"), "d"),
        # The topic was deleted at the primary and created again: all of its letters count.
        (Side.TARGET, (0, "ab"), (5, "bc"), "a"),
    ],
)
def test_letters_are_compared_with_all_that_the_goal_still_has(goal, primary, target, missing):
    """The goal was counted from the first offset of the other side on, so older copies there were doubled."""

    async def compare():
        letters = DeadLetters(ListedQueues(primary, target), are_replicated=True)
        ends = {"broker-a": {0: 100}}
        found = letters._iter_missing(Move("orders"), "GID", "broker-a", goal, ends)
        return [message.body.decode() async for _, message in found]

    assert "".join(trio.run(compare)) == missing


@pytest.mark.parametrize(("source", "goal"), [("abb", "bbbbbbcdefgh"), ("bbbcdefgh", "abb")])
def test_only_the_smaller_side_is_held_in_memory(source, goal):
    async def count():
        letters = DeadLetters(ListedQueues((0, goal), (0, source)), are_replicated=True)
        parts = [(0, QueueRange(0, len(source)))], [(0, QueueRange(0, len(goal)))]
        return await letters._count_present("broker-a", "GID", Side.PRIMARY, *parts)

    assert sorted(trio.run(count).values()) in ([2], [1, 2])


@two_clusters
async def test_the_checks_are_made_again_after_a_long_copy(primary, target):
    """A group that got a retry while its dead letters were copied was switched, and nobody consumed the retry."""
    async with world(primary, target) as (gateway, _):
        broker(primary).groups.update([SubscriptionGroupConfig(group_name="GID")])
        broker(primary).topics.update([TopicConfig(topic_name=RETRY, read_queue_nums=1, write_queue_nums=1)])
        broker(primary).offsets.commit_offset("GID", "orders", 0, 0)
        broker(primary).offsets.commit_offset("GID", RETRY, 0, 0)
        for wanted in (C, P, D):
            assert await take_step(gateway, "orders") is wanted
        copy_missing = DeadLetters.copy_missing

        async def copy_slowly(letters, move, group, goal):
            check = await copy_missing(letters, move, group, goal)
            await trio.sleep(10)
            broker(primary).store.append(NewMessage(RETRY, 0, b"failed", b""))
            return check

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeadLetters, "copy_missing", copy_slowly)
            assert "GID has not consumed all of %RETRY%GID" in await refusal_reason(gateway, "orders")
        broker(primary).offsets.commit_offset("GID", RETRY, 0, 1)
        assert await take_step(gateway, "orders") is S


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


@two_clusters
async def test_an_abandoned_group_moves_without_its_retries_if_allowed(primary, target):
    """Nothing covered the refusal, and its text named no remedy."""
    async with world(primary, target) as (gateway, _):
        broker(primary).topics.update([TopicConfig(topic_name=RETRY, read_queue_nums=1, write_queue_nums=1)])
        broker(primary).groups.update([SubscriptionGroupConfig(group_name="GID")])
        broker(primary).offsets.commit_offset("GID", "orders", 0, 0)
        broker(primary).store.append(NewMessage(RETRY, 0, b"failed", b""))
        broker(primary).offsets.commit_offset("GID", RETRY, 0, 0)
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        reason = await refusal_reason(gateway, "orders", "GID")
        assert "reset its offset to the end of that topic at the primary" in reason
        assert "--allow retries" in reason
        for wanted in (D, S):
            assert await take_step(gateway, "orders", "GID", allow=["retries"]) is wanted


@two_clusters
async def test_retry_topics_are_not_to_be_deleted_while_another_topic_of_the_group_needs_them(
    primary, target
):
    async with world(primary, target) as (gateway, _):
        broker(target).topics.update([TopicConfig(topic_name=RETRY, read_queue_nums=1, write_queue_nums=1)])
        broker(target).store.append(NewMessage(RETRY, 0, b"failed", b""))
        move = Move("orders", groups={"GID": MoveState.DRAINED})
        check = await gateway.checks.compare_retry_topics(move, "GID", {"orders": move})
        assert (check.ok, "delete it there" in check.reason) == (True, True)
        other = Move("bills", state=P, groups={"GID": S})
        check = await gateway.checks.compare_retry_topics(move, "GID", {"orders": move, "bills": other})
        assert check.ok
        assert "delete" not in check.reason
        assert "keep it there while GID consumes bills at the target" in check.reason


@two_clusters
async def test_retry_topics_that_cannot_be_compared_refuse_no_step(primary, target):
    async with world(primary, target) as (gateway, _):

        async def failing(name, request, timeout_s=None):
            raise OSError("unreachable")

        target.ask_broker = failing
        check = await gateway.checks.compare_retry_topics(Move("orders"), "GID", {})
        assert check.ok
        assert "unreachable" in check.reason
