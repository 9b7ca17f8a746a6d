"""Plants defects into copies of the tree, and runs the tests that should notice.

    python -m storage.tests.planting                 # all; exit status 1 if one is not caught
    python -m storage.tests.planting -j 4 NAME…      # some, four at a time
    python -m storage.tests.planting --list

The tests must pass on an unchanged copy first. A defect is caught if a test fails; an error while pytest collects
tests does not count, because a defect that breaks an import proves nothing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.tests.planting.defect import Defect
from storage.tests.planting.log_defects import LOG_DEFECTS
from storage.tests.planting.other_defects import OTHER_DEFECTS
from storage.tests.planting.recovery_defects import RECOVERY_DEFECTS

ROOT: Final = Path(__file__).resolve().parents[3]
DEFECTS: Final = (*LOG_DEFECTS, *RECOVERY_DEFECTS, *OTHER_DEFECTS)
COPIED: Final = (
    "codec",
    "remoting",
    "storage",
    "toolkit",
    "gateway",
    "conftest.py",
    "pyproject.toml",
    "conf",
)
TIMEOUT_S: Final = 600
TESTS_FAILED: Final = 1
"""Exit status of pytest when tests ran and some failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one planting. ``caught_by`` names the first test that failed; empty if none did."""

    name: str
    caught_by: str
    seconds: float
    output: str

    @property
    def is_caught(self) -> bool:
        return bool(self.caught_by)


def copy_tree(target: Path) -> None:
    """Copy what the tests of the store need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in a copy of the tree, up to the first failure; return pytest's exit status and output.

    A defect may let a test run for ever, which counts as a failure.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return TESTS_FAILED, "FAILED (no end)"
    return done.returncode, done.stdout + done.stderr


def plant(defect: Defect) -> Outcome:
    """Plant one defect and run its tests."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder)
        copy_tree(root)
        for path, text in defect.changed_files(root).items():
            path.write_text(text, "utf-8")
        status, output = run_tests(root, defect.tests)
    failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    caught_by = failed[1] if status == TESTS_FAILED and failed else ""
    return Outcome(defect.name, caught_by, time.monotonic() - begin, output)


def passes_without_defect(defects: Iterable[Defect]) -> bool:
    """Run the tests of all these defects on an unchanged copy, and print what fails."""
    tests = sorted({test for defect in defects for test in defect.tests})
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy_tree(Path(folder))
        status, output = run_tests(Path(folder), tests)
    if status:
        print(output)
    return status == 0


def main() -> int:
    """Plant what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Plant defects, and see if the tests notice.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="defects; default: all")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="defects at a time")
    parser.add_argument("--list", action="store_true", help="list the defects and their laws")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the tests' output if not caught")
    arguments = parser.parse_args()
    chosen = [each for each in DEFECTS if not arguments.names or each.name in arguments.names]
    if unknown := set(arguments.names) - {each.name for each in chosen}:
        parser.error(f"unknown defects: {', '.join(sorted(unknown))}; --list shows all")
    if arguments.list:
        for each in chosen:
            print(f"{each.name:40} {each.law}")
        return 0
    if not passes_without_defect(chosen):
        print("the tests fail without a defect")
        return 1
    with ThreadPoolExecutor(arguments.jobs) as pool:
        missed = 0
        for outcome in pool.map(plant, chosen):
            missed += not outcome.is_caught
            result = f"caught by {outcome.caught_by}" if outcome.is_caught else "NOT CAUGHT"
            print(f"{outcome.name:40} {outcome.seconds:4.0f} s  {result}", flush=True)
            if arguments.verbose and not outcome.is_caught:
                print(outcome.output)
    print(f"{len(chosen) - missed} of {len(chosen)} planted defects are caught")
    return int(missed > 0)
