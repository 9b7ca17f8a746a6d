"""The command line: `python -m tools.pairings --only ours/ours`."""

import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Final

import click

from compat_tests.endpoints import Unavailable, exit_on_sigterm
from tools.pairings.members import OFFICIAL, OFFICIAL_4, OURS
from tools.pairings.network import Loopback, open_network
from tools.pairings.story import STEPS, PairingRow, run_pairing

NAMES: Final = {"4.9.7": OFFICIAL_4, "5.4.0": OFFICIAL, "ours": OURS}
PAIRINGS: Final = {
    f"{master}/{slave}": (NAMES[master], NAMES[slave]) for master in NAMES for slave in ("5.4.0", "ours")
}


@click.command()
@click.option(
    "--only",
    "names",
    type=click.Choice(list(PAIRINGS)),
    multiple=True,
    default=tuple(PAIRINGS),
    help="Pairing to run, as master/slave; repeatable. Default: all.",
)
@click.option("--short", "is_short", is_flag=True, help="Without stock clients and long steps.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Pairings at a time.")
@click.option("--keep", is_flag=True, help="Keep the folder of a pairing that failed.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the rows of all runs so far, to which those of this run are added.",
)
def main(names: Sequence[str], is_short: bool, jobs: int, keep: bool, results: Path | None) -> None:
    """Run masters and slaves of every kind through faults, and print a table of what came of them.

    Exit status 1: a pairing with our broker broke a law of replication.
    """
    exit_on_sigterm()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    rows = _read_rows(results)

    def run(name: str) -> None:
        begun_s = time.monotonic()
        rows[name] = row = _run(name, is_short=is_short, keep=keep)
        click.echo(f"{name}: {row.failure or 'passed'} ({time.monotonic() - begun_s:.0f} s)", err=True)
        if results is not None:
            results.write_text(json.dumps({key: astuple(value) for key, value in list(rows.items())}))

    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, names))
    except Unavailable as error:
        raise click.ClickException(f"cannot run: {error}") from error
    click.echo(table([rows[name] for name in PAIRINGS if name in rows]))
    sys.exit(1 if any(row.failure for row in rows.values()) else 0)


def _read_rows(results: Path | None) -> dict[str, PairingRow]:
    if results is None or not results.exists():
        return {}
    return {name: PairingRow(*fields) for name, fields in json.loads(results.read_text()).items()}


def _run(name: str, *, is_short: bool, keep: bool) -> PairingRow:
    master, slave = PAIRINGS[name]
    directory = Path(tempfile.mkdtemp(prefix="pairing-"))
    network = open_network()
    if isinstance(network, Loopback):
        click.echo("no network namespaces here: no link is dropped", err=True)
    row = run_pairing(master, slave, network, directory, is_short=is_short)
    if row.failure and keep:
        click.echo(f"files: {directory}", err=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return row


def table(rows: Sequence[PairingRow]) -> str:
    """Return the rows as a Markdown table: a line for each step, a column for each pairing."""
    lines = ["| step | " + " | ".join(f"{row.master} → {row.slave}" for row in rows) + " |"]
    lines.append("|---" * (len(rows) + 1) + "|")
    for step in STEPS:
        if any(step in row.cells for row in rows):
            lines.append(f"| {step} | " + " | ".join(row.cells.get(step, "-") for row in rows) + " |")
    return "\n".join(lines)
