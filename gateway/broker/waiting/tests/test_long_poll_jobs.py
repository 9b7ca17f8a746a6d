"""Waiting requests without a broker: which are tried, in which slices, and what remains of them."""

import pytest
import trio
from trio.testing import MockClock

from gateway.broker.waiting.long_poll import (
    MAX_CODES_READ,
    MAX_HOLD_MS,
    MAX_SLEEP_S,
    MAX_SLICE_STEPS,
    STEPS_PER_TURN,
    LongPolls,
)
from gateway.broker.waiting.waiting_requests import MAX_INDEXED_TAGS, WaitingPull, WaitOutcome
from gateway.tests.broker_fakes import CountingPeer, FakeClock, TagQueues
from remoting.errors import RequestError

ANSWERED, NOTHING, UNFINISHED = WaitOutcome.ANSWERED, WaitOutcome.NOTHING, WaitOutcome.UNFINISHED
QUEUE = ("t", 0)


class Queues(TagQueues):
    def append(self, polls, *codes, queue=QUEUE):
        self.codes.setdefault(queue, []).extend(codes)
        polls.mark_grown(*queue)


class World:
    """Long polls, the clock that tries take time on, and what happened to each pull by name."""

    def __init__(self):
        self.clock = FakeClock(0)
        self.queues = Queues()
        self.polls = LongPolls(self.clock, self.queues)
        self.tried = []
        self.expired = []
        self.released = []
        self.peer = CountingPeer()

    def hold(self, name, codes=None, outcome=ANSWERED, queue=QUEUE, peer=None, timeout_ms=60_000, cost_ms=0):
        pull = Pull(self, name, codes, outcome, peer or self.peer, cost_ms)
        self.polls.hold_pull(pull, queue, timeout_ms)
        return pull

    def names(self):
        return [name for name, _ in self.tried]

    def run(self):
        """Run slices until no work is left; return their number."""
        count = 1
        while self.polls._run_slice():
            count += 1
        return count

    def assert_nothing_is_left(self):
        polls = self.polls
        assert (len(polls), polls._queues, polls._by_tick, polls._by_connection) == (0, {}, {}, {})
        assert (polls._grown, polls._marked, polls._job_keys, polls._watchers) == ({}, {}, set(), {})
        assert (len(polls._jobs), len(polls._new_jobs)) == (0, 0)


class Pull(WaitingPull):
    __slots__ = ("cost_ms", "name", "outcome", "world")

    def __init__(self, world, name, codes, outcome, peer, cost_ms):
        super().__init__(peer, None if codes is None else frozenset(codes))
        self.world, self.name, self.outcome, self.cost_ms = world, name, outcome, cost_ms

    def try_answer(self, start):
        self.world.tried.append((self.name, start))
        self.world.clock.ms += self.cost_ms
        return self.outcome() if callable(self.outcome) else self.outcome

    def expire(self):
        self.world.expired.append(self.name)

    def release(self):
        self.world.released.append(self.name)


@pytest.fixture
def world():
    return World()


# -- which are tried --------------------------------------------------------------------------------------


def test_a_message_tries_none_of_many_that_want_other_tags(world):
    for number in range(20_000):
        world.hold(number, {1, 2})
    for _ in range(100):
        world.queues.append(world.polls, 3)
        world.polls.answer_marked()
    assert world.tried == []
    assert world.run() == 1
    assert world.queues.read == 100
    world.queues.append(world.polls, 2)
    world.run()
    assert world.tried == [(number, 100) for number in range(20_000)]
    world.assert_nothing_is_left()


def test_those_that_a_message_concerns_are_tried_oldest_first_and_once(world):
    many = range(100, 100 + MAX_INDEXED_TAGS + 1)
    world.hold("one", {1}, NOTHING)
    world.hold("any", None, NOTHING)
    world.hold("two", {2}, NOTHING)
    world.hold("many", set(many), NOTHING)
    world.hold("both", {1, 2}, NOTHING)
    world.hold("one again", {1}, NOTHING)
    world.queues.append(world.polls, 1)
    world.run()
    assert world.names() == ["one", "any", "many", "both", "one again"]
    world.tried.clear()
    world.queues.append(world.polls, 2, 1, 2)
    world.run()
    assert world.names() == ["one", "any", "two", "many", "both", "one again"]
    world.tried.clear()
    world.queues.append(world.polls, 9)
    world.run()
    assert world.names() == ["any", "many"]


