"""Starts the cases in a process of their own.

They are not run in this one: pytest rewrites the modules of packages that bring a plugin, as this one does, and cannot
do so for modules that are imported already.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

CASES: Final = Path(__file__).parent / "cases"


def run_cases(
    endpoint: str, results: Path | None, options: Sequence[str], output: IO[str] | None = None
) -> int:
    """Run the cases against an endpoint and return pytest's exit code.

    ``results`` is the file for a JSON line per case. Ctrl-C reaches the cases as well; they delete what they created,
    so this waits for them.
    """
    command = [sys.executable, "-m", "pytest", str(CASES), f"--endpoint={endpoint}", *options]
    if results is not None:
        command.append(f"--results={results}")
    process = subprocess.Popen(command, stdout=output)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
