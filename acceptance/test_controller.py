"""Our controller for official brokers: elections, kills of a master, and mqadmin."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from acceptance.test_cluster import available
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import connect, send, topic_request
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.bodies.ha import ReplicasInfo
from remoting.errors import REQUEST_FAILURES
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset
from tools.etcd_members import EtcdMembers, etcd_program
from tools.official_controllers import ControlledBroker, free_port, leads, read_replicas
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

NAME, TOPIC = "broker-a", "Controlled"
HEARTBEAT_MS = 6_000
ELECTED_S = 90.0
"""An official replica learns its master's port for the log with its registration, every 30 s."""


class Cluster:
    """Controllers of ours, a namesrv of ours, and official brokers under them.

    One controller runs in the process of the namesrv; several run as processes of their own, with etcd.
    """

    def __init__(
        self, directory: Path, stack: ExitStack, etcd: EtcdMembers | None = None, count: int = 1
    ) -> None:
        self.directory = directory
        self._stack = stack
        self._etcd = etcd
        self._namesrv_port = free_port()
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.controllers: dict[int, Gateway] = {}
        self.brokers: list[ControlledBroker] = []
        if etcd is None:
            self.start_controller(0)
            self.gateway = self.controllers[0]
        else:
            self.gateway = self._start("n", "namesrv", [])
            for index in range(count):
                self.start_controller(index)

    def start_controller(self, index: int) -> None:
        peers = ";".join(f"n{number}-{address}" for number, address in enumerate(self.addresses))
        settings = [f"controllerDLegerPeers={peers}", f"controllerDLegerSelfId=n{index}"]
        if self._etcd is None:
            settings += ["enableControllerInNamesrv=true", f"controllerStorePath={self.directory / 'state'}"]
            self.controllers[0] = self._start("n", "namesrv", settings)
        else:
            settings += [f"controllerEtcd={';'.join(self._etcd.urls)}"]
            self.controllers[index] = self._start(f"c{index}", "controller", settings)

    def _start(self, name: str, command: str, settings: list[str]) -> Gateway:
        arguments = ["--host", "127.0.0.1"]
        if command == "namesrv":
            arguments += ["--port", str(self._namesrv_port)]
        for setting in settings:
            arguments += ["--set", setting]
        return self._stack.enter_context(Gateway(self.directory / name, *arguments, command=command))

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self._namesrv_port}"

    def leader(self) -> int:
        """Return the number of the controller that leads; there must be one."""
        (index,) = [index for index in self.controllers if leads(self.addresses[index])]
        return index

    def add_broker(self) -> ControlledBroker:
        directory = self.directory / f"b{len(self.brokers) + 1}"
        settings = {"brokerName": NAME, "controllerHeartBeatTimeoutMills": str(HEARTBEAT_MS)}
        broker = ControlledBroker(directory, self.namesrv, ";".join(self.addresses), settings)
        self._stack.enter_context(broker)
        self.brokers.append(broker)
        return broker

    def replicas(self) -> ReplicasInfo:
        """Return what the leading controller knows; nothing while none leads."""
        return read_replicas([self.addresses[index] for index in self.controllers], NAME)

    def master(self) -> str | None:
        return self.replicas().master_address

    def in_sync(self) -> set[str | None]:
        return {replica.broker_address for replica in self.replicas().in_sync_replicas}

    def alive(self) -> set[str | None]:
        """Return the addresses of the replicas whose heartbeats have not stopped."""
        replicas = self.replicas()
        members = [*replicas.in_sync_replicas, *replicas.not_in_sync_replicas]
        return {replica.broker_address for replica in members if replica.alive}

    def start_pair(self) -> tuple[ControlledBroker, ControlledBroker]:
        """Start a master and a slave that is in sync, with a topic."""
        first = self.add_broker()
        eventually(lambda: self.master() == first.broker, ELECTED_S)
        second = self.add_broker()
        eventually(lambda: self.in_sync() == {first.broker, second.broker}, ELECTED_S)
        with connect(first.broker) as broker:
            broker.ask(topic_request(TOPIC, 4))
        eventually(lambda: send_one(first.broker, b"before"), 30)
        # The slave takes the topics over every few seconds.
        eventually(lambda: count_at(second.broker) >= 1, 30)
        return first, second

    def check_logs(self) -> None:
        """Assert that no process of ours logged a failure of its own."""
        for gateway in (self.gateway, *self.controllers.values()):
            assert "Traceback" not in gateway.output()


def send_one(address: str, body: bytes) -> bool:
    try:
        with connect(address, timeout_s=6) as broker:
            return send(broker, TOPIC, body).code == 0
    except REQUEST_FAILURES:
        return False


def is_shown_as_master(namesrv: str, address: str) -> bool:
    try:
        with connect(namesrv) as client:
            route = client.ask(GetRouteInfoByTopic(topic=TOPIC)).data
    except REQUEST_FAILURES:
        return False
    return any(broker.broker_addrs.get(0) == address for broker in route.broker_datas)


def require_etcd() -> None:
    """Skip the case if there is no etcd."""
    if etcd_program() is None:
        if os.environ.get("WITHOUT_ETCD"):
            pytest.skip("WITHOUT_ETCD is set")
        skip_or_fail("etcd is not on PATH, which is needed for several controllers")


@contextmanager
def cluster(directory: Path, etcd_members: int = 0) -> Iterator[Cluster]:
    with ExitStack() as stack, available():
        etcd = None
        if etcd_members:
            require_etcd()
            (directory / "etcd").mkdir()
            etcd = stack.enter_context(EtcdMembers(directory / "etcd", etcd_members))
        yield Cluster(directory, stack, etcd, max(1, etcd_members))


