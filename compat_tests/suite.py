"""Starts the cases in a process of their own.

They are not run in this one: pytest rewrites the modules of packages that bring a plugin, as this one does, and cannot
do so for modules that are imported already.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Final

CASES: Final = Path(__file__).parent / "cases"


def run_cases(
    endpoint: str, results: Path | None, options: Sequence[str], output: IO[str] | None = None
) -> int:
    """Run the cases against an endpoint and return pytest's exit code.

    ``results`` is the file for a JSON line per case. Ctrl-C reaches the cases as well, and SIGTERM is passed on; they
    delete what they created, so this waits for them.
    """
    command = [sys.executable, "-m", "pytest", str(CASES), f"--endpoint={endpoint}", *options]
    if results is not None:
        command.append(f"--results={results}")
    process = subprocess.Popen(command, stdout=output)
    with _sigterm_passed_to(process):
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


@contextmanager
def _sigterm_passed_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(_number: int, _frame: FrameType | None) -> None:
        process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
