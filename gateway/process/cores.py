"""The processor cores that this process may use, and the number of broker processes that suits them."""

import os
from pathlib import Path
from typing import Final

CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")
MIN_CORES: Final = 4
"""With fewer, clients, kernel and several brokers would only take turns."""
MAX_BROKERS: Final = 26


def usable_cores() -> int:
    """Return the number of cores that this process may use: of the machine, its CPU affinity and its container."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # another system than Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = CGROUP_LIMIT.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return cores


def suggest_brokers(cores: int) -> int:
    """Return the number of broker processes for a machine, which leaves a quarter of its cores to everything else.

    That is the namesrv, the kernel's work for network and disk, and operations. 1 if more would not pay.
    """
    return 1 if cores < MIN_CORES else min(MAX_BROKERS, cores - cores // 4)
