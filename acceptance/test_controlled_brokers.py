"""Three brokers of ours under a controller, the official one and ours: a master that dies or hangs is replaced.

A stock Java client goes on meanwhile: nothing that was acknowledged is lost, and its consumer gets everything.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from acceptance.test_cluster import available
from codec.constants import ResponseCode
from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.clients.java_api import JavaClient, JavaProducer
from compat_tests.clients.typed import connect, send, send_request, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.bodies.ha import ReplicasInfo
from remoting.errors import REQUEST_FAILURES
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.offsets import GetMaxOffset
from tools.official_controllers import OfficialController, free_port, read_replicas
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

NAME, TOPIC = "broker-a", "Controlled"
HEARTBEAT_MS = 8_000
SOON_S = 60.0
# Client settings: fetch routes and send heartbeats every second.
OFTEN = {"pollNameServerInterval": 1000, "heartbeatBrokerInterval": 1000}


class Group:
    """A namesrv and three brokers of ours under a controller."""

    def __init__(self, directory: Path, stack: ExitStack, controller: str, namesrv: str) -> None:
        self._directory = directory
        self._stack = stack
        self.controller = controller
        self.namesrv = namesrv
        self.brokers: dict[str, Gateway] = {}
        self._ports: dict[str, int] = {}
        for number in (1, 2, 3):
            self.start(f"b{number}")

    def start(self, name: str) -> None:
        """Start a broker, or start it again with its store."""
        port = self._ports.setdefault(name, find_server_ports()[1])
        settings = [
            f"brokerName={NAME}",
            "brokerIP1=127.0.0.1",
            "enableControllerMode=true",
            f"controllerAddr={self.controller}",
            "allAckInSyncStateSet=true",
            f"controllerHeartBeatTimeoutMills={HEARTBEAT_MS}",
            "mappedFileSizeCommitLog=1048576",
        ]
        self.brokers[name] = self._stack.enter_context(
            Gateway(
                self._directory / name,
                *("-n", self.namesrv, "--host", "127.0.0.1", "--port", str(port)),
                *("--store", str(self._directory / name / "store")),
                *[word for setting in settings for word in ("--set", setting)],
                command="broker",
            )
        )

    def replicas(self) -> ReplicasInfo:
        """Return what the controller knows."""
        return read_replicas([self.controller], NAME)

    def members(self) -> dict[int, str]:
        """Return the registered addresses by broker id."""
        with connect(self.namesrv) as client:
            table = client.ask(GetBrokerClusterInfo()).data.broker_addr_table or {}
        return dict(table[NAME].broker_addrs) if NAME in table else {}

    def wait_until_in_sync(self, count: int) -> ReplicasInfo:
        eventually(lambda: len(self.replicas().in_sync_replicas) == count, SOON_S)
        return self.replicas()

    def master(self) -> str:
        """Return the name of the process that is master."""
        address = self.replicas().master_address
        (name,) = [name for name, gateway in self.brokers.items() if gateway.broker == address]
        return name

    def count(self, name: str) -> int:
        """Return the number of messages at a broker."""
        try:
            with connect(self.brokers[name].broker) as broker:
                return sum(broker.ask(GetMaxOffset(topic=TOPIC, queue_id=queue)).offset for queue in range(4))
        except REQUEST_FAILURES:
            return -1

    def is_sent(self, name: str, body: bytes) -> bool:
        try:
            with connect(self.brokers[name].broker, timeout_s=6) as broker:
                return send(broker, TOPIC, body).code == 0
        except REQUEST_FAILURES:
            return False


@contextmanager
def running(directory: Path, kind: str) -> Iterator[Group]:
    with ExitStack() as stack, available():
        arguments: list[str] = []
        if kind == "official":
            controller = stack.enter_context(OfficialController(directory / "controller")).address
        else:
            controller = f"127.0.0.1:{free_port()}"
            arguments = ["--set", "enableControllerInNamesrv=true"]
            arguments += ["--set", f"controllerDLegerPeers=n0-{controller}"]
            arguments += ["--set", f"controllerStorePath={directory / 'state'}"]
        namesrv = stack.enter_context(
            Gateway(
                directory / "n",
                "--host",
                "127.0.0.1",
                "--port",
                str(free_port()),
                *arguments,
                command="namesrv",
            )
        )
        group = Group(directory, stack, controller, namesrv.namesrv)
        group.wait_until_in_sync(3)
        with connect(group.brokers[group.master()].broker) as broker:
            broker.ask(topic_request(TOPIC, 4))
        yield group
        for gateway in group.brokers.values():
            assert "Traceback" not in gateway.output()


def send_all(producer: JavaProducer, texts: list[str]) -> None:
    producer.send(*[{"topic": TOPIC, "body": text} for text in texts])


@pytest.mark.parametrize("kind", ["ours", "official"])
def test_a_killed_master_is_replaced_while_a_java_client_goes_on(kind: str, tmp_path: Path) -> None:
    with running(tmp_path, kind) as group, closing(JavaDriver("server-5.4", group.namesrv)) as driver:
        java = JavaClient(driver, "5.4.0")
        before = group.replicas()
        old = group.master()
        with (
            java.push("readers", TOPIC, settings=OFTEN) as consumer,
            java.producer("senders", **OFTEN) as producer,
        ):
            send_all(producer, [f"before {number}" for number in range(20)])
            killed_at = time.monotonic()
            os.kill(group.brokers[old].pid, signal.SIGKILL)
            eventually(lambda: group.replicas().master_address not in (None, before.master_address), SOON_S)
            new = group.master()
            eventually(lambda: group.is_sent(new, b"typed"), SOON_S, every_s=0.02)
            print(f"{kind}: writable {time.monotonic() - killed_at:.2f} s after the kill")
            after = group.replicas()
            assert (after.master_epoch or 0) > (before.master_epoch or 0)

            def java_sends() -> bool:
                try:
                    producer.send_numbered(TOPIC, 1)
                except JavaClientError:
                    return False
                return True

            eventually(java_sends, SOON_S)
            send_all(producer, [f"after {number}" for number in range(20)])
            group.start(old)
            assert group.wait_until_in_sync(3).master_epoch == after.master_epoch
            assert group.master() == new
            eventually(lambda: group.members()[0] == group.brokers[new].broker, SOON_S)
            assert len(group.members()) == 3
            expected = {f"{when} {number}" for when in ("before", "after") for number in range(20)}
            # Some may come twice, when the offsets of the former master were not copied yet.
            eventually(lambda: expected <= {item["body"] for item in consumer.received(42, 1)}, 60)


@pytest.mark.parametrize("kind", ["ours", "official"])
def test_a_stopped_master_stores_nothing_when_it_goes_on(kind: str, tmp_path: Path) -> None:
    """SIGSTOP: sends wait in its sockets, and it must not take them before it notices that it is not master."""
    with running(tmp_path, kind) as group:
        old = group.master()
        assert group.is_sent(old, b"before")
        before, pid = group.replicas(), group.brokers[old].pid
        with connect(group.brokers[old].broker, timeout_s=20) as early:
            os.kill(pid, signal.SIGSTOP)
            try:
                stopped_at = time.monotonic()
                requests = [send_request(TOPIC, b"to the former master") for _ in range(50)]
                sent = early.start_commands([request.to_command() for request in requests])
                eventually(
                    lambda: group.replicas().master_address not in (None, before.master_address), SOON_S
                )
                new = group.master()
                eventually(lambda: group.is_sent(new, b"after"), SOON_S, every_s=0.02)
                writable_s = time.monotonic() - stopped_at
                print(f"{kind}: writable {writable_s:.2f} s after the stop")
            finally:
                os.kill(pid, signal.SIGCONT)
            codes = [early.receive_answer(opaque).code for opaque in sent]
        # Official controllers look for silent brokers every 5 s.
        assert writable_s < 1.5 * HEARTBEAT_MS / 1000 + (0 if kind == "ours" else 6)
        # Perhaps it became a slave first, and passed them on to the new master.
        assert set(codes) <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        group.wait_until_in_sync(3)
        assert group.master() == new
        stored = group.count(new)
        assert stored >= 2 + codes.count(ResponseCode.SUCCESS)
        eventually(lambda: {group.count(name) for name in group.brokers} == {stored}, SOON_S)
