"""The figures computed by loads, with fake clients and servers."""

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.endpoints.process import ChildProcess
from tools.bench import loads
from tools.bench.loads import LoadDurations, LoadFailed

BRISK = LoadDurations(
    warm_up_s=0,
    warm_up_limit_s=0,
    window_s=0.01,
    idle_s=0.01,
    settle_limit_s=0,
    backlog=100,
    latency_messages=10,
)


class Server:
    name = "made up"
    namesrv = broker = "nowhere:1"

    def pids(self) -> list[int]:
        return []


class Counter:
    """A counter that returns the given totals one after the other, and repeats the last."""

    def __init__(self, *totals: int) -> None:
        self._totals = list(totals)

    def total(self) -> int:
        return self._totals.pop(0) if len(self._totals) > 1 else self._totals[0]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ChildProcess]:
    child = ChildProcess("client", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    yield child
    child.kill()


def steady(client: ChildProcess, *totals: int) -> dict[str, float]:
    return loads._measure_steady_state(Server(), client, Counter(*totals), BRISK)


def test_rate_counts_between_two_moments_only(client: ChildProcess) -> None:
    # 5 before, first sight at 6, 1000 and 2000 at the ends of the window, 2500 in all
    figures = steady(client, 5, 5, 6, 1000, 2000, 2500)
    assert 1000 / 5 < figures["rate"] <= 1000 / BRISK.window_s
    assert figures["deferred_us"] == 0
    assert client.exit_code() is not None


@pytest.mark.parametrize(
    ("rates", "is_steady"), [((100, 200, 400, 410, 999), True), ((100, 200, 400, 800, 1600, 3200), False)]
)
def test_figures_begin_when_two_windows_agree(
    monkeypatch: pytest.MonkeyPatch, rates: tuple[int, ...], is_steady: bool
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now_s.__setitem__(0, now_s[0] + seconds))
    durations = LoadDurations(warm_up_s=2, warm_up_limit_s=6, warm_window_s=1, agreement=0.05)
    totals = list(itertools.accumulate((0, *rates)))
    assert loads._wait_until_steady(Counter(*totals), durations) is is_steady
    assert now_s[0] == (4 if is_steady else 6)


def test_a_load_is_warmed_up_for_a_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now_s.__setitem__(0, now_s[0] + seconds))
    durations = LoadDurations(warm_up_s=5, warm_up_limit_s=9, warm_window_s=1)
    assert loads._wait_until_steady(Counter(*range(0, 10_000, 100)), durations)
    assert now_s[0] == 5


def test_a_client_that_stops_is_no_result(client: ChildProcess) -> None:
    with pytest.raises(LoadFailed, match="stopped sending"):
        steady(client, 0, 10)


def test_a_client_that_ends_before_its_first_message(tmp_path: Path) -> None:
    child = ChildProcess("client", ["/bin/sh", "-c", "echo no route"], tmp_path / "log")
    child.wait(10)
    with pytest.raises(LoadFailed, match="no route"):
        steady(child, 0)


@pytest.mark.parametrize(
    ("load", "found", "message"),
    [
        (loads.measure_catch_up, {"distinct": 100, "seconds": 1.0}, "only 100 of 101"),
        (
            loads.measure_latency,
            {"lost": 1, "p50_ms": 1.0, "p99_ms": 1.0, "max_ms": 1.0},
            "1 messages never arrived",
        ),
    ],
)
def test_lost_messages_fail_a_load(
    monkeypatch: pytest.MonkeyPatch, load: Any, found: dict[str, float], message: str
) -> None:
    monkeypatch.setattr(loads, "run_bench_client", lambda *_: found)
    with pytest.raises(LoadFailed, match=message):
        load(Server(), BRISK)


def test_catch_up_divides_by_what_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "run_bench_client", lambda *_: {"distinct": 101, "seconds": 0.5})
    assert loads.measure_catch_up(Server(), BRISK) == {"rate": 200.0, "cpu_us": 0.0}


def test_own_client_s_last_line_is_its_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "echo noise; echo '{\"lost\": 0}'"

    @contextmanager
    def fake(*_: object) -> Iterator[tuple[ChildProcess, Path]]:
        yield ChildProcess("client", ["/bin/sh", "-c", program], tmp_path / "out"), tmp_path

    monkeypatch.setattr(loads, "start_java_program", fake)
    assert loads.run_bench_client(Server(), "latency") == {"lost": 0}
    program = "echo broken; exit 3"
    with pytest.raises(LoadFailed, match="ended with 3"):
        loads.run_bench_client(Server(), "latency")


def test_every_bar_names_a_load_that_exists() -> None:
    from tools.bench.report import _report_lines

    known = {load.name for load in (*loads.LOADS, *loads.OPT_IN_LOADS)} | {
        "start-up",
        "at rest",
    }
    assert {line.load for line in _report_lines()} == known
