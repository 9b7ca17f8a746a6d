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
END_TIMEOUT_S: Final = 30.0
"""Time that a run gets to end, in which its cases delete what they created, before it is killed."""


def run_cases(endpoint: str, results: Path | None, options: Sequence[str]) -> int:
    """Run the cases against an endpoint and return pytest's exit code.

    ``results`` is the file for a JSON line per case. Ctrl-C reaches the cases as well, and SIGTERM is passed on; they
    delete what they created, so this waits for them.
    """
    try:
        return wait_for_cases([start_cases(endpoint, results, options)])[0]
    except CasesInterrupted as interrupted:
        return interrupted.codes[0]


def start_cases(
    endpoint: str,
    results: Path | None,
    options: Sequence[str],
    output: IO[str] | None = None,
    places: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start the cases, or those with the ids ``places``. What pytest prints goes to ``output``."""
    chosen = [str(CASES / case_id) for case_id in places] or [str(CASES)]
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
    """Wait for runs that were started, and return their exit codes. ``watch`` is called every `POLL_S`.

    An exception of ``watch`` ends the runs before it goes on. Raises CasesInterrupted, once the runs have ended, after
    Ctrl-C or SIGTERM.
    """
    with _sigterm_passed_to(processes) as signals:
        try:
            while not _have_ended(processes, signals):
                watch()
        except Exception:
            _end(processes)
            raise
    codes = [process.returncode for process in processes]
    if signals:
        raise CasesInterrupted(codes)
    return codes


class CasesInterrupted(Exception):
    """Runs that ended early after Ctrl-C or SIGTERM. ``codes`` are their exit codes."""

    def __init__(self, codes: list[int]) -> None:
        super().__init__("interrupted")
        self.codes = codes


def _have_ended(processes: Sequence[subprocess.Popen[bytes]], signals: list[int]) -> bool:
    """Wait for `POLL_S` at most, and return True if all processes have ended. Ctrl-C is added to ``signals``."""
    try:
        for process in processes:
            process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return False
    except KeyboardInterrupt:
        signals.append(signal.SIGINT)
        print("interrupted: the cases delete what they created", file=sys.stderr)
        return False
    return True


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End runs in order, and kill those that have not ended in `END_TIMEOUT_S`."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _sigterm_passed_to(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Pass SIGTERM on; the value of the block has an entry for each signal."""
    signals: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        for process in processes:
            process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)
