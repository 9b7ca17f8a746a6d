"""The command line: `python -m tools.failovers --brokers ours --controllers etcd --rounds 3`."""

import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from compat_tests.endpoints import Unavailable, exit_on_sigterm
from tools.failovers.cluster import BROKER_GROUPS, CONTROLLER_KINDS
from tools.failovers.faults import FAULTS, FAULTS_BY_NAME
from tools.failovers.rounds import TROUBLE, RoundResult, Rounds, run_rounds
from tools.failovers.timeline import ANY, medians
from tools.failovers.traffic import CLIENTS


@click.command()
@click.option(
    "--brokers",
    type=click.Choice(list(BROKER_GROUPS)),
    multiple=True,
    default=tuple(BROKER_GROUPS),
    help="Kind of the three brokers; repeatable. Default: all.",
)
@click.option(
    "--controllers",
    type=click.Choice(list(CONTROLLER_KINDS)),
    multiple=True,
    default=tuple(CONTROLLER_KINDS),
    help="Kind of the controllers; repeatable. Default: all.",
)
@click.option(
    "--fault",
    "faults",
    type=click.Choice(list(FAULTS_BY_NAME)),
    multiple=True,
    default=tuple(FAULTS_BY_NAME),
    help="ClusterFault of the rounds; repeatable. Default: all that the cluster can have.",
)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="Rounds of each fault.")
@click.option(
    "--client",
    "clients",
    type=click.Choice(CLIENTS),
    multiple=True,
    default=CLIENTS,
    help="Stock client beside our senders and readers; repeatable. Default: all.",
)
@click.option("--short", "is_short", is_flag=True, help="Without stock clients.")
@click.option("--set", "settings", multiple=True, help="Setting of every broker: KEY=VALUE; repeatable.")
@click.option("--seconds", type=click.IntRange(1), help="Time after which no further round begins.")
@click.option("--keep", is_flag=True, help="Keep the folder of a cluster with a problem.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the results of all runs so far, to which those of this run are added.",
)
@click.option("--table", "is_table", is_flag=True, help="Run nothing, and print the table of --results.")
def main(
    brokers: Sequence[str],
    controllers: Sequence[str],
    faults: Sequence[str],
    rounds: int,
    clients: Sequence[str],
    is_short: bool,
    settings: Sequence[str],
    seconds: int | None,
    keep: bool,
    results: Path | None,
    is_table: bool,
) -> None:
    """Run clusters of three brokers through faults, and print tables of what came of them.

    Exit status 1: a cluster with a part of ours broke a law.
    """
    exit_on_sigterm()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    rows = _read_results(results)
    deadline_s = time.monotonic() + (seconds or 10**9)
    chosen = [fault for fault in FAULTS if fault.name in faults]
    pairs = [(group, kind) for group in brokers for kind in controllers]
    for group, kind in () if is_table else pairs:
        if time.monotonic() >= deadline_s:
            break
        directory = Path(tempfile.mkdtemp(prefix="failovers-"))
        begin = len(rows)
        try:
            with ExitStack() as stack:
                lines = dict(setting.split("=", 1) for setting in settings)
                running = Rounds(group, kind, () if is_short else clients, directory, stack, lines)
                for row in run_rounds(running, chosen, rounds, deadline_s):
                    rows.append(row)
                    if results is not None:
                        results.write_text(json.dumps([asdict(item) for item in rows], indent=1))
                consumers = RoundResult(group, kind, "consumers at the end")
                for client, counts in running.traffic.judge_consumers().items():
                    click.echo(f"{group} under {kind}, {client}: {counts}", err=True)
                    if counts.missing and group == "ours":
                        consumers.problems.append(f"{client}: {counts}")
                if consumers.problems:
                    rows.append(consumers)
        except Unavailable as error:
            raise click.ClickException(f"cannot run: {error}") from error
        except TROUBLE as error:
            step = "start" if len(rows) == begin else "end"
            click.echo(f"{group} under {kind}: stuck at its {step}: {error!r}", err=True)
            rows.append(RoundResult(group, kind, step, problems=[f"stuck: {error!r}"]))
        if keep and any(row.problems for row in rows[begin:]):
            click.echo(f"files: {directory}", err=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    click.echo(table(rows))
    sys.exit(1 if any(row.problems and not row.is_official for row in rows) else 0)


def _read_results(results: Path | None) -> list[RoundResult]:
    if results is None or not results.exists():
        return []
    return [RoundResult(**item) for item in json.loads(results.read_text())]


def table(rows: Sequence[RoundResult]) -> str:
    """Return Markdown tables: times until a cluster is writable, pauses of clients, and broken laws, by cluster."""
    clusters = [
        (group, kind)
        for group in BROKER_GROUPS
        for kind in CONTROLLER_KINDS
        if any((row.brokers, row.controllers) == (group, kind) for row in rows)
    ]
    columns = [[row for row in rows if (row.brokers, row.controllers) == cluster] for cluster in clusters]
    head = [f"{group} under {kind}" for group, kind in clusters]
    names = [name for name in FAULTS_BY_NAME if any(row.fault == name for row in rows)]
    writable = [
        [name, *(_times(_of_fault(column, name), "writable") for column in columns)] for name in names
    ]
    clients = list(dict.fromkeys(client for row in rows for client in row.pauses_s if client != ANY))
    pauses = [
        [f"{name}, {client}", *(_times(_of_fault(column, name), client) for column in columns)]
        for name in names
        for client in clients
        if any(client in row.pauses_s for row in _of_fault(rows, name))
    ]
    laws = [
        ["rounds", *(str(len(column)) for column in columns)],
        ["accepted sends", *(f"{sum(row.accepted for row in column):,}" for column in columns)],
        ["elections", *(str(sum(row.elections for row in column)) for column in columns)],
        ["rounds with a problem", *(str(sum(bool(row.problems) for row in column)) for column in columns)],
    ]
    sections = (
        ("Seconds until a send is accepted: median (maximum) of rounds", writable),
        ("Longest pause of each client, in seconds: median (maximum)", pauses),
        ("Laws", laws),
    )
    parts = [
        "\n".join([f"{title}\n", _line(["", *head]), _line(["---"] * (len(head) + 1)), *map(_line, lines)])
        for title, lines in sections
    ]
    problems = [
        f"- {row.brokers} under {row.controllers}, {row.fault} (master {row.master}): {'; '.join(row.problems)}"
        for row in rows
        if row.problems
    ]
    return "\n\n".join([*parts, "\n".join(problems)] if problems else parts)


def _of_fault(rows: Iterable[RoundResult], fault: str) -> list[RoundResult]:
    return [row for row in rows if row.fault == fault]


def _times(rows: Sequence[RoundResult], client: str) -> str:
    """Return median and maximum of the times of some rounds."""
    times = [
        {**row.pauses_s, **({} if row.writable_s is None else {"writable": row.writable_s})} for row in rows
    ]
    result = medians(times, client)
    if result is None:
        return "never" if rows and client == "writable" else "-"
    count = sum(client in item for item in times)
    never = len(rows) - count if client == "writable" else 0
    return f"{result[0]:.1f} ({result[1]:.1f}) of {count}" + (f", {never} never" if never else "")


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
