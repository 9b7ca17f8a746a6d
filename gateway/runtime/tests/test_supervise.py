"""Background tasks: back-off after failures, intervals, failures that are logged and shown."""

from itertools import pairwise

import pytest
import trio

from gateway.runtime.supervise import MAX_BACKOFF_S, TaskSupervisor
from remoting.tests.virtual import virtual
from storage.errors import StoreFull


def fail() -> None:
    raise ZeroDivisionError


@virtual
async def test_a_failed_task_is_restarted_soon_at_first_then_less_often(caplog):
    started_s = []

    async def work():
        started_s.append(trio.current_time())
        raise ZeroDivisionError

    with trio.move_on_after(200):
        await TaskSupervisor("part").keep_running("work", work)
    assert [round(after - before) for before, after in pairwise(started_s)] == [
        1, 2, 4, 8, 16, 32, 60, 60,
    ]  # fmt: skip
    assert caplog.records[0].exc_info[0] is ZeroDivisionError
    assert (caplog.records[0].part, caplog.records[0].task) == ("part", "work")


@virtual
async def test_a_task_that_ran_for_long_is_restarted_soon():
    started_s = []

    async def work():
        started_s.append(trio.current_time())
        await trio.sleep(MAX_BACKOFF_S)
        raise ZeroDivisionError

    with trio.move_on_after(400):
        await TaskSupervisor("part").keep_running("work", work)
    assert [round(after - before) for before, after in pairwise(started_s)] == [61] * 6


@virtual
async def test_a_task_may_end():
    async def work():
        await trio.lowlevel.checkpoint()

    await TaskSupervisor("part").keep_running("work", work)


@virtual
async def test_a_keyboard_interrupt_is_not_caught():
    async def work():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await TaskSupervisor("part").keep_running("work", work)


@virtual
async def test_work_is_repeated_at_intervals_and_outlives_failures(caplog):
    turns = []
    start = trio.current_time()

    async def work():
        turns.append(trio.current_time() - start)
        if len(turns) == 2:
            raise ZeroDivisionError

    with trio.move_on_after(4.5):
        await TaskSupervisor("part").repeat("count", 1, work)
    assert turns == pytest.approx([1, 2, 3, 4])
    (record,) = caplog.records
    assert (record.message, record.task) == ("background task failed and will be tried again", "count")


@virtual
async def test_an_attempt_tells_whether_it_succeeded():
    done = []
    tasks = TaskSupervisor("part")
    assert await tasks.attempt("note", lambda: done.append(1))
    assert not await tasks.attempt("fail", fail)
    assert done == [1]


@virtual
async def test_cancelling_is_no_failure(caplog):
    tasks = TaskSupervisor("part")
    with trio.move_on_after(1) as scope:
        await tasks.attempt("wait", trio.sleep_forever)
    assert scope.cancelled_caught
    assert not caplog.records
    assert not tasks.failing


@virtual
async def test_a_task_that_always_fails_does_not_fill_the_log(caplog):
    tasks = TaskSupervisor("part")
    for _ in range(1000):
        await tasks.attempt("fail", fail)
    assert [record.failures_in_a_row for record in caplog.records] == [2**power for power in range(10)]


@virtual
async def test_a_full_disk_is_logged_without_a_trace_until_there_was_room(caplog):
    outcomes = [StoreFull("1"), None, StoreFull("3")]

    def work():
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    with trio.move_on_after(3.5):
        await TaskSupervisor("part").repeat("save", 1, work)
    assert [(record.message, record.reason) for record in caplog.records] == [
        ("background task lacks disk space", "1"),
        ("background task lacks disk space", "3"),
    ]
    assert not any(record.exc_info for record in caplog.records)


@virtual
async def test_an_attempt_is_failing_until_it_succeeds():
    tasks = TaskSupervisor("part")
    await tasks.attempt("save", fail)
    await trio.sleep(10_000)
    (health,) = tasks.failing
    assert (health.name, health.last_error) == ("save", "ZeroDivisionError: ")
    await tasks.attempt("save", lambda: None)
    assert not tasks.failing


@virtual
async def test_a_restarted_task_is_failing_until_it_ran_for_a_while():
    tasks = TaskSupervisor("part")
    runs = []

    async def work():
        runs.append(1)
        if len(runs) == 1:
            raise ZeroDivisionError
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.keep_running, "work", work)
        await trio.sleep(30)
        assert [health.name for health in tasks.failing] == ["work"]
        await trio.sleep(MAX_BACKOFF_S)
        assert not tasks.failing
        nursery.cancel_scope.cancel()
    values = {metric.name: metric.value for metric in tasks.metrics()}
    assert values == {"task_failures_total": 1, "task_failing": 0}


@virtual
async def test_a_task_that_fails_for_days_is_still_restarted():
    """The back-off was a power of two that no float holds after 17 hours, which ended the process."""
    runs = 0

    async def fail_thousands_of_times():
        nonlocal runs
        runs += 1
        if runs < 3000:
            raise ValueError("again")

    await TaskSupervisor("test").keep_running("task", fail_thousands_of_times)
    assert runs == 3000


@virtual
async def test_the_state_of_tasks_as_rows():
    tasks = TaskSupervisor("mirror")
    await tasks.attempt("good", lambda: None)
    await tasks.attempt("bad", lambda: _raise("x" * 10_000))
    good, bad = tasks.status()
    assert good == {"part": "mirror", "task": "good", "failures": 0, "failing": False, "last_error": ""}
    assert (bad["failures"], bad["failing"]) == (1, True)
    assert len(bad["last_error"]) <= 500


def _raise(text):
    raise ValueError(text)
