"""Reads the processor time and memory of processes from /proc (Linux only)."""

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE_CORES = 0.25
_IDLE_STEP_S = 0.4
# Servers defer work until they have been idle for a while, ours for up to 1 s.
_FIRST_CHECK_S = 1.5


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor seconds, user and system, that live processes have used so far."""
    return sum(_ticks(pid) for pid in pids) / _TICKS_PER_S


def _ticks(pid: int) -> int:
    # The process name in brackets may contain spaces; utime and stime are the 12th and 13th field after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def machine_cpu_s() -> float:
    """Return the processor seconds that the whole machine has been busy."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting_for_disk = fields[3], fields[4]
    return (sum(fields) - idle - waiting_for_disk) / _TICKS_PER_S


def describe_machine() -> dict[str, str]:
    """Return what figures depend on: processor, system and interpreter, and the date."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    family = [line.partition(":")[2].strip() for line in lines if line.startswith("cpu family")][:1]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": ", family ".join([*dict.fromkeys(models), *family]),
        "cpus": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def memory_mib(pids: Iterable[int], field: str) -> float:
    """Sum a field of /proc/<pid>/status over processes: VmRSS, or RssAnon, which excludes mapped files."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                total += int(line.split()[1])
    return total / 1024


@dataclass(frozen=True)
class UsageSnapshot:
    """The clock and the processor-time counters at one moment."""

    at_s: float
    server_s: float
    client_s: float
    machine_s: float

    @classmethod
    def take(cls, server: Iterable[int], client: Iterable[int] = ()) -> Self:
        return cls(time.monotonic(), cpu_s(server), cpu_s(client), machine_cpu_s())

    def others_cores(self, end: Self) -> float:
        """Return the average number of cores used by other processes between two snapshots."""
        busy = end.machine_s - self.machine_s
        accounted = end.server_s - self.server_s + end.client_s - self.client_s
        return max(0.0, busy - accounted) / (end.at_s - self.at_s)


def work_until_idle_s(pids: list[int], limit_s: float) -> float:
    """Wait until processes are idle, at most `limit_s`, and return the processor seconds they used meanwhile."""
    begin = cpu_s(pids)
    end = time.monotonic() + limit_s
    time.sleep(min(_FIRST_CHECK_S, limit_s))
    before = cpu_s(pids)
    while time.monotonic() < end:
        time.sleep(_IDLE_STEP_S)
        now = cpu_s(pids)
        if now - before < _IDLE_CORES * _IDLE_STEP_S:
            return now - begin
        before = now
    return cpu_s(pids) - begin
