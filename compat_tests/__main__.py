"""The command line of the suite: `python -m compat_tests run …`, `table …`, `record …` and `page`.

`plugin.py` holds the pytest side of a run, `results_table.py` renders the table, `report/page.py` the page of the
documentation.
"""

import sys
from pathlib import Path

import click

from compat_tests.endpoints import ENDPOINT_KINDS
from compat_tests.report.commands import record_run
from compat_tests.report.page import PAGE, render_compatibility
from compat_tests.report.recorder import DEFAULT_REPEATS
from compat_tests.report.runs import Selection, SuiteRun
from compat_tests.report.snapshots import PROXIES, PROXY_AREA
from compat_tests.results_table import render_table
from compat_tests.suite import run_cases


@click.group()
def main() -> None:
    """Run the RocketMQ conformance suite and tabulate its results."""


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--endpoint", default="ours", show_default=True, help=f"Server to test: {ENDPOINT_KINDS}.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one JSON line per case to this file.",
)
@click.argument("pytest_options", nargs=-1, type=click.UNPROCESSED)
def run(endpoint: str, results: Path | None, pytest_options: tuple[str, ...]) -> None:
    """Run the cases against an endpoint. Further options go to pytest (-k NAME, -x, …)."""
    sys.exit(run_cases(endpoint, results, pytest_options))


@main.command("table")
@click.argument(
    "results", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def print_table(results: tuple[Path, ...]) -> None:
    """Print results files as a markdown table, one column per file."""
    click.echo(render_table(results), nl=False)


@main.command("record")
@click.argument("endpoint", type=click.Choice(list(PROXIES)))
@click.option(
    "-k", "--select", metavar="EXPRESSION", help="Only cases whose name matches, as with pytest -k."
)
@click.option(
    "--repeats", type=click.IntRange(min=0), default=DEFAULT_REPEATS, help="Runs of failed cases, at most."
)
def record_proxy(endpoint: str, select: str | None, repeats: int) -> None:
    """Record the cases of 5.x clients at our proxy, for the page; `rmq-gateway compat --record` records the others."""
    selection = Selection((PROXY_AREA,), select)
    record_run(SuiteRun(endpoint, selection, workers=1, named=endpoint), missing=False, repeats=repeats)


@main.command("page")
def write_page() -> None:
    """Write docs/reference/compatibility.md from the recorded runs."""
    PAGE.write_text(render_compatibility())
    click.echo(f"wrote {PAGE}")


if __name__ == "__main__":
    main(prog_name="python -m compat_tests")
