from functools import wraps

import pytest
import trio
from trio.testing import MockClock

from remoting.eager import EagerCall, enter_task


def in_trio(test):
    @wraps(test)
    def run():
        trio.run(test, clock=MockClock(autojump_threshold=0))

    return run


async def double(number):
    return 2 * number


async def double_later(number, event):
    await enter_task()
    await event.wait()
    return await double(number)


def test_a_call_that_need_not_wait_runs_without_a_task():
    call = EagerCall(double(4))
    assert call.run()
    assert (call.is_done, call.result) == (True, 8)


def test_what_a_call_raises_reaches_its_caller():
    async def fail():
        await enter_task()
        raise ValueError("no")

    async def fail_at_once():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        EagerCall(fail_at_once()).run()
    call = EagerCall(fail())
    assert not call.run()
    with pytest.raises(ValueError, match="no"):
        trio.run(call.finish)


@in_trio
async def test_a_call_that_waits_goes_on_in_the_task_of_its_caller():
    event = trio.Event()
    call = EagerCall(double_later(4, event))
    assert not call.run()
    results = []

    async def finish():
        results.append(await call.finish())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish)
        await trio.sleep(1)
        assert results == []
        event.set()
    assert results == [8]


@in_trio
async def test_a_cancelled_task_cancels_the_call():
    ends = []

    async def wait():
        await enter_task()
        try:
            await trio.sleep_forever()
        finally:
            ends.append("finally")

    call = EagerCall(wait())
    assert not call.run()
    with trio.move_on_after(1) as scope:
        await call.finish()
    assert (scope.cancelled_caught, ends) == (True, ["finally"])


def test_calls_within_calls_ask_their_own_runner():
    async def outer():
        inner = EagerCall(double_later(4, trio.Event()))
        assert not inner.run()
        inner.close()
        return await double(1)

    call = EagerCall(outer())
    assert call.run()
    assert call.result == 2


def test_a_call_that_waits_without_entering_a_task_is_refused():
    async def sleep():
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def main():
        with pytest.raises(RuntimeError, match="did not enter"):
            EagerCall(sleep()).run()

    trio.run(main)


@in_trio
async def test_enter_task_does_nothing_in_a_task():
    await enter_task()
