"""A test run that gets SIGTERM leaves no process behind, neither workers nor the servers their cases started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.tests.test_process import alive, eventually

CASE = """
import os, sys, time
from pathlib import Path
from compat_tests.endpoints.process import ChildProcess

def test_waits():
    child = ChildProcess("c", ["/bin/sleep", "600"], Path("log"))
    Path("pids.new").write_text(f"{os.getpid()} {child.pid}")
    Path("pids.new").rename("pids")
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        if not CATCHES:
            raise
        time.sleep(600)
"""


@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_a_run_that_gets_sigterm_ends_its_workers_and_their_servers(
    tmp_path: Path, workers: list[str], catches: bool
) -> None:
    (tmp_path / "test_it.py").write_text(CASE.replace("CATCHES", str(catches)))
    (tmp_path / "conftest.py").write_text(Path(__file__).parents[1].joinpath("conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", *workers]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        eventually((tmp_path / "pids").exists)
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        assert all(map(alive, pids))
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == pytest.ExitCode.INTERRUPTED
        eventually(lambda: not any(map(alive, pids)))
    finally:
        run.kill()
        run.wait()
