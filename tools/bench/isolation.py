"""Measures how much a mirror costs the primary's clients, whatever its target does.

Run it with `python -m tools.bench.isolation`.

One client sends through several gateways in front of the same broker, a block of messages through each in turn, so that
other load on the machine affects all alike. The gateways differ only in their target. Two of them mirror nothing: the
difference between these two is noise. The mirrors' counts must add up; the cases check the mirrored content.
"""

import json
import os
import re
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from compat_tests.endpoints import ENDPOINT_KINDS, Unavailable, choose_endpoint, exit_on_sigterm
from compat_tests.endpoints.base import Endpoint
from compat_tests.endpoints.official import FULL_SPEED, OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint, process_environment, wait_ready
from compat_tests.endpoints.process import ChildProcess
from tools.bench.faulty_target import FAULTS
from tools.bench.loads import Figures, LoadFailed, run_bench_client
from tools.bench.shadow import MeasuredSetup, start_gateway
from tools.bench.usage import cpu_s, memory_mib

OFF, CONTROL, HEALTHY, STOPPED = "mirroring off", "mirroring off, again", "healthy", "stopped (SIGSTOP)"
BLOCK_SENDS = 64
"""Sends through one gateway before the next one's turn."""
PAUSE_MS = 40
"""Pause before each turn, so that a gateway's remaining work for its mirror does not count against the next one."""
WARM_UP_SENDS = 1024
"""Sends through each gateway in each round before its figures begin."""
MIRROR_QUEUE_MESSAGES = 2000
"""Small enough that the backlog for a target that takes nothing is full after the first round."""
MAX_LOSS_RATIO = 0.05
"""Largest acceptable loss of throughput and increase of p99, as a fraction."""
MEASURED_FIGURES = "rate", "p50_ms", "p99_ms"
_SETTLE_TIMEOUT_S = 10.0
_COUNTER_LINE = re.compile(
    r"rocketmq_shadow_mirror_(observed|mirrored|skipped|refused|dropped)_total\S* ([0-9.e+]+)"
)
_QUEUED_LINE = re.compile(r"rocketmq_shadow_mirror_queued\{\S* ([0-9.e+]+)")


# -- the gateways and their targets -----------------------------------------------------------------------------------


def start_faulty_target(fault: str, directory: Path, stack: ExitStack) -> str:
    """Start a target with this fault and return its namesrv's address."""
    log = directory / f"target-{fault}.log"
    child = ChildProcess(
        fault, [sys.executable, "-m", "tools.bench.faulty_target", fault], log, process_environment()
    )
    stack.callback(child.kill)
    return str(wait_ready(log, 0, 30.0, lambda: None)["namesrv"])


def start_isolation_setups(
    primary: Endpoint, to_stop: OursEndpoint, directory: Path, stack: ExitStack
) -> list[MeasuredSetup]:
    """Start two gateways that mirror nothing, one with a healthy target and one per fault, otherwise alike."""
    healthy = stack.enter_context(OursEndpoint()).namesrv
    namesrvs = {OFF: healthy, CONTROL: healthy, HEALTHY: healthy, STOPPED: to_stop.namesrv}
    namesrvs |= {fault: start_faulty_target(fault, directory, stack) for fault in FAULTS}
    setups = []
    for name, namesrv in namesrvs.items():
        tables = {
            "target.namesrv": [namesrv],
            "target.kind": "any",
            "mirroring.queue_messages": MIRROR_QUEUE_MESSAGES,
        }
        rules = ['mirror=[{mode = "off"}]'] if name in (OFF, CONTROL) else []
        setups.append(start_gateway(name, primary, directory, tables, stack, rules))
    return setups


def stop_target(target: OursEndpoint, stack: ExitStack) -> None:
    """Suspend a target's processes until the stack ends; their sockets still accept data until full."""
    for pid in target.pids():
        os.kill(pid, signal.SIGSTOP)
        stack.callback(os.kill, pid, signal.SIGCONT)


# -- measuring --------------------------------------------------------------------------------------------------------


def measure_setups(setups: Sequence[MeasuredSetup], rounds: int, count: int, threads: int) -> None:
    """Run the rounds and add a sample per round to each setup."""
    options: dict[str, object] = {
        "topic": f"Isolation{threads}",
        "size": 128,
        "count": count,
        "block": BLOCK_SENDS,
    }
    options |= {"warm_up": WARM_UP_SENDS, "threads": threads, "pause_ms": PAUSE_MS}
    options["namesrvs"] = ",".join(setup.namesrv for setup in setups)
    for _ in range(rounds):
        before_s = [cpu_s(setup.pids()) for setup in setups]
        figures = run_bench_client(
            setups[0], "senders", *(f"{key}={value}" for key, value in options.items())
        )
        for place, setup in enumerate(setups):
            sample = {name: figures[f"{name}_{place}"] for name in MEASURED_FIGURES}
            sample["cpu_us"] = (cpu_s(setup.pids()) - before_s[place]) / (count + WARM_UP_SENDS) * 1e6
            setup.samples.append(sample)
        click.echo(json.dumps({setup.name: setup.samples[-1] for setup in setups}), err=True)


