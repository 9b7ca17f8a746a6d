"""CPU time of a Spark session by its parts, from /proc (Linux only)."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """Cost of some messages: wall-clock seconds, and CPU seconds of the three parts."""

    messages: int
    bytes: int
    wall_s: float
    broker_s: float
    python_s: float
    jvm_s: float

    def per_message_us(self, seconds: float) -> float:
        return seconds * 1e6 / self.messages


def measure_cpu(broker: Iterable[int], work: Callable[[], tuple[int, int]]) -> CpuUsage:
    """Measure `work`, which returns the numbers of messages and of body bytes."""
    pids = list(broker)
    before, begin = _cpu_seconds(pids), time.monotonic()
    messages, size = work()
    wall_s = time.monotonic() - begin
    broker_s, python_s, jvm_s = (b - a for a, b in zip(before, _cpu_seconds(pids), strict=True))
    return CpuUsage(messages, size, wall_s, broker_s, python_s, jvm_s)


def _cpu_seconds(broker: list[int]) -> tuple[float, float, float]:
    """Return the CPU seconds used so far by the broker, the Python workers below our JVM, and the JVM itself."""
    table = _read_processes()
    below = {pid for pid in table if os.getpid() in _ancestor_pids(pid, table)}
    jvms = {pid for pid in below if table[pid][1] == "java"} - set(broker)
    pythons = {pid for pid in below if jvms & _ancestor_pids(pid, table)} - set(broker)
    return tuple(sum(table[pid][2] for pid in group if pid in table) for group in (broker, pythons, jvms))  # type: ignore[return-value]


def _ancestor_pids(pid: int, table: dict[int, tuple[int, str, float]]) -> set[int]:
    ancestors: set[int] = set()
    while pid in table and (pid := table[pid][0]) not in ancestors:
        ancestors.add(pid)
    return ancestors


def _read_processes() -> dict[int, tuple[int, str, float]]:
    """Return parent, name, and CPU seconds of every process, those of its reaped children included."""
    table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            before, _, after = (entry / "stat").read_text().rpartition(")")
        except OSError:  # the process has ended
            continue
        fields = after.split()
        # Fields 14 and 15 of proc(5), utime and stime; 16 and 17 are those of reaped children.
        ticks = sum(map(int, fields[11:13]))
        name = before.partition("(")[2]
        # The JVM's children are the Python workers, which are counted on their own.
        if name != "java":
            ticks += sum(map(int, fields[13:15]))
        table[int(entry.name)] = (int(fields[1]), name, ticks / _TICKS_PER_S)
    return table
