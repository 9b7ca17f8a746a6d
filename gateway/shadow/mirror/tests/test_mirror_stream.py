"""A stream whose target fails in every way: counts stay exact, memory bounded, and attempts few."""

import random
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from codec.command import Command, encode_command
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.mirror.backlog import Backlog
from gateway.shadow.mirror.mirror_stream import MirrorStream
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.mirror.spill_backlog import SpillBacklog
from gateway.shadow.mirror.stream_account import StreamAccount
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind, refused_outcome
from gateway.shadow.traffic.subject import subject_of
from gateway.tests.cluster import inline
from remoting.errors import RemotingClosed, RequestError
from remoting.tests.virtual import virtual

FAULTS = ("none", "stalled", "slow", "gone", "garbage", "refusing", "disk", "poison")


def message(number, queue_id=0, offset=None, size=10):
    request = Command(310, ext={"a": "PID", "b": "orders", "e": str(queue_id)}, body=b"x" * size)
    place = {
        "msgId": "0" * 32,
        "queueId": str(queue_id),
        "queueOffset": str(number if offset is None else offset),
    }
    return make_exchange(310, encode_command(request), encode_command(Command(0, ext=place)))


class Target:
    """A target writer with a fault that tests switch."""

    def __init__(self, fault="none"):
        self.fault = fault
        self.attempts = 0
        self.probes = 0
        self.taken = []
        self.poison = None

    async def probe(self):
        self.probes += 1
        if self.fault in ("stalled", "gone"):
            await self._fail()

    async def write(self, exchanges):
        self.attempts += 1
        if self.fault in ("stalled", "gone", "garbage"):
            await self._fail()
        if self.fault == "disk":
            raise RequestError(14, "service not available now.")
        if self.fault == "slow":
            await trio.sleep(0.4 * len(exchanges))
        if self.poison in exchanges:
            raise RemotingClosed("closed by what was sent")
        if self.fault == "refusing":
            return [refused_outcome(each, 16, "no permission") for each in exchanges]
        if self.fault == "one topic":
            return [self._refuse_queue_1(each) for each in exchanges]
        self.taken += exchanges
        return [Outcome(each, OutcomeKind.MIRRORED) for each in exchanges]

    def _refuse_queue_1(self, each):
        if subject_of(each).queue_id == 1:
            return refused_outcome(each, 16, "no permission")
        self.taken.append(each)
        return Outcome(each, OutcomeKind.MIRRORED)

    async def _fail(self):
        if self.fault == "stalled":
            await trio.sleep_forever()
        raise ConnectionRefusedError("gone") if self.fault == "gone" else RemotingClosed("bad frame")


class Bench:
    """A stream with its target and the outcomes reported so far; `check` asserts the law of counts."""

    def __init__(self, target, settings, make_backlog=None):
        self.fates = {}
        self.target = target
        self.settings = settings
        self.account = StreamAccount("test", self._on_outcome)
        if make_backlog is None:
            make_backlog = partial(Backlog, settings.queue_messages, settings.queue_bytes)
        self.backlog = make_backlog(listener=self.account)
        self.stream = MirrorStream(
            "test", settings, target, self.backlog, self.account, TaskSupervisor("mirror")
        )
        self.offered = 0

    @asynccontextmanager
    async def running(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.stream.run)
            yield
            nursery.cancel_scope.cancel()

    def _on_outcome(self, entry, outcome):
        assert outcome.exchange not in self.fates, "reported twice"
        self.fates[outcome.exchange] = outcome.kind

    def offer(self, each):
        self.offered += 1
        self.stream.offer_exchange(each, subject_of(each))
        self.check()

    def check(self):
        counts = self.stream.counts
        assert counts.observed == self.offered == counts.decided + self.stream.queued
        assert len(self.fates) == counts.decided
        assert self.stream.queued >= 0
        assert self.stream.queued_bytes <= self.settings.queue_bytes * 2 + 2 * 1024 * 1024


def spill_to(settings, tmp_path):
    return partial(SpillBacklog, settings, directory=str(tmp_path / "s"), run_blocking=inline)


def small(**more):
    return MirrorSettings(**{"queue_messages": 50, "queue_bytes": 80_000, "deadline_ms": 1000, **more})


