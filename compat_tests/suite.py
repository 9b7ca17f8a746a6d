"""Starts the cases in a process of their own.

They are not run in this one: pytest rewrites the modules of packages that bring a plugin, as this one does, and cannot
do so for modules that are imported already.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Final

CASES: Final = Path(__file__).parent / "cases"
POLL_S: Final = 0.25
"""Time between two calls of the function that watches a run."""


def run_cases(endpoint: str, results: Path | None, options: Sequence[str]) -> int:
    """Run the cases against an endpoint and return pytest's exit code.

    ``results`` is the file for a JSON line per case. Ctrl-C reaches the cases as well, and SIGTERM is passed on; they
    delete what they created, so this waits for them.
    """
    return wait_for_cases([start_cases(endpoint, results, options)])[0]


def start_cases(
    endpoint: str,
    results: Path | None,
    options: Sequence[str],
    output: IO[str] | None = None,
    places: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start the cases, or those with the ids ``places``. What pytest prints goes to ``output``."""
    chosen = [str(CASES / place) for place in places] or [str(CASES)]
    command = [sys.executable, "-m", "pytest", *chosen, f"--endpoint={endpoint}", *options]
    if results is not None:
        command.append(f"--results={results}")
    return subprocess.Popen(command, stdout=output, stderr=output)


def collect_cases(marks: str) -> set[str]:
    """Return the ids of the cases that an expression of marks selects. Raises CalledProcessError."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(CASES),
        "-o",
        "addopts=",
        "--collect-only",
        "-q",
        "-m",
        marks,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=CASES.parents[1])
    lines = (line.partition("cases/")[2] for line in done.stdout.splitlines())
    return {line for line in lines if "::" in line}


def wait_for_cases(
    processes: Sequence[subprocess.Popen[bytes]], watch: Callable[[], None] = lambda: None
) -> list[int]:
    """Wait for runs that were started, and return their exit codes. ``watch`` is called every `POLL_S`."""
    with _sigterm_passed_to(processes):
        while True:
            try:
                watch()
                for process in processes:
                    process.wait(POLL_S)
                return [process.returncode for process in processes]
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                print("interrupted: the cases delete what they created", file=sys.stderr)


@contextmanager
def _sigterm_passed_to(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    def pass_on(_number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
