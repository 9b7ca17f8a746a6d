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


def run_cases(
    endpoint: str,
    results: Path | None,
    options: Sequence[str],
    output: IO[str] | None = None,
    places: Sequence[str] = (),
    watch: Callable[[], None] = lambda: None,
) -> int:
    """Run the cases against an endpoint and return pytest's exit code.

    ``results`` is the file for a JSON line per case. ``places`` are ids of cases; without them all are run. ``watch``
    is called every `POLL_S`. Ctrl-C reaches the cases as well, and SIGTERM is passed on; they delete what they created,
    so this waits for them.
    """
    chosen = [str(CASES / place) for place in places] or [str(CASES)]
    command = [sys.executable, "-m", "pytest", *chosen, f"--endpoint={endpoint}", *options]
    if results is not None:
        command.append(f"--results={results}")
    process = subprocess.Popen(command, stdout=output, stderr=output)
    with _sigterm_passed_to(process):
        while True:
            try:
                watch()
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                print("interrupted: the cases delete what they created", file=sys.stderr)


@contextmanager
def _sigterm_passed_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(_number: int, _frame: FrameType | None) -> None:
        process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
