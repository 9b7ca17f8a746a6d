"""`python -m compat_tests.bench.isolation`: what a mirror costs the primary's clients when its target fails.

One sender at a fixed rate uses gateways in turn that differ only in their target: none, healthy, stalled in the
middle (SIGSTOP), gone (nobody listens), or one that answers garbage.

Not responsible for what mirrors do then (their tests are).
"""

import os
import re
import signal
import socket
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from compat_tests.bench.shadow import Side, gateway
from compat_tests.bench.usage import cpu_s, memory_mib
from compat_tests.clients.typed import connect, send_request, topic_request
from compat_tests.endpoints import KINDS, Unavailable, choose, exit_on_sigterm
from compat_tests.endpoints.ours import Ours
from remoting.blocking import BlockingClient

TOPIC = "BenchIsolation"
OFF, HEALTHY = "mirroring off", "healthy"
MOST_LOST = 0.05
_COUNTED = re.compile(
    r"rocketmq_shadow_mirror_(observed|mirrored|skipped|refused|dropped)_total\S* ([0-9.e+]+)"
)
_QUEUED = re.compile(r"rocketmq_shadow_mirror_queued\{\S* ([0-9.e+]+)")
GARBAGE = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@dataclass
class Run:
    """One gateway and what was measured of it. `console` is "host:port"."""

    side: Side
    client: BlockingClient
    console: str
    latencies_s: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    cpu_s: float = 0.0

    def quantile_ms(self, share: float) -> float:
        return statistics.quantiles(self.latencies_s, n=1000)[round(share * 1000) - 1] * 1000

    @property
    def rate(self) -> float:
        return len(self.latencies_s) / self.spent_s


def block(run: Run, rate: float, count: int, number: int) -> None:
    """Sends `count` messages, each at its time; one that is late is sent at once."""
    before_s, start_s = cpu_s(run.side.pids()), time.perf_counter()
    for index in range(count):
        due_s = start_s + index / rate
        while (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        asked_s = time.perf_counter()
        run.client.ask(send_request(TOPIC, b"x" * 128, properties={"UNIQ_KEY": f"{number + index:032X}"}))
        run.latencies_s.append(time.perf_counter() - asked_s)
    run.spent_s += time.perf_counter() - start_s
    run.cpu_s += cpu_s(run.side.pids()) - before_s


def counted(run: Run) -> tuple[dict[str, int], int]:
    """The mirror's counts and what is queued, by its console."""
    with urllib.request.urlopen(f"http://{run.console}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    counts: dict[str, int] = {}
    for name, value in _COUNTED.findall(text):
        counts[name] = counts.get(name, 0) + round(float(value))
    return counts, sum(round(float(value)) for value in _QUEUED.findall(text))


def babbler(stack: ExitStack) -> str:
    """The address of a server that answers garbage."""
    listener = socket.create_server(("127.0.0.1", 0))
    stack.callback(listener.close)

    def serve(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            while peer.recv(65536):
                peer.sendall(GARBAGE)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def start(stack: ExitStack, primary_kind: str) -> tuple[list[Run], Callable[[], None]]:
    """A gateway for each case, and what makes the target of the stalled one stall."""
    primary = stack.enter_context(choose(primary_kind))
    healthy, stalled = stack.enter_context(Ours()), stack.enter_context(Ours())
    targets = {
        OFF: "",
        HEALTHY: healthy.namesrv,
        "stalled": stalled.namesrv,
        "gone": nobody(),
        "garbage": babbler(stack),
    }
    runs = []
    directory = Path(stack.enter_context(TemporaryDirectory()))
    with connect(primary.broker) as broker:
        broker.ask(topic_request(TOPIC, 1))
    for name, namesrv in targets.items():
        tables: dict[str, Any] = {"mirroring.queue_messages": 2_000}
        if namesrv:
            tables |= {"target.namesrv": [namesrv], "target.kind": "any"}
        side = gateway(name, primary, directory, tables, stack)
        ready = side.ready
        (broker_address,) = ready["brokers"].values()
        runs.append(Run(side, stack.enter_context(connect(broker_address)), ready["console"]))

    def stall() -> None:
        for pid in stalled.pids():
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)

    return runs, stall


def measure(runs: list[Run], stall: Callable[[], None], rate: float, rounds: int, count: int) -> None:
    """Blocks in turn; the first of each warms up and is forgotten."""
    for run in runs:
        block(run, rate, count, 0)
        run.latencies_s.clear()
        run.spent_s = run.cpu_s = 0.0
    stall()
    for number in range(rounds):
        for run in runs if number % 2 == 0 else reversed(runs):
            block(run, rate, count, (number + 1) * count)


def markdown(runs: list[Run]) -> tuple[str, bool]:
    """The table, and whether all counts are exact."""
    lines = [
        "| target | messages/s | p50 ms | p99 ms | CPU µs/message | MiB | observed = mirrored + skipped + refused + "
        "dropped + queued |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    exact = True
    for run in runs:
        figures = f"{run.rate:.1f} | {run.quantile_ms(0.5):.3f} | {run.quantile_ms(0.99):.2f}"
        figures += (
            f" | {run.cpu_s / len(run.latencies_s) * 1e6:.0f} | {memory_mib(run.side.pids(), 'RssAnon'):.0f}"
        )
        law = "-"
        if run.side.name != OFF:
            counts, queued = counted(run)
            parts = [counts[name] for name in ("mirrored", "skipped", "refused", "dropped")]
            exact = exact and counts["observed"] == sum(parts) + queued
            law = f"{counts['observed']} = " + " + ".join(map(str, [*parts, queued]))
        lines.append(f"| {run.side.name} | {figures} | {law} |")
    return "\n".join(lines), exact


@click.command()
@click.option("--primary", default="ours", show_default=True, help=KINDS)
@click.option("--rate", type=float, default=500.0, show_default=True, help="Messages a second.")
@click.option("--rounds", type=click.IntRange(2), default=40, show_default=True)
@click.option("--count", type=click.IntRange(10), default=100, show_default=True, help="Messages in a turn.")
def main(primary: str, rate: float, rounds: int, count: int) -> None:
    """A sender at a fixed rate through gateways whose mirrors' targets fail, in turn."""
    exit_on_sigterm()
    try:
        with ExitStack() as stack:
            runs, stall = start(stack, primary)
            measure(runs, stall, rate, rounds, count)
            table, exact = markdown(runs)
    except Unavailable as error:
        raise click.ClickException(f"cannot measure on this machine: {error}") from error
    click.echo(table)
    off = runs[0]
    for run in runs[1:]:
        less = 1 - run.rate / off.rate
        more = run.quantile_ms(0.99) / off.quantile_ms(0.99) - 1
        differs = f"throughput {-less:+.1%}, p99 {more:+.1%}"
        click.echo(f"- {run.side.name}: {differs} of mirroring off (bar: within {MOST_LOST:.0%})")
    sys.exit(0 if exact else 1)


if __name__ == "__main__":
    main()
