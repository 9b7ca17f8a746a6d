from itertools import pairwise

import pytest
import trio

from gateway.runtime.supervise import MOST_PAUSE_S, tireless
from remoting.tests.virtual import virtual


@virtual
async def test_work_that_fails_begins_again_first_soon_then_less_often(caplog):
    began_s = []

    async def work():
        began_s.append(trio.current_time())
        raise ZeroDivisionError

    with trio.move_on_after(200):
        await tireless(work)
    assert [round(after - before) for before, after in pairwise(began_s)] == [
        1, 2, 4, 8, 16, 32, 60, 60,
    ]  # fmt: skip
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


@virtual
async def test_work_that_went_well_for_long_begins_again_soon():
    began_s = []

    async def work():
        began_s.append(trio.current_time())
        await trio.sleep(MOST_PAUSE_S)
        raise ZeroDivisionError

    with trio.move_on_after(400):
        await tireless(work)
    assert [round(after - before) for before, after in pairwise(began_s)] == [61] * 6


@virtual
async def test_work_may_end():
    async def work():
        await trio.lowlevel.checkpoint()

    await tireless(work)


@virtual
async def test_what_ends_a_program_ends_it():
    async def work():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await tireless(work)
