"""The command line of the benchmark, and the order of a run: start-ups, rounds of loads, then both servers at rest.

`loads.py` defines the loads, `report.py` the table and its bars.
"""

import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

import click

from compat_tests.endpoints import ENDPOINT_KINDS, Endpoint, Unavailable, choose_endpoint, exit_on_sigterm
from compat_tests.endpoints.official import FULL_SPEED, OfficialEndpoint
from tools.bench.loads import (
    LOADS,
    OPT_IN_LOADS,
    QUICK,
    SYNC_SENDS,
    WARM_UP,
    Load,
    LoadDurations,
    LoadFailed,
    fill_backlog,
    measure_at_rest,
    measure_start_up,
)
from tools.bench.report import ComparisonReport, LoadSample
from tools.bench.scraper import metrics_url, scraped


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Number of runs of each load on each server (default: 3; 1 with --quick).",
)
@click.option(
    "--only",
    multiple=True,
    help="Run only loads whose name starts with this text, e.g. send-64t, batch, start; may be repeated. The loads "
    "timer, transaction and filtered run only if selected here.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Run short loads on cold JVMs. Flatters our server: do not quote the figures.",
)
@click.option(
    "--flush",
    type=click.Choice(["async", "sync"]),
    default="async",
    show_default=True,
    help="flushDiskType of both servers. With sync only the send loads sync-1t, sync-4t and sync-64t are run: each "
    "answer waits for the disk.",
)
@click.option(
    "--scrape",
    is_flag=True,
    help="Ask our servers for /metrics once a second while loads run; the official server is not asked.",
)
@click.option("--subject", default="ours", show_default=True, help=f"Server to measure: {ENDPOINT_KINDS}.")
@click.option(
    "--baseline", default="official", show_default=True, help=f"Server to compare with: {ENDPOINT_KINDS}."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write every sample to this file as JSON."
)
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the table to this file."
)
def main(
    rounds: int | None,
    only: Sequence[str],
    quick: bool,
    flush: str,
    scrape: bool,
    subject: str,
    baseline: str,
    out: Path | None,
    markdown: Path | None,
) -> None:
    """Compare our server with the official one, side by side, with stock clients."""
    exit_on_sigterm()
    report = ComparisonReport((subject, "official 5.4.0" if baseline == "official" else baseline))
    is_sync = flush == "sync"
    settings = SYNC_FLUSH if is_sync else {}
    makers = [
        endpoint_factory(text, settings | (HTTP_PORT if scrape and text.startswith("ours") else {}))
        for text in (subject, baseline)
    ]
    durations = QUICK if quick else LoadDurations()
    loads = SYNC_SENDS if is_sync else (*LOADS, *(load for load in OPT_IN_LOADS if only))
    bench = ComparisonRun(report, makers, durations, rounds or (1 if quick else 3), loads, only)
    try:
        with ExitStack() as stack:
            bench.run(stack)
    except Unavailable as error:
        raise click.ClickException(f"cannot compare on this machine: {error}") from error
    text = report.markdown()
    click.echo(text)
    if markdown:
        markdown.write_text(text + "\n")
    if out:
        machine = {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
        samples = [asdict(sample) for sample in report.samples]
        out.write_text(json.dumps({"sides": report.names, "machine": machine, "samples": samples}, indent=1))
    sys.exit(1 if report.problems else 0)


SYNC_FLUSH: Final = {"flushDiskType": "SYNC_FLUSH"}
HTTP_PORT: Final = {"httpPort": "0"}
"""Gives a server of ours an HTTP port, which is then scraped."""


def endpoint_factory(text: str, settings: Mapping[str, str]) -> Callable[[], Endpoint]:
    """Return a function that builds an endpoint for measurements, which is not tuned for quick starts."""

    def make() -> Endpoint:
        endpoint = choose_endpoint(text, settings)
        if isinstance(endpoint, OfficialEndpoint):
            endpoint.jvm = FULL_SPEED
        return endpoint

    return make


class ComparisonRun:
    """One run: start-ups, then rounds of loads on both servers, which stay up in between, then both at rest."""

    def __init__(
        self,
        report: ComparisonReport,
        makers: Sequence[Callable[[], Endpoint]],
        durations: LoadDurations,
        rounds: int,
        loads: Sequence[Load],
        only: Sequence[str],
    ) -> None:
        self._report, self._makers, self._durations, self._rounds = report, makers, durations, rounds
        self._only = tuple(only)
        self._loads = [load for load in loads if self._is_selected(load.name)]
        self._begin = time.monotonic()

    def run(self, stack: ExitStack) -> None:
        """Fill the report; the endpoints end with the stack."""
        endpoints = self._measure_start_ups(stack)
        if self._loads:
            warm_up = replace(self._durations, warm_up_s=self._durations.server_warm_up_s)
            for endpoint in endpoints:
                # The official server's JVM is slow until it has compiled the code path of a send.
                self._run_or_note_failure("warm-up", partial(WARM_UP.run, endpoint, warm_up))
                if any(load.reads_backlog for load in self._loads):
                    fill_backlog(endpoint, self._durations)
        for number in range(self._rounds):
            for load in self._loads:
                for side in _side_order(number):
                    with _paused(endpoints[1 - side]):
                        self._run_load(load, endpoints[side], side, number)
        if self._is_selected("at rest"):
            for side, figures in enumerate(measure_at_rest(endpoints, self._durations)):
                self._add_sample(LoadSample("at rest", side, 0, figures))

    def _is_selected(self, name: str) -> bool:
        return not self._only or name.startswith(self._only)

    def _measure_start_ups(self, stack: ExitStack) -> list[Endpoint]:
        repeats = self._rounds if self._is_selected("start-up") else 1
        started: dict[int, Endpoint] = {}
        for number in range(repeats):
            for side in _side_order(number):
                if side in started:
                    started.pop(side).close()
                started[side], figures = measure_start_up(self._makers[side])
                stack.callback(started[side].close)
                self._add_sample(LoadSample("start-up", side, number, figures))
        return [started[0], started[1]]

    def _run_load(self, load: Load, endpoint: Endpoint, side: int, number: int) -> None:
        figures = self._run_or_note_failure(load.name, partial(self._run_scraped, load, endpoint))
        if figures is not None:
            self._add_sample(LoadSample(load.name, side, number, figures))

    def _run_scraped(self, load: Load, endpoint: Endpoint) -> dict[str, float]:
        scrapes: dict[str, float] = {}
        with scraped(metrics_url(endpoint), scrapes):
            figures = load.run(endpoint, self._durations)
        return {**figures, **scrapes}

    def _run_or_note_failure(self, name: str, run: Callable[[], dict[str, float]]) -> dict[str, float] | None:
        try:
            return run()
        except LoadFailed as error:
            self._report.problems.append(f"{name}: {error}")
            click.echo(f"{name} FAILED: {error}", err=True)
            return None

    def _add_sample(self, sample: LoadSample) -> None:
        self._report.samples.append(sample)
        figures = "  ".join(f"{name} {value:.5g}" for name, value in sample.figures.items())
        passed = f"{time.monotonic() - self._begin:4.0f} s  round {sample.round + 1}"
        click.echo(f"{passed}  {sample.load:15} {self._report.names[sample.side]:15} {figures}", err=True)


@contextmanager
def _paused(endpoint: Endpoint) -> Iterator[None]:
    """Suspend a server during the block: an official broker with timer messages uses a quarter of a core at rest."""
    pids = endpoint.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _side_order(number: int) -> Iterable[int]:
    """Return the order of the sides, which alternates between rounds."""
    return (0, 1) if number % 2 == 0 else (1, 0)
