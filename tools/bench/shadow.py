"""Measures the shadow gateway's cost in front of the official broker: `python -m tools.bench.shadow`.

Clients reach the same broker directly and through several gateways. All of them run from the beginning, and the loads
take turns. `loads.py` defines the loads.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from compat_tests.endpoints import Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import FULL_SPEED, OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint, process_environment, wait_ready
from compat_tests.endpoints.process import ChildProcess
from tools.bench.capacity import CONNECTIONS, measure_capacity
from tools.bench.loads import (
    BATCH,
    QUICK,
    Figures,
    LoadDurations,
    LoadFailed,
    MeasuredEndpoint,
    run_bench_client,
    send_load,
    warm_up,
)
from tools.bench.usage import memory_mib

DIRECT, FORWARD = "no gateway", "forward only"
MAX_ADDED_MS = 0.15
MIN_RATE = 30_000.0
THROUGHPUT = send_load("Shadow-64t-128B", "Producer", 64, 128)
BLOCK_SENDS = 50
"""Consecutive sends through one setup before the next one's turn."""


@dataclass
class MeasuredSetup:
    """A measured way to the broker: directly or through a gateway.

    `pids` are those of the gateway, or of the broker without one; `ready` is the gateway's ready line.
    """

    name: str
    namesrv: str
    broker: str
    children: Sequence[ChildProcess] = ()
    samples: list[Figures] = field(default_factory=list)
    ready: Mapping[str, Any] = field(default_factory=dict)

    @property
    def brokers(self) -> dict[str, str]:
        """The gateway's address for each of the primary's brokers, by name."""
        return dict(self.ready["brokers"])

    def pids(self) -> list[int]:
        return [pid for child in self.children for pid in child.pids()]

    def median(self, figure: str) -> float | None:
        """Return the median over rounds; None without samples."""
        values = [sample[figure] for sample in self.samples if figure in sample]
        return statistics.median(values) if values else None


def start_gateway(
    name: str,
    primary: MeasuredEndpoint,
    directory: Path,
    tables: Mapping[str, Any],
    stack: ExitStack,
    sets: Sequence[str] = (),
) -> MeasuredSetup:
    """Start a gateway in front of a broker; it ends with the stack.

    `tables`: settings of shadow.toml; `sets`: further ones as "key=value" text.
    """
    keys = {"primary.namesrv": [primary.namesrv], "listen.host": "127.0.0.1", "console.port": 0}
    keys |= {"listen.namesrv_port": 0, "listen.broker_port": 0, **tables}
    command = [sys.executable, "-m", "gateway.commands.cli", "shadow", "--log-level", "warning"]
    for setting in [*(f"{key}={json.dumps(value)}" for key, value in keys.items()), *sets]:
        command += ["--set", setting]
    log = directory / f"{name.replace(' ', '-')}.log"
    child = ChildProcess(name, command, log, process_environment())
    stack.callback(child.terminate, 10)
    ready = wait_ready(log, 0, 30.0, lambda: None)
    return MeasuredSetup(name, str(ready["namesrv"]), primary.broker, [child], ready=ready)


def start_setups(stack: ExitStack, only_forward: bool) -> list[MeasuredSetup]:
    """Start the official broker and the gateways in front of it; the last two mirror to a server of ours."""
    primary = stack.enter_context(OfficialEndpoint(jvm=FULL_SPEED))
    setups = [MeasuredSetup(DIRECT, primary.namesrv, primary.broker, primary.children)]
    setups.append(start_forwarding_gateway(primary, stack))
    if not only_forward:
        target = stack.enter_context(OursEndpoint())
        # Of kind "any", so that each gateway mirrors its own exchanges only, instead of copying the broker's queues.
        mirror = {"target.namesrv": [target.namesrv], "target.kind": "any"}
        for name, compare in (("mirror async", False), ("mirror with compare", True)):
            tables = {**mirror, "compare.enabled": compare}
            setups.append(start_gateway(name, primary, primary.directory, tables, stack))
    return setups


def start_forwarding_gateway(primary: OfficialEndpoint | OursEndpoint, stack: ExitStack) -> MeasuredSetup:
    """Start a gateway that only forwards; it does not even record rates for a report."""
    return start_gateway(FORWARD, primary, primary.directory, {"report.series": False}, stack)


def measure_throughput(setup: MeasuredSetup, durations: LoadDurations) -> Figures:
    """Measure throughput of single messages and of batches."""
    figures = THROUGHPUT.run(setup, durations)
    figures["rss_mib"] = memory_mib(setup.pids(), "RssAnon")
    batched = BATCH.run(setup, durations)
    return {**figures, "batch_rate": batched["rate"], "batch_cpu_us": batched["cpu_us"]}


def measure_lone_sender(
    setups: Sequence[MeasuredSetup], durations: LoadDurations, count: int, warm_up: int
) -> None:
    """Measure a single sending thread that uses each setup in turn, so that other load affects all alike."""
    namesrvs = ",".join(setup.namesrv for setup in setups)
    options = [f"count={count}", f"block={BLOCK_SENDS}", f"warm_up={warm_up}", "size=128"]
    figures = run_bench_client(
        setups[0], "senders", f"namesrvs={namesrvs}", "topic=BenchShadowLone", *options
    )
    for number, setup in enumerate(setups):
        lone = {name: figures[f"{name}_{number}"] for name in ("p50_ms", "p99_ms")}
        lone["added_ms"] = lone["p50_ms"] - figures["p50_ms_0"]
        setup.samples.append(lone)


