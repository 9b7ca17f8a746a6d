"""`rmq-gateway cluster replicas`, `controllers` and `broker promote` with official brokers and either controller."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from acceptance.test_cluster import available, namesrv_alone
from compat_tests.clients.typed import connect
from compat_tests.server import eventually
from remoting.errors import REQUEST_FAILURES
from remoting.requests.namesrv import GetBrokerClusterInfo
from tools.official_controllers import ControlledBroker, OfficialController, free_port
from tools.processes import Gateway, environment

pytestmark = pytest.mark.both_servers

NAME = "broker-a"
HEARTBEAT_MS = 6_000
SYNC_S = 90.0
"""An official replica learns its master's port for the log with its registration, every 30 s."""


class Outcome(NamedTuple):
    code: int
    output: str

    def rows(self) -> Any:
        return json.loads(self.output[self.output.index("[") :])


class Cluster:
    """A namesrv of ours, one controller, and two official brokers under it."""

    def __init__(self, directory: Path, stack: ExitStack, *, is_official: bool) -> None:
        self.directory = directory
        self.namesrv = stack.enter_context(namesrv_alone(directory / "n")).namesrv
        if is_official:
            self.controller = stack.enter_context(OfficialController(directory / "c")).address
        else:
            self.controller = f"127.0.0.1:{free_port()}"
            arguments = ["--host", "127.0.0.1", "--memory"]
            arguments += ["--set", f"controllerDLegerPeers=n0-{self.controller}"]
            stack.enter_context(Gateway(directory / "c", *arguments, command="controller"))
        # The first one is to be the master.
        self.brokers = [self.add_broker(stack, 1)]
        eventually(lambda: 0 in self.registered(), SYNC_S)
        self.brokers.append(self.add_broker(stack, 2))

    def add_broker(self, stack: ExitStack, number: int) -> ControlledBroker:
        settings = {"brokerName": NAME, "controllerHeartBeatTimeoutMills": str(HEARTBEAT_MS)}
        broker = ControlledBroker(self.directory / f"b{number}", self.namesrv, self.controller, settings)
        return stack.enter_context(broker)

    def registered(self) -> dict[int, str]:
        try:
            with connect(self.namesrv) as namesrv:
                table = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table
        except REQUEST_FAILURES:
            return {}
        return dict(table[NAME].broker_addrs) if NAME in table else {}

    def run(self, *arguments: str) -> Outcome:
        line = [sys.executable, "-m", "gateway.commands.cli", *arguments, "--namesrv", self.namesrv]
        done = subprocess.run(
            line, capture_output=True, text=True, env=environment(self.directory), timeout=180, check=False
        )
        return Outcome(done.returncode, done.stdout + done.stderr)

    def are_in_sync(self) -> bool:
        shown = self.run("cluster", "replicas", "--json")
        return shown.code == 0 and [row["inSync"] for row in shown.rows()] == [True, True]


@contextmanager
def cluster(directory: Path, *, is_official: bool) -> Iterator[Cluster]:
    with ExitStack() as stack, available():
        yield Cluster(directory, stack, is_official=is_official)


@pytest.mark.parametrize("is_official", [True, False], ids=["official", "ours"])
def test_commands_show_and_change_the_master(tmp_path: Path, is_official: bool) -> None:
    with cluster(tmp_path, is_official=is_official) as running:
        eventually(running.are_in_sync, SYNC_S, every_s=1)
        first, second = running.brokers
        master, slave = running.run("cluster", "replicas", "--json").rows()
        assert (master["address"], master["role"], master["election"]) == (
            first.broker,
            "master",
            "is the master",
        )
        assert (slave["address"], slave["role"], slave["next"]) == (second.broker, "slave", True)
        assert slave["election"] == "would be elected"
        assert (master["epoch"], slave["epoch"]) == (1, 1)
        assert master["logEnd"] == slave["logEnd"]
        (row,) = running.run("cluster", "controllers", "--json").rows()
        assert (row["address"], row["leads"]) == (running.controller, True)
        health = running.run("cluster", "health", "--json")
        assert {row["check"] for row in health.rows()} >= {
            "one of them leads",
            "has all replicas alive and in sync",
            "has a master that could be replaced",
        }

        refused = running.run("broker", "promote", second.broker, "--force", "--yes")
        assert refused.code == 2
        assert "under a controller" in refused.output
        done = running.run("broker", "promote", NAME, "--yes", "--json")
        assert done.code == 0, done.output
        assert {row["address"]: row["role"] for row in done.rows()} == {
            first.broker: "slave",
            second.broker: "master",
        }
        assert running.registered()[0] == second.broker
        eventually(running.are_in_sync, SYNC_S, every_s=1)
        done = running.run("broker", "demote", second.broker, "--yes", "--json")
        assert done.code == 0, done.output
        assert running.registered()[0] == first.broker

        second.crash()
        shown = running.run("cluster", "replicas")
        assert shown.code == 3
        assert "nobody could replace the master" in shown.output
        refused = running.run("broker", "promote", NAME, "--yes")
        assert refused.code == 1
        assert f"{second.broker} is" in refused.output
