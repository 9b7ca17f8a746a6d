"""Measures what 5.x clients cost over gRPC: our front beside the official Proxy and broker.

Run it with `make bench-grpc`; `docs/explanation/performance.md` has results. The stock Java client sends messages of
128 bytes, then a push consumer gets messages that were sent to its topic. All sides stay up, those that do not run
are suspended, and their order alternates. The official processes run with G1 and are warmed up until their rate is
steady.

``--sides`` also takes `rmq-gateway proxy` as a process of its own, in front of one broker of ours or an official one.
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from compat_tests.clients.typed import connect, has_route, topic_request
from compat_tests.endpoints import Unavailable, exit_on_sigterm
from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.official import FULL_SPEED, OfficialEndpoint
from compat_tests.endpoints.our_proxy import OurProxyEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.probe import Probe
from compat_tests.endpoints.process import ChildProcess
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.jars import compile_jar, java_command
from compat_tests.server import eventually
from tools.bench.figure_table import FigureRow, figure_table
from tools.bench.loads import QUICK, Figures, LoadDurations, LoadFailed, measure_sender
from tools.bench.usage import cpu_s, memory_mib, work_until_idle_s

THREADS: Final = (1, 16)
PUSHED: Final = 8_000
PUSH_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.05
ROUTE_TIMEOUT_S: Final = 40.0
FIRST_RECEIVE_S: Final = 3.0
"""Time in which a push consumer that has started asks all queues: a new group begins at their ends."""
_SOURCE: Final = Path(__file__).parent / "java" / "GrpcLoad.java"

ROWS: Final = (
    *(
        row
        for threads in THREADS
        for row in (
            FigureRow(f"cpu_us_{threads}", f"{threads} threads, processor time of the servers, us a message"),
            FigureRow(f"rate_{threads}", f"{threads} threads, messages/s"),
        )
    ),
    FigureRow("push_us", f"push of {PUSHED:,} messages, processor time of the servers, us a message"),
    FigureRow("memory_mib", "private memory afterwards (RssAnon), MiB"),
)


@dataclass(frozen=True)
class GrpcSide:
    """A server with the address of its gRPC side. ``process_ids`` are all processes between client and disk."""

    name: str
    namesrv: str
    broker: str
    grpc: str
    process_ids: tuple[int, ...]

    def pids(self) -> list[int]:
        """Return the processes whose processor time counts."""
        return list(self.process_ids)


def start_ours(stack: ExitStack) -> GrpcSide:
    """Start our server with a gRPC port; the stack ends it."""
    server = stack.enter_context(OursEndpoint(serves_grpc=True))
    assert server.grpc is not None
    return GrpcSide("ours", server.namesrv, server.broker, server.grpc, tuple(server.pids()))


def start_official(stack: ExitStack) -> GrpcSide:
    """Start the official namesrv, broker and Proxy, with full speed; the stack ends them. Raises Unavailable."""
    server = stack.enter_context(OfficialEndpoint(jvm=FULL_SPEED))
    proxy = stack.enter_context(OfficialProxy(server.namesrv, jvm=FULL_SPEED))
    return GrpcSide(
        "official 5.4.0", server.namesrv, server.broker, proxy.address, (*server.pids(), proxy.pid)
    )


def start_proxy(stack: ExitStack, cluster: LocalEndpoint, name: str) -> GrpcSide:
    """Start a cluster with `rmq-gateway proxy` in front of it; the stack ends them. Raises Unavailable."""
    server = stack.enter_context(OurProxyEndpoint(cluster))
    return GrpcSide(name, server.namesrv, server.broker, server.grpc, tuple(server.pids()))


STARTS: Final[Mapping[str, Callable[[ExitStack], GrpcSide]]] = {
    "ours": start_ours,
    "proxy": lambda stack: start_proxy(stack, OursEndpoint(), "proxy, ours"),
    "proxy-official": lambda stack: start_proxy(
        stack, OfficialEndpoint(jvm=FULL_SPEED), "proxy, official 5.4.0"
    ),
    "official": start_official,
}
"""The starter of each side, by the name that ``--sides`` has for it."""
DEFAULT_SIDES: Final = "ours,official"


def parse_sides(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Return the names of the sides. Raises BadParameter for one that is unknown, or named twice."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in STARTS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(STARTS)}")
    if len(set(names)) < len(names):
        raise click.BadParameter("a side is named twice")
    return names


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Runs of each load on each side."
)
@click.option(
    "--sides",
    default=DEFAULT_SIDES,
    show_default=True,
    callback=parse_sides,
    help=f"Servers to compare, separated by commas, of {', '.join(STARTS)}.",
)
@click.option("--quick", is_flag=True, help="Shortest loads, to try the benchmark: the figures mean nothing.")
def main(rounds: int, sides: list[str], quick: bool) -> None:
    """Compare gRPC at our server with the official Proxy and broker, and print the medians."""
    exit_on_sigterm()
    try:
        with ExitStack() as stack:
            grpc_sides = [STARTS[name](stack) for name in sides]
            medians = measure(grpc_sides, rounds, QUICK if quick else LoadDurations())
    except (Unavailable, LoadFailed, OSError) as error:
        raise click.ClickException(f"cannot measure gRPC: {error}") from error
    click.echo(figure_table(ROWS, [side.name for side in grpc_sides], medians))
    sys.exit(0)


def measure(sides: Sequence[GrpcSide], rounds: int, durations: LoadDurations) -> list[Figures]:
    """Return the medians of all figures of each side. Raises LoadFailed, OSError."""
    longer = replace(
        durations,
        warm_up_s=durations.server_warm_up_s,
        warm_up_limit_s=durations.server_warm_up_limit_s,
        warm_window_s=2 * durations.warm_window_s,
    )
    for side in sides:
        with _others_suspended(side, sides):
            measure_sends(side, max(THREADS), longer)
    samples: list[list[Figures]] = [[] for _ in sides]
    for number in range(rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for index in order:
            side = sides[index]
            with _others_suspended(side, sides):
                figures = measure_round(side, number, durations)
            samples[index].append(figures)
            text = "  ".join(f"{key} {value:.4g}" for key, value in figures.items())
            click.echo(f"round {number + 1}  {side.name:21} {text}", err=True)
    return [
        {key: statistics.median(figures[key] for figures in rounds_of_side) for key in rounds_of_side[0]}
        for rounds_of_side in samples
    ]


def measure_round(side: GrpcSide, number: int, durations: LoadDurations) -> Figures:
    """Run all loads once at one side."""
    figures: Figures = {}
    for threads in THREADS:
        sends = measure_sends(side, threads, durations)
        figures |= {f"cpu_us_{threads}": sends["cpu_us"], f"rate_{threads}": sends["rate"]}
    figures["push_us"] = measure_push(side, f"push-{number}", durations)
    figures["memory_mib"] = memory_mib(side.pids(), "RssAnon")
    return figures


def measure_sends(side: GrpcSide, threads: int, durations: LoadDurations) -> Figures:
    """Send with that many threads through the stock Java client."""
    topic = f"BenchGrpc{threads}"
    _create_topic(side, topic)
    with _java(side, "send", topic, str(threads)) as client:
        return measure_sender(side, client, topic, durations)


def measure_push(side: GrpcSide, group: str, durations: LoadDurations) -> float:
    """Return the processor time of a message, in us, from its send over remoting until a push consumer has it."""
    topic = f"BenchGrpc-{group}"
    _create_topic(side, topic)
    with _java(side, "push", topic, group, str(PUSHED)) as client, Probe(side.broker) as probe:
        _wait_for_line(client, "ready")
        time.sleep(FIRST_RECEIVE_S)
        begin_s = cpu_s(side.pids())
        for number in range(PUSHED):
            probe.send(topic, b"%128d" % number)
        _wait_for_line(client, "done")
        work_until_idle_s(side.pids(), durations.settle_limit_s)
        return (cpu_s(side.pids()) - begin_s) / PUSHED * 1e6


def _create_topic(side: GrpcSide, topic: str) -> None:
    with connect(side.broker) as broker:
        broker.ask(topic_request(topic, 4))
    with connect(side.namesrv) as namesrv:
        eventually(lambda: has_route(namesrv, topic), ROUTE_TIMEOUT_S)


@contextmanager
def _java(side: GrpcSide, *arguments: str) -> Iterator[ChildProcess]:
    """Run `GrpcLoad` during the block."""
    classes = [compile_jar([_SOURCE], "grpc-client-5.0")]
    with tempfile.TemporaryDirectory(prefix="rocketmq-bench-") as folder:
        home = Path(folder)
        command = java_command(
            "grpc-client-5.1",
            "GrpcLoad",
            home,
            heap="-Xms512m -Xmx1g -XX:+UseG1GC",
            classes=classes,
            mapped=False,
        )
        line = [*command, arguments[0], side.grpc, *arguments[1:]]
        client = ChildProcess("GrpcLoad", line, home / "output.txt", {"HOME": folder})
        try:
            yield client
        finally:
            client.kill()


def _wait_for_line(client: ChildProcess, line: str) -> None:
    end = time.monotonic() + PUSH_TIMEOUT_S
    while line not in client.log.read_text().splitlines():
        if client.exit_code() not in (None, 0) or time.monotonic() > end:
            raise LoadFailed(f"the client did not say {line!r}\n{client.log.read_text()[-1500:]}")
        time.sleep(POLL_S)


@contextmanager
def _others_suspended(running: GrpcSide, sides: Sequence[GrpcSide]) -> Iterator[None]:
    pids = [pid for side in sides if side is not running for pid in side.pids()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main()