def measure_setups(setups: Sequence[MeasuredSetup], durations: LoadDurations, rounds: int) -> list[str]:
    """Run all rounds, add samples to the setups, and return the problems."""
    problems: list[str] = []
    warm_up(setups[0], durations)
    for number in range(rounds):
        for setup in setups if number % 2 == 0 else list(reversed(setups)):
            try:
                figures = measure_throughput(setup, durations)
            except LoadFailed as error:
                problems.append(f"{setup.name}: {error}")
                continue
            setup.samples.append(figures)
            _print_progress(setup, figures)
        try:
            measure_lone_sender(setups, durations, durations.latency_messages * 5, warm_up=2000)
        except LoadFailed as error:
            problems.append(f"lone sender: {error}")
        else:
            for setup in setups:
                _print_progress(setup, setup.samples[-1])
    return problems


def measure_forwarding_capacity(durations: LoadDurations, problems: list[str]) -> dict[int, Figures]:
    """Measure the frames per second of a gateway that only forwards, by outstanding requests per connection."""
    try:
        return measure_capacity(start_forwarding_gateway, durations)
    except LoadFailed as error:
        problems.append(f"capacity: {error}")
        return {}


def _print_progress(setup: MeasuredSetup, figures: Figures) -> None:
    text = "  ".join(f"{name} {value:.5g}" for name, value in figures.items())
    click.echo(f"{setup.name:20} {text}", err=True)


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


def render_markdown(
    setups: Sequence[MeasuredSetup], rounds: int, carried: Mapping[int, Figures], problems: Sequence[str]
) -> str:
    """Return the table, the bars and the notes a reader needs."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for setup in setups:
        cells = [_format_figure(setup.median(figure)) for figure in COLUMNS]
        lines.append(f"| {setup.name} | " + " | ".join(cells) + " |")
    notes = [
        f"Medians of {rounds} round(s) on {os.cpu_count()} processors, shared by clients, broker, gateways and target. "
        "CPU and memory are those of the gateway, or of the broker in the row without one.",
        f'"{FORWARD}" runs with report.series off, the other gateways with it on.',
        *judge_bars(setups),
        *(_describe_capacity(outstanding, figures) for outstanding, figures in carried.items()),
        *(f"FAILED: {problem}" for problem in problems),
    ]
    return "\n".join(lines) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def judge_bars(setups: Sequence[MeasuredSetup]) -> list[str]:
    """Return one sentence per bar for the gateway that only forwards."""
    forward = next(setup for setup in setups if setup.name == FORWARD)
    added, rate, batched = map(forward.median, ("added_ms", "rate", "batch_rate"))
    verdicts = []
    if added is not None:
        verdicts.append(
            f"{FORWARD} adds {added:.3f} ms to p50 (bar ≤ {MAX_ADDED_MS}): {_verdict(added <= MAX_ADDED_MS)}"
        )
    for how, carried in (("one by one", rate), ("in batches of 16", batched)):
        if carried is not None:
            met = _verdict(carried >= MIN_RATE)
            verdicts.append(
                f"{FORWARD} carries {carried:,.0f} messages/s {how} (bar ≥ {MIN_RATE:,.0f}): {met}"
            )
    return verdicts


def _describe_capacity(outstanding: int, figures: Figures) -> str:
    return (
        f"{FORWARD} carries {figures['rate']:,.0f} frames/s over {CONNECTIONS} connections with {outstanding} "
        f"outstanding request(s) each, with neither client nor broker as the bottleneck (bar ≥ {MIN_RATE:,.0f}): "
        f"{_verdict(figures['rate'] >= MIN_RATE)}"
    )


def _verdict(met: bool) -> str:
    return "met" if met else "**not met**"


def _format_figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Number of runs of each load on each setup (default: 3; 1 with --quick).",
)
@click.option("--quick", is_flag=True, help="Run short loads on cold JVMs; do not quote the figures.")
@click.option("--forward-only", is_flag=True, help="Measure only the gateway that forwards.")
@click.option(
    "--markdown",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the table to this file.",
)
def main(rounds: int | None, quick: bool, forward_only: bool, file: Path | None) -> None:
    """Measure the shadow gateway's cost in front of the official broker, with stock clients."""
    exit_on_sigterm()
    rounds, durations = rounds or (1 if quick else 3), QUICK if quick else LoadDurations()
    try:
        with ExitStack() as stack:
            setups = start_setups(stack, forward_only)
            problems = measure_setups(setups, durations, rounds)
        carried = measure_forwarding_capacity(durations, problems)
    except Unavailable as error:
        raise click.ClickException(f"cannot measure on this machine: {error}") from error
    text = render_markdown(setups, rounds, carried, problems)
    click.echo(text)
    if file:
        file.write_text(text + "\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
