"""Processor and memory figures."""

import os
import time

import pytest

from tools.bench import usage
from tools.bench.usage import UsageSnapshot, cpu_s, memory_mib, work_until_idle_s


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_cpu_counts_work_and_not_waiting() -> None:
    before = cpu_s([os.getpid()])
    burn(0.05)
    assert 0.03 <= cpu_s([os.getpid()]) - before < 0.5


def test_memory_adds_up_processes() -> None:
    one = memory_mib([os.getpid()], "RssAnon")
    assert 1 < one < memory_mib([os.getpid()], "VmRSS")
    assert memory_mib([os.getpid()] * 2, "RssAnon") > 1.9 * one


def test_others_are_what_is_left_of_the_machine() -> None:
    begin, end = UsageSnapshot(0.0, 1.0, 1.0, 10.0), UsageSnapshot(10.0, 3.0, 4.0, 20.0)
    assert begin.others_cores(end) == 0.5
    assert begin.others_cores(UsageSnapshot(10.0, 9.0, 9.0, 11.0)) == 0


def test_waits_for_work_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    step = usage._IDLE_STEP_S
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    used = iter([1.0, 1.0 + step, 1.0 + 1.5 * step, 1.0 + 1.5 * step + usage._IDLE_CORES * step / 2])
    monkeypatch.setattr(usage, "cpu_s", lambda pids: next(used))
    assert work_until_idle_s([1], 30) == pytest.approx(1.5 * step + usage._IDLE_CORES * step / 2)
    assert slept == [usage._FIRST_CHECK_S, step, step]
