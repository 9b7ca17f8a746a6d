"""The command `rmq-gateway compat`: run the suite against an endpoint and say where it deviates.

The endpoint's results are compared with a recorded run of an official version (`compat_tests/snapshots`), so that no
official server is needed, or with a second endpoint. Each run of the cases is a process of its own.
"""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from compat_tests.areas import AREAS
from compat_tests.endpoints import (
    ENDPOINT_KINDS,
    MARKED_VERSION,
    OFFICIAL_VERSIONS,
    is_address,
    official_version,
)
from compat_tests.report.comparison import DEVIATES, EndpointComparison, compare
from compat_tests.report.html_page import render_page, verdict_text
from compat_tests.report.recorder import DEFAULT_REPEATS, failed_cases, run_with_repeats
from compat_tests.report.runs import (
    DEFAULT_WORKERS,
    Selection,
    SuiteRun,
)
from compat_tests.report.snapshots import (
    OURS,
    PROXIES,
    SNAPSHOTS,
    default_version,
    is_recorded,
    read_snapshot,
    snapshot_versions,
    write_snapshot,
)
from compat_tests.results_file import Results
from compat_tests.suite import collect_cases
from toolkit.exit_codes import ExitCode

MAX_WORKERS: Final = 8
MAX_LISTED: Final = 50
"""Largest number of deviations that are printed; the files list all."""


@click.command()
@click.option("--namesrv", metavar="HOST:PORT", help="Test the cluster at this namesrv.")
@click.option(
    "--image",
    metavar="IMAGE",
    help="Test a container image, by version (5.4.0) or name (apache/rocketmq:5.4.0); needs Docker.",
)
@click.option(
    "--official",
    is_flag=False,
    flag_value=MARKED_VERSION,
    metavar="VERSION",
    help=f"Test the official server from its Maven Central jars: {', '.join(OFFICIAL_VERSIONS)} or x.y.z; needs Java. "
    "With --namesrv, --image or --ours, compare that endpoint with the recorded version, as --snapshot does.",
)
@click.option("--ours", is_flag=True, help="Test this server, started for the run (default).")
@click.option(
    "--proxy", metavar="HOST:PORT", help="gRPC address of the endpoint, for the cases of 5.x clients."
)
@click.option("--against", metavar="ENDPOINT", help=f"Compare with a second endpoint: {ENDPOINT_KINDS}.")
@click.option(
    "--snapshot", metavar="VERSION", help=f"Compare with this recorded official version ({MARKED_VERSION})."
)
@click.option(
    "--area", "areas", multiple=True, type=click.Choice(list(AREAS)), help="Only this area; repeatable."
)
@click.option(
    "-k", "--select", metavar="EXPRESSION", help="Only cases whose name matches, as with pytest -k."
)
@click.option("--read-only", is_flag=True, help="Only cases that create and change nothing.")
@click.option(
    "--allow-admin",
    is_flag=True,
    help="With --namesrv, also cases that change settings of the cluster, register brokers, or misbehave.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    help=f"Number of cases that run at a time (default: {DEFAULT_WORKERS}; 1 with --record).",
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
    "--record",
    is_flag=True,
    help="Record the results for later comparisons; cases that fail are repeated before.",
)
@click.option("--missing", is_flag=True, help="With --record, only the cases that the recording lacks.")
@click.option(
    "--repeats",
    type=click.IntRange(min=0),
    default=DEFAULT_REPEATS,
    show_default=True,
    help="With --record, number of times that failed cases are run again.",
)
def compat(
    namesrv: str | None,
    image: str | None,
    official: str | None,
    ours: bool,
    proxy: str | None,
    against: str | None,
    snapshot: str | None,
    areas: tuple[str, ...],
    select: str | None,
    read_only: bool,
    allow_admin: bool,
    workers: int | None,
    json_file: Path | None,
    junit: Path | None,
    html: Path | None,
    record: bool,
    missing: bool,
    repeats: int,
) -> None:
    """Test how compatible a RocketMQ endpoint is, and print where it deviates.

    Cases create topics and groups with names of their own and delete them at the end, also after Ctrl-C. At a cluster
    that is not started for the run, cases that change more than that need --allow-admin.

    Exit code 0: nothing deviates; 3: something does; 4: nothing was compared.
    """
    for option, address in (("--namesrv", namesrv), ("--proxy", proxy)):
        if address is not None and not is_address(address):
            raise click.UsageError(f"{option}: {address!r} is no address: give HOST:PORT, e.g. 10.0.0.5:9876")
    endpoint = choose_one(namesrv, image, official, ours)
    snapshot = _choose_recorded(endpoint, official, snapshot)
    named = _describe_option(endpoint)
    selection = Selection(areas, select, read_only, allow_admin)
    if record:
        if namesrv or against or snapshot:
            raise click.UsageError("--record is for --ours, --official and --image, and needs no reference")
        run = SuiteRun(endpoint, selection, workers or 1, junit=junit, proxy=proxy, named=named)
        record_run(run, missing, repeats)
        return
    if missing:
        raise click.UsageError("--missing selects cases for a recording: give it with --record")
    if against and snapshot:
        raise click.UsageError("--against and a recorded version exclude each other: give one reference")
    _check_folders({"--json": json_file, "--html": html, "--junit": junit})
    run = SuiteRun(endpoint, selection, workers or DEFAULT_WORKERS, None, junit, proxy, named)
    if against:
        results, reference = _run_both(run, against)
    else:
        results, reference = _run_against_recording(run, snapshot)
    comparison = compare((endpoint, results), reference)
    _write_files(comparison, json_file, html)
    _print_comparison(comparison)
    compared = comparison.compared
    sys.exit(
        ExitCode.NOTHING if not compared else ExitCode.REFUSED if comparison.deviations else ExitCode.DONE
    )


