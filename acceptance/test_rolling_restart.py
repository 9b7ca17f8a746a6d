"""A rolling restart of three brokers under a controller, and planned changes of the master, beside stock producers.

CI runs few combinations of controllers and clients; `make rolling-restarts` runs all.
"""

import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from acceptance.test_cluster import available
from acceptance.test_controller import require_etcd
from acceptance.test_roles import read_all, run_command
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, has_route, topic_request
from compat_tests.server import eventually
from remoting.bodies.ha import ReplicasInfo
from tools.failovers.cluster import ETCD_CONTROLLERS, ControllerKind, Controllers
from tools.failovers.network import OneMachine
from tools.official_controllers import free_port, read_replicas
from tools.processes import Gateway

NAME, TOPIC, QUEUES, COUNT = "broker-a", "Roles", 4, 3
SYNC_S = 60.0
STOP_S = 60.0
"""Longest time for which a broker that was master takes to stop: it passes messages on for 35 s."""


IN_NAMESRV, ETCD, OFFICIAL = "in the namesrv", "ours with etcd", "official"
CONTROLLERS = {
    ETCD: ETCD_CONTROLLERS,
    OFFICIAL: ControllerKind("official", 1, is_ours=False),
}
"""Controllers in processes of their own."""
GRPC = "gRPC"
"""The stock Java client of 5.x that speaks gRPC, through `rmq-gateway proxy`."""
COMBINATIONS = [
    (controllers, client)
    for controllers in (IN_NAMESRV, ETCD, OFFICIAL)
    for client in ("client-4.9", "client-5.5", GRPC)
]
IN_CI = [(IN_NAMESRV, "client-4.9"), (IN_NAMESRV, "client-5.5"), (ETCD, GRPC)]
RUNS = COMBINATIONS if os.environ.get("ROLLING_RESTARTS") == "all" else IN_CI


class Group:
    """A namesrv and three brokers of one name, under controllers of a kind."""

    def __init__(self, directory: Path, stack: ExitStack, controllers: str = IN_NAMESRV) -> None:
        self._directory = directory
        self._stack = stack
        arguments = ["--host", "127.0.0.1", "--memory"]
        if controllers == IN_NAMESRV:
            self.controllers = [f"127.0.0.1:{free_port()}"]
            arguments += ["--set", "enableControllerInNamesrv=true"]
            arguments += ["--set", f"controllerDLegerPeers=n0-{self.controllers[0]}"]
        else:
            processes = Controllers(CONTROLLERS[controllers], OneMachine(), directory, stack)
            processes.start_all()
            self.controllers = processes.addresses
        self.namesrv = stack.enter_context(Gateway(directory / "n", *arguments, command="namesrv")).namesrv
        self._ports = [free_port() for _ in range(COUNT)]
        self.brokers = [self.start(index) for index in range(COUNT)]

    def start(self, index: int) -> Gateway:
        directory = self._directory / f"b{index}"
        options = ["-n", self.namesrv, "--store", str(directory / "store"), "--host", "127.0.0.1"]
        options += ["--port", str(self._ports[index])]
        settings = {
            "brokerName": NAME,
            "brokerIP1": "127.0.0.1",
            "enableControllerMode": "true",
            "controllerAddr": ";".join(self.controllers),
            "allAckInSyncStateSet": "true",
            "httpPort": "0",
            "shutdownWaitTimeSeconds": str(round(STOP_S)),
        }
        for name, value in settings.items():
            options += ["--set", f"{name}={value}"]
        return self._stack.enter_context(Gateway(directory, *options, command="broker"))

    def restart(self, index: int) -> None:
        """Stop a broker as an upgrade does, start it again, and wait until it is ready, as a StatefulSet does."""
        assert self.brokers[index].stop(STOP_S + 10) == 0
        self.brokers[index] = self.start(index)
        eventually(lambda: self.is_ready(index), SYNC_S)
        # Where the machine is busy, the request that took it out of the set may be carried out later still.
        eventually(lambda: self.is_in_sync(index), SYNC_S)

    def is_ready(self, index: int) -> bool:
        """Ask `/readyz` of a broker."""
        try:
            with urllib.request.urlopen(f"http://{self.brokers[index].ready['http']}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, TimeoutError):
            return False

    def address(self, index: int) -> str:
        return f"127.0.0.1:{self._ports[index]}"

    def replicas(self) -> ReplicasInfo:
        return read_replicas(self.controllers, NAME)

    @property
    def master(self) -> int:
        return [self.address(index) for index in range(COUNT)].index(self.replicas().master_address or "")

    def is_in_sync(self, index: int) -> bool:
        return self.address(index) in {replica.broker_address for replica in self.replicas().in_sync_replicas}

    def are_in_sync(self) -> bool:
        return len(self.replicas().in_sync_replicas) == COUNT

    def command(self, *arguments: str) -> Any:
        return run_command(self._directory, self.namesrv, *arguments)


@contextmanager
def group(directory: Path, controllers: str = IN_NAMESRV) -> Iterator[Group]:
    if controllers == ETCD:
        require_etcd()
    with ExitStack() as stack, available():
        running = Group(directory, stack, controllers)
        eventually(running.are_in_sync, SYNC_S)
        with connect(running.address(running.master)) as master:
            master.ask(topic_request(TOPIC, QUEUES))
        with connect(running.namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, TOPIC), 20)
        yield running


