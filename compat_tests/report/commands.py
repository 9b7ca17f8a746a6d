"""The command `rmq-gateway compat`: run the suite against an endpoint and say where it deviates.

The endpoint's results are compared with a recorded run of an official version (`compat_tests/snapshots`), so that no
official server is needed, or with a second endpoint. Each run of the cases is a process of its own.
"""

import json
import sys
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from compat_tests.areas import AREAS
from compat_tests.endpoints import ENDPOINT_KINDS
from compat_tests.report.comparison import (
    DEVIATES,
    NOT_RUN,
    SNAPSHOTS,
    EndpointComparison,
    compare,
    read_snapshot,
    snapshot_versions,
)
from compat_tests.report.html_page import render_page, verdict_text
from compat_tests.results_table import Results, read_results
from compat_tests.suite import run_cases
from toolkit.exit_codes import ConfigurationError, ExitCode
from toolkit.install_command import install_command

ABOUT_THE_ENDPOINT: Final = "not ours_only and not both_servers"
"""Leaves out the cases that start servers of their own, whatever the endpoint."""
PYTEST_TESTS_FAILED: Final = 1
PYTEST_NOTHING_SELECTED: Final = 5
MAX_LISTED: Final = 50
"""Largest number of deviations that are printed; the files list all."""


@click.command()
@click.option("--namesrv", metavar="HOST:PORT", help="Test the cluster at this namesrv.")
@click.option(
    "--image", metavar="VERSION", help="Test the official container image of a version; needs Docker."
)
@click.option(
    "--official", is_flag=True, help="Test the official server from its Maven Central jars; needs Java."
)
@click.option("--ours", is_flag=True, help="Test this server, started for the run (default).")
@click.option("--against", metavar="ENDPOINT", help=f"Compare with a second endpoint: {ENDPOINT_KINDS}.")
@click.option(
    "--snapshot", metavar="VERSION", help="Compare with this recorded official version (the newest)."
)
@click.option(
    "--area", "areas", multiple=True, type=click.Choice(list(AREAS)), help="Only this area; repeatable."
)
@click.option(
    "-k", "--select", metavar="EXPRESSION", help="Only cases whose name matches, as with pytest -k."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write a JSON file."
)
@click.option(
    "--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write JUnit XML of the endpoint."
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page."
)
@click.option(
    "--record", metavar="VERSION", help="Record the results as the snapshot of an official version."
)
def compat(
    namesrv: str | None,
    image: str | None,
    official: bool,
    ours: bool,
    against: str | None,
    snapshot: str | None,
    areas: tuple[str, ...],
    select: str | None,
    json_file: Path | None,
    junit: Path | None,
    html: Path | None,
    record: str | None,
) -> None:
    """Test how compatible a RocketMQ endpoint is, and print where it deviates.

    Cases create topics and groups with names of their own and delete them at the end, also after Ctrl-C. They fill
    queues and misbehave on connections: do not run them against a cluster in production.

    Exit code 0: nothing deviates; 3: something does; 4: nothing was compared.
    """
    endpoint = choose_one(namesrv, image, official, ours)
    if against and snapshot:
        raise click.UsageError("--against and --snapshot exclude each other: give one reference")
    if record and not (official or image):
        raise click.UsageError("--record needs --official or --image: only official servers are recorded")
    reference = None if against or record else _load_snapshot(snapshot)
    options = _selection(areas, select)
    results = _run_cases(endpoint, options, junit)
    if record:
        click.echo(f"recorded in {_write_snapshot(record, results)}")
        return
    if reference is None:
        assert against is not None
        reference = against, _run_cases(against, options, None)
    elif options:
        reference = reference[0], {name: line for name, line in reference[1].items() if name in results}
    comparison = compare((endpoint, results), reference)
    _write_files(comparison, json_file, html)
    _print_comparison(comparison)
    compared = len(comparison.cases) - comparison.counts[NOT_RUN]
    sys.exit(
        ExitCode.NOTHING if not compared else ExitCode.REFUSED if comparison.deviations else ExitCode.DONE
    )


def choose_one(namesrv: str | None, image: str | None, official: bool, ours: bool) -> str:
    """Return the endpoint that the flags name. Raises UsageError when they name several."""
    chosen = [
        *([namesrv] if namesrv else []),
        *([f"image:{image}"] if image else []),
        *(["official"] if official else []),
        *(["ours"] if ours else []),
    ]
    if len(chosen) > 1:
        raise click.UsageError("--namesrv, --image, --official and --ours exclude each other")
    return chosen[0] if chosen else "ours"


def _load_snapshot(version: str | None) -> tuple[str, Results]:
    versions = snapshot_versions()
    if not versions:
        raise click.ClickException(f"no official version is recorded in {SNAPSHOTS}: use --against ENDPOINT")
    if version is not None and version not in versions:
        raise click.UsageError(f"--snapshot {version} is not recorded; recorded are {', '.join(versions)}")
    return read_snapshot(version or versions[-1])


def _selection(areas: tuple[str, ...], select: str | None) -> list[str]:
    options = [f"--area={area}" for area in areas]
    return [*options, "-k", select] if select else options


def _run_cases(endpoint: str, options: list[str], junit: Path | None) -> Results:
    """Run the cases in a process of its own and return their results. Raises ClickException when it ended early."""
    if find_spec("pytest") is None:
        raise ConfigurationError(f"the suite needs pytest: {install_command('compat')}")
    with tempfile.TemporaryDirectory(prefix="rmq-compat-") as folder:
        results = Path(folder) / "results.jsonl"
        quiet = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-m", ABOUT_THE_ENDPOINT]
        junit_option = [f"--junitxml={junit.absolute()}"] if junit is not None else []
        code = run_cases(endpoint, results, [*quiet, *options, *junit_option], sys.stderr)
        if code == PYTEST_NOTHING_SELECTED:
            return {}
        if code not in (0, PYTEST_TESTS_FAILED) or not results.exists():
            raise click.ClickException(
                f"the cases against {endpoint} ended early (pytest exit code {code}); see above"
            )
        return read_results(results)[1]


def _write_snapshot(version: str, results: Results) -> Path:
    path = SNAPSHOTS / f"official-{version}.jsonl"
    names = ("id", "area", "feature", "outcome", "reason")
    lines = [{"endpoint": "official", **{name: line[name] for name in names}} for line in results.values()]
    path.write_text("".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: line["id"])))
    return path


def _write_files(comparison: EndpointComparison, json_file: Path | None, html: Path | None) -> None:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(comparison, when), indent=1) + "\n")
    if html is not None:
        html.write_text(render_page(comparison, when))


def as_json(comparison: EndpointComparison, when: str) -> dict[str, Any]:
    """Return everything that the page shows, for programs."""
    return {
        "endpoint": comparison.endpoint,
        "reference": comparison.reference,
        "time": when,
        "verdict": verdict_text(comparison),
        "counts": dict(comparison.counts),
        "cases": [
            {
                "id": each.id,
                "area": each.area,
                "feature": each.feature,
                "outcome": each.outcome,
                "expected": each.expected,
                "verdict": each.verdict,
                "reason": each.reason,
            }
            for each in comparison.cases
        ],
    }


def _print_comparison(comparison: EndpointComparison) -> None:
    found = comparison.deviations
    for each in found[:MAX_LISTED]:
        click.echo(f"{DEVIATES}: {each.feature} ({each.id}): {each.reason or each.outcome}")
    if len(found) > MAX_LISTED:
        click.echo(f"… and {len(found) - MAX_LISTED} more: --json FILE or --html FILE lists all")
    click.echo(verdict_text(comparison))
