"""Our broker and an official one under a controller: each is master and slave of the other in turn.

The official release is 5.4.0. OFFICIAL_RELEASE=5.5.0 in the environment names another one for the first test, which is
run under its controller and under ours then.
"""

import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from acceptance.test_cluster import available, namesrv_alone
from acceptance.test_replicas import commit_log
from compat_tests.clients.typed import connect, send, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.bodies.ha import EpochEntryCache, ReplicasInfo
from remoting.errors import REQUEST_FAILURES
from remoting.requests.ha import GetBrokerEpochCache, GetBrokerHaStatus
from remoting.requests.offsets import GetMaxOffset
from tools.official_controllers import (
    OFFICIAL_SERVER,
    ControlledBroker,
    OfficialController,
    free_port,
    leads,
    read_replicas,
)
from tools.processes import Gateway

NAME, TOPIC = "broker-a", "Epochs"
FILE_BYTES = 1 << 20
SETTINGS = {"brokerName": NAME, "controllerHeartBeatTimeoutMills": "6000"}
OUR_SETTINGS = {
    **SETTINGS,
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": str(FILE_BYTES),
}
IN_SYNC_S = 90.0
"""An official slave learns the HA address of its master with its registration, every 30 s."""


RELEASE = os.environ.get("OFFICIAL_RELEASE", "")
RUNS = (
    [(f"server-{RELEASE}", kind) for kind in ("official", "ours")]
    if RELEASE
    else [(OFFICIAL_SERVER, "official")]
)


class MixedGroup:
    """A controller, a namesrv of ours, an official broker and one of ours."""

    def __init__(
        self, directory: Path, stack: ExitStack, profile: str = OFFICIAL_SERVER, controller: str = "official"
    ) -> None:
        self._directory, self._stack, self._profile = directory, stack, profile
        self.namesrv = stack.enter_context(namesrv_alone(directory / "n")).namesrv
        if controller == "official":
            self.controller = stack.enter_context(
                OfficialController(directory / "c", profile=profile)
            ).address
        else:
            self.controller = f"127.0.0.1:{free_port()}"
            arguments = ["--host", "127.0.0.1", "--memory"]
            arguments += ["--set", f"controllerDLegerPeers=n0-{self.controller}"]
            stack.enter_context(Gateway(directory / "c", *arguments, command="controller"))
            eventually(lambda: leads(self.controller), 30)
        self.official = self.new_official("official")
        self._our_port = find_server_ports()[1]
        self.our_process: Gateway | None = None

    def new_official(self, name: str) -> ControlledBroker:
        """Return an official broker with a new store."""
        return ControlledBroker(
            self._directory / name, self.namesrv, self.controller, SETTINGS, profile=self._profile
        )

    @property
    def our_address(self) -> str:
        return f"127.0.0.1:{self._our_port}"

    @property
    def stores(self) -> tuple[Path, Path]:
        return Path(self.official.store), self._directory / "ours" / "store"

    def start_ours(self) -> None:
        options = ["-n", self.namesrv, "--store", str(self.stores[1]), "--host", "127.0.0.1"]
        options += ["--port", str(self._our_port)]
        for key, value in {**OUR_SETTINGS, "controllerAddr": self.controller}.items():
            options += ["--set", f"{key}={value}"]
        process = Gateway(self._directory / "ours", *options, command="broker")
        self.our_process = self._stack.enter_context(process)

    def kill_ours(self) -> None:
        assert self.our_process is not None
        self.our_process.kill()

    def replicas(self) -> ReplicasInfo:
        return read_replicas([self.controller], NAME)

    def wait_for_master(self, address: str) -> None:
        """Wait until a broker is master and takes messages."""
        eventually(lambda: self.replicas().master_address == address and self.takes_messages(address), 90)

    def wait_in_sync(self) -> None:
        """Wait until both brokers are in sync."""
        both = {self.official.broker, self.our_address}
        eventually(
            lambda: {replica.broker_address for replica in self.replicas().in_sync_replicas} == both,
            IN_SYNC_S,
        )

    @staticmethod
    def takes_messages(address: str) -> bool:
        try:
            with connect(address, timeout_s=6) as broker:
                broker.ask(topic_request(TOPIC, 4))
                return bool(send(broker, TOPIC, b"is anybody there").code == 0)
        except REQUEST_FAILURES:
            return False

    @staticmethod
    def fill(address: str, count: int) -> None:
        with connect(address) as broker:
            for number in range(count):
                assert send(broker, TOPIC, b"%d " % number + b"x" * 900, queue_id=number % 4).code == 0

    @staticmethod
    def epochs(address: str) -> EpochEntryCache:
        with connect(address) as broker:
            return broker.ask(GetBrokerEpochCache()).data

    def check_equal(self) -> None:
        """Assert that logs, queues and epochs are the same, also in the files."""
        addresses = self.official.broker, self.our_address

        def are_equal() -> bool:
            first, second = map(self.epochs, addresses)
            return (first.max_offset, first.epoch_list) == (second.max_offset, second.epoch_list)

        eventually(are_equal, 30)
        own, copies = map(commit_log, self.stores)
        common = own.keys() & copies.keys()
        assert {name: own[name] == copies[name] for name in common} == dict.fromkeys(common, True)
        files = [store / "epochFileCheckpoint" for store in self.stores]
        assert files[0].read_bytes() == files[1].read_bytes()
        with connect(addresses[0]) as first, connect(addresses[1]) as second:
            for queue_id in range(4):
                ends = GetMaxOffset(topic=TOPIC, queue_id=queue_id)
                eventually(lambda ends=ends: first.ask(ends).offset == second.ask(ends).offset, 20)  # type: ignore[misc]


