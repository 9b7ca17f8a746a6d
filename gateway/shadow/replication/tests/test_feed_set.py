import inspect
import random
from dataclasses import replace
from typing import Any

import pytest
import trio

from gateway.shadow.replication.feed_set import GONE_S
from gateway.shadow.replication.queue_feed import FeedPhase
from gateway.shadow.tests.replicated_clusters import BROKER, ReplicatedClusters, topic
from gateway.shadow.tests.two_clusters import ClusterView, two_clusters
from gateway.tests.cluster import settle
from remoting.requests.pull import PullMessage
from remoting.requests.topics import GetAllTopicConfig
from remoting.tests.virtual import set_signature
from storage.append import NewMessage


class RunningClusters(ReplicatedClusters):
    """Both clusters and a nursery, in which the feeds run."""

    def __init__(
        self, nursery: trio.Nursery, primary: ClusterView, target: ClusterView, **settings: Any
    ) -> None:
        super().__init__(primary, target, **settings)
        self.nursery = nursery


def replicated(**settings):
    """Run ``test(sides)`` in virtual time with running feeds."""

    def decorate(test):
        async def run(primary, target, **fixtures):
            async with trio.open_nursery() as nursery:
                sides = RunningClusters(nursery, primary, target, **settings)
                await sides.start(nursery)
                await test(sides, **fixtures)
                nursery.cancel_scope.cancel()

        # `two_clusters` expects both sides first, then the fixtures of the test.
        parameters = list(inspect.signature(test).parameters.values())
        sides = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("primary", "target")
        ]
        set_signature(run, [*sides, *parameters[1:]])
        run.__name__ = test.__name__
        return two_clusters(run)

    return decorate


@replicated()
async def test_queues_are_copied_offset_by_offset(sides):
    sides.send(b"0", b"1", b"2")
    sides.send(b"a", queue_id=1)
    await sides.wait_until_equal()
    assert [row[2] for row in sides.stored_messages(sides.target)] == [0, 1, 2]
    sides.send(b"3")
    await sides.wait_until_equal()


@replicated()
async def test_new_message_is_copied_without_delay(sides):
    sides.send(b"0")
    await sides.wait_until_equal()
    started_s = trio.current_time()
    sides.send(b"1")
    await sides.feeds.wait_until(BROKER, "t", 0, 1)
    assert trio.current_time() == started_s
    assert sides.queues_equal()


@replicated(gather_ms=50)
async def test_messages_gather_unless_a_waiter_is_urgent(sides):
    asked = []
    ask = sides.primary.ask_broker

    def record(broker, request, *more):
        asked.append(request.code)
        return ask(broker, request, *more)

    sides.primary.ask_broker = record
    await sides.feeds.wait_for_discovery()
    await settle()

    async def send():
        for _ in range(100):
            sides.send(b"x")
            await trio.sleep(0.001)

    await send()
    await sides.feeds.wait_until(BROKER, "t", 0, 99, urgent=False)
    assert asked.count(11) < 12
    started_s = trio.current_time()
    sides.send(b"y")
    await sides.feeds.wait_until(BROKER, "t", 0, 100)
    assert trio.current_time() - started_s < 0.001


@replicated()
async def test_waiters_wake_in_offset_order_and_may_be_cancelled(sides):
    ended = []

    async def wait(offset):
        await sides.feeds.wait_until(BROKER, "t", 0, offset)
        ended.append(offset)

    await sides.feeds.wait_for_discovery()
    with trio.move_on_after(1) as gave_up:
        await sides.feeds.wait_until(BROKER, "t", 0, 99)
    assert gave_up.cancelled_caught
    for offset in (2, 0, 1):
        sides.nursery.start_soon(wait, offset)
    await settle()
    for body in (b"0", b"1", b"2"):
        sides.send(body)
        await trio.sleep(0.1)
    assert ended == [0, 1, 2]


@replicated()
async def test_new_topics_and_queues_are_discovered(sides):
    broker = sides.broker_of(sides.primary)
    sides.topics.add("later")
    broker.topics.update([topic("later", 1)])
    sides.send(b"x", topic="later")
    await sides.wait_until_equal("later", 1)
    broker.topics.update([topic("t", 5)])
    sides.send(b"y", queue_id=4)
    await sides.wait_until_equal("t", 5)
    assert sides.broker_of(sides.target).topics.get("t").write_queue_nums == 5


@replicated()
async def test_deselected_topics_are_no_longer_copied(sides):
    sides.send(b"0")
    await sides.wait_until_equal()
    sides.topics.clear()
    sides.feeds.request_discovery()
    await sides.feeds.wait_for_discovery()
    await settle()
    sides.send(b"1")
    await trio.sleep(10)
    assert len(sides.stored_messages(sides.target)) == 1
    sides.topics.add("t")
    await sides.wait_until_equal()


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g"])
@replicated()
async def test_retry_and_dead_letter_topics_are_copied(sides, name):
    sides.topics.add(name)
    sides.broker_of(sides.primary).topics.update([topic(name, 1)])
    sides.send(b"x", topic=name)
    await sides.wait_until_equal(name, 1)


