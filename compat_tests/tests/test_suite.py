"""A run of the suite that gets SIGTERM ends its cases with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.suite import wait_for_cases
from compat_tests.tests.test_process import alive, eventually

RUNNER = """
import sys
from pathlib import Path
from compat_tests import suite

suite.CASES = Path("test_it.py")
sys.exit(suite.run_cases("ours", None, ["-p", "no:cacheprovider"]))
"""
CASE = """
import os, time
from pathlib import Path

def test_waits():
    Path("pid.new").write_text(str(os.getpid()))
    Path("pid.new").rename("pid")
    time.sleep(600)
"""


def test_sigterm_reaches_the_cases(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CASE)
    (tmp_path / "conftest.py").write_text(Path(__file__).parents[1].joinpath("conftest.py").read_text())
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-c", RUNNER], cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
    cases = 0
    try:
        eventually((tmp_path / "pid").exists)
        cases = int((tmp_path / "pid").read_text())
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 2, (tmp_path / "output").read_text()
        assert not alive(cases)
    finally:
        run.kill()
        run.wait()
        if cases and alive(cases):
            os.kill(cases, signal.SIGKILL)


def test_a_watch_that_raises_ends_the_runs() -> None:
    def watch() -> None:
        raise RuntimeError("gone")

    process = subprocess.Popen(["sleep", "600"])
    with pytest.raises(RuntimeError, match="gone"):
        wait_for_cases([process], watch)
    assert process.returncode == -signal.SIGTERM
