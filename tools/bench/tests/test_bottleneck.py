"""The limit of a load."""

import os
import threading
import time

import pytest

from tools.bench.bottleneck import LIMITS, LoadMeter, find_limit


@pytest.mark.parametrize(
    ("cores", "busiest", "machine", "limit"),
    [
        ((1.0, 0.5, 0.0), (0.97, 0.5), 0.8, "server thread"),
        ((1.0, 1.0, 0.0), (0.95, 0.99), 1.0, "client thread"),
        ((0.6, 1.4, 0.0), (0.6, 0.3), 0.99, "cores, mostly the client's"),
        ((1.4, 0.6, 0.0), (0.3, 0.3), 0.99, "cores, mostly the server's"),
        ((0.5, 0.4, 1.1), (0.5, 0.4), 0.99, "cores, mostly other programs'"),
        ((0.4, 0.3, 0.1), (0.4, 0.2), 0.4, "waiting"),
    ],
)
def test_the_part_that_has_nothing_left_is_the_limit(
    cores: tuple[float, float, float], busiest: tuple[float, float], machine: float, limit: str
) -> None:
    assert find_limit(cores, busiest, machine) == limit


def test_a_busy_thread_is_seen_among_idle_ones() -> None:
    ended = threading.Event()
    idle = threading.Thread(target=ended.wait)
    idle.start()
    begin = LoadMeter.read([os.getpid()], [])
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    figures = begin.figures_until(LoadMeter.read([os.getpid()], []))
    ended.set()
    idle.join()
    assert 0 < figures["server_cores"] <= 1.5
    assert figures["client_cores"] == 0
    assert figures["migrations_per_s"] >= 0
    assert LIMITS[int(figures["limit"])] in LIMITS