@contextmanager
def mixed_group(
    directory: Path, profile: str = OFFICIAL_SERVER, controller: str = "official"
) -> Iterator[MixedGroup]:
    with ExitStack() as stack, available():
        yield MixedGroup(directory, stack, profile, controller)


@pytest.mark.both_servers
@pytest.mark.parametrize(("profile", "controller"), RUNS)
def test_an_official_broker_and_ours_are_master_and_slave_in_turn(
    tmp_path: Path, profile: str, controller: str
) -> None:
    with mixed_group(tmp_path, profile, controller) as group, group.official:
        group.wait_for_master(group.official.broker)
        # More than one file before there is a slave.
        group.fill(group.official.broker, 2000)
        group.start_ours()
        group.wait_in_sync()
        group.fill(group.official.broker, 100)
        group.check_equal()

        group.official.crash()
        group.wait_for_master(group.our_address)
        group.fill(group.our_address, 100)
        group.official.start()
        group.wait_in_sync()
        group.fill(group.our_address, 100)
        group.check_equal()

        group.kill_ours()
        group.wait_for_master(group.official.broker)
        group.fill(group.official.broker, 10)
        group.start_ours()
        group.wait_in_sync()
        group.fill(group.official.broker, 10)
        group.check_equal()
        assert len(group.epochs(group.our_address).epoch_list) == 3

        # A new official slave has the short epochs as well: from an official master it would not.
        group.official.crash()
        group.wait_for_master(group.our_address)
        with group.new_official("late") as group.official:
            group.wait_in_sync()
            group.check_equal()
            assert len(group.epochs(group.official.broker).epoch_list) == 4
        assert group.our_process is not None
        assert "Traceback" not in group.our_process.output()


USER = '{"username":"root","password":"open sesame"}'
KEY = '{"accessKey":"root","secretKey":"open sesame"}'
LOCKED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": USER,
    "innerClientAuthenticationCredentials": KEY,
    "tls.server.mode": "enforcing",
    "tls.enable": "true",
    "tls.client.authServer": "false",
}