@pytest.mark.parametrize("spill", ["none", "disk"])
@pytest.mark.parametrize("fault", FAULTS)
def test_counts_stay_exact_whatever_the_target_does(fault, spill, tmp_path):
    @virtual
    async def run():
        chance = random.Random(fault + spill)
        target = Target()
        settings = small(spill=spill, spill_dir=str(tmp_path), spill_bytes=400_000, spill_file_bytes=8192)
        backlog = spill_to(settings, tmp_path) if spill == "disk" else None
        bench = Bench(target, settings, backlog)
        async with bench.running():
            for number in range(600):
                target.fault = fault if 200 <= number < 400 else "none"
                each = message(number, chance.randrange(3))
                if fault == "poison" and number == 300:
                    target.poison = each
                bench.offer(each)
                await trio.sleep(chance.choice((0, 0, 0.001, 0.05)))
                bench.check()
            with trio.fail_after(3600):
                while bench.stream.queued:
                    await trio.sleep(0.1)
                    bench.check()
        bench.check()
        fates = {fate: list(bench.fates.values()).count(fate) for fate in OutcomeKind}
        assert sum(fates.values()) == 600
        assert fates[OutcomeKind.MIRRORED] >= 200
        if fault in ("none", "slow") and spill == "disk":
            assert fates[OutcomeKind.MIRRORED] == 600

    run()


@virtual
async def test_long_outage_causes_few_attempts_and_bounded_memory():
    target = Target("gone")
    bench = Bench(target, small())
    async with bench.running():
        for number in range(3_600):
            bench.offer(message(number))
            await trio.sleep(1)
        assert target.attempts + target.probes < 3_600 / 10 + 20
        assert bench.stream.queued == 50
        assert bench.stream.counts.dropped == 3_550
        target.fault = "none"
        with trio.fail_after(60):
            while bench.stream.queued:
                await trio.sleep(1)
        assert len(target.taken) == 50


@virtual
async def test_idle_stream_makes_no_attempts():
    target = Target()
    bench = Bench(target, small())
    async with bench.running():
        await trio.sleep(3600)
        assert target.attempts == target.probes == 0


@virtual
async def test_messages_are_written_in_the_primarys_offset_order():
    target = Target()
    bench = Bench(target, small(queue_messages=1000, queue_bytes=1 << 20))
    chance = random.Random(5)
    numbers = list(range(300))
    for start in range(0, 300, 6):
        part = numbers[start : start + 6]
        chance.shuffle(part)
        numbers[start : start + 6] = part
    async with bench.running():
        for number in numbers:
            bench.offer(message(number))
            await trio.sleep(0.001)
        await trio.sleep(5)
    assert offsets(target.taken) == list(range(300))
    assert bench.stream.counts.late == 0


@virtual
async def test_unfilled_gap_delays_by_order_ms_only():
    target = Target()
    bench = Bench(target, small(order_ms=50))
    async with bench.running():
        bench.offer(message(0))
        bench.offer(message(5))
        await trio.sleep(0.04)
        assert len(target.taken) == 1
        await trio.sleep(0.02)
        assert len(target.taken) == 2


@virtual
async def test_poisonous_message_is_given_up_and_the_others_go_on():
    target = Target()
    bench = Bench(target, small(attempts=3))
    bad = message(3)
    target.poison = bad
    async with bench.running():
        for number in range(6):
            bench.offer(bad if number == 3 else message(number))
        await trio.sleep(120)
    assert bench.fates[bad] is OutcomeKind.DROPPED
    assert len(target.taken) == 5


@virtual
async def test_temporary_refusal_is_retried_and_finally_counts_as_refused():
    target = Target("disk")
    bench = Bench(target, small(refusals=3))
    async with bench.running():
        bench.offer(message(0))
        bench.offer(message(1))
        await trio.sleep(2)
        assert bench.stream.problem == "CODE: 14  DESC: service not available now."
        await trio.sleep(60)
        assert set(bench.fates.values()) == {OutcomeKind.REFUSED}


@virtual
async def test_target_that_permits_nothing_is_tried_seldom_until_it_permits():
    target = Target("refusing")
    bench = Bench(target, small(queue_messages=5000, queue_bytes=1 << 24, breaker_forbidden=8))
    async with bench.running():
        for number in range(3_600):
            bench.offer(message(number))
            await trio.sleep(1)
        assert bench.stream.problem == "code 16: no permission"
        assert target.attempts + target.probes < 8 + 2 * 3_600 / 10 + 20
        assert set(bench.fates.values()) == {OutcomeKind.REFUSED}
        forbidden = len(bench.fates)
        assert forbidden == target.attempts
        target.fault = "none"
        await trio.sleep(60)
    assert len(target.taken) == 3_600 - forbidden
    assert bench.stream.problem == ""
    assert not bench.stream.queued


