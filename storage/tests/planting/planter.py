"""Plants defects into copies of the tree, and runs the tests that should notice.

    python -m storage.tests.planting                 # all; exit status 1 if one is not caught
    python -m storage.tests.planting -j 4 NAME…      # some, four at a time; NAME may be a pattern such as 'index-*'
    python -m storage.tests.planting --list          # their names, laws and tests
    python -m storage.tests.planting --table         # the table of docs/explanation/store-laws.md
    python -m storage.tests.planting --stories       # random stories instead of each defect's own tests
    python -m compat_tests.tests.planting            # the same with deviations from the protocol

The tests must pass on an unchanged copy first. A defect is caught if a test fails. Three other outcomes count against
the tests: all pass, one does not end, or pytest cannot run them, because a defect that breaks an import proves nothing.
The tests of a defect are deterministic, and everything that is random gets a fixed seed, so that a run can be repeated.
"""

import argparse
import enum
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.tests.planting.catalogue import Catalogue
from storage.tests.planting.defect import Defect

ROOT: Final = Path(__file__).resolve().parents[3]
COPIED: Final = (
    "codec",
    "remoting",
    "storage",
    "toolkit",
    "gateway",
    "compat_tests",
    "acceptance",
    "tools",
    "spark",
    "native",
    "rocketmq_native.py",
    "setup.py",
    "conftest.py",
    "pyproject.toml",
    "conf",
)
"""Files and folders that the tests need."""
TIMEOUT_S: Final = 600
SEED: Final = "0"
CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""Signals that end a process whose C code goes wrong: the test that runs then has noticed."""
_running: Final[set["subprocess.Popen[str]"]] = set()


class Result(enum.StrEnum):
    """The end of the tests of one planted defect. Only CAUGHT is a success."""

    CAUGHT = "caught"
    MISSED = "MISSED"  # all tests pass
    HUNG = "HUNG"  # a test does not end
    BROKEN = "BROKEN"  # pytest could not run the tests


@dataclass(frozen=True, slots=True)
class TestRun:
    """One run of pytest. ``test`` is the test that failed or did not end; empty if there is none."""

    __test__ = False  # no tests for pytest to collect

    result: Result
    test: str
    output: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of planting one defect."""

    name: str
    run: TestRun
    seconds: float

    @property
    def is_caught(self) -> bool:
        return self.run.result is Result.CAUGHT

    @property
    def file(self) -> str:
        """The file of the test that caught the defect, or did not end."""
        return self.run.test.partition("::")[0]


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def build_native(root: Path) -> None:
    """Build the C extension from the sources of a copy. Raises CalledProcessError."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    environment = {**os.environ, "ROCKETMQ_NATIVE": "require"}
    subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)


def run_tests(root: Path, tests: Sequence[str], timeout_s: float = TIMEOUT_S) -> TestRun:
    """Run tests in a copy of the tree, up to the first failure."""
    command = [sys.executable, "-m", "pytest", "-v", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [f"--hypothesis-seed={SEED}", *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": SEED,
        "PYTHONUNBUFFERED": "1",  # A test process that crashes has told its last test then.
    }
    # In a session of its own, so that processes which a test started end with it.
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        _running.add(process)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return TestRun(Result.HUNG, find_last_started(output), output)
        except BaseException:
            stop_tests()
            raise
        finally:
            _running.discard(process)
    return judge(process.returncode, output)


def stop_tests() -> None:
    """End the tests that run, because the planter ends."""
    for process in list(_running):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def judge(status: int, output: str) -> TestRun:
    """Return the result that pytest's exit status and output mean."""
    failed = re.search(r"^FAILED (.+?)( - |$)", output, re.MULTILINE)
    if status == 0:
        return TestRun(Result.MISSED, "", output)
    if -status in CRASHES:
        return TestRun(Result.CAUGHT, find_last_started(output), output)
    if status == 1 and failed:
        return TestRun(Result.CAUGHT, failed[1], output)
    return TestRun(Result.BROKEN, "", output)