@replicated(retry_topics=False, dead_letters=False)
async def test_retry_and_dead_letter_topics_can_be_switched_off(sides):
    names = ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"]
    sides.topics.update(names)
    sides.broker_of(sides.primary).topics.update([topic(name, 1) for name in names])
    await trio.sleep(5)
    assert {key[1] for key in sides.feeds.feeds} == {"t"}


@replicated()
async def test_messages_lost_by_the_target_are_copied_again(sides):
    sides.send(b"0", b"1", b"2")
    await sides.wait_until_equal()
    sides.broker_of(sides.target).store.delete_topic("t")
    sides.send(b"3")
    await sides.wait_until_equal()


@replicated()
async def test_messages_deleted_by_the_primary_meanwhile_are_skipped(sides):
    sides.send(b"0", b"1")
    await sides.wait_until_equal()
    await sides.crash_target()
    for _ in range(40):
        sides.send(b"x" * 90_000)
    store = sides.broker_of(sides.primary).store
    config = replace(store.config, retained_bytes=1 << 20)
    store._retention = replace(store._retention, config=config)
    assert store.delete_expired() > 0
    assert store.min_offset("t", 0) > 2
    await sides.restart_target()
    await sides.wait_until_equal()


@replicated(begin="now")
async def test_begin_now_copies_new_messages_only(sides):
    await sides.feeds.wait_for_discovery()
    await settle()
    sides.send(b"0")
    await sides.wait_until_equal()


@replicated()
async def test_queue_is_stuck_when_the_target_is_ahead(sides):
    sides.send(b"0")
    await sides.wait_until_equal()
    sides.broker_of(sides.target).store.append(NewMessage("t", 0, b"own", b""))
    await sides.crash_target()
    await trio.sleep(5)
    await sides.restart_target()
    await trio.sleep(20)
    feed = sides.feeds.feeds[BROKER, "t", 0]
    assert (feed.phase, feed.problem) == (
        FeedPhase.STUCK,
        "the target's queue is 1 messages ahead of the primary's",
    )
    assert list(sides.feeds.failing_queues()) == [(f"t {BROKER} 0", feed.problem)]
    assert len(sides.stored_messages(sides.target)) == 2


@replicated()
async def test_queue_with_foreign_messages_fails_with_a_reason(sides):
    await sides.feeds.wait_for_discovery()
    await settle()
    sides.broker_of(sides.target).store.append(NewMessage("t", 0, b"own", b""))
    sides.send(b"0", b"1")
    await trio.sleep(5)
    feed = sides.feeds.feeds[BROKER, "t", 0]
    assert "another message at offset 0" in feed.problem
    assert feed.phase is FeedPhase.FAILING
    assert len(sides.stored_messages(sides.target)) == 1


@pytest.mark.parametrize("waiting", [1, 1000])
@replicated(live_messages=10)
async def test_malformed_answer_is_retried(sides, waiting):
    real, senseless = sides.primary.ask_broker, [b"x", b"\0" * 7, b"short"]

    async def ask(broker, request, *more):
        reply = await real(broker, request, *more)
        if request.code == PullMessage.code and reply.body and senseless:
            reply.body = senseless.pop()
        return reply

    sides.primary.ask_broker = ask
    sides.send(*(b"%d" % number for number in range(waiting)))
    await settle()
    await trio.sleep(0.01)
    feed = sides.feeds.feeds[BROKER, "t", 0]
    assert feed.phase is FeedPhase.FAILING
    assert "does not begin with a message" in feed.problem
    await sides.wait_until_equal()
    assert (senseless, feed.problem) == ([], "")


