"""Measures what replication costs: a master with and without slaves, ours beside official ones.

Run it with `make bench-replication`; `docs/explanation/performance.md` has results. `--controlled` measures groups of
three with `allAckInSyncStateSet` under a controller instead of pairs. Each arrangement is started alone, warmed up, and
sent to by the official benchmark producer with 64 threads: first the processor time of the master is taken, then that
of each slave.
"""

import statistics
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from compat_tests.clients.typed import connect
from compat_tests.endpoints import Unavailable, exit_on_sigterm
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from tools.bench.figure_table import FigureRow, figure_table
from tools.bench.loads import QUICK, Figures, LoadDurations, LoadFailed, send_load, warm_up
from tools.bench.replica_arrangements import (
    CONTROLLED,
    PAIRS,
    REPLICAS,
    Measured,
    ReplicatedGroup,
    group_replicas,
)
from tools.bench.usage import work_until_idle_s

THREADS: Final = 64
COPY_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.1
ARRANGEMENTS: Final = {**PAIRS, **CONTROLLED}
SLAVE_FIGURES: Final = ("slave_us", "second_slave_us")

ROWS: Final = (
    FigureRow("rate", f"{THREADS} threads of 128 B, messages/s"),
    FigureRow("master_us", "processor time of the master, us a message"),
    FigureRow("slave_us", "processor time of the slave, us a message"),
)
CONTROLLED_ROWS: Final = (
    *ROWS,
    FigureRow("second_slave_us", "processor time of the second slave, us a message"),
    FigureRow("set_changes", "changes of the set of replicas in sync"),
)
"""Without a change of the set, every message was acknowledged by all replicas."""


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1), help="Runs of each arrangement (default: 3; 1 with --quick)."
)
@click.option("--controlled", is_flag=True, help=f"Groups of {REPLICAS} under a controller, not pairs.")
@click.option("--quick", is_flag=True, help="Run short loads on cold JVMs; do not quote the figures.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(ARRANGEMENTS)),
    help="Measure only this arrangement; may be repeated.",
)
def main(rounds: int | None, controlled: bool, quick: bool, only: tuple[str, ...]) -> None:
    """Measure masters with and without slaves, in turns, and print the medians."""
    exit_on_sigterm()
    names = only or tuple(CONTROLLED if controlled else PAIRS)
    durations = QUICK if quick else LoadDurations()
    samples: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(1, (rounds or (1 if quick else 3)) + 1):
        for name in names:
            try:
                figures = measure(name, durations)
            except (Unavailable, LoadFailed, OSError) as error:
                raise click.ClickException(f"cannot measure {name}: {error}") from error
            samples[name].append(figures)
            text = "  ".join(f"{key} {value:.4g}" for key, value in figures.items())
            click.echo(f"round {number}  {name:19} {text}", err=True)
    medians = [_medians(samples[name]) for name in names]
    rows = CONTROLLED_ROWS if any(name in CONTROLLED for name in names) else ROWS
    click.echo(figure_table(rows, list(names), medians))
    sys.exit(0)


def _medians(samples: list[Figures]) -> Figures:
    return {key: statistics.median(figures[key] for figures in samples) for key in samples[0]}


def measure(name: str, durations: LoadDurations) -> Figures:
    """Start an arrangement, warm it up and measure it. Raises Unavailable, LoadFailed, OSError."""
    load = send_load("replicated", "Producer", THREADS, 128)
    with (
        tempfile.TemporaryDirectory(prefix="bench-replication-") as text,
        contextmanager(ARRANGEMENTS[name])(Path(text)) as group,
    ):
        set_epoch = _set_epoch(group)
        _wait_until_copied(group, durations)
        warm_up(group.master, durations)
        _wait_until_copied(group, durations)
        at_master = load.run(group.master, durations)
        figures = {"rate": at_master["rate"], "master_us": at_master["cpu_us"]}
        # A run for each slave: a load counts the processor time of one broker.
        for figure, slave in zip(SLAVE_FIGURES, group.slaves, strict=False):
            _wait_until_copied(group, durations)
            at_slave = load.run(replace(group.master, process_ids=slave.process_ids), durations)
            figures[figure] = at_slave["cpu_us"]
        if group.controller is not None:
            figures["set_changes"] = float(_set_epoch(group) - set_epoch)
        return figures


def _set_epoch(group: ReplicatedGroup) -> int:
    """Return the epoch of the set of replicas in sync, which rises with each change; 0 without a controller."""
    if group.controller is None:
        return 0
    replicas = group_replicas(group.controller)
    if replicas.master_address != group.master.broker or replicas.sync_state_set_epoch is None:
        raise LoadFailed(f"{group.master.broker} is not the master any more")
    return replicas.sync_state_set_epoch


def _wait_until_copied(group: ReplicatedGroup, durations: LoadDurations) -> None:
    """Wait until the slaves have the master's log, and all are idle. Raises LoadFailed if that takes too long."""
    end = time.monotonic() + COPY_TIMEOUT_S
    while not all(0 <= _log_end(group.master) <= _log_end(slave) for slave in group.slaves):
        if time.monotonic() > end:
            raise LoadFailed(f"a slave has not copied the log in {COPY_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
    for measured in (group.master, *group.slaves):
        work_until_idle_s(measured.pids(), durations.settle_limit_s)


def _log_end(measured: Measured) -> int:
    """Return the end of a broker's log, -1 while it cannot say: an official slave without queues fails to answer."""
    with suppress(RequestError), connect(measured.broker) as broker:
        return int(broker.ask(GetBrokerRuntimeInfo()).data.table["commitLogMaxOffset"])
    return -1


if __name__ == "__main__":
    main()