def find_last_started(output: str) -> str:
    """Return the test that pytest named last."""
    started = re.findall(r"^(\S+\.py::.+?)(?: PASSED.*)?$", output, re.MULTILINE)
    return started[-1].strip() if started else ""


def plant(defect: Defect, tests: Sequence[str]) -> Outcome:
    """Plant one defect and run the tests."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder)
        copy_tree(root)
        for path, text in defect.changed_files(root).items():
            path.write_text(text, "utf-8")
        if any(edit.path.startswith("native/") for edit in defect.edits):
            try:
                build_native(root)
            except subprocess.CalledProcessError as error:
                run = TestRun(Result.BROKEN, "", error.stderr)
                return Outcome(defect.name, run, time.monotonic() - begin)
        run = run_tests(root, tests)
    return Outcome(defect.name, run, time.monotonic() - begin)


def plant_all(
    defects: Sequence[Defect], tests: Mapping[str, Sequence[str]], jobs: int, *, verbose: bool
) -> list[Outcome]:
    """Plant defects, some at a time, and report each; ``tests`` are those to run, by name of the defect."""
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for outcome in pool.map(lambda defect: plant(defect, tests[defect.name]), defects):
                outcomes.append(outcome)
                print(describe(outcome), flush=True)
                if verbose and not outcome.is_caught:
                    print(outcome.run.output)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_tests()
            raise
    return outcomes


def passes_without_defect(tests: Iterable[str]) -> bool:
    """Run these tests on an unchanged copy, and print what fails."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy_tree(Path(folder))
        run = run_tests(Path(folder), sorted(set(tests)))
    if run.result is not Result.MISSED:
        print(run.output)
    return run.result is Result.MISSED


def describe(outcome: Outcome) -> str:
    """Return the line that reports one planting."""
    what = f"{outcome.run.result} by " if outcome.is_caught else f"{outcome.run.result} "
    return f"{outcome.name:44} {outcome.seconds:4.0f} s  {what}{outcome.run.test}".rstrip()


def summarize(outcomes: Sequence[Outcome]) -> str:
    """Return the number of defects by the file that caught them, and by result."""
    files = Counter(outcome.file for outcome in outcomes if outcome.is_caught)
    lines = [f"{count:4}  {file}" for file, count in sorted(files.items())]
    lines.append(f"{files.total()} of {len(outcomes)} planted defects are caught")
    missed = Counter(outcome.run.result for outcome in outcomes if not outcome.is_caught)
    return "\n".join(lines) + "".join(f", {count} {result}" for result, count in sorted(missed.items()))


def plant_from_command_line(catalogue: Catalogue) -> int:
    """Plant the defects of a catalogue that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Plant defects, and see if the tests notice.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="defects, by name or pattern; default: all")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="defects at a time")
    parser.add_argument(
        "--list", action="store_true", help=f"list the defects, each {catalogue.rule} and tests"
    )
    parser.add_argument("--table", action="store_true", help=f"print the table of {catalogue.page}")
    if catalogue.stories:
        parser.add_argument(
            "--stories", action="store_true", help="run the random stories instead of each defect's own tests"
        )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the tests' output if not caught")
    arguments = parser.parse_args()
    try:
        chosen = catalogue.choose_defects(arguments.names)
    except ValueError as error:
        parser.error(str(error))
    if arguments.list:
        for defect in chosen:
            print(f"{defect.name:44} {defect.law:50} {' '.join(defect.tests)}")
        return 0
    if arguments.table:
        print(catalogue.render_table(), end="")
        return 0
    with_stories = catalogue.stories and arguments.stories
    tests = {defect.name: (catalogue.stories,) if with_stories else defect.tests for defect in chosen}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not passes_without_defect(test for names in tests.values() for test in names):
        print("the tests fail without a defect")
        return 1
    outcomes = plant_all(chosen, tests, arguments.jobs, verbose=arguments.verbose)
    print(summarize(outcomes))
    return int(not all(outcome.is_caught for outcome in outcomes))
