"""Waiting pops and notifications of many clients and groups, without a broker."""

import pytest

from gateway.broker.pop.waiting_pops import ANSWER_EARLY_MS, WaitingPop, WaitingPops
from gateway.broker.waiting.long_poll import MAX_SLICE_STEPS, LongPolls
from gateway.broker.waiting.waiting_requests import WaitOutcome
from gateway.tests.broker_fakes import CountingPeer, FakeClock, TagQueues
from gateway.tests.configs import broker_config
from remoting.errors import RequestError

ANSWERED, NOTHING, UNFINISHED = WaitOutcome.ANSWERED, WaitOutcome.NOTHING, WaitOutcome.UNFINISHED


class World:
    """Waiting pops, and the names of those that were tried."""

    def __init__(self):
        self.clock = FakeClock()
        self.polls = LongPolls(self.clock, TagQueues())
        self.waiting_pops = WaitingPops(broker_config(), self.clock, self.polls)
        self.peer = CountingPeer()
        self.tried = []
        self.expired = []

    def hold(self, name, outcome=NOTHING, group="g", queue_id=-1, wait_ms=60_000, *, is_ordered=False):
        pop = Pop(self, name, outcome, is_ordered)
        until_ms = self.clock.now_ms() + wait_ms + ANSWER_EARLY_MS
        self.waiting_pops.hold_pop(pop, "t", group, queue_id, until_ms)
        return pop

    def hold_notification(self, name, available, queue_id=-1):
        request = Pop(self, name, ANSWERED, False)
        until_ms = self.clock.now_ms() + 60_000
        self.waiting_pops.hold_notification(request, "t", "g", queue_id, until_ms, lambda: available)

    def grow(self, topic="t", queue_id=0):
        self.polls.mark_grown(topic, queue_id)
        self.polls.answer_marked()

    def run(self):
        while self.polls._run_slice():
            pass

    def assert_nothing_is_left(self):
        assert (len(self.polls), self.waiting_pops._groups, self.polls._watchers) == (0, {}, {})


class Pop(WaitingPop):
    __slots__ = ("name", "outcome", "world")

    def __init__(self, world, name, outcome, is_ordered):
        super().__init__(world.peer, is_ordered=is_ordered)
        self.world, self.name, self.outcome = world, name, outcome

    def try_answer(self):
        self.world.tried.append(self.name)
        return self.outcome() if callable(self.outcome) else self.outcome

    def expire(self):
        self.world.expired.append(self.name)


@pytest.fixture
def world():
    return World()


def test_of_many_pops_of_a_group_one_is_tried_in_vain(world):
    for number in range(20_000):
        world.hold(number)
    for _ in range(10):
        world.grow()
    world.run()
    assert world.tried == [0] * 10


def test_pops_are_answered_first_come_first_served_in_slices(world):
    for number in range(5000):
        world.hold(number, ANSWERED)
    world.hold("last", NOTHING)
    world.hold("behind", ANSWERED)
    world.grow()
    assert world.tried == list(range(MAX_SLICE_STEPS))
    world.run()
    assert world.tried == [*range(5000), "last"]


def test_ordered_pops_are_all_tried_in_slices(world):
    for number in range(5000):
        world.hold(number, is_ordered=True)
    world.grow()
    assert len(world.tried) == MAX_SLICE_STEPS
    world.run()
    assert world.tried == list(range(5000))


def test_a_pop_with_much_to_pass_over_keeps_its_turn(world):
    outcomes = iter([UNFINISHED, UNFINISHED, ANSWERED])
    world.hold("first", lambda: next(outcomes))
    world.hold("second", NOTHING)
    world.grow()
    world.run()
    assert world.tried == ["first"] * 3 + ["second"]


def test_groups_are_tried_each_in_slices(world):
    for number in range(5000):
        world.hold(number, ANSWERED, group=f"g{number}")
    world.grow()
    assert len(world.tried) <= MAX_SLICE_STEPS
    world.run()
    assert world.tried == list(range(5000))
    world.assert_nothing_is_left()


def test_a_queue_concerns_those_that_wait_for_it_or_any_a_retry_topic_everyone(world):
    for queue_id in (0, 1, -1, 2):
        world.hold(queue_id, queue_id=queue_id)
    world.grow("t", 1)
    assert sorted(world.tried) == [-1, 1]
    world.tried.clear()
    world.grow("%RETRY%g_t", 0)
    world.grow("%RETRY%g+t", 3)
    assert sorted(world.tried) == [-1, -1, 0, 0, 1, 1, 2, 2]
    world.tried.clear()
    world.grow("%RETRY%other_t", 0)
    assert world.tried == []


def test_all_negative_queue_ids_are_one(world):
    for queue_id in range(-1000, 0):
        world.hold(queue_id, queue_id=queue_id)
    assert world.waiting_pops.count_waiting("t", "g", -7) == 1000
    world.grow()
    world.run()
    assert world.tried == [-1000]


def test_groups_that_come_and_go_leave_nothing(world):
    for number in range(2000):
        world.hold(number, group=f"g{number}", queue_id=number % 5, wait_ms=number % 3 + 1)
    assert len(world.polls._watchers["t"]) == 2000
    world.clock.pass_ms(100)
    world.polls.expire_due()
    world.run()
    assert len(world.expired) == 2000
    world.assert_nothing_is_left()
    for number in range(100):
        world.hold(number, group=f"g{number}")
    world.polls.drop_connection(world.peer)
    world.assert_nothing_is_left()


def test_a_pop_that_may_not_be_outstanding_leaves_nothing(world):
    world.peer.limit = 0
    for hold in (lambda: world.hold("pop"), lambda: world.hold_notification("notification", 1)):
        with pytest.raises(RequestError):
            hold()
        world.assert_nothing_is_left()


def test_pops_that_end_during_a_job_are_not_tried(world):
    pops = [world.hold(number, ANSWERED) for number in range(600)]
    world.grow()
    for pop in pops[300:]:
        world.polls.remove(pop)
    world.run()
    assert world.tried == list(range(300))
    world.assert_nothing_is_left()


def test_requests_are_tried_again_when_messages_are_left_or_become_visible(world):
    world.hold("all", NOTHING)
    world.hold("one", NOTHING, queue_id=1)
    for _ in range(3):
        world.waiting_pops.mark_for_retry("t", "g", -1)
        world.waiting_pops.mark_for_retry("t", "unknown", -1)
        world.waiting_pops.mark_for_retry("t", "g", 9)
    world.polls.answer_marked()
    assert world.tried == ["all"]
    world.waiting_pops.answer_waiting("t", "g")
    world.waiting_pops.answer_waiting("t", "unknown")
    assert world.tried == ["all"]
    world.polls.answer_marked()
    assert world.tried == ["all", "all", "one"]


def test_notifications_are_answered_latest_first_as_many_as_there_are_messages(world):
    for number in range(1000):
        world.hold_notification(number, 600)
    world.grow()
    assert len(world.tried) < MAX_SLICE_STEPS
    world.run()
    assert world.tried == list(reversed(range(400, 1000)))
    assert world.waiting_pops.count_notifications("t", "g", -1) == 400
