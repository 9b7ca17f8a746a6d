"""Runs the cases for `rmq-gateway compat`: workers, progress, and the output of a run that ends early."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import click

from compat_tests.endpoints import expected_kind
from compat_tests.report.progress import ProgressView, RunState
from compat_tests.results_file import Results, read_results
from compat_tests.suite import run_cases
from toolkit.exit_codes import ConfigurationError
from toolkit.install_command import install_command

ABOUT_THE_ENDPOINT: Final = "case and not ours_only and not both_servers"
"""Leaves out the cases that start servers of their own, whatever the endpoint."""
RECORDED_OF_OURS: Final = "case and not ours_only"
"""Also the cases in which an official broker and ours work on each other's stores."""
DEFAULT_WORKERS: Final = 3
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
    ``proxy`` is the gRPC address ("host:port") of an endpoint that does not tell it.
    """

    endpoint: str
    selection: Selection
    workers: int = DEFAULT_WORKERS
    expected: Results | None = None
    junit: Path | None = None
    proxy: str | None = None

    def run(self, places: Sequence[str] = ()) -> Results:
        """Run the cases, or those with the ids ``places``, and return their results; {} if none is selected.

        Raises ClickException when a run ends early, and ConfigurationError without pytest.
        """
        if find_spec("pytest") is None:
            raise ConfigurationError(f"the suite needs pytest: {install_command('compat')}")
        found: Results = {}
        reports: list[Path] = []
        with tempfile.TemporaryDirectory(prefix="rmq-compat-") as text:
            folder = Path(text)
            for number, (title, marks, workers) in enumerate(self._passes()):
                report = folder / f"{number}.xml"
                options = ["-m", marks, f"--junitxml={report}", *_worker_options(workers)]
                found |= self._run_pass(title, options, places, folder / f"{number}.jsonl")
                reports += [report] if report.exists() else []
            if self.junit is not None:
                _merge_reports(reports, self.junit)
        return found

    def _passes(self) -> list[tuple[str, str, int]]:
        """Return title, marks and number of workers of each pass: cases that stop a server cannot share it."""
        marks = self.selection.marks
        if self.workers == 1:
            return [(self.endpoint, marks, 1)]
        passes = [(self.endpoint, f"{marks} and not stops_server", self.workers)]
        if expected_kind(self.endpoint) in ("ours", "official", "image"):
            passes.append((f"{self.endpoint}, stopped", f"{marks} and stops_server", 1))
        return passes

    def _run_pass(self, title: str, options: list[str], places: Sequence[str], results: Path) -> Results:
        quiet = ["--no-header", "--tb=no", "-p", "no:cacheprovider"]
        proxy = [f"--proxy={self.proxy}"] if self.proxy else []
        log = results.with_suffix(".log")
        state = RunState(results, self.expected)
        with log.open("w") as output, ProgressView(title, state) as view:
            code = run_cases(
                self.endpoint,
                results,
                [*quiet, *options, *self.selection.options(), *proxy],
                output,
                places,
                view.update,
            )
        if code == _PYTEST_NOTHING_SELECTED:
            return {}
        if code not in _PYTEST_DONE or not results.exists():
            said = log.read_text()[-MAX_OUTPUT_CHARS:].strip()
            raise click.ClickException(
                f"the cases against {self.endpoint} ended early (pytest exit code {code}):\n{said}"
            )
        return read_results(results)[1]


def _worker_options(workers: int) -> list[str]:
    return [f"--numprocesses={workers}", "--dist=loadfile"] if workers > 1 else []


def _merge_reports(reports: Sequence[Path], target: Path) -> None:
    """Write one JUnit XML file with the suites of several."""
    root = ElementTree.Element("testsuites")
    for report in reports:
        root.extend(ElementTree.parse(report).getroot().iter("testsuite"))
    ElementTree.ElementTree(root).write(target, encoding="utf-8", xml_declaration=True)
