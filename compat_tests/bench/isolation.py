"""`python -m compat_tests.bench.isolation`: what a mirror takes from the primary's clients, whatever its target does.

One client sends by several gateways in front of the same broker in turn, some messages at a time, so that what else
the machine does falls on all alike. The gateways differ in their target alone. Two of them mirror nothing: what lies
between these two is the machine's. Not responsible for what mirrors do with what they get: cases look at that, here it
is counted.
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

from compat_tests.bench.faulty_target import FAULTS
from compat_tests.bench.loads import Figures, LoadFailed, own
from compat_tests.bench.shadow import Side, gateway
from compat_tests.bench.usage import cpu_s, memory_mib
from compat_tests.endpoints import KINDS, Unavailable, choose, exit_on_sigterm
from compat_tests.endpoints.base import Endpoint
from compat_tests.endpoints.official import FULL_SPEED, Official
from compat_tests.endpoints.ours import Ours, python_path, wait_ready
from compat_tests.endpoints.process import Child

OFF, CONTROL, HEALTHY, STOPPED = "mirroring off", "mirroring off, again", "healthy", "stopped (SIGSTOP)"
BLOCK = 64
"""So many sends by one gateway, before it is the next one's turn."""
PAUSE_MS = 40
"""Before that, so that what one gateway still does for its mirror is not counted as the next one's."""
WARM_UP = 1024
"""Sends by each gateway that count for nothing, in each round."""
QUEUE_MESSAGES = 2000
"""So few that the queues of targets that take nothing are full after the first round."""
MOST_LOST = 0.05
"""Of throughput and p99."""
MEASURED = "rate", "p50_ms", "p99_ms"
_SETTLED_S = 10.0
_COUNTED = re.compile(
    r"rocketmq_shadow_mirror_(observed|mirrored|skipped|refused|dropped)_total\S* ([0-9.e+]+)"
)
_QUEUED = re.compile(r"rocketmq_shadow_mirror_queued\{\S* ([0-9.e+]+)")


# -- the gateways and their targets -----------------------------------------------------------------------------------


def failing(fault: str, directory: Path, stack: ExitStack) -> str:
    """Starts a target that fails so; its namesrv."""
    log = directory / f"target-{fault}.log"
    child = Child(
        fault, [sys.executable, "-m", "compat_tests.bench.faulty_target", fault], log, python_path()
    )
    stack.callback(child.kill)
    return str(wait_ready(log, 0, 30.0, lambda: None)["namesrv"])


def sides(primary: Endpoint, to_stop: Ours, directory: Path, stack: ExitStack) -> list[Side]:
    """Two gateways that mirror nothing, one with a healthy target and one for each fault; all else is the same."""
    healthy = stack.enter_context(Ours()).namesrv
    namesrvs = {OFF: healthy, CONTROL: healthy, HEALTHY: healthy, STOPPED: to_stop.namesrv}
    namesrvs |= {fault: failing(fault, directory, stack) for fault in FAULTS}
    found = []
    for name, namesrv in namesrvs.items():
        tables = {
            "target.namesrv": [namesrv],
            "target.kind": "any",
            "mirroring.queue_messages": QUEUE_MESSAGES,
        }
        rules = ['mirror=[{mode = "off"}]'] if name in (OFF, CONTROL) else []
        found.append(gateway(name, primary, directory, tables, stack, rules))
    return found


def stop(target: Ours, stack: ExitStack) -> None:
    """Stops a target's processes, whose sockets still take what fits into them."""
    for pid in target.pids():
        os.kill(pid, signal.SIGSTOP)
        stack.callback(os.kill, pid, signal.SIGCONT)


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(found: Sequence[Side], rounds: int, count: int, threads: int) -> None:
    """Fills the samples of all sides."""
    options: dict[str, object] = {"topic": f"Isolation{threads}", "size": 128, "count": count, "block": BLOCK}
    options |= {"warm_up": WARM_UP, "threads": threads, "pause_ms": PAUSE_MS}
    options["namesrvs"] = ",".join(side.namesrv for side in found)
    for _ in range(rounds):
        before_s = [cpu_s(side.pids()) for side in found]
        figures = own(found[0], "senders", *(f"{key}={value}" for key, value in options.items()))
        for place, side in enumerate(found):
            sample = {name: figures[f"{name}_{place}"] for name in MEASURED}
            sample["cpu_us"] = (cpu_s(side.pids()) - before_s[place]) / (count + WARM_UP) * 1e6
            side.samples.append(sample)
        click.echo(json.dumps({side.name: side.samples[-1] for side in found}), err=True)


