"""Our server's command line, with a script in place of the server; the cases show that it runs."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from compat_tests.endpoints import base, ours
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.process import ChildProcess

READY = '{"ready":true,"pid":1,"namesrv":"127.0.0.1:1","brokers":[]}'


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    seen: list[list[str]] = []

    def start(name: str, command: list[str], log: Path, env: dict[str, str]) -> ChildProcess:
        seen.append(command)
        script = f"import time; print('{{\"log\": 1}}'); print('''{READY}''', flush=True); time.sleep(600)"
        return ChildProcess(name, [sys.executable, "-c", script], log, env)

    monkeypatch.setattr(ours, "ChildProcess", start)
    monkeypatch.setattr(base, "wait_for_route", lambda *_: "")
    return seen


def test_options_and_ready_line(commands: list[list[str]], tmp_path: Path) -> None:
    with OursEndpoint({"brokerName": "b"}, tmp_path, ("--brokers", "3")) as endpoint:
        assert endpoint.ready["namesrv"] == "127.0.0.1:1"
    (command,) = commands
    assert command[command.index("--broker-port") + 1] == str(endpoint.broker_port)
    assert ("--set", "brokerName=b") in pairwise(command)
    assert command[-2:] == ["--brokers", "3"]


def test_a_restart_waits_for_a_new_ready_line(commands: list[list[str]], tmp_path: Path) -> None:
    with OursEndpoint(None, tmp_path) as endpoint:
        endpoint.crash()
        endpoint.start()
        assert (tmp_path / "server.log").read_text().count(READY) == 2
