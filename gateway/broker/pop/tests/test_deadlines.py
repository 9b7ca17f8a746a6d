from functools import partial

from gateway.broker.pop.deadlines import MAX_CANCELLED_KEPT, Deadlines
from gateway.broker.waiting.wake_signal import WakeSignal


def test_what_is_due_is_done_in_order_and_no_more_than_asked_for():
    deadlines, done = Deadlines(WakeSignal()), []
    for due in (30, 10, 20, 10):
        deadlines.schedule(due, partial(done.append, due))
    assert deadlines.next_due_ms() == 10
    assert deadlines.run_due(25, max_deadlines=2) == 2
    assert done == [10, 10]
    assert deadlines.run_due(25, max_deadlines=9) == 1
    assert (done, deadlines.next_due_ms(), len(deadlines)) == ([10, 10, 20], 30, 1)


def test_only_an_earlier_appointment_wakes_the_sleeper():
    woken = []

    class Earlier:
        def set(self):
            woken.append(deadlines.next_due_ms())

    deadlines = Deadlines(Earlier())
    for due in (30, 40, 20, 20):
        deadlines.schedule(due, lambda: None)
    assert woken == [30, 20]


def test_what_was_cancelled_is_not_done():
    deadlines, done = Deadlines(WakeSignal()), []
    first = deadlines.schedule(10, lambda: done.append(1))
    deadlines.schedule(20, lambda: done.append(2))
    deadlines.cancel(first)
    deadlines.cancel(first)
    assert (len(deadlines), deadlines.next_due_ms()) == (1, 20)
    deadlines.run_due(99, max_deadlines=9)
    assert (done, len(deadlines), deadlines.next_due_ms()) == ([2], 0, None)


def test_cancelling_what_is_done_changes_nothing():
    deadlines = Deadlines(WakeSignal())
    only = deadlines.schedule(1, lambda: None)
    deadlines.run_due(1, max_deadlines=1)
    deadlines.cancel(only)
    assert len(deadlines) == 0


def test_many_cancelled_appointments_are_swept_out():
    deadlines = Deadlines(WakeSignal())
    deadlines.schedule(5, lambda: None)
    for each in [deadlines.schedule(1_000_000, lambda: None) for _ in range(MAX_CANCELLED_KEPT + 1)]:
        deadlines.cancel(each)
    assert len(deadlines._heap) == 1
    assert deadlines.next_due_ms() == 5


def test_an_action_may_make_appointments():
    deadlines, done = Deadlines(WakeSignal()), []
    deadlines.schedule(1, lambda: deadlines.schedule(2, lambda: done.append("later")))
    assert deadlines.run_due(5, max_deadlines=9) == 2
    assert done == ["later"]
