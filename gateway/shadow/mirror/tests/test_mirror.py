import random

import pytest
import trio

from codec.command import decode_frame
from gateway.shadow.mirror import mirror
from gateway.shadow.mirror.circuit_breaker import BreakerState
from gateway.shadow.mirror.settings import MirrorRule
from gateway.shadow.tests.mirrored_clusters import BROKER, make_broker_exchange, mirrored
from gateway.shadow.traffic.exchange import Hub, Side
from gateway.shadow.traffic.outcome import OutcomeKind
from gateway.tests.cluster import message

FAULTS = ("stalled", "slow", "gone", "garbage", "acl", "disk", "lost")


@pytest.mark.parametrize("spill", ["none", "disk"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_target_never_delays_the_primary_and_counts_stay_exact(fault, spill, tmp_path):
    settings = {
        "queue_messages": 60, "deadline_ms": 500, "breaker_backoff_max_ms": 2000, "refusals": 1000,
        "spill": spill, "spill_dir": str(tmp_path),
    }  # fmt: skip

    @mirrored(**settings)
    async def run(world):
        chance = random.Random(fault)
        world.create_topic(queues=3)
        for number in range(300):
            faulty = 100 <= number < 200
            world.target.fault = fault if faulty else ""
            world.target.answers_to_lose = 2 if fault == "lost" and number % 40 == 0 else 0
            before_s = trio.current_time()
            await world.send(b"%d" % number, queue_id=chance.randrange(3))
            assert trio.current_time() == before_s
            await trio.sleep(chance.choice((0, 0.01, 0.1)))
        await world.wait_until_idle()
        total = world.check_counts()
        assert total.observed == 300
        sent = [[int(body) for body in await world.bodies(world.primary, queue_id=q)] for q in range(3)]
        there = [[int(body) for body in await world.bodies(world.target, queue_id=q)] for q in range(3)]
        assert sum(map(len, sent)) == 300
        for queue_id in range(3):
            assert there[queue_id] == sorted(set(there[queue_id])), "in order, none twice"
        lacking = 300 - sum(map(len, there))
        assert lacking == total.dropped + total.refused == sum(mark.count for mark in world.mirror.diverged)
        if fault == "lost":
            assert total.found > 0
        if fault == "acl":
            assert 32 <= total.refused < 60
            assert spill == "none" or not total.dropped
        elif spill == "disk":
            assert there == sent
        assert world.target.frames < 5_000
        assert world.target.dials < 300

    run()


@mirrored()
async def test_target_that_starts_late_receives_everything(world):
    world.create_topic()
    world.target.fault = "gone"
    world.target.brokers = {}
    for number in range(5):
        await world.send(b"%d" % number)
    await trio.sleep(30)
    assert world.mirror.count_queued() == world.mirror.count_queued_of("orders") == 5
    world.target.fault = ""
    await world.wait_until_idle()
    assert await world.bodies(world.target) == [b"%d" % number for number in range(5)]


# -- modes ---------------------------------------------------------------------------------------------------------


@mirrored(MirrorRule(mode="sync-best-effort"), hold_ms=300)
async def test_best_effort_waits_for_the_target_up_to_hold_ms(world):
    world.create_topic()
    first = await world.send(b"one", observed=False)
    answers = world.observe_held(first)
    assert answers == []
    await trio.sleep(0.1)
    assert answers == [first.answer]
    assert await world.bodies(world.target) == [b"one"]
    world.target.fault = "stalled"
    second = await world.send(b"two", observed=False)
    answers, asked_s = world.observe_held(second), trio.current_time()
    while not answers:
        await trio.sleep(0.01)
    assert answers == [second.answer]
    assert 0.29 < trio.current_time() - asked_s < 0.32


@mirrored(MirrorRule(mode="sync-best-effort"), hold_ms=300, deadline_ms=100)
async def test_best_effort_does_not_wait_while_the_breaker_is_open(world):
    world.create_topic()
    world.target.fault = "stalled"
    assert world.observe_held(await world.send(b"held", observed=False)) == []
    (stream,) = world.mirror.streams()
    while stream.breaker.state is not BreakerState.OPEN:
        await trio.sleep(0.01)
    free = await world.send(b"free", observed=False)
    assert world.observe_held(free) == [free.answer]
    world.target.fault = ""
    await world.wait_until_idle()
    assert (await world.bodies(world.target))[-1] == b"free"


@mirrored(MirrorRule(mode="strict-dual"), hold_ms=300, queue_messages=2)
async def test_strict_dual_answers_success_only_when_both_clusters_have_the_message(world):
    world.create_topic()
    answers = world.observe_held(first := await world.send(b"one", observed=False))
    await trio.sleep(0.1)
    assert answers == [first.answer]
    world.target.fault = "stalled"
    answers = world.observe_held(second := await world.send(b"two", observed=False))
    await trio.sleep(0.4)
    refusal = decode_frame(answers[0], 4, len(answers[0]))
    assert (refusal.code, refusal.opaque) == (1, second.request_command.opaque)
    assert refusal.remark.startswith("[MIRROR] the primary did it, the target did not")
    world.observe_held(await world.send(b"three", observed=False))
    full = world.observe_held(await world.send(b"four", observed=False))
    assert b"the queue is full" in full[0]
    world.target.fault = ""
    await world.wait_until_idle()
    assert await world.bodies(world.target) == [b"one", b"two", b"three"]


@mirrored(MirrorRule(mode="strict-dual"))
async def test_refusal_of_the_primary_is_answered_unchanged(world):
    world.create_topic()
    refused = await world.send(b"x", queue_id=9, observed=False)
    assert world.observe_held(refused) == [refused.answer]


@mirrored(MirrorRule(mode="strict-dual"), held_answers=1)
async def test_number_of_held_answers_is_bounded(world):
    world.create_topic()
    world.target.fault = "stalled"
    assert world.observe_held(await world.send(b"one", observed=False)) == []
    assert b"too many answers are held" in world.observe_held(await world.send(b"two", observed=False))[0]


@mirrored()
async def test_switching_the_mode_under_traffic_loses_no_message(world):
    world.create_topic()
    hub = Hub()
    world.mirror.attach_to(hub)
    assert hub.is_observed(310)
    assert not hub.is_observed(11)
    world.target.fault = "stalled"
    await world.send(b"async")
    world.mirror.set_mode("orders", "strict-dual")
    strict = world.observe_held(await world.send(b"strict", observed=False))
    world.mirror.set_mode("orders", "sync-best-effort")
    effort = world.observe_held(await world.send(b"effort", observed=False))
    world.mirror.set_mode("orders", "off")
    await world.send(b"left out")
    world.target.fault = ""
    await world.wait_until_idle()
    world.mirror.set_mode("orders", "async")
    await world.send(b"again")
    await world.wait_until_idle()
    assert await world.bodies(world.target) == [b"async", b"strict", b"effort", b"again"]
    assert len(strict) == len(effort) == 1
    (mark,) = world.mirror.diverged
    assert (mark.topic, mark.queue_id, mark.count, mark.offset, mark.reason) == (
        "orders",
        0,
        1,
        3,
        "the mode is off",
    )
    assert world.mirror.diverged.clear_marks("orders") == 1
    assert list(world.mirror.diverged) == []


@mirrored()
async def test_messages_flow_back_to_the_primary_while_the_target_leads(world):
    world.create_topic()
    for number in range(3):
        await world.send(b"%d" % number)
    await world.wait_until_idle()
    await world.send(b"nobody mirrors back yet", side=Side.TARGET, queue_id=1)
    assert world.outcomes[-1].kind is OutcomeKind.SKIPPED
    world.mirror.set_mode("orders", "target-primary")
    for number in range(3, 6):
        await world.send(b"%d" % number, side=Side.TARGET)
    await world.send(b"late at the primary", queue_id=1)
    await world.wait_until_idle()
    assert await world.bodies(world.primary) == [b"%d" % number for number in range(6)]
    assert b"late at the primary" in await world.bodies(world.target, queue_id=1)
    names = {stream.name: stream.counts.mirrored for stream in world.mirror.streams()}
    assert names == {f"primary-{BROKER}-0": 4, f"target-{BROKER}-0": 3}


# -- what is taken -------------------------------------------------------------------------------------------------


@mirrored(MirrorRule(topics=["orders"]), MirrorRule(topics=["oneway"], oneway="send"))
async def test_oneway_sends_are_skipped_or_sent_according_to_the_rule(world):
    for topic in ("orders", "oneway"):
        world.create_topic(topic)
        await world.ask(message(topic, b"no answer", key="A" * 32), oneway=True)
    await world.wait_until_idle()
    assert await world.bodies(world.target) == []
    assert await world.bodies(world.target, "oneway") == [b"no answer"]
    total = world.check_counts()
    assert (total.oneway, total.skipped, total.mirrored) == (2, 1, 1)
    assert [mark.reason for mark in world.mirror.diverged] == ["a send without answer"]


@mirrored(MirrorRule(topics=["orders"]))
async def test_unmatched_and_undecodable_exchanges_count_as_skipped(world):
    world.create_topic("other")
    await world.send(b"x", topic="other")
    world.mirror.observe(make_broker_exchange(310, b"\0\0\0\x08\0\0\0\x04nope", None))
    world.mirror.observe(make_broker_exchange(310, b"", None, reverse=True))
    assert world.mirror.unmatched.skipped == world.check_counts().observed == 3


@mirrored(MirrorRule(sample=0.5))
async def test_sample_by_queue_mirrors_queues_completely_or_not_at_all(world):
    world.create_topic(queues=16)
    for number in range(64):
        await world.send(b"x", queue_id=number % 16)
    await world.wait_until_idle()
    counts = [len(await world.bodies(world.target, queue_id=queue_id)) for queue_id in range(16)]
    assert set(counts) == {0, 4}
    assert list(world.mirror.diverged) == []


@mirrored(MirrorRule(clients=["10.0.0.1"]), MirrorRule(clients=["10.0.0.2"]))
async def test_each_rule_has_its_own_stream_and_metrics(world):
    world.create_topic()
    for host in ("10.0.0.1", "10.0.0.2"):
        await world.ask(message("orders", b"x", key=host), client=f"{host}:7")
    await world.wait_until_idle()
    mirrored_by = {
        each.labels["stream"]: each.value
        for each in world.mirror.metrics()
        if each.name == "mirror_mirrored_total"
    }
    assert mirrored_by == {"none": 0, f"primary-{BROKER}-0": 1, f"primary-{BROKER}-1": 1}
    assert [row["name"] for row in world.mirror.status()["streams"]] == sorted(mirrored_by)[1:]


@mirrored()
async def test_failing_outcome_listener_is_logged_and_ignored(world, caplog):
    world.create_topic()
    world.mirror.add_outcome_listener(lambda outcome: 1 / 0)
    await world.send(b"x")
    await world.wait_until_idle()
    assert world.check_counts().mirrored == 1
    assert "an outcome listener failed" in caplog.text


@mirrored()
async def test_streams_of_made_up_brokers_are_bounded(world, monkeypatch):
    monkeypatch.setattr(mirror, "MAX_STREAMS", 3)
    world.create_topic()
    await world.send(b"real")
    for number in range(20):
        exchange = await world.send(b"ghost")
        exchange.broker = f"ghost-{number}"
        world.mirror.observe(exchange)
    assert len(list(world.mirror.streams())) == 3
    assert world.mirror.unmatched.skipped >= 17