def _run_both(run: SuiteRun, against: str) -> tuple[Results, tuple[str, Results]]:
    """Return the results of a run and those of a second endpoint, with its name."""
    other = SuiteRun(against, run.selection, run.workers, named=f"--against {against}")
    # Both before the first run, which takes long.
    run.check()
    other.check()
    return run.run(), (against, other.run())


def _run_against_recording(run: SuiteRun, version: str | None) -> tuple[Results, tuple[str, Results]]:
    """Return the results of a run and those of the same cases in a recording, with its name."""
    name, recorded = _load_snapshot(version)
    results = replace(run, expected=recorded).run()
    if not run.selection.is_whole:
        recorded = {case_id: line for case_id, line in recorded.items() if case_id in results}
    return results, (name, recorded)


def choose_one(namesrv: str | None, image: str | None, official: str | None, ours: bool) -> str:
    """Return the endpoint that the flags name; ``official`` names one if it is alone.

    Raises UsageError when they name several, or no version.
    """
    chosen = [
        *([namesrv] if namesrv else []),
        *([f"image:{image}"] if image else []),
        *(["ours"] if ours else []),
    ]
    if len(chosen) > 1:
        raise click.UsageError("--namesrv, --image and --ours exclude each other: give one endpoint")
    for option, text in (("--image", f"image:{image or ''}"), ("--official", f"official:{official or ''}")):
        try:
            official_version(text)
        except ValueError as error:
            raise click.UsageError(f"{option}: {error}") from error
    return chosen[0] if chosen else f"official:{official}" if official else "ours"


def _choose_recorded(endpoint: str, official: str | None, snapshot: str | None) -> str | None:
    """Return the recorded version to compare with, which either option names; None for the default."""
    if official is None or endpoint.startswith("official:"):
        return snapshot
    if snapshot is not None:
        raise click.UsageError("--official and --snapshot both name a recorded version: give one")
    return official


def _check_folders(files: dict[str, Path | None]) -> None:
    """Refuse files whose folder does not exist, before a run that takes minutes. Keys are options."""
    for option, file in files.items():
        if file is not None and not file.absolute().parent.is_dir():
            raise click.UsageError(f"{option}: the folder {file.parent} does not exist")


def _describe_option(endpoint: str) -> str:
    """Return the option that names an endpoint, as a user would write it."""
    kind, _, rest = endpoint.partition(":")
    if kind in ("image", "official"):
        return f"--{kind} {rest}"
    return "--ours" if endpoint == "ours" else f"--namesrv {endpoint}"


def _load_snapshot(version: str | None) -> tuple[str, Results]:
    versions = snapshot_versions()
    chosen = version or default_version()
    if chosen is None:
        raise click.ClickException(f"no official version is recorded in {SNAPSHOTS}: use --against ENDPOINT")
    if OFFICIAL_VERSIONS.get(chosen, chosen) not in versions:
        raise click.UsageError(
            f"official {version} is not recorded: give one of {', '.join(versions)}, "
            f"or compare with the server itself: --against official:{version}"
        )
    snapshot = read_snapshot(chosen)
    return snapshot.endpoint, snapshot.results


def record_run(run: SuiteRun, missing: bool, repeats: int) -> None:
    """Record a run. Of a selection, the results replace those of the same cases in the recording."""
    is_own = run.endpoint == OURS or run.endpoint in PROXIES
    name = run.endpoint if is_own else official_version(run.endpoint)
    if name is None:
        raise click.UsageError(
            f"--record: {run.endpoint} is no official version, which a recording is named after"
        )
    before: Results = {}
    places: list[str] = []
    if (missing or not run.selection.is_whole) and is_recorded(name):
        before = read_snapshot(name).results
    if missing:
        cases = collect_cases(run.selection.marks)
        places = sorted(cases - before.keys())
        before = {case_id: line for case_id, line in before.items() if case_id in cases}
    results = before | (run_with_repeats(run, places, repeats) if places or not missing else {})
    path = write_snapshot(name, results, f"{datetime.now(UTC):%Y-%m-%d}")
    for case_id in failed_cases(results):
        click.echo(f"failed: {case_id}: {results[case_id]['reason']}")
    click.echo(f"recorded {len(results)} cases in {path}")


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
                "id": case.id,
                "area": case.area,
                "feature": case.feature,
                "outcome": case.outcome,
                "expected": case.expected,
                "verdict": case.verdict,
                "reason": case.reason,
            }
            for case in comparison.cases
        ],
    }


def _print_comparison(comparison: EndpointComparison) -> None:
    deviations = comparison.deviations
    for case in deviations[:MAX_LISTED]:
        click.echo(f"{DEVIATES}: {case.feature} ({case.id}): {case.reason or case.outcome}")
    if len(deviations) > MAX_LISTED:
        click.echo(f"… and {len(deviations) - MAX_LISTED} more: --json FILE or --html FILE lists all")
    click.echo(verdict_text(comparison))