def count_at(address: str) -> int:
    try:
        with connect(address) as broker:
            return sum(broker.ask(GetMaxOffset(topic=TOPIC, queue_id=queue)).offset for queue in range(4))
    except REQUEST_FAILURES:
        return -1


def settled_count_at(address: str) -> int:
    """Return the number of messages, once an official broker has queued all that it has stored."""
    with connect(address) as broker:
        eventually(lambda: broker.ask(GetBrokerRuntimeInfo()).data.table["dispatchBehindBytes"] == "0", 30)
    return count_at(address)


def test_a_killed_master_is_replaced_and_returns_as_slave(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        first, second = running.start_pair()
        for number in range(20):
            assert send_one(first.broker, b"%d" % number)
        sent = settled_count_at(first.broker)

        epoch = running.replicas().master_epoch or 0
        killed_at = time.monotonic()
        first.crash()
        eventually(lambda: running.master() == second.broker, 20, every_s=0.05)
        elected_s = time.monotonic() - killed_at
        eventually(lambda: send_one(second.broker, b"after"), 30)
        print(f"elected {elected_s:.1f} s, writable {time.monotonic() - killed_at:.1f} s after the kill")
        assert elected_s < HEARTBEAT_MS / 1000
        assert running.replicas().master_epoch == epoch + 1
        assert running.in_sync() == {second.broker}
        assert settled_count_at(second.broker) == sent + 1
        eventually(lambda: is_shown_as_master(running.namesrv, second.broker), 30)

        first.start()
        eventually(lambda: running.in_sync() == {first.broker, second.broker}, ELECTED_S)
        assert running.master() == second.broker
        eventually(lambda: count_at(first.broker) == count_at(second.broker), 30)
        running.check_logs()


def test_mqadmin_switches_over_and_a_hung_master_is_replaced(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        first, second = running.start_pair()
        controller = running.addresses[0]

        def mqadmin(*arguments: str) -> str:
            return run_mqadmin(tmp_path / "admin", *arguments)

        printed = mqadmin("getControllerMetaData", "-a", controller)
        assert f"#ControllerLeaderAddress\t{controller}" in printed
        printed = mqadmin("getSyncStateSet", "-a", controller, "-b", NAME)
        assert "#SyncStateSetNums\t2" in printed
        assert first.broker in printed
        printed = mqadmin("getBrokerEpoch", "-n", running.namesrv, "-b", NAME)
        assert "#Epoch: EpochEntry{epoch=1" in printed
        assert "enableElectUncleanMaster" in mqadmin("getControllerConfig", "-a", controller)
        arguments = ["-a", controller, "-c", "DefaultCluster", "-bn", NAME]
        printed = mqadmin("electMaster", *arguments, "-b", "2")
        assert f"#BrokerMasterAddr\t{second.broker}" in printed
        eventually(lambda: send_one(second.broker, b"switched"), 30)
        eventually(lambda: running.in_sync() == {first.broker, second.broker}, ELECTED_S)
        printed = mqadmin("cleanBrokerMetadata", *arguments, "-b", "1")
        assert "is still alive, clean up failure" in printed

        # A hung master keeps its connection.
        hung_at = time.monotonic()
        (java,) = second.children
        os.kill(java.pid, signal.SIGSTOP)
        try:
            eventually(lambda: running.master() == first.broker, 30, every_s=0.1)
            elected_s = time.monotonic() - hung_at
            eventually(lambda: send_one(first.broker, b"while it hangs"), 30)
            assert elected_s < 1.5 * HEARTBEAT_MS / 1000
        finally:
            os.kill(java.pid, signal.SIGCONT)
        eventually(lambda: running.in_sync() == {first.broker, second.broker}, ELECTED_S)
        assert running.master() == first.broker

        # The controller is killed, and starts again: nobody is elected.
        epoch = running.replicas().master_epoch
        running.controllers[0].kill()
        running.start_controller(0)
        eventually(lambda: running.master() == first.broker, 20)
        time.sleep(2 * HEARTBEAT_MS / 1000)
        assert (running.master(), running.replicas().master_epoch) == (first.broker, epoch)
        assert send_one(first.broker, b"after all")

        second.crash()
        eventually(lambda: running.alive() == {first.broker}, 30)
        # On a busy machine a JVM takes ten seconds and more for one try, of which the tool's request may wait for 3 s.
        eventually(lambda: "success" in mqadmin("cleanBrokerMetadata", *arguments, "-b", "2"), 120)
        assert [replica.broker_id for replica in running.replicas().in_sync_replicas] == [1]
        running.check_logs()


def test_of_three_controllers_with_etcd_one_may_die_together_with_the_master(tmp_path: Path) -> None:
    with cluster(tmp_path, etcd_members=3) as running:
        first, second = running.start_pair()
        sent = settled_count_at(first.broker)
        running.controllers.pop(running.leader()).kill()
        first.crash()
        eventually(lambda: running.master() == second.broker, 30, every_s=0.1)
        eventually(lambda: send_one(second.broker, b"after"), 30)
        assert settled_count_at(second.broker) == sent + 1
        assert running.replicas().master_epoch == 2
        leader = running.leader()
        # A leader that hangs, and comes back after another one has led, changes nothing.
        running.controllers[leader].signal(signal.SIGSTOP)
        hung = running.controllers.pop(leader)
        eventually(lambda: running.replicas().master_epoch == 2, 30)
        hung.signal(signal.SIGCONT)
        first.start()
        eventually(lambda: running.in_sync() == {first.broker, second.broker}, ELECTED_S)
        assert not leads(running.addresses[leader])
        assert (running.master(), running.replicas().master_epoch) == (second.broker, 2)
        running.check_logs()