class Producer(Protocol):
    """A stock producer; of a remoting client or of one that speaks gRPC."""

    def send(self, *messages: dict[str, Any]) -> list[dict[str, Any]]: ...


@contextmanager
def stock_producer(client: str, namesrv: str, directory: Path) -> Iterator[Producer]:
    """Run a producer with the default number of retries."""
    with ExitStack() as stack:
        if client != GRPC:
            driver = stack.enter_context(closing(JavaDriver(client, namesrv)))
            yield stack.enter_context(JavaClient(driver, client).producer("p"))
            return
        arguments = ("--namesrv", namesrv, "--host", "127.0.0.1")
        proxy = stack.enter_context(Gateway(directory / "proxy", *arguments, command="proxy"))
        java = stack.enter_context(closing(start_grpc_driver("")))
        yield stack.enter_context(StockGrpcClient(java, proxy.ready["grpc"]).producer(TOPIC))
        assert "Traceback" not in proxy.output()


class Sending:
    """A thread that sends numbered messages with a stock producer until the block ends, or until the first error."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._is_over = threading.Event()
        self.sent: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> "Sending":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60)

    def _send(self) -> None:
        try:
            while not self._is_over.is_set():
                before_s = time.monotonic()
                self.sent += self._producer.send({"topic": TOPIC, "body": f"{len(self.sent)}"})
                self.longest_s = max(self.longest_s, time.monotonic() - before_s)
                time.sleep(0.002)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def wait_for(self, more: int) -> None:
        """Wait until so many more messages are sent, or one failed."""
        goal = len(self.sent) + more
        eventually(lambda: self.failure is not None or len(self.sent) >= goal, 30)

    def check(self) -> None:
        """Assert that every message so far was stored by all replicas in sync."""
        assert self.failure is None, str(self.failure)
        # A client that speaks gRPC returns a receipt only if all is well.
        statuses = {result.get("status", "SEND_OK") for result in self.sent}
        assert statuses == {"SEND_OK"}, statuses


@pytest.mark.both_servers
@pytest.mark.parametrize(("controllers", "client"), RUNS)
def test_a_rolling_restart_fails_no_send(tmp_path: Path, controllers: str, client: str) -> None:
    """Its producer has the default number of retries, and a route that is up to 30 s old."""
    with (
        group(tmp_path, controllers) as running,
        stock_producer(client, running.namesrv, tmp_path) as producer,
    ):
        with Sending(producer) as sending:
            sending.wait_for(100)
            first = running.master
            for index in [*(index for index in range(COUNT) if index != first), first]:
                running.restart(index)
                eventually(running.are_in_sync, SYNC_S)
                sending.check()
            assert running.master != first
            sending.wait_for(100)
        sending.check()
        print(f"{len(sending.sent)} messages, the slowest took {sending.longest_s:.2f} s")
        bodies = read_all(running.address(running.master))
        assert {body.decode() for body in bodies} == {str(number) for number in range(len(sending.sent))}
        for broker in running.brokers:
            assert "Traceback" not in broker.output()


@pytest.mark.both_servers
def test_the_command_changes_the_master_without_a_failed_send(tmp_path: Path) -> None:
    with (
        group(tmp_path) as running,
        stock_producer("client-5.5", running.namesrv, tmp_path) as producer,
    ):
        with Sending(producer) as sending:
            sending.wait_for(100)
            for _ in range(3):
                first = running.master
                chosen = (first + 1) % COUNT
                rows = running.command("broker", "promote", running.address(chosen), "--yes")
                assert [row["address"] for row in rows if row["role"] == "master"] == [
                    running.address(chosen)
                ]
                assert running.master == chosen
                eventually(running.are_in_sync, SYNC_S)
                sending.wait_for(100)
                sending.check()
        print(f"{len(sending.sent)} messages, the slowest took {sending.longest_s:.2f} s")
        bodies = read_all(running.address(running.master))
        # Held messages are passed on, and stored once.
        assert sorted(int(body) for body in bodies) == list(range(len(sending.sent)))
        assert running.brokers[0].lines("broker handed over and became slave")
