"""Measures what replication costs: a master with and without a slave, ours beside the official pair.

Run it with `make bench-replication`; `docs/explanation/performance.md` has results. Each arrangement is started alone,
warmed up, and sent to by the official benchmark producer with 64 threads: first the processor time of the master is
taken, then that of the slave. Official brokers run with G1 and untuned.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from compat_tests.clients.typed import connect
from compat_tests.endpoints import Endpoint, Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import FULL_SPEED, OfficialEndpoint, ReplicaEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.namesrv import GetBrokerClusterInfo
from tools.bench.figure_table import FigureRow, figure_table
from tools.bench.loads import Figures, LoadDurations, LoadFailed, send_load, warm_up
from tools.bench.usage import work_until_idle_s
from tools.processes import Gateway

THREADS: Final = 64
COPY_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.1
CLUSTER: Final = "DefaultCluster"

ROWS: Final = (
    FigureRow("rate", f"{THREADS} threads of 128 B, messages/s"),
    FigureRow("master_us", "processor time of the master, us a message"),
    FigureRow("slave_us", "processor time of the slave, us a message"),
)


@dataclass(frozen=True)
class Measured:
    """A running master, or its slave, as loads see it: they send to the master and count ``pids``."""

    name: str
    namesrv: str
    broker: str
    process_ids: tuple[int, ...]

    def pids(self) -> list[int]:
        """Return the processes whose processor time counts."""
        return list(self.process_ids)


@dataclass(frozen=True)
class Pair:
    """A running master and its slave; the slave is None where there is none."""

    master: Measured
    slave: Measured | None


Arrange = Callable[[Path], Iterator[Pair]]
"""Starts an arrangement in a folder, yields it, and stops it."""


def _settings(role: str) -> Mapping[str, str]:
    # The official default of inSyncReplicas waits for nobody, so both sides are told to wait for one slave.
    return {"brokerRole": role, **({"inSyncReplicas": "2"} if role == "SYNC_MASTER" else {})}


def _ours(role: str, *, with_slave: bool) -> Arrange:
    def arrange(directory: Path) -> Iterator[Pair]:
        with ExitStack() as stack:
            master = stack.enter_context(OursEndpoint(_settings(role), directory / "master"))
            name = f"ours, {role}" + ("" if with_slave else ", no slave")
            measured = _measured(name, master)
            slave = None
            if with_slave:
                options = ["-n", master.namesrv, "--store", str(directory / "slave-store")]
                for setting in ("brokerRole=SLAVE", "brokerId=1"):
                    options += ["--set", setting]
                process = stack.enter_context(Gateway(directory / "slave", *options, command="broker"))
                slave = Measured(name, master.namesrv, process.broker, (process.pid,))
            yield Pair(measured, slave)

    return arrange


def _official(role: str) -> Arrange:
    def arrange(directory: Path) -> Iterator[Pair]:
        with ExitStack() as stack:
            name = f"official, {role}"
            master = stack.enter_context(
                OfficialEndpoint(_settings(role), directory / "master", jvm=FULL_SPEED)
            )
            settings = {"brokerRole": "SLAVE", "brokerId": "1"}
            replica = ReplicaEndpoint(
                settings, directory / "slave", master.namesrv, lambda address: _lists(master, address)
            )
            replica.jvm = FULL_SPEED
            stack.enter_context(replica)
            slave = Measured(name, master.namesrv, replica.broker, tuple(replica.pids()))
            yield Pair(_measured(name, master), slave)

    return arrange


def _measured(name: str, endpoint: Endpoint) -> Measured:
    # The last process is the broker; the official namesrv is another one, and idle.
    return Measured(name, endpoint.namesrv, endpoint.broker, tuple(endpoint.pids()[-1:]))


def _lists(endpoint: Endpoint, address: str) -> bool:
    with connect(endpoint.namesrv) as namesrv:
        table = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table
    return any(address in entry.broker_addrs.values() for entry in table.values())


ARRANGEMENTS: Final[Mapping[str, Arrange]] = {
    "ours-alone": _ours("ASYNC_MASTER", with_slave=False),
    "ours-async": _ours("ASYNC_MASTER", with_slave=True),
    "ours-sync": _ours("SYNC_MASTER", with_slave=True),
    "official-async": _official("ASYNC_MASTER"),
    "official-sync": _official("SYNC_MASTER"),
}


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Runs of each arrangement."
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(ARRANGEMENTS)),
    help="Measure only this arrangement; may be repeated.",
)
def main(rounds: int, only: tuple[str, ...]) -> None:
    """Measure masters with and without slaves, in turns, and print the medians."""
    exit_on_sigterm()
    names = only or tuple(ARRANGEMENTS)
    samples: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in names:
            try:
                figures = measure(name, LoadDurations())
            except (Unavailable, LoadFailed, OSError) as error:
                raise click.ClickException(f"cannot measure {name}: {error}") from error
            samples[name].append(figures)
            text = "  ".join(f"{key} {value:.4g}" for key, value in figures.items())
            click.echo(f"round {number}  {name:15} {text}", err=True)
    medians = [_medians(samples[name]) for name in names]
    click.echo(figure_table(ROWS, list(names), medians))
    sys.exit(0)


def _medians(samples: list[Figures]) -> Figures:
    return {key: statistics.median(figures[key] for figures in samples) for key in samples[0]}


def measure(name: str, durations: LoadDurations) -> Figures:
    """Start an arrangement, warm it up and measure it. Raises Unavailable, LoadFailed, OSError."""
    load = send_load("replicated", "Producer", THREADS, 128)
    with (
        tempfile.TemporaryDirectory(prefix="bench-replication-") as text,
        contextmanager(ARRANGEMENTS[name])(Path(text)) as pair,
    ):
        _wait_until_copied(pair)
        warm_up(pair.master, durations)
        _wait_until_copied(pair)
        at_master = load.run(pair.master, durations)
        _wait_until_copied(pair)
        figures = {"rate": at_master["rate"], "master_us": at_master["cpu_us"]}
        if pair.slave is not None:
            counted_at_master = Measured(
                name, pair.master.namesrv, pair.master.broker, pair.slave.process_ids
            )
            figures["slave_us"] = load.run(counted_at_master, durations)["cpu_us"]
        return figures


def _wait_until_copied(pair: Pair) -> None:
    """Wait until the slave has the master's log, and both are idle. Raises LoadFailed if that takes too long."""
    end = time.monotonic() + COPY_TIMEOUT_S
    while pair.slave is not None and not 0 <= _log_end(pair.master) <= _log_end(pair.slave):
        if time.monotonic() > end:
            raise LoadFailed(f"the slave has not copied the log in {COPY_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
    for measured in (pair.master, pair.slave):
        if measured is not None:
            work_until_idle_s(measured.pids(), LoadDurations().settle_limit_s)


def _log_end(measured: Measured) -> int:
    """Return the end of a broker's log, -1 while it cannot say: an official slave without queues fails to answer."""
    with connect(measured.broker) as broker:
        try:
            return int(broker.ask(GetBrokerRuntimeInfo()).data.table["commitLogMaxOffset"])
        except RequestError:
            return -1


if __name__ == "__main__":
    main()
