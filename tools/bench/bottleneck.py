"""Finds out what limited a load: a thread of the server, the client, the processors they share, or waiting.

Without this a rate says little. On two cores a Java client needs more processor time than a fast server, so the rate
is the client's, and only processor time per message compares the servers.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tools.bench.usage import cpu_s, machine_cpu_s

FULL_THREAD: Final = 0.9
"""Share of the time for which a thread that has no rest is running."""
FULL_MACHINE: Final = 0.93
"""Share of all processors' time that is used when there is none left."""
LIMITS: Final = (
    "server thread",
    "client thread",
    "cores, mostly the server's",
    "cores, mostly the client's",
    "cores, mostly other programs'",
    "waiting",
)
"""Limits of a load; figures hold the index."""


@dataclass(frozen=True)
class _Threads:
    """Processor seconds and moves between processors of the threads of some processes, by thread id."""

    cpu_s: dict[int, float]
    migrations: dict[int, int]

    @classmethod
    def read(cls, pids: Iterable[int]) -> Self:
        cpu, migrations = {}, {}
        for pid in pids:
            for folder in Path(f"/proc/{pid}/task").glob("*"):
                try:
                    cpu[int(folder.name)] = int((folder / "schedstat").read_text().split()[0]) / 1e9
                    migrations[int(folder.name)] = _migrations((folder / "sched").read_text())
                except (OSError, IndexError):  # ended since, or a kernel without these files
                    continue
        return cls(cpu, migrations)


def _migrations(sched: str) -> int:
    for line in sched.splitlines():
        if line.startswith("se.nr_migrations"):
            return int(line.rpartition(":")[2])
    return 0


@dataclass(frozen=True)
class LoadMeter:
    """The use of the processors by a server and its client at one moment."""

    at_s: float
    server_s: float
    client_s: float
    machine_s: float
    server_threads: _Threads
    client_threads: _Threads

    @classmethod
    def read(cls, server: list[int], client: list[int]) -> Self:
        threads = _Threads.read(server), _Threads.read(client)
        return cls(time.monotonic(), cpu_s(server), cpu_s(client), machine_cpu_s(), *threads)

    def figures_until(self, end: Self) -> dict[str, float]:
        """Return how the processors were used between two moments, and the index of the limit in `LIMITS`."""
        seconds = end.at_s - self.at_s
        server, client = (end.server_s - self.server_s) / seconds, (end.client_s - self.client_s) / seconds
        busiest = [
            _busiest_share(before.cpu_s, after.cpu_s, seconds)
            for before, after in (
                (self.server_threads, end.server_threads),
                (self.client_threads, end.client_threads),
            )
        ]
        machine = (end.machine_s - self.machine_s) / seconds
        moves = sum(
            count - self.server_threads.migrations.get(thread, 0)
            for thread, count in end.server_threads.migrations.items()
        )
        others = max(0.0, machine - server - client)
        limit = find_limit((server, client, others), busiest, machine / (os.cpu_count() or 1))
        return {
            "server_cores": server,
            "client_cores": client,
            "others_cores": others,
            "migrations_per_s": moves / seconds,
            "limit": float(LIMITS.index(limit)),
        }


def _busiest_share(before: dict[int, float], after: dict[int, float], seconds: float) -> float:
    return max((used - before.get(thread, 0.0) for thread, used in after.items()), default=0.0) / seconds


def find_limit(cores: tuple[float, float, float], busiest: Sequence[float], machine: float) -> str:
    """Return what had nothing left.

    ``cores`` are used by the server, the client and other programs. ``busiest`` are the shares of the time for which
    the busiest threads of server and client ran, ``machine`` is the share of all cores' time that was used.
    """
    if max(busiest) >= FULL_THREAD:
        return LIMITS[0] if busiest[0] >= busiest[1] else LIMITS[1]
    if machine >= FULL_MACHINE:
        return LIMITS[2 + cores.index(max(cores))]
    return LIMITS[5]
