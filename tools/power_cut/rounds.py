"""One server under several power cuts in a row, on the same store."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from tools.power_cut.file_system import CuttableFileSystem
from tools.power_cut.traffic import Notes, run_traffic
from tools.power_cut.verdict import CutVerdict, judge

MIN_TRAFFIC_S: Final = 0.8
MAX_TRAFFIC_S: Final = 3.0
REST_S: Final = 0.2
"""Time between the cut and the kill: a broker that acknowledges messages on a failed disk is found out."""
OTHER_BOOT: Final = b"00000000-0000-0000-0000-000000000000"
COMMON_SETTINGS: Final = {
    "flushConsumerOffsetInterval": "100",
    "mappedFileSizeCommitLog": str(16 << 20),
}
"""Offsets are written often, so that they can be ahead of the log; files are small, so that the log rolls."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server to cut off. ``must_keep``: nothing may be lost; ``must_lose``: the control."""

    name: str
    endpoint: Callable[[dict[str, str], Path], LocalEndpoint]
    settings: dict[str, str]
    must_keep: bool = False
    must_lose: bool = False


TARGETS: Final = {
    target.name: target
    for target in (
        Target("ours", OursEndpoint, {"flushDiskType": "SYNC_FLUSH"}, must_keep=True),
        Target("ours-async", OursEndpoint, {"flushDiskType": "ASYNC_FLUSH"}, must_lose=True),
        Target("official", OfficialEndpoint, {"flushDiskType": "SYNC_FLUSH"}),
        Target("official-async", OfficialEndpoint, {"flushDiskType": "ASYNC_FLUSH"}),
    )
}


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one power cut. ``recovery_s`` is the time until the broker served again."""

    target: str
    number: int
    same_boot: bool
    traffic_s: float
    recovery_s: float
    verdict: CutVerdict


def run_rounds(target: Target, rounds: int, senders: int, seed: int) -> Iterator[Round]:
    """Cut a server's power again and again, and yield each result."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="power-cut-") as folder:
        home = Path(folder)
        endpoint = target.endpoint(COMMON_SETTINGS | target.settings, home / "server")
        try:
            with CuttableFileSystem(home / "image", endpoint.store) as disk:
                try:
                    endpoint.start()
                    notes = Notes()
                    for number in range(rounds):
                        yield _cut_once(target, endpoint, disk, notes, number, senders, rng)
                finally:
                    endpoint.crash()  # before the file system is unmounted
        finally:
            endpoint.close()


def _cut_once(
    target: Target,
    endpoint: LocalEndpoint,
    disk: CuttableFileSystem,
    notes: Notes,
    number: int,
    senders: int,
    rng: random.Random,
) -> Round:
    traffic_s = rng.uniform(MIN_TRAFFIC_S, MAX_TRAFFIC_S)
    same_boot = number % 2 == 1
    with run_traffic(endpoint.broker, notes, senders, str(number), rng.randrange(1 << 30)):
        time.sleep(traffic_s)
        cut_at_ns = time.monotonic_ns()
        disk.cut_power()
        time.sleep(REST_S)
        endpoint.crash()
    disk.unmount()
    disk.mount()
    abort = endpoint.store / "abort"
    if abort.exists() and not same_boot and endpoint.kind == "ours":
        abort.write_bytes(OTHER_BOOT)
    begin = time.monotonic()
    endpoint.start()
    recovery_s = time.monotonic() - begin
    return Round(
        target.name, number, same_boot, traffic_s, recovery_s, judge(endpoint.broker, notes, cut_at_ns)
    )
