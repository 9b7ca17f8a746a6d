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

from compat_tests.bench.capacity import CONNECTIONS, measure_capacity
from compat_tests.bench.loads import (
    BATCH,
    QUICK,
    WARM_UP,
    Figures,
    LoadDurations,
    LoadFailed,
    MeasuredEndpoint,
    run_bench_client,
    send_load,
)
from compat_tests.bench.usage import memory_mib
from compat_tests.endpoints import Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import FULL_SPEED, OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint, python_path, wait_ready
from compat_tests.endpoints.process import ChildProcess

DIRECT, FORWARD = "no gateway", "forward only"
MAX_ADDED_MS = 0.15
MIN_RATE = 30_000.0
THROUGHPUT = send_load("Shadow-64t-128B", "Producer", 64, 128)
BLOCK_SENDS = 50
"""So many sends one after the other, before it is the next setup's turn."""


@dataclass
class MeasuredSetup:
    """One way to the broker. `pids` are of the gateway, or of the broker when there is none; `ready` is its line."""

    name: str
    namesrv: str
    broker: str
    children: Sequence[ChildProcess] = ()
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


def start_gateway(
    name: str,
    primary: MeasuredEndpoint,
    directory: Path,
    tables: Mapping[str, Any],
    stack: ExitStack,
    sets: Sequence[str] = (),
) -> MeasuredSetup:
    """A gateway in front of a broker, with these keys of shadow.toml; it ends with the stack. `sets`: more, as text."""
    keys = {"primary.namesrv": [primary.namesrv], "listen.host": "127.0.0.1", "console.port": 0}
    keys |= {"listen.namesrv_port": 0, "listen.broker_port": 0, **tables}
    command = [sys.executable, "-m", "gateway.cli", "shadow", "--log-level", "warning"]
    for setting in [*(f"{key}={json.dumps(value)}" for key, value in keys.items()), *sets]:
        command += ["--set", setting]
    log = directory / f"{name.replace(' ', '-')}.log"
    child = ChildProcess(name, command, log, python_path())
    stack.callback(child.terminate, 10)
    ready = wait_ready(log, 0, 30.0, lambda: None)
    return MeasuredSetup(name, str(ready["namesrv"]), primary.broker, [child], ready=ready)


def start_setups(stack: ExitStack, only_forward: bool) -> list[MeasuredSetup]:
    """The official broker, and the gateways before it; the last two mirror to a server of ours."""
    primary = stack.enter_context(OfficialEndpoint(jvm=FULL_SPEED))
    setups = [MeasuredSetup(DIRECT, primary.namesrv, primary.broker, primary.children)]
    setups.append(start_forwarding_gateway(primary, stack))
    if not only_forward:
        target = stack.enter_context(OursEndpoint())
        # Of kind "any", so that each mirrors what passes through it, and not what the others brought.
        mirror = {"target.namesrv": [target.namesrv], "target.kind": "any"}
        for name, compare in (("mirror async", False), ("mirror with compare", True)):
            tables = {**mirror, "compare.enabled": compare}
            setups.append(start_gateway(name, primary, primary.directory, tables, stack))
    return setups


def start_forwarding_gateway(primary: OfficialEndpoint | OursEndpoint, stack: ExitStack) -> MeasuredSetup:
    """A gateway that forwards and does nothing else, not even remember rates for a report."""
    return start_gateway(FORWARD, primary, primary.directory, {"report.series": False}, stack)


def measure_throughput(setup: MeasuredSetup, durations: LoadDurations) -> Figures:
    """Messages one by one, and in batches."""
    figures = THROUGHPUT.run(setup, durations)
    figures["rss_mib"] = memory_mib(setup.pids(), "RssAnon")
    batched = BATCH.run(setup, durations)
    return {**figures, "batch_rate": batched["rate"], "batch_cpu_us": batched["cpu_us"]}


def measure_lone_sender(
    setups: Sequence[MeasuredSetup], durations: LoadDurations, count: int, warm_up: int
) -> None:
    """One thread of one JVM sends by each setup in turn, so that what else the machine does falls on all alike."""
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
    """Fills the samples of all setups; what went wrong."""
    problems: list[str] = []
    WARM_UP.run(setups[0], replace(durations, warm_up_s=durations.server_warm_up_s))
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
    """How many frames a gateway carries that only forwards, by how many are under way on a connection."""
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
    """The table, the bars and what a reader must know."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for setup in setups:
        cells = [_format_figure(setup.median(figure)) for figure in COLUMNS]
        lines.append(f"| {setup.name} | " + " | ".join(cells) + " |")
    notes = [
        f"Medians of {rounds} round(s) on {os.cpu_count()} processors, which clients, broker, gateways and target "
        "share. CPU and memory are the gateway's; the broker's where there is none.",
        "Forwarding alone is with report.series off, the others with it.",
        *judge_bars(setups),
        *(_describe_capacity(outstanding, figures) for outstanding, figures in carried.items()),
        *(f"FAILED: {problem}" for problem in problems),
    ]
    return "\n".join(lines) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def judge_bars(setups: Sequence[MeasuredSetup]) -> list[str]:
    """Whether forwarding alone is as cheap as it should be."""
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
        f"{FORWARD} carries {figures['rate']:,.0f} frames/s by {CONNECTIONS} connections, {outstanding} under way "
        f"on each, with neither a client nor a broker that is the limit (bar ≥ {MIN_RATE:,.0f}): "
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
    "--rounds", type=click.IntRange(1), help="How often each load runs on each setup (3; 1 with --quick)."
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