def median_ratios(setup: MeasuredSetup, off: MeasuredSetup) -> Figures:
    """Return a setup's figures relative to the gateway that mirrors nothing, as medians of each round's ratios."""
    pairs = list(zip(setup.samples, off.samples, strict=True))
    return {
        name: statistics.median(one[name] / other[name] for one, other in pairs) for name in MEASURED_FIGURES
    }


@dataclass(frozen=True)
class MirrorCounts:
    """A mirror's own account: exchanges observed, and the outcome of each."""

    observed: int
    mirrored: int
    skipped: int
    refused: int
    dropped: int
    queued: int

    @property
    def add_up(self) -> bool:
        """True if every observed exchange has exactly one outcome."""
        parts = self.mirrored + self.skipped + self.refused + self.dropped + self.queued
        return self.observed == parts and self.observed > 0

    def __str__(self) -> str:
        parts = [self.mirrored, self.skipped, self.refused, self.dropped, self.queued]
        return f"{self.observed} {'=' if self.add_up else '≠'} " + " + ".join(map(str, parts))


def parse_mirror_counts(metrics: str) -> MirrorCounts:
    """Sum the counts of all mirror streams in a metrics page."""
    counts = dict.fromkeys(("observed", "mirrored", "skipped", "refused", "dropped"), 0)
    for name, value in _COUNTER_LINE.findall(metrics):
        counts[name] += round(float(value))
    return MirrorCounts(**counts, queued=sum(round(float(value)) for value in _QUEUED_LINE.findall(metrics)))


def read_settled_counts(setup: MeasuredSetup) -> MirrorCounts:
    """Return the mirror's counts from its console, once they add up or after `_SETTLE_TIMEOUT_S`."""
    end_s = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        with urllib.request.urlopen(f"http://{setup.ready['console']}/metrics", timeout=10) as answer:
            counts = parse_mirror_counts(answer.read().decode())
        if counts.add_up or time.monotonic() > end_s:
            return counts
        time.sleep(0.1)


# -- the table --------------------------------------------------------------------------------------------------------

TABLE_HEAD = (
    "| target | messages/s | p50 ms | p99 ms | CPU µs/message | MiB | throughput | p50 | p99 | within 5 % | "
    "observed = mirrored + skipped + refused + dropped + queued |"
)


def format_row(setup: MeasuredSetup, off: MeasuredSetup, counts: MirrorCounts | None) -> str:
    """Return a row of the table; ratios are relative to the gateway that mirrors nothing."""
    cells = [f"{setup.median(name) or 0:,.4g}" for name in (*MEASURED_FIGURES, "cpu_us")]
    cells.append(f"{memory_mib(setup.pids(), 'RssAnon'):.0f}")
    ratio = median_ratios(setup, off)
    met = ratio["rate"] >= 1 - MAX_LOSS_RATIO and ratio["p99_ms"] <= 1 + MAX_LOSS_RATIO
    cells += [*(f"{each:.3f}" for each in ratio.values()), "yes" if met else "**no**", str(counts or "-")]
    return f"| {setup.name} | " + " | ".join(cells) + " |"


@click.command()
@click.option(
    "--primary", default="official", show_default=True, help=f"Server behind the gateways: {ENDPOINT_KINDS}."
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Number of rounds.")
@click.option(
    "--count",
    type=click.IntRange(BLOCK_SENDS),
    default=6400,
    show_default=True,
    help="Sends through each gateway per round.",
)
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Number of sending threads."
)
@click.option(
    "--markdown",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the table to this file.",
)
def main(primary: str, rounds: int, count: int, threads: int, file: Path | None) -> None:
    """Measure how much a mirror costs the primary's clients; up to 5 % is acceptable.

    Exits with 1 if a mirror's counts do not add up.
    """
    exit_on_sigterm()
    count -= count % BLOCK_SENDS
    try:
        with ExitStack() as stack:
            endpoint = OfficialEndpoint(jvm=FULL_SPEED) if primary == "official" else choose_endpoint(primary)
            stack.enter_context(endpoint)
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="rocketmq-bench-")))
            to_stop = stack.enter_context(OursEndpoint())
            setups = start_isolation_setups(endpoint, to_stop, directory, stack)
            measure_setups(setups, 1, BLOCK_SENDS, threads)  # opens the connections
            for setup in setups:
                setup.samples.clear()
            stop_target(to_stop, stack)
            measure_setups(setups, rounds, count, threads)
            counts_by_setup = [
                None if setup.name in (OFF, CONTROL) else read_settled_counts(setup) for setup in setups
            ]
            rows = [
                format_row(setup, setups[0], counts)
                for setup, counts in zip(setups, counts_by_setup, strict=True)
            ]
    except (Unavailable, LoadFailed) as error:
        raise click.ClickException(f"cannot measure on this machine: {error}") from error
    notes = (
        f"Medians of {rounds} round(s) with {threads} thread(s) and {count:,} sends through each gateway per round, on "
        f"{os.cpu_count()} shared processors. Throughput is that of the median turn; ratios compare each round with "
        "the first row."
    )
    text = "\n".join([TABLE_HEAD, "|---" + "|---:" * 8 + "|---|---|", *rows, "", notes])
    click.echo(text)
    if file:
        file.write_text(text + "\n")
    sys.exit(0 if all(counts is None or counts.add_up for counts in counts_by_setup) else 1)


if __name__ == "__main__":
    main()
