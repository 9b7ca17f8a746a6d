"""`python -m compat_tests.bench.shadow`: what the shadow gateway costs in front of the official broker.

The same broker is reached without a gateway and through several, which all run from the beginning; loads take turns.

Not responsible for how a load works (`loads`).
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from compat_tests.bench.capacity import CONNECTIONS, capacity
from compat_tests.bench.loads import (
    BATCH,
    QUICK,
    WARM_UP,
    Figures,
    LoadDurations,
    LoadFailed,
    Served,
    own,
    send_load,
)
from compat_tests.bench.usage import memory_mib
from compat_tests.endpoints import Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import FULL_SPEED, Official
from compat_tests.endpoints.ours import Ours, python_path, wait_ready
from compat_tests.endpoints.process import Child

DIRECT, FORWARD = "no gateway", "forward only"
MOST_ADDED_MS = 0.15
LEAST_RATE = 30_000.0
THROUGHPUT = send_load("Shadow-64t-128B", "Producer", 64, 128)
BLOCK = 50
"""So many sends one after the other, before it is the next side's turn."""


@dataclass
class Side:
    """One way to the broker. `pids` are of the gateway, or of the broker when there is none; `ready` is its line."""

    name: str
    namesrv: str
    broker: str
    children: Sequence[Child] = ()
    samples: list[Figures] = field(default_factory=list)
    ready: Mapping[str, Any] = field(default_factory=dict)

    @property
    def brokers(self) -> dict[str, str]:
        """A gateway's address for each of the primary's brokers, by name."""
        return dict(self.ready["brokers"])

    def pids(self) -> list[int]:
        return [pid for child in self.children for pid in child.pids()]

    def median(self, figure: str) -> float | None:
        """The median over rounds, None without samples."""
        values = [sample[figure] for sample in self.samples if figure in sample]
        return statistics.median(values) if values else None


def gateway(
    name: str,
    primary: Served,
    directory: Path,
    tables: Mapping[str, Any],
    stack: ExitStack,
    sets: Sequence[str] = (),
) -> Side:
    """A gateway in front of a broker, with these keys of shadow.toml; it ends with the stack. `sets`: more, as text."""
    keys = {"primary.namesrv": [primary.namesrv], "listen.host": "127.0.0.1", "console.port": 0}
    keys |= {"listen.namesrv_port": 0, "listen.broker_port": 0, **tables}
    command = [sys.executable, "-m", "gateway.cli", "shadow", "--log-level", "warning"]
    for setting in [*(f"{key}={json.dumps(value)}" for key, value in keys.items()), *sets]:
        command += ["--set", setting]
    log = directory / f"{name.replace(' ', '-')}.log"
    child = Child(name, command, log, python_path())
    stack.callback(child.terminate, 10)
    ready = wait_ready(log, 0, 30.0, lambda: None)
    return Side(name, str(ready["namesrv"]), primary.broker, [child], ready=ready)


def sides(stack: ExitStack, only_forward: bool) -> list[Side]:
    """The official broker, and the gateways before it; the last two mirror to a server of ours."""
    primary = stack.enter_context(Official(jvm=FULL_SPEED))
    found = [Side(DIRECT, primary.namesrv, primary.broker, primary.children)]
    found.append(forwarding(primary, stack))
    if not only_forward:
        target = stack.enter_context(Ours())
        # Of kind "any", so that each mirrors what passes through it, and not what the others brought.
        mirror = {"target.namesrv": [target.namesrv], "target.kind": "any"}
        for name, compare in (("mirror async", False), ("mirror with compare", True)):
            tables = {**mirror, "compare.enabled": compare}
            found.append(gateway(name, primary, primary.directory, tables, stack))
    return found


def forwarding(primary: Official | Ours, stack: ExitStack) -> Side:
    """A gateway that forwards and does nothing else, not even remember rates for a report."""
    return gateway(FORWARD, primary, primary.directory, {"report.series": False}, stack)


def throughput(side: Side, durations: LoadDurations) -> Figures:
    """Messages one by one, and in batches."""
    figures = THROUGHPUT.run(side, durations)
    figures["rss_mib"] = memory_mib(side.pids(), "RssAnon")
    batched = BATCH.run(side, durations)
    return {**figures, "batch_rate": batched["rate"], "batch_cpu_us": batched["cpu_us"]}


def lone_sender(found: Sequence[Side], durations: LoadDurations, count: int, warm_up: int) -> None:
    """One thread of one JVM sends by each side in turn, so that what else the machine does falls on all alike."""
    namesrvs = ",".join(side.namesrv for side in found)
    options = [f"count={count}", f"block={BLOCK}", f"warm_up={warm_up}", "size=128"]
    figures = own(found[0], "senders", f"namesrvs={namesrvs}", "topic=BenchShadowLone", *options)
    for number, side in enumerate(found):
        lone = {name: figures[f"{name}_{number}"] for name in ("p50_ms", "p99_ms")}
        lone["added_ms"] = lone["p50_ms"] - figures["p50_ms_0"]
        side.samples.append(lone)


