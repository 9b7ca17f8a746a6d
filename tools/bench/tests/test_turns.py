"""The benchmark suspends one server while it measures the other."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.bench.cli import _paused
from tools.bench.loads import LoadFailed


def test_the_other_server_is_stopped_and_goes_on() -> None:
    with subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) as busy:
        try:
            with pytest.raises(LoadFailed):
                _fail_while_stopped(busy.pid)
            assert _fields(busy.pid)[0] != "T"
        finally:
            busy.kill()


def _fail_while_stopped(pid: int) -> None:
    with _paused(SimpleNamespace(pids=lambda: [pid])):
        before = _cpu_ticks(pid)
        subprocess.run(["/bin/sleep", "0.2"], check=True)
        assert _cpu_ticks(pid) <= before + 1
        raise LoadFailed("as it may")


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> int:
    return int(_fields(pid)[11]) + int(_fields(pid)[12])
