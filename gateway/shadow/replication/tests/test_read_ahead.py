import random
from functools import partial

import pytest
import trio

from codec.constants import ResponseCode
from gateway.shadow.replication.queue_copier import (
    PullOptions,
    QueueCopier,
    QueuePlace,
    QueueStuck,
    first_message_run,
)
from gateway.shadow.replication.read_ahead import ReadAheadBudget, ReadAheadCopier
from gateway.shadow.tests.replicated_clusters import BROKER, ReplicatedClusters, topic
from gateway.shadow.tests.two_clusters import ClusterView, two_clusters
from remoting.errors import RemotingTimeout
from remoting.requests.pull import PullMessage
from remoting.requests.replication import PutMessagesAtOffsets
from toolkit.rate_limiter import TrioRateLimiter

COUNT = 3_000


class CopiedClusters(ReplicatedClusters):
    """Both clusters, and a copier of queue 0."""

    def __init__(self, primary: ClusterView, target: ClusterView) -> None:
        super().__init__(primary, target)
        self.copy = QueueCopier(primary, target, QueuePlace(BROKER, BROKER, "t", 0), PullOptions())


def filled(test):
    """Run ``test(sides)`` with COUNT messages of different sizes in queue 0 of the primary's topic."""

    async def run(primary, target):
        sides = CopiedClusters(primary, target)
        await sides.restart_target()
        sides.broker_of(primary).topics.update([topic("t", 1)])
        sides.broker_of(target).topics.update([topic("t", 1)])
        sides.send(*(b"%d" % number * (1 + number % 7) for number in range(COUNT)))
        await sides.copy.refresh_offsets()
        await test(sides)

    run.__name__ = test.__name__
    return two_clusters(run)


class RequestProbe:
    """Replaces the `ask` of a cluster: delays and changes answers, and records requests and parallelism."""

    def __init__(self, cluster, *, delay_s=lambda: 0.0, change=lambda request, reply: reply):
        self.max_parallel = self.parallel = 0
        self.requests = []
        self._ask, self._delay_s, self._change = cluster.ask_broker, delay_s, change
        cluster.ask_broker = self.ask_broker

    async def ask_broker(self, broker, request, *more):
        if not isinstance(request, PullMessage | PutMessagesAtOffsets):
            return await self._ask(broker, request, *more)
        self.parallel += 1
        self.max_parallel = max(self.max_parallel, self.parallel)
        self.requests.append(request)
        try:
            reply = await self._ask(broker, request, *more)
            await trio.sleep(self._delay_s())
            return self._change(request, reply)
        finally:
            self.parallel -= 1


async def ignore_put(new, size_bytes):
    pass


def ahead(sides, *, goal=COUNT, budget=None, rate_limiter=None, on_put=ignore_put, **more):
    return ReadAheadCopier(
        sides.copy, goal, budget or ReadAheadBudget(), rate_limiter or TrioRateLimiter(), on_put, **more
    )


@filled
async def test_reads_run_in_parallel_and_puts_in_order(sides):
    reads = RequestProbe(sides.primary, delay_s=partial(random.uniform, 0.01, 0.5))
    puts = RequestProbe(sides.target, delay_s=partial(random.uniform, 0.0, 0.1))
    budget = ReadAheadBudget()
    await ahead(sides, budget=budget).run()
    assert sides.queues_equal(queues=1)
    assert (reads.max_parallel, puts.max_parallel) == (8, 1)
    assert [put.first_offset for put in puts.requests] == sorted({put.first_offset for put in puts.requests})
    assert not any(put.reset for put in puts.requests)
    assert (budget.reads_under_way, budget.size_bytes) == (0, 0)


@filled
async def test_copying_ends_at_the_goal(sides):
    await ahead(sides, goal=777).run()
    assert sides.copy.target_end == 777
    assert sides.stored_messages(sides.target) == sides.stored_messages(sides.primary)[:777]


@filled
async def test_short_answers_are_read_further(sides):
    """A broker that reads from disk returns up to 8 messages, or one large one."""

    def shortened(request, reply):
        sizes, at = [], 0
        for _ in range(random.randint(1, 8)):
            if at < len(reply.body):
                at += int.from_bytes(reply.body[at : at + 4], "big")
                sizes.append(at)
        reply.body = reply.body[: sizes[-1]]
        return reply

    RequestProbe(sides.primary, delay_s=partial(random.uniform, 0.0, 0.1), change=shortened)
    await ahead(sides).run()
    assert sides.queues_equal(queues=1)