@replicated()
async def test_discovery_goes_on_after_any_failure(sides, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(sides.primary, "refresh", lambda: 1 / 0)
        await trio.sleep(5)
        assert sides.feeds.problem == "division by zero"
    sides.send(b"0")
    await sides.wait_until_equal()
    assert sides.feeds.problem == ""


@replicated(catch_up_rate=20.0, live_messages=10)
async def test_history_is_rate_limited_and_new_messages_are_not(sides):
    started_s = trio.current_time()
    sides.send(*(b"%d" % number for number in range(200)))
    await sides.wait_until_equal()
    assert 7 < trio.current_time() - started_s < 12
    started_s = trio.current_time()
    sides.send(b"last")
    await sides.feeds.wait_until(BROKER, "t", 0, 200)
    assert trio.current_time() == started_s


@replicated()
async def test_copying_stores_nothing_at_the_primary(sides):
    broker = sides.broker_of(sides.primary)
    groups = list(broker.groups.encode_slices())
    topics = list(broker.topics.encode_slices())
    sides.send(b"0")
    await sides.wait_until_equal()
    assert list(broker.groups.encode_slices()) == groups
    assert list(broker.topics.encode_slices()) == topics


@replicated()
async def test_metrics_and_status_rows_show_progress(sides):
    sides.send(b"0", b"1")
    await sides.wait_until_equal()
    await settle()
    metrics = {
        (metric.name, *metric.labels.values()): metric.value for metric in sides.feeds.collect_metrics()
    }
    assert metrics["replication_messages_total",] == 2
    assert metrics["replication_behind_messages",] == 0
    assert metrics["replication_queues", "live"] == 2
    assert sides.feeds.status_rows(10)[0] == {
        "broker": BROKER, "topic": "t", "queue": 0, "phase": "live", "primary": [0, 2], "target": 2, "copied": 2,
        "problem": "",
    }  # fmt: skip
    assert sides.feeds.behind_messages("t") == 0
    assert (sides.feeds.target_end(BROKER, "t", 0), sides.feeds.target_end(BROKER, "x", 0)) == (2, None)


@pytest.mark.parametrize("seed", range(12))
@replicated(live_messages=20)
async def test_queues_converge_after_random_faults(sides, seed):
    chance = random.Random(seed)
    await sides.feeds.wait_for_discovery()
    down = False
    for number in range(60):
        match chance.choice(["send", "send", "burst", "pause", "crash", "duplicate", "break"]):
            case "send":
                sides.send(b"%d" % number, queue_id=chance.randrange(2))
            case "burst":
                sides.send(
                    *(b"%d" % each for each in range(chance.randrange(100))), queue_id=chance.randrange(2)
                )
            case "pause":
                await trio.sleep(chance.random() * 3)
            case "crash" if down:
                await sides.restart_target()
                down = False
            case "crash":
                await sides.crash_target()
                down = True
            case "duplicate":  # as if another gateway copied the same queue
                for feed in sides.feeds.feeds.values():
                    feed.copier.target_end = feed.copier.position = 0
            case "break":
                for side in (sides.primary, sides.target):
                    for connection in side._connections.values():
                        connection.close("cut")
        await settle()
        if not down:
            for queue in range(2):
                stored = sides.stored_messages(sides.target, queue_id=queue)
                assert stored == sides.stored_messages(sides.primary, queue_id=queue)[: len(stored)]
    if down:
        await sides.restart_target()
    await sides.wait_until_equal()


@replicated()
async def test_a_topic_with_absurdly_many_queues_is_left_alone(sides):
    """A range of 2^31 - 1 queues stopped the gateway for everyone."""
    real = sides.primary.ask_broker
    huge = topic("huge", 2**31 - 1)

    async def ask(broker, request, *more):
        reply = await real(broker, request, *more)
        if request.code == GetAllTopicConfig.code:
            reply.data.topic_config_table["huge"] = huge
        return reply

    sides.primary.ask_broker = ask
    sides.topics.add("huge")
    sides.feeds.request_discovery()
    await sides.feeds.wait_for_discovery()
    await sides.feeds.wait_for_discovery()
    assert {key[1] for key in sides.feeds.feeds} == {"t"}
    assert sides.feeds.left_out == 2**31 - 1
    assert "more than" in sides.feeds.problem
    sides.send(b"0")
    await sides.wait_until_equal()


@replicated(queues=3)
async def test_feeds_are_bounded_and_those_that_run_continue(sides):
    broker = sides.broker_of(sides.primary)
    await sides.feeds.wait_for_discovery()
    before = set(sides.feeds.feeds)
    broker.topics.update([topic(f"a{number}", 4) for number in range(10)])
    sides.topics |= {f"a{number}" for number in range(10)}
    sides.feeds.request_discovery()
    await sides.feeds.wait_for_discovery()
    assert len(sides.feeds.feeds) == 3
    assert before <= set(sides.feeds.feeds)
    assert sides.feeds.left_out == 39
    assert {each.name: each.value for each in sides.feeds.collect_metrics()}[
        "replication_queues_left_out"
    ] == 39


@replicated()
async def test_a_made_up_broker_holds_up_no_other(sides):
    real = sides.primary.refresh

    async def refresh():
        await real()
        sides.primary.brokers = {"a-ghost": {0: "10.66.6.6:6379"}, **sides.primary.brokers}

    sides.primary.refresh = refresh
    await trio.sleep(5)
    sides.broker_of(sides.primary).topics.update([topic("new")])
    sides.topics.add("new")
    await trio.sleep(5)
    assert {key[1] for key in sides.feeds.feeds} == {"t", "new"}
    assert "10.66.6.6" in sides.feeds.problem


@replicated()
async def test_feeds_of_a_broker_that_is_gone_for_long_end(sides):
    await sides.feeds.wait_for_discovery()
    real = sides.primary.refresh

    async def refresh():
        await real()
        sides.primary.brokers = {}

    sides.primary.refresh = refresh
    await trio.sleep(GONE_S / 2)
    assert sides.feeds.feeds
    await trio.sleep(GONE_S)
    assert not sides.feeds.feeds
    sides.primary.refresh = real
    sides.send(b"0")
    await sides.wait_until_equal()