def test_after_very_many_messages_everyone_is_tried(world):
    world.hold("one", {1}, NOTHING)
    world.queues.append(world.polls, *[2] * (MAX_CODES_READ + 1))
    world.run()
    assert (world.tried, world.queues.read) == ([("one", 0)], 0)


def test_a_queue_that_became_shorter_tries_everyone_from_its_own_position(world):
    world.queues.append(world.polls, 1, 1, 1)
    world.hold("one", {1}, NOTHING)
    world.queues.codes[QUEUE] = [2]
    world.polls.mark_grown(*QUEUE)
    world.run()
    assert world.tried == [("one", 0)]


def test_pulls_can_be_tried_without_a_new_message(world):
    world.hold("one", {1}, NOTHING)
    world.hold("two", None, ANSWERED)
    world.polls.try_pulls(*QUEUE)
    world.polls.try_pulls("t", 9)
    world.run()
    assert world.names() == ["one", "two"]
    assert len(world.polls) == 1


# -- slices -----------------------------------------------------------------------------------------------


def test_many_that_match_are_answered_in_slices_oldest_first(world):
    for number in range(20_000):
        world.hold(number, {1})
    world.queues.append(world.polls, 1)
    world.polls.answer_marked()
    assert world.names() == list(range(MAX_SLICE_STEPS))
    assert 20_000 / MAX_SLICE_STEPS - 2 < world.run() < 20_000 / MAX_SLICE_STEPS + 2
    assert world.names() == list(range(20_000))
    world.assert_nothing_is_left()


def test_a_slice_ends_after_its_time_whatever_a_try_takes(world):
    for number in range(50):
        world.hold(number, {1}, cost_ms=5)
    world.queues.append(world.polls, 1)
    world.polls.answer_marked()
    assert world.names() == [0]
    assert world.run() == 50


def test_another_queue_does_not_wait_for_one_with_many(world):
    for number in range(5000):
        world.hold(number, None, NOTHING, ("busy", 0))
    world.hold("other", None, ANSWERED, ("quiet", 0))
    world.queues.append(world.polls, 1, queue=("busy", 0))
    world.polls.answer_marked()
    assert len(world.tried) == MAX_SLICE_STEPS
    world.queues.append(world.polls, 1, queue=("quiet", 0))
    world.polls.answer_marked()
    assert "other" in world.names()[MAX_SLICE_STEPS : MAX_SLICE_STEPS + STEPS_PER_TURN + 1]


def test_a_queue_with_many_goes_on_while_others_keep_coming(world):
    for number in range(5000):
        world.hold(number, None, NOTHING, ("busy", 0))
    world.queues.append(world.polls, 1, queue=("busy", 0))
    slices = 0
    while 4999 not in world.names()[-MAX_SLICE_STEPS:]:
        for queue_id in range(100):
            world.hold("other", None, ANSWERED, ("quiet", queue_id))
            world.queues.append(world.polls, 1, queue=("quiet", queue_id))
        world.polls.answer_marked()
        slices += 1
    assert slices < 3 * 5000 / MAX_SLICE_STEPS


def test_a_pull_with_much_to_look_at_is_tried_again_behind_the_others(world):
    outcomes = iter([UNFINISHED, UNFINISHED, UNFINISHED, ANSWERED])
    world.hold("long", None, lambda: next(outcomes))
    for number in range(3):
        world.hold(number, None, NOTHING)
    world.queues.append(world.polls, 1)
    world.run()
    assert world.names() == ["long", 0, 1, 2, "long", "long", "long"]
    assert len(world.polls) == 3


def test_messages_that_come_during_a_job_are_not_missed(world):
    for number in range(1000):
        world.hold(number, {1}, NOTHING)
    world.queues.append(world.polls, 1)
    world.polls.answer_marked()
    world.hold("late", {1}, NOTHING)
    world.queues.append(world.polls, 1)
    world.polls.answer_marked()
    world.run()
    assert world.tried.count(("late", 1)) == 1
    assert [world.names().count(number) for number in (0, 500, 999)] == [2, 2, 2]


