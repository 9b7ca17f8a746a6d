"""A limit that a pause of the whole process does not use up."""

import time

import pytest
import trio

from gateway.runtime.running_time import SLEEPS, within_running_time
from remoting.tests.virtual import virtual


async def work_for(seconds: float) -> str:
    await trio.sleep(seconds)
    return "done"


@virtual
async def test_work_within_the_limit() -> None:
    assert await within_running_time(1, lambda: work_for(0.95)) == "done"
    assert trio.current_time() == pytest.approx(0.95)


@virtual
async def test_work_beyond_the_limit_is_cancelled() -> None:
    with pytest.raises(trio.TooSlowError):
        await within_running_time(1, lambda: work_for(1.05))
    assert trio.current_time() == pytest.approx(1)


@virtual
async def test_the_exception_of_the_work_is_raised_as_it_is() -> None:
    async def fail() -> None:
        await trio.sleep(0.5)
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(ConnectionRefusedError, match="nobody there"):
        await within_running_time(1, fail)


def test_a_pause_uses_up_a_part_only() -> None:
    async def pause_and_work() -> str:
        time.sleep(0.6)  # noqa: ASYNC251 - the pause
        return await work_for(0.5 / SLEEPS)

    assert trio.run(within_running_time, 0.5, pause_and_work) == "done"


@virtual
async def test_a_cancelled_caller_is_cancelled() -> None:
    with trio.move_on_after(0.5) as limit:
        await within_running_time(1, lambda: work_for(2))
    assert limit.cancelled_caught
    assert trio.current_time() == pytest.approx(0.5)


@virtual
async def test_what_the_work_returned_to_a_cancelled_caller_is_discarded() -> None:
    discarded: list[str] = []
    with trio.CancelScope() as scope:

        async def work() -> str:
            scope.cancel()
            return "a connection"

        await within_running_time(1, work, discarded.append)
    assert scope.cancelled_caught
    assert discarded == ["a connection"]
    assert await within_running_time(1, lambda: work_for(0.5), discarded.append) == "done"
    assert discarded == ["a connection"], "the caller has the other one"
