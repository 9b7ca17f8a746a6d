"""Runs the cases for `rmq-gateway compat`: workers, progress, and the output of a run that ends early."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen
from typing import Final
from xml.etree import ElementTree

import click

from compat_tests.endpoints import STARTED_KINDS, Unavailable, choose_endpoint, expected_kind
from compat_tests.endpoints.image import ImageEndpoint
from compat_tests.endpoints.reach import Unreachable, check_listener
from compat_tests.report.endpoint_watch import EndpointGone, EndpointWatch
from compat_tests.report.progress import ProgressView, RunState
from compat_tests.results_file import Results, read_results
from compat_tests.suite import CasesInterrupted, start_cases, wait_for_cases
from toolkit.exit_codes import ConfigurationError, EndedEarly
from toolkit.install_command import install_command

ABOUT_THE_ENDPOINT: Final = "case"
"""The mark of all cases."""
DEFAULT_WORKERS: Final = 3
MIN_WORKERS_OF_THREE_SERVERS: Final = 3
"""Number of workers from which on a run starts three servers at once, one for each of its parts."""
MAX_OUTPUT_CHARS: Final = 4_000
"""Longest end of pytest's output that is shown when a run ends early."""
_PYTEST_DONE: Final = (0, 1)
"""Exit codes of pytest: all cases passed, some failed."""
_PYTEST_NOTHING_SELECTED: Final = 5


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cases run. ``expression`` is one of pytest's ``-k``; ``marks`` is one of its ``-m``."""

    areas: tuple[str, ...] = ()
    expression: str | None = None
    read_only: bool = False
    allow_admin: bool = False
    marks: str = ABOUT_THE_ENDPOINT

    @property
    def is_whole(self) -> bool:
        """True if no case is left out by choice."""
        return not (self.areas or self.expression or self.read_only)

    def options(self) -> list[str]:
        """Return the options of pytest, without ``-m``."""
        options = [f"--area={area}" for area in self.areas]
        options += ["-k", self.expression] if self.expression else []
        options += ["--read-only"] if self.read_only else []
        return options + (["--allow-admin"] if self.allow_admin else [])


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of the selected cases against an endpoint, by a number of workers that share its server.

    ``expected`` are the results that the progress compares with; ``junit`` is a file for JUnit XML.
    ``proxy`` is the gRPC address ("host:port") of an endpoint that does not tell it. ``named`` is how the
    user named the endpoint ("--namesrv 10.0.0.5:9876"), for messages.
    """

    endpoint: str
    selection: Selection
    workers: int = DEFAULT_WORKERS
    expected: Results | None = None
    junit: Path | None = None
    proxy: str | None = None
    named: str | None = None

    def run(self, places: Sequence[str] = ()) -> Results:
        """Run the cases, or those with the ids ``places``, and return their results; {} if none is selected.

        Raises ClickException when the endpoint cannot be tested or a run ends early, and ConfigurationError without
        pytest, and EndedEarly after Ctrl-C, SIGTERM, or when somebody's cluster stops answering.
        """
        namesrv = self.check()
        with tempfile.TemporaryDirectory(prefix="rmq-compat-") as text:
            parts = [
                _Part(Path(text) / str(number), part_plan)
                for number, part_plan in enumerate(self._parts(namesrv))
            ]
            for group in [parts] if self._runs_parts_together else [[part] for part in parts]:
                self._run_together(group, places, namesrv)
            if self.junit is not None:
                _merge_reports([part.junit for part in parts if part.junit.exists()], self.junit)
            results: Results = {}
            for part in parts:
                results |= part.read()
        return results

    def check(self) -> str | None:
        """Return the address of the namesrv of somebody's cluster; None for a server that the run starts.

        Raises ClickException if the endpoint has no chance: no cluster answers, Java, Maven or Docker is missing, or
        there is no such image; ConfigurationError without pytest.
        """
        for module in ("pytest", *(["xdist"] if self.workers > 1 else [])):
            if find_spec(module) is None:
                raise ConfigurationError(f"the suite needs {module}: {install_command('compat')}")
        try:
            if self.proxy is not None:
                check_listener(self.proxy)
        except Unreachable as error:
            raise click.ClickException(f"--proxy: {error}") from error
        try:
            endpoint = choose_endpoint(self.endpoint)
            with closing(endpoint):
                if isinstance(endpoint, ImageEndpoint):
                    endpoint.fetch()
                if endpoint.kind == "address":
                    endpoint.start()
                    return endpoint.namesrv
        except ValueError as error:
            raise click.UsageError(f"{self._label}: {error}") from error
        except (Unavailable, RuntimeError) as error:
            raise click.ClickException(f"{self._label} cannot be tested: {error}") from error
        return None

    @property
    def _runs_parts_together(self) -> bool:
        """True if each part of the run has a server of its own beside those of the others.

        Somebody's cluster is shared, so its parts follow one another; so do those on a machine that is given few
        workers, and then one server runs at a time.
        """
        return self.workers >= MIN_WORKERS_OF_THREE_SERVERS and expected_kind(self.endpoint) in STARTED_KINDS

    def _parts(self, namesrv: str | None) -> list[tuple[str, int]]:
        """Return marks and number of workers of each part of the run.

        Cases that stop a server, or change its settings, run one by one: others would notice. Read-only ones do
        neither, and without leave to do so they are skipped at the cluster of ``namesrv``.
        """
        marks = self.selection.marks
        is_harmless = self.selection.read_only or (namesrv is not None and not self.selection.allow_admin)
        if self.workers == 1 or is_harmless:
            return [(marks, self.workers)]
        return [
            (f"{marks} and not stops_server and not needs_admin", self.workers),
            (f"{marks} and needs_admin and not stops_server", 1),
            (f"{marks} and stops_server", 1),
        ]

    def _run_together(self, parts: Sequence["_Part"], places: Sequence[str], namesrv: str | None) -> None:
        state = RunState([part.results for part in parts], self.expected)
        proxy = [f"--proxy={self.proxy}"] if self.proxy else []
        with ExitStack() as stack:
            view = stack.enter_context(ProgressView(self.endpoint, state))
            processes = [
                start_cases(
                    self.endpoint,
                    part.results,
                    [*part.options(), *self.selection.options(), *proxy],
                    stack.enter_context(part.log.open("w")),
                    places,
                )
                for part in parts
            ]
            codes = self._wait(processes, view.update, state, namesrv)
        for part, code in zip(parts, codes, strict=True):
            if code != _PYTEST_NOTHING_SELECTED and (code not in _PYTEST_DONE or not part.results.exists()):
                output = part.log.read_text()[-MAX_OUTPUT_CHARS:].strip()
                raise click.ClickException(
                    f"the cases against {self._label} ended early (pytest exit code {code}):\n{output}"
                )

    def _wait(
        self,
        processes: Sequence[Popen[bytes]],
        update: Callable[[], None],
        state: RunState,
        namesrv: str | None,
    ) -> list[int]:
        """Wait for the processes and show how far they are; end them if the cluster at ``namesrv`` stops answering."""
        check = EndpointWatch(namesrv) if namesrv is not None else None

        def watch() -> None:
            update()
            if check is not None:
                check()

        try:
            return wait_for_cases(processes, watch)
        except CasesInterrupted as error:
            raise EndedEarly(
                f"interrupted after {state.done} cases; nothing was compared or recorded"
            ) from error
        except EndpointGone as error:
            raise EndedEarly(
                f"{self._label} stopped answering after {state.done} cases, and nothing was compared: {error}. "
                'What the run created there may be left: topics and groups whose names begin with "compat_"'
            ) from error

    @property
    def _label(self) -> str:
        return self.named or self.endpoint


@dataclass(frozen=True, slots=True)
class _Part:
    """The files of a part of a run, which begin with ``base``, and its marks and number of workers."""

    base: Path
    marks_and_workers: tuple[str, int]

    @property
    def results(self) -> Path:
        return self.base.with_suffix(".jsonl")

    @property
    def log(self) -> Path:
        return self.base.with_suffix(".log")

    @property
    def junit(self) -> Path:
        return self.base.with_suffix(".xml")

    def options(self) -> list[str]:
        """Return the options of pytest, without those of the selection."""
        marks, workers = self.marks_and_workers
        shared = [f"--numprocesses={workers}", "--dist=loadfile"] if workers > 1 else []
        quiet = ["--no-header", "--tb=no", "-p", "no:cacheprovider"]
        return [*quiet, "-m", marks, f"--junitxml={self.junit}", *shared]

    def read(self) -> Results:
        return read_results(self.results)[1] if self.results.exists() else {}


def _merge_reports(reports: Sequence[Path], target: Path) -> None:
    """Write one JUnit XML file with the suites of several."""
    root = ElementTree.Element("testsuites")
    for report in reports:
        root.extend(ElementTree.parse(report).getroot().iter("testsuite"))
    ElementTree.ElementTree(root).write(target, encoding="utf-8", xml_declaration=True)