class OurGroup:
    """A controller of ours in the process of a namesrv, and brokers of ours."""

    def __init__(self, directory: Path, stack: ExitStack, settings: Mapping[str, str]) -> None:
        self._directory, self._stack = directory, stack
        self.controller = f"127.0.0.1:{free_port()}"
        self._settings = {**OUR_SETTINGS, **settings, "controllerAddr": self.controller}
        controller_settings = {
            "enableControllerInNamesrv": "true",
            "controllerDLegerPeers": f"n0-{self.controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(directory / "state"),
        }
        self._namesrv = self._start("n", "namesrv", [], controller_settings).namesrv
        self.brokers: list[Gateway] = []

    def _start(self, name: str, command: str, options: list[str], settings: Mapping[str, str]) -> Gateway:
        arguments = [*options, "--host", "127.0.0.1"]
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        return self._stack.enter_context(Gateway(self._directory / name, *arguments, command=command))

    def store(self, index: int) -> Path:
        return self._directory / f"b{index}" / "store"

    def add_broker(self, settings: Mapping[str, str] | None = None) -> Gateway:
        """Start one more broker; the first one becomes master."""
        index = len(self.brokers)
        options = [
            "-n",
            self._namesrv,
            "--store",
            str(self.store(index)),
            "--port",
            str(find_server_ports()[1]),
        ]
        broker = self._start(f"b{index}", "broker", options, {**self._settings, **(settings or {})})
        self.brokers.append(broker)
        eventually(lambda: broker.lines("follows its master" if index else "broker leads"), 40)
        return broker


def test_replicas_with_access_control_and_tls_copy_and_nobody_else_does(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = OurGroup(tmp_path, stack, LOCKED)
        master, slave = group.add_broker(), group.add_broker()
        (connected,) = master.lines("slave connected")
        assert "remote=127.0.0.1" in connected
        host, _, port = master.broker.rpartition(":")
        hello, ha_address = struct.pack(">ihhq", 1, 0, 0, 7), (host, int(port) + 1)
        with socket.create_connection(ha_address, 5) as intruder, suppress(ConnectionResetError):
            intruder.sendall(hello)
            assert intruder.recv(4096) == b""
        # With TLS, but without a ticket.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(ha_address, 5)
        with context.wrap_socket(plain) as intruder, suppress(ConnectionResetError, ssl.SSLEOFError):
            intruder.sendall(hello)
            assert intruder.recv(4096) == b""
        assert master.lines("connection without TLS refused")
        assert master.lines("it has no valid ticket")
        assert len(master.lines("slave connected")) == 1
        assert all("Traceback" not in broker.output() for broker in (master, slave))


def test_a_learner_copies_the_last_file_and_is_never_waited_for(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = OurGroup(tmp_path, stack, {"autoCreateTopicEnable": "true"})
        master = group.add_broker()
        MixedGroup.takes_messages(master.broker)
        MixedGroup.fill(master.broker, 3000)
        learner = group.add_broker({"asyncLearner": "true", "syncFromLastFile": "true"})
        MixedGroup.fill(master.broker, 20)
        eventually(
            lambda: (
                MixedGroup.epochs(master.broker).max_offset == MixedGroup.epochs(learner.broker).max_offset
            ),
            20,
        )
        files, copied = commit_log(group.store(0)), commit_log(group.store(1))
        assert len(files) > 2
        newest = max(files)
        assert copied == {newest: files[newest]}
        with connect(master.broker) as broker:
            status = broker.ask(GetBrokerHaStatus()).data
        assert (status.in_sync_slave_nums, [slave.in_sync for slave in status.ha_connection_info]) == (
            0,
            [False],
        )
        info = read_replicas([group.controller], NAME, timeout_s=10)
        assert [replica.broker_address for replica in info.in_sync_replicas] == [master.broker]
        learner.kill()
        MixedGroup.fill(master.broker, 20)