def measure(found: Sequence[Side], durations: LoadDurations, rounds: int) -> list[str]:
    """Fills the samples of all sides; what went wrong."""
    problems: list[str] = []
    WARM_UP.run(found[0], replace(durations, warm_up_s=durations.server_warm_up_s))
    for number in range(rounds):
        for side in found if number % 2 == 0 else list(reversed(found)):
            try:
                figures = throughput(side, durations)
            except LoadFailed as error:
                problems.append(f"{side.name}: {error}")
                continue
            side.samples.append(figures)
            _say(side, figures)
        try:
            lone_sender(found, durations, durations.latency_messages * 5, warm_up=2000)
        except LoadFailed as error:
            problems.append(f"lone sender: {error}")
        else:
            for side in found:
                _say(side, side.samples[-1])
    return problems


def carries(durations: LoadDurations, problems: list[str]) -> dict[int, Figures]:
    """How many frames a gateway carries that only forwards, by how many are under way on a connection."""
    try:
        return capacity(forwarding, durations)
    except LoadFailed as error:
        problems.append(f"capacity: {error}")
        return {}


def _say(side: Side, figures: Figures) -> None:
    text = "  ".join(f"{name} {value:.5g}" for name, value in figures.items())
    click.echo(f"{side.name:20} {text}", err=True)


COLUMNS = {
    "rate": "messages/s, 64 threads",
    "cpu_us": "CPU µs/message",
    "batch_rate": "in batches of 16",
    "batch_cpu_us": "CPU µs/message",
    "p50_ms": "lone sender p50 ms",
    "p99_ms": "p99 ms",
    "added_ms": "p50 added ms",
    "rss_mib": "memory MiB",
}


def markdown(
    found: Sequence[Side], rounds: int, carried: Mapping[int, Figures], problems: Sequence[str]
) -> str:
    """The table, the bars and what a reader must know."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for side in found:
        cells = [_short(side.median(figure)) for figure in COLUMNS]
        lines.append(f"| {side.name} | " + " | ".join(cells) + " |")
    notes = [
        f"Medians of {rounds} round(s) on {os.cpu_count()} processors, which clients, broker, gateways and target "
        "share. CPU and memory are the gateway's; the broker's where there is none.",
        "Forwarding alone is with report.series off, the others with it.",
        *bars(found),
        *(_carries(outstanding, figures) for outstanding, figures in carried.items()),
        *(f"FAILED: {problem}" for problem in problems),
    ]
    return "\n".join(lines) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def bars(found: Sequence[Side]) -> list[str]:
    """Whether forwarding alone is as cheap as it should be."""
    forward = next(side for side in found if side.name == FORWARD)
    added, rate, batched = map(forward.median, ("added_ms", "rate", "batch_rate"))
    verdicts = []
    if added is not None:
        verdicts.append(
            f"{FORWARD} adds {added:.3f} ms to p50 (bar ≤ {MOST_ADDED_MS}): {_met(added <= MOST_ADDED_MS)}"
        )
    for how, carried in (("one by one", rate), ("in batches of 16", batched)):
        if carried is not None:
            met = _met(carried >= LEAST_RATE)
            verdicts.append(
                f"{FORWARD} carries {carried:,.0f} messages/s {how} (bar ≥ {LEAST_RATE:,.0f}): {met}"
            )
    return verdicts


def _carries(outstanding: int, figures: Figures) -> str:
    return (
        f"{FORWARD} carries {figures['rate']:,.0f} frames/s by {CONNECTIONS} connections, {outstanding} under way "
        f"on each, with neither a client nor a broker that is the limit (bar ≥ {LEAST_RATE:,.0f}): "
        f"{_met(figures['rate'] >= LEAST_RATE)}"
    )


def _met(met: bool) -> str:
    return "met" if met else "**not met**"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1), help="How often each load runs on each side (3; 1 with --quick)."
)
@click.option("--quick", is_flag=True, help="Short loads on cold JVMs: no figures to quote.")
@click.option("--forward-only", is_flag=True, help="Leave out the gateways that mirror.")
@click.option(
    "--markdown", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the table to a file."
)
def main(rounds: int | None, quick: bool, forward_only: bool, file: Path | None) -> None:
    """What the shadow gateway costs in front of the official broker, with stock clients."""
    exit_on_sigterm()
    rounds, durations = rounds or (1 if quick else 3), QUICK if quick else LoadDurations()
    try:
        with ExitStack() as stack:
            found = sides(stack, forward_only)
            problems = measure(found, durations, rounds)
        carried = carries(durations, problems)
    except Unavailable as error:
        raise click.ClickException(f"cannot measure on this machine: {error}") from error
    text = markdown(found, rounds, carried, problems)
    click.echo(text)
    if file:
        file.write_text(text + "\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
