"""The command line of the benchmark, and the order of a run: start-ups, rounds of loads, then both servers at rest.

`loads.py` defines the loads, `report.py` the table and its bars, `bottleneck.py` says what limited a load.

How a run keeps its figures honest:

- A JVM is warmed up until its rates agree, and stays up. Each round starts our server anew, with another length of the
  environment: the processor time of a lone sender differs by up to 25 % with where the stack begins.
- In a round both sides run each load one after the other, and the order alternates between rounds. The side that does
  not run is suspended.
- Servers with SYNC_FLUSH are started for the loads that need them, after all others.
"""

import json
import os
import random
import re
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
from compat_tests.endpoints.ours import OursEndpoint
from tools.bench.loads import (
    GROUPS,
    LOADS,
    OPT_IN_LOADS,
    QUICK,
    Load,
    LoadDurations,
    LoadFailed,
    fill_backlog,
    measure_at_rest,
    measure_start_up,
    warm_up,
)
from tools.bench.report import ComparisonReport, LoadSample
from tools.bench.scraper import metrics_url, scraped
from tools.bench.usage import describe_machine


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Number of runs of each load on each server (default: 3; 1 with --quick).",
)
@click.option(
    "--only",
    multiple=True,
    help="Run only loads whose name starts with one of these texts, separated by commas, e.g. send-64t, batch, start; "
    "may be repeated. Groups are sends, durable, others and rest. The loads timer, transaction, filtered, pipelined, "
    "lone and sync (with SYNC_FLUSH) run only if selected here.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Run short loads on cold JVMs. Flatters our server: do not quote the figures.",
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
    scrape: bool,
    subject: str,
    baseline: str,
    out: Path | None,
    markdown: Path | None,
) -> None:
    """Compare our server with the official one, side by side, with stock clients."""
    exit_on_sigterm()
    machine = describe_machine()
    report = ComparisonReport((subject, "official 5.4.0" if baseline == "official" else baseline), machine)
    durations, rounds = QUICK if quick else LoadDurations(), rounds or (1 if quick else 3)
    names = selected_names(only)
    loads = [
        load
        for load in (*LOADS, *(OPT_IN_LOADS if names else ()))
        if not names or load.name.startswith(names)
    ]
    at_both_ends = tuple(name for name in ("start-up", "at rest") if not names or name.startswith(names))
    try:
        for is_durable in (False, True):
            of_kind = [load for load in loads if load.is_durable == is_durable]
            ends = () if is_durable else at_both_ends
            if not of_kind and not ends:
                continue
            settings = SYNC_FLUSH if is_durable else {}
            makers = [
                endpoint_factory(text, settings | (HTTP_PORT if scrape and text.startswith("ours") else {}))
                for text in (subject, baseline)
            ]
            with ExitStack() as stack:
                ComparisonRun(report, makers, durations, rounds, of_kind, ends).run(stack)
    except Unavailable as error:
        raise click.ClickException(f"cannot compare on this machine: {error}") from error
    text = report.markdown()
    click.echo(text)
    if markdown:
        markdown.write_text(text + "\n")
    if out:
        samples = [asdict(sample) for sample in report.samples]
        out.write_text(json.dumps({"sides": report.names, "machine": machine, "samples": samples}, indent=1))
    sys.exit(1 if report.problems else 0)


SYNC_FLUSH: Final = {"flushDiskType": "SYNC_FLUSH"}
HTTP_PORT: Final = {"httpPort": "0"}
"""Gives a server of ours an HTTP port, which is then scraped."""
MAX_PADDING_BYTES: Final = 4096


def selected_names(only: Sequence[str]) -> tuple[str, ...]:
    """Return the beginnings of the selected loads' names; none if all are selected."""
    words = [word.strip() for text in only for word in text.split(",")]
    return tuple(name for word in words if word for name in GROUPS.get(word, (word,)))


def native_state(log: str) -> str:
    """Return what a server of ours logged at start about the C extension for plain sends."""
    state = re.search(r' native sends .*state=(?:"(.*)"|(\S+))', log)
    return (state[1] or state[2]) if state else "unknown"


@contextmanager
def _padded_environment() -> Iterator[None]:
    """Give programs that start during the block an environment of another length."""
    os.environ["BENCH_PADDING"] = "x" * random.randrange(MAX_PADDING_BYTES)
    try:
        yield
    finally:
        del os.environ["BENCH_PADDING"]


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
        ends: Sequence[str],
    ) -> None:
        self._report, self._makers, self._durations, self._rounds = report, makers, durations, rounds
        self._loads, self._ends = loads, ends
        self._begin = time.monotonic()

    def run(self, stack: ExitStack) -> None:
        """Fill the report; the endpoints end with the stack."""
        endpoints = self._measure_start_ups(stack)
        for endpoint in endpoints:
            if isinstance(endpoint, OursEndpoint):
                self._report.machine["native sends"] = native_state(endpoint.logs())
        if self._loads:
            for side, endpoint in enumerate(endpoints):
                with _paused(endpoints[1 - side]):
                    self._warm_up(endpoint)
        for number in range(self._rounds if self._loads else 0):
            if number:
                self._restart_quick_starters(endpoints)
            for load in self._loads:
                for side in _side_order(number):
                    with _paused(endpoints[1 - side]):
                        self._run_load(load, endpoints[side], side, number)
        if "at rest" in self._ends:
            for side, figures in enumerate(measure_at_rest(endpoints, self._durations)):
                self._add_sample(LoadSample("at rest", side, 0, figures))

    def _warm_up(self, endpoint: Endpoint) -> None:
        durations = self._durations
        if not isinstance(endpoint, OfficialEndpoint):
            # It has nothing to compile; only the caches of its first seconds are cold.
            durations = replace(durations, server_warm_up_s=QUICK.server_warm_up_s)
        self._run_or_note_failure("warm-up", partial(warm_up, endpoint, durations))
        if any(load.reads_backlog for load in self._loads):
            fill_backlog(endpoint, self._durations)

    def _restart_quick_starters(self, endpoints: Sequence[Endpoint]) -> None:
        """Start the servers anew that need no minute to get warm."""
        for endpoint in endpoints:
            if not isinstance(endpoint, OfficialEndpoint):
                endpoint.stop()
                with _padded_environment():
                    endpoint.start()

    def _measure_start_ups(self, stack: ExitStack) -> list[Endpoint]:
        is_measured = "start-up" in self._ends
        repeats = self._rounds if is_measured else 1
        started: dict[int, Endpoint] = {}
        for number in range(repeats):
            for side in _side_order(number):
                if side in started:
                    started.pop(side).close()
                with _padded_environment():
                    started[side], figures = measure_start_up(self._makers[side])
                stack.callback(started[side].close)
                if is_measured:
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