def ratios(side: Side, off: Side) -> Figures:
    """Medians over rounds of what a side has for one of the gateway that mirrors nothing."""
    pairs = list(zip(side.samples, off.samples, strict=True))
    return {name: statistics.median(one[name] / other[name] for one, other in pairs) for name in MEASURED}


@dataclass(frozen=True)
class Law:
    """What a mirror says became of what it saw."""

    observed: int
    mirrored: int
    skipped: int
    refused: int
    dropped: int
    queued: int

    @property
    def exact(self) -> bool:
        """Whether nothing is missing and nothing there twice."""
        parts = self.mirrored + self.skipped + self.refused + self.dropped + self.queued
        return self.observed == parts and self.observed > 0

    def __str__(self) -> str:
        parts = [self.mirrored, self.skipped, self.refused, self.dropped, self.queued]
        return f"{self.observed} {'=' if self.exact else '≠'} " + " + ".join(map(str, parts))


def law_of(metrics: str) -> Law:
    """Reads the counts of all streams together."""
    counts = dict.fromkeys(("observed", "mirrored", "skipped", "refused", "dropped"), 0)
    for name, value in _COUNTED.findall(metrics):
        counts[name] += round(float(value))
    return Law(**counts, queued=sum(round(float(value)) for value in _QUEUED.findall(metrics)))


def counted(side: Side) -> Law:
    """The mirror's counts by its console, once they are exact, or as they are after some seconds."""
    end_s = time.monotonic() + _SETTLED_S
    while True:
        with urllib.request.urlopen(f"http://{side.ready['console']}/metrics", timeout=10) as answer:
            law = law_of(answer.read().decode())
        if law.exact or time.monotonic() > end_s:
            return law
        time.sleep(0.1)


# -- the table --------------------------------------------------------------------------------------------------------

HEAD = (
    "| target | messages/s | p50 ms | p99 ms | CPU µs/message | MiB | throughput | p50 | p99 | within 5 % | "
    "observed = mirrored + skipped + refused + dropped + queued |"
)


def row(side: Side, off: Side, law: Law | None) -> str:
    """A line of the table; ratios are to the gateway that mirrors nothing."""
    cells = [f"{side.median(name) or 0:,.4g}" for name in (*MEASURED, "cpu_us")]
    cells.append(f"{memory_mib(side.pids(), 'RssAnon'):.0f}")
    ratio = ratios(side, off)
    met = ratio["rate"] >= 1 - MOST_LOST and ratio["p99_ms"] <= 1 + MOST_LOST
    cells += [*(f"{each:.3f}" for each in ratio.values()), "yes" if met else "**no**", str(law or "-")]
    return f"| {side.name} | " + " | ".join(cells) + " |"


@click.command()
@click.option("--primary", default="official", show_default=True, help=KINDS)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--count", type=click.IntRange(BLOCK), default=6400, show_default=True, help="Sends per side and round."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads that send.")
@click.option(
    "--markdown", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the table to a file."
)
def main(primary: str, rounds: int, count: int, threads: int, file: Path | None) -> None:
    """What a mirror takes from the primary's clients; a twentieth is allowed. Fails where counts are not exact."""
    exit_on_sigterm()
    count -= count % BLOCK
    try:
        with ExitStack() as stack:
            endpoint = Official(jvm=FULL_SPEED) if primary == "official" else choose(primary)
            stack.enter_context(endpoint)
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="rocketmq-bench-")))
            to_stop = stack.enter_context(Ours())
            found = sides(endpoint, to_stop, directory, stack)
            measure(found, 1, BLOCK, threads)  # Connections are made and processors warm.
            for side in found:
                side.samples.clear()
            stop(to_stop, stack)
            measure(found, rounds, count, threads)
            laws = [None if side.name in (OFF, CONTROL) else counted(side) for side in found]
            rows = [row(side, found[0], law) for side, law in zip(found, laws, strict=True)]
    except (Unavailable, LoadFailed) as error:
        raise click.ClickException(f"cannot measure on this machine: {error}") from error
    notes = (
        f"Medians of {rounds} round(s), {threads} thread(s), {count:,} sends by each in a round, on {os.cpu_count()} "
        "processors for all; throughput is the middle turn's, ratios are each round's to the first line."
    )
    text = "\n".join([HEAD, "|---" + "|---:" * 8 + "|---|---|", *rows, "", notes])
    click.echo(text)
    if file:
        file.write_text(text + "\n")
    sys.exit(0 if all(law is None or law.exact for law in laws) else 1)


if __name__ == "__main__":
    main()