def test_pulls_that_end_during_a_job_are_not_tried(world):
    other = CountingPeer()
    pulls = [world.hold(number, None, ANSWERED, peer=other if number % 2 else None) for number in range(600)]
    world.queues.append(world.polls, 1)
    world.polls.answer_marked()
    world.polls.drop_connection(other)
    world.polls.remove(pulls[598])
    other.closed = True
    world.run()
    assert world.names()[MAX_SLICE_STEPS:] == list(range(MAX_SLICE_STEPS, 598, 2))
    assert (sorted(world.released), world.peer.outstanding_requests, other.outstanding_requests) == (
        list(range(600)), 0, 0,
    )  # fmt: skip
    world.assert_nothing_is_left()


def test_a_pull_of_a_connection_closed_meanwhile_is_dropped(world):
    world.hold("one", None, NOTHING)
    world.peer.closed = True
    world.queues.append(world.polls, 1)
    world.run()
    assert (world.tried, len(world.polls)) == ([], 0)


def test_a_failure_ends_neither_other_jobs_nor_later_ones(world, caplog):
    world.hold("broken", None, lambda: 1 / 0, ("broken", 0))
    world.hold("one", None, ANSWERED)
    for queue in (("broken", 0), QUEUE):
        world.queues.append(world.polls, 1, queue=queue)
    world.run()
    assert world.names() == ["broken", "one"]
    assert caplog.text.count("answering waiting requests failed") == 1
    world.queues.append(world.polls, 1, queue=("broken", 0))
    world.run()
    assert world.names() == ["broken", "one", "broken"]


def test_answering_within_a_step_does_not_begin_a_slice_in_a_slice(world):
    def nested():
        world.queues.append(world.polls, 1, queue=("second", 0))
        world.polls.answer_marked()
        return ANSWERED

    world.hold("first", None, nested)
    world.hold("second", None, ANSWERED, ("second", 0))
    world.queues.append(world.polls, 1)
    world.polls.answer_marked()
    assert world.names() == ["first", "second"]
    world.assert_nothing_is_left()


# -- watchers and other work ------------------------------------------------------------------------------


def test_watchers_hear_of_each_queue_of_their_topic_until_they_end(world):
    heard = []

    def watcher(queue_id):
        heard.append(queue_id)
        yield

    world.polls.watch_topic("t", watcher)
    for queue in (("t", 1), ("t", 0), ("u", 0), ("t", 1)):
        world.queues.append(world.polls, 1, queue=queue)
    world.run()
    assert heard == [1, 0]
    world.polls.unwatch_topic("t", watcher)
    world.queues.append(world.polls, 1)
    world.run()
    assert heard == [1, 0]
    world.assert_nothing_is_left()


def test_work_marked_twice_is_done_once_and_again_after_it_ended(world):
    done = []

    def work():
        done.append(1)
        yield

    for _ in range(2):
        world.polls.mark_work("key", work)
    world.run()
    assert done == [1]
    world.polls.mark_work("key", work)
    world.run()
    assert done == [1, 1]


# -- holding ----------------------------------------------------------------------------------------------


def test_removing_twice_and_unknown_pulls_does_nothing(world):
    first = world.hold("first")
    world.hold("second")
    world.polls.remove(first)
    world.polls.remove(first)
    world.polls.remove(Pull(world, "unknown", None, ANSWERED, world.peer, 0))
    assert (len(world.polls), world.peer.outstanding_requests, world.released) == (1, 1, ["first"])
    assert len(world.polls._queues[QUEUE]) == 1
    for _ in range(2):
        world.polls.drop_connection(world.peer)
    assert (world.peer.outstanding_requests, world.released) == (0, ["first", "second"])
    world.assert_nothing_is_left()


def test_a_pull_that_may_not_be_outstanding_is_released_and_leaves_nothing(world):
    with pytest.raises(RequestError):
        world.hold("refused", {1}, peer=CountingPeer(limit=0))
    assert world.released == ["refused"]
    world.polls.drop_connection(world.peer)
    assert len(world.polls) == 0
    world.assert_nothing_is_left()


