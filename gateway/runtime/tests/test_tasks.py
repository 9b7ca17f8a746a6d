import pytest
import trio

from gateway.runtime.tasks import every, once
from remoting.tests.virtual import virtual
from storage.errors import StoreFull


@virtual
async def test_work_is_done_at_intervals_and_outlives_failures(caplog):
    turns = []
    start = trio.current_time()

    async def work():
        turns.append(trio.current_time() - start)
        if len(turns) == 2:
            raise ZeroDivisionError

    with trio.move_on_after(4.5):
        await every(1, "count", work)
    assert turns == pytest.approx([1, 2, 3, 4])
    (record,) = caplog.records
    assert (record.message, record.task) == ("background task failed", "count")


@virtual
async def test_plain_functions_are_work_as_well(caplog):
    done = []

    def fail() -> None:
        raise ZeroDivisionError

    assert await once("note", lambda: done.append(1))
    assert not await once("fail", fail)
    assert done == [1]
    assert "background task failed" in caplog.text


@virtual
async def test_cancelling_is_no_failure(caplog):
    with trio.move_on_after(1) as scope:
        await once("wait", trio.sleep_forever)
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
        await every(1, "save", work)
    assert not outcomes
    assert [(record.message, record.reason) for record in caplog.records] == [
        ("background task lacks disk space", "1"),
        ("background task lacks disk space", "3"),
    ]
    assert not any(record.exc_info for record in caplog.records)
