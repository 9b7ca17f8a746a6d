"""Background tasks: back-off after failures, intervals, failures that are logged."""

from itertools import pairwise

import pytest
import trio

from gateway.runtime.supervise import MAX_BACKOFF_S, run_every, run_once, supervise
from remoting.tests.virtual import virtual
from storage.errors import StoreFull


@virtual
async def test_work_that_fails_begins_again_first_soon_then_less_often(caplog):
    began_s = []

    async def work():
        began_s.append(trio.current_time())
        raise ZeroDivisionError

    with trio.move_on_after(200):
        await supervise(work)
    assert [round(after - before) for before, after in pairwise(began_s)] == [
        1, 2, 4, 8, 16, 32, 60, 60,
    ]  # fmt: skip
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


@virtual
async def test_work_that_went_well_for_long_begins_again_soon():
    began_s = []

    async def work():
        began_s.append(trio.current_time())
        await trio.sleep(MAX_BACKOFF_S)
        raise ZeroDivisionError

    with trio.move_on_after(400):
        await supervise(work)
    assert [round(after - before) for before, after in pairwise(began_s)] == [61] * 6


@virtual
async def test_work_may_end():
    async def work():
        await trio.lowlevel.checkpoint()

    await supervise(work)


@virtual
async def test_what_ends_a_program_ends_it():
    async def work():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await supervise(work)


@virtual
async def test_work_is_done_at_intervals_and_outlives_failures(caplog):
    turns = []
    start = trio.current_time()

    async def work():
        turns.append(trio.current_time() - start)
        if len(turns) == 2:
            raise ZeroDivisionError

    with trio.move_on_after(4.5):
        await run_every(1, "count", work)
    assert turns == pytest.approx([1, 2, 3, 4])
    (record,) = caplog.records
    assert (record.message, record.task) == ("background task failed", "count")


@virtual
async def test_plain_functions_are_work_as_well(caplog):
    done = []

    def fail() -> None:
        raise ZeroDivisionError

    assert await run_once("note", lambda: done.append(1))
    assert not await run_once("fail", fail)
    assert done == [1]
    assert "background task failed" in caplog.text


@virtual
async def test_cancelling_is_no_failure(caplog):
    with trio.move_on_after(1) as scope:
        await run_once("wait", trio.sleep_forever)
    assert scope.cancelled_caught
    assert not caplog.records


@virtual
async def test_a_full_disk_is_said_once_until_there_was_room(caplog):
    outcomes = [StoreFull("1"), StoreFull("2"), None, StoreFull("3"), StoreFull("4")]

    def work():
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    with trio.move_on_after(5.5):
        await run_every(1, "save", work)
    assert not outcomes
    assert [(record.message, record.reason) for record in caplog.records] == [
        ("background task lacks disk space", "1"),
        ("background task lacks disk space", "3"),
    ]
    assert not any(record.exc_info for record in caplog.records)
