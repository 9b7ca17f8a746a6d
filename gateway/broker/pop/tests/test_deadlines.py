from gateway.broker.pop.deadlines import MAX_CANCELLED_KEPT, Deadlines
from gateway.broker.wake_signal import WakeSignal


def test_what_is_due_is_done_in_order_and_no_more_than_asked_for():
    agenda, done = Deadlines(WakeSignal()), []
    for due in (30, 10, 20, 10):
        agenda.schedule(due, lambda due=due: done.append(due))
    assert agenda.next_due_ms() == 10
    assert agenda.run_due(25, max_deadlines=2) == 2
    assert done == [10, 10]
    assert agenda.run_due(25, max_deadlines=9) == 1
    assert (done, agenda.next_due_ms(), len(agenda)) == ([10, 10, 20], 30, 1)


def test_only_an_earlier_appointment_wakes_the_sleeper():
    woken = []

    class Earlier:
        def set(self):
            woken.append(agenda.next_due_ms())

    agenda = Deadlines(Earlier())
    for due in (30, 40, 20, 20):
        agenda.schedule(due, lambda: None)
    assert woken == [30, 20]


def test_what_was_cancelled_is_not_done():
    agenda, done = Deadlines(WakeSignal()), []
    first = agenda.schedule(10, lambda: done.append(1))
    agenda.schedule(20, lambda: done.append(2))
    agenda.cancel(first)
    agenda.cancel(first)
    assert (len(agenda), agenda.next_due_ms()) == (1, 20)
    agenda.run_due(99, max_deadlines=9)
    assert (done, len(agenda), agenda.next_due_ms()) == ([2], 0, None)


def test_cancelling_what_is_done_changes_nothing():
    agenda = Deadlines(WakeSignal())
    only = agenda.schedule(1, lambda: None)
    agenda.run_due(1, max_deadlines=1)
    agenda.cancel(only)
    assert len(agenda) == 0


def test_many_cancelled_appointments_are_swept_out():
    agenda = Deadlines(WakeSignal())
    agenda.schedule(5, lambda: None)
    for each in [agenda.schedule(1_000_000, lambda: None) for _ in range(MAX_CANCELLED_KEPT + 1)]:
        agenda.cancel(each)
    assert len(agenda._heap) == 1
    assert agenda.next_due_ms() == 5


def test_an_action_may_make_appointments():
    agenda, done = Deadlines(WakeSignal()), []
    agenda.schedule(1, lambda: agenda.schedule(2, lambda: done.append("later")))
    assert agenda.run_due(5, max_deadlines=9) == 2
    assert done == ["later"]