@filled
async def test_read_ahead_is_bounded(sides):
    budget = ReadAheadBudget(max_reads=4, max_bytes=20_000)
    seen = []

    def record(request, reply):
        seen.append((budget.size_bytes, budget.reads_under_way))
        return reply

    RequestProbe(
        sides.primary,
        change=record,
    )
    RequestProbe(sides.target, delay_s=lambda: 3.0)
    await ahead(sides, budget=budget).run()
    assert sides.queues_equal(queues=1)
    answer = 32 * 200
    assert 15_000 < max(size for size, _ in seen) <= 20_000 + 5 * answer
    assert max(reading for _, reading in seen) <= 5


@filled
async def test_queue_progresses_even_with_an_exhausted_budget(sides):
    budget = ReadAheadBudget(max_reads=1, max_bytes=1)
    budget.size_bytes = 1  # taken by another queue for ever
    await ahead(sides, budget=budget).run()
    assert sides.queues_equal(queues=1)
    assert (budget.reads_under_way, budget.size_bytes) == (0, 1)


@pytest.mark.parametrize("at", [0, 1, 300, COUNT - 1])
def test_failed_read_is_raised_after_everything_before_it_was_put(at):
    @filled
    async def run(sides):
        def failing(request, reply):
            if request.queue_offset <= at < request.queue_offset + request.max_msg_nums:
                raise RemotingTimeout("late")
            return reply

        RequestProbe(sides.primary, delay_s=partial(random.uniform, 0.0, 0.1), change=failing)
        budget = ReadAheadBudget()
        with pytest.raises(RemotingTimeout):
            await ahead(sides, budget=budget).run()
        assert at - 32 < sides.copy.target_end <= at
        assert (budget.reads_under_way, budget.size_bytes) == (0, 0)

    run()


@filled
async def test_copying_ends_at_a_missing_message(sides):
    def without(request, reply):
        if request.queue_offset <= 1_000 < request.queue_offset + request.max_msg_nums:
            run = first_message_run(reply.body)
            reply.body = run.body if run.first > 1_000 else b""
        return reply

    RequestProbe(sides.primary, change=without)
    await ahead(sides).run()
    assert 968 < sides.copy.target_end <= 1_000
    assert (
        sides.stored_messages(sides.target) == sides.stored_messages(sides.primary)[: sides.copy.target_end]
    )


@filled
async def test_copying_ends_when_the_target_lost_messages_and_copy_once_recovers(sides):
    losses = []

    def lose_once(request, reply):
        if request.first_offset > 1_500 and not losses:
            losses.append(request.first_offset)
            reply.code = ResponseCode.PULL_OFFSET_MOVED
        return reply

    RequestProbe(sides.target, change=lose_once)
    await ahead(sides).run()
    assert 1_500 < sides.copy.target_end < COUNT
    assert sides.copy.position == sides.copy.target_end - 1
    await ahead(sides).run()  # the target's last message must be verified first
    assert sides.copy.target_end < COUNT
    await sides.copy.copy_once(0)
    await ahead(sides).run()
    assert sides.queues_equal(queues=1)


@filled
async def test_copying_raises_when_the_queue_is_stuck(sides):
    def drop(request, reply):
        raise QueueStuck("mixed up")

    RequestProbe(sides.target, change=drop)
    with pytest.raises(QueueStuck):
        await ahead(sides).run()


@filled
async def test_each_put_stays_within_a_tenth_of_a_second_of_the_rate(sides):
    puts = RequestProbe(sides.target)
    rate_limiter, done = TrioRateLimiter(1_000.0), []

    async def take_turn(new, size_bytes):
        done.append(new)
        await rate_limiter.acquire(new, size_bytes)

    started_s = trio.current_time()
    await ahead(sides, rate_limiter=rate_limiter, on_put=take_turn).run()
    assert trio.current_time() - started_s == pytest.approx(COUNT / 1_000, rel=0.1)
    assert max(done) <= 100
    assert sum(done) == COUNT
    assert len(puts.requests) == len(done)


@filled
async def test_cancellation_anywhere_leaves_a_contiguous_queue(sides):
    """Like SIGKILL: the next copier continues at the target's next offset."""
    RequestProbe(sides.primary, delay_s=partial(random.uniform, 0.0, 0.2))
    RequestProbe(sides.target, delay_s=partial(random.uniform, 0.0, 0.2))
    budget = ReadAheadBudget()
    while sides.copy.target_end < COUNT:
        sides.copy = QueueCopier(sides.primary, sides.target, sides.copy.queue_place, PullOptions())
        with trio.move_on_after(random.uniform(0.1, 0.9)):
            await sides.copy.refresh_offsets()
            await sides.copy.copy_once(0)
            await ahead(sides, budget=budget).run()
        assert (budget.reads_under_way, budget.size_bytes) == (0, 0)
        stored = sides.stored_messages(sides.target)
        assert stored == sides.stored_messages(sides.primary)[: len(stored)]
        sides.copy.target_end = len(stored)
