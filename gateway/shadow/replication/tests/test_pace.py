import functools

import pytest
import trio
from trio.testing import MockClock

from gateway.shadow.replication.pace import Pace


@pytest.mark.parametrize(
    ("rates", "each", "times", "wanted_s"),
    [
        ((100.0, 0.0), (10, 1), 20, 2.0),
        ((0.0, 1000.0), (1, 500), 4, 2.0),
        ((10.0, 10.0), (1, 10), 3, 3.0),
        ((0.0, 0.0), (9, 9), 9, 0.0),
    ],
)
def test_several_together_keep_below_both_rates(rates, each, times, wanted_s):
    pace = Pace(*rates)

    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(functools.partial(pace.take, *each))
        assert trio.current_time() - started_s == pytest.approx(wanted_s)

    clock = MockClock(autojump_threshold=0)
    started_s = clock.current_time()
    trio.run(main, clock=clock)


def test_rest_is_not_saved_up():
    pace = Pace(10.0)

    async def main():
        await trio.sleep(100)
        started_s = trio.current_time()
        await pace.take(10, 0)
        assert trio.current_time() - started_s == pytest.approx(1.0)

    trio.run(main, clock=MockClock(autojump_threshold=0))