def test_the_many_requests_of_a_closed_connection_are_forgotten_in_slices(world):
    for number in range(5000):
        world.hold(number, {1})
    world.peer.closed = True
    for _ in range(2):
        world.polls.drop_connection(world.peer)
    world.queues.append(world.polls, 1)
    assert world.polls._run_slice()
    assert 4000 < len(world.polls) < 5000
    world.run()
    assert (world.tried, world.peer.outstanding_requests, len(world.released)) == ([], 0, 5000)
    world.assert_nothing_is_left()


def test_a_client_that_polls_and_leaves_a_hundred_thousand_times_leaves_nothing(world):
    for number in range(100_000):
        peer = CountingPeer()
        world.hold(number, {number % 7}, peer=peer, timeout_ms=MAX_HOLD_MS - number * 20)
        world.polls.drop_connection(peer)
    assert len(world.polls._ticks) < 5000
    world.assert_nothing_is_left()


# -- deadlines --------------------------------------------------------------------------------------------


def test_expiry_is_in_the_order_of_deadlines_and_never_early(world):
    for seconds in (5, 1, 3):
        world.hold(seconds, timeout_ms=seconds * 1000)
    world.clock.ms = 999
    world.polls.expire_due()
    assert world.expired == []
    world.clock.ms = 5100
    world.polls.expire_due()
    assert world.expired == [1, 3, 5]
    world.assert_nothing_is_left()


@pytest.mark.parametrize("timeout_ms", [-(1 << 63), -5, 0, 1])
def test_absurd_timeouts_expire_soon(world, timeout_ms):
    world.hold("soon", timeout_ms=timeout_ms)
    world.clock.ms = 20
    world.polls.expire_due()
    assert world.expired == ["soon"]


@pytest.mark.parametrize("timeout_ms", [MAX_HOLD_MS, (1 << 63) - 1, 10**400])
def test_huge_timeouts_expire_after_a_day(world, timeout_ms):
    world.hold("late", timeout_ms=timeout_ms)
    assert 0 < world.polls._sleep_until_next_tick() <= MAX_SLEEP_S
    world.clock.ms = MAX_HOLD_MS
    world.polls.expire_due()
    assert world.expired == ["late"]


def test_many_deadlines_at_once_are_met_in_slices(world):
    for number in range(5000):
        world.hold(number, timeout_ms=1000)
    world.clock.ms = 1000
    world.polls.expire_due()
    assert len(world.expired) == MAX_SLICE_STEPS
    world.run()
    assert world.expired == list(range(5000))
    world.assert_nothing_is_left()


def test_deadlines_of_closed_connections_are_not_answered(world):
    world.hold("one", timeout_ms=1000)
    world.peer.closed = True
    world.clock.ms = 2000
    world.polls.expire_due()
    assert (world.expired, world.released) == ([], ["one"])


class TrioClock:
    """Monotonic time of the event loop."""

    def monotonic(self):
        return trio.current_time()


def run_with_polls(scenario):
    """Run ``scenario(world)`` in virtual time beside the task that continues the work."""

    async def main():
        world = World()
        world.polls = LongPolls(TrioClock(), world.queues)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.polls.run)
            await scenario(world)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_task_continues_what_a_slice_left_with_others_turns_in_between():
    async def scenario(world):
        for number in range(20 * MAX_SLICE_STEPS):
            world.hold(number, {1})
        world.queues.append(world.polls, 1)
        world.polls.answer_marked()
        turns = 0
        while len(world.polls):
            await trio.lowlevel.checkpoint()
            turns += 1
        assert turns >= 10

    run_with_polls(scenario)


def test_the_task_keeps_every_deadline_and_survives_failures(caplog):
    async def scenario(world):
        broken = world.hold("broken", timeout_ms=1000)
        broken.world = None  # its expiry raises
        world.hold("second", timeout_ms=1000)
        await trio.sleep(2)
        assert world.expired == ["second"]
        world.hold("long", timeout_ms=90_000)
        await trio.sleep(0.1)
        world.hold("short", timeout_ms=100)
        await trio.sleep(0.2)
        assert world.expired == ["second", "short"]
        await trio.sleep(100)
        assert world.expired == ["second", "short", "long"]

    run_with_polls(scenario)
    assert "answering waiting requests failed" in caplog.text