@virtual
async def test_forbidden_topic_does_not_hold_up_other_topics():
    target = Target("one topic")
    bench = Bench(target, small(breaker_forbidden=2))
    async with bench.running():
        for number in range(300):
            bench.offer(message(number, number % 2))
            if number % 4 == 3:
                await trio.sleep(0.01)
        await trio.sleep(1)
    assert list(bench.fates.values()).count(OutcomeKind.MIRRORED) == 150
    assert bench.stream.breaker.opened_total == 0


@virtual
async def test_forbidden_topic_does_not_hold_up_other_topics_after_an_outage():
    target = Target("gone")
    bench = Bench(target, small())
    async with bench.running():
        for number in range(10):
            bench.offer(message(number, 1))
        bench.offer(message(0))
        await trio.sleep(60)
        target.fault = "one topic"
        await trio.sleep(11)
    assert len(target.taken) == 1
    assert bench.stream.counts.refused == 10


@virtual
async def test_outage_does_not_count_as_failure_of_the_message():
    target = Target("gone")
    bench = Bench(target, small(attempts=1))
    async with bench.running():
        bench.offer(message(0))
        await trio.sleep(600)
        target.fault = "none"
        await trio.sleep(60)
    assert set(bench.fates.values()) == {OutcomeKind.MIRRORED}


@virtual
async def test_batch_in_flight_is_still_queued_after_cancellation():
    target = Target("stalled")
    bench = Bench(target, small())
    async with bench.running():
        for number in range(5):
            bench.offer(message(number))
        await trio.sleep(0.5)
    bench.check()
    assert bench.stream.queued == 5
    assert bench.stream.count_queued_of("orders") == 5


@virtual
async def test_spilling_loses_nothing_and_keeps_the_order(tmp_path):
    settings = small(
        spill="disk", spill_dir=str(tmp_path), queue_messages=20, queue_bytes=34_000, spill_file_bytes=4096
    )
    target = Target("gone")
    bench = Bench(target, settings, spill_to(settings, tmp_path))
    async with bench.running():
        for number in range(500):
            bench.offer(message(number))
            await trio.sleep(0.001)
        assert bench.stream.spilled > 400
        target.fault = "none"
        for number in range(500, 800):
            bench.offer(message(number))
            await trio.sleep(0.05)
        await trio.sleep(60)
    assert offsets(target.taken) == list(range(800))
    assert bench.stream.spilled == 0


@virtual
async def test_full_disk_drops_messages_and_recovers(tmp_path):
    settings = small(
        spill="disk", spill_dir=str(tmp_path), queue_messages=10, spill_bytes=10_000, spill_file_bytes=4096
    )
    target = Target("gone")
    bench = Bench(target, settings, spill_to(settings, tmp_path))
    async with bench.running():
        for number in range(500):
            bench.offer(message(number))
            await trio.sleep(0.001)
        assert bench.stream.counts.dropped > 300
        target.fault = "none"
        await trio.sleep(60)
        assert bench.stream.queued == 0
        bench.offer(message(1000))
        await trio.sleep(1)
    taken = offsets(target.taken)
    assert taken == sorted(taken)
    assert taken[-1] == 1000


@virtual
async def test_failing_outcome_callback_does_not_stop_the_stream(caplog):
    target = Target()
    bench = Bench(target, small())

    def fail(entry: object, outcome: object) -> None:
        raise ZeroDivisionError

    bench.account._on_outcome = fail
    async with bench.running():
        for number in range(20):
            bench.stream.offer_exchange(each := message(number), subject_of(each))
            await trio.sleep(0.01)
    assert offsets(target.taken) == list(range(20))
    assert bench.stream.counts.mirrored == 20
    assert "handling an outcome failed" in caplog.text


@pytest.mark.parametrize("part", ["_backlog.take_entries", "_reorder_buffer.next_due_s"])
@virtual
async def test_internal_error_does_not_stop_the_stream(part):
    target = Target()
    bench = Bench(target, small())
    owner, name = getattr(bench.stream, part.partition(".")[0]), part.partition(".")[2]
    real, failures = getattr(owner, name), [ZeroDivisionError(), ZeroDivisionError()]

    def failing(*given):
        if failures:
            raise failures.pop()
        return real(*given)

    setattr(owner, name, failing)
    async with bench.running():
        for number in (0, 2, 1):
            bench.offer(message(number))
        await trio.sleep(10)
    assert not failures
    assert offsets(target.taken) == [0, 1, 2]


def offsets(exchanges):
    return [subject_of(each).offset for each in exchanges]
