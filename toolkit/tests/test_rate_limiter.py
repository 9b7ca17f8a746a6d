"""Rate limiters: delays of the core, and waiting with trio and in threads."""

import functools

import pytest
import trio
from trio.testing import MockClock

from toolkit.rate_limiter import BlockingRateLimiter, RateLimiter, TrioRateLimiter


def test_delays_add_up_and_unused_time_is_forgotten():
    now = [0.0]
    limiter = RateLimiter(10.0, 1000.0, clock=lambda: now[0])
    assert limiter.reserve(10, 100) == pytest.approx(1.0)  # the messages cost more
    assert limiter.reserve(1, 500) == pytest.approx(1.5)  # the bytes cost more
    now[0] = 100.0
    assert limiter.reserve(10) == pytest.approx(1.0)


def test_a_burst_uses_the_time_before():
    now = [0.0]
    limiter = RateLimiter(10.0, burst_s=2.0, clock=lambda: now[0])
    assert [limiter.reserve(10) for _ in range(3)] == pytest.approx([0.0, 0.0, 1.0])


def test_without_a_rate_nothing_waits():
    assert RateLimiter().reserve(1 << 40, 1 << 40) == 0
    assert RateLimiter().batch_limits(512, 1 << 20) == (512, 1 << 20)


def test_batches_are_a_tenth_of_a_second_at_most():
    assert RateLimiter(1000.0, 5_000.0).batch_limits(512, 1 << 20) == (100, 500)


@pytest.mark.parametrize(
    ("rates", "amount", "times", "total_s"),
    [
        ((100.0, 0.0), (10, 1), 20, 2.0),
        ((0.0, 1000.0), (1, 500), 4, 2.0),
        ((10.0, 10.0), (1, 10), 3, 3.0),
        ((0.0, 0.0), (9, 9), 9, 0.0),
    ],
)
def test_several_tasks_together_keep_below_both_rates(rates, amount, times, total_s):
    limiter = TrioRateLimiter(*rates)

    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(functools.partial(limiter.acquire, *amount))
        assert trio.current_time() - started_s == pytest.approx(total_s)

    clock = MockClock(autojump_threshold=0)
    started_s = clock.current_time()
    trio.run(main, clock=clock)


def test_rest_is_not_saved_up():
    limiter = TrioRateLimiter(10.0)

    async def main():
        await trio.sleep(100)
        started_s = trio.current_time()
        await limiter.acquire(10, 0)
        assert trio.current_time() - started_s == pytest.approx(1.0)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_thread_passes_a_burst_of_one_second_and_then_keeps_the_rate():
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    limiter = BlockingRateLimiter(100, burst_s=1, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        limiter.acquire(50)
    assert now[0] == pytest.approx(4.0)
    now[0] += 1000
    limiter.acquire(100)
    assert now[0] == pytest.approx(1004.0)
    BlockingRateLimiter(clock=lambda: 0.0, sleep=sleep).acquire(1 << 40)
