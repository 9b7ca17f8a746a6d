"""Our controller for official brokers: elections, kills of a master, and mqadmin."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from acceptance.controllers import ControlledBroker, free_port
from acceptance.test_cluster import available
from compat_tests.clients.typed import connect, send, topic_request
from compat_tests.server import eventually
from remoting.bodies.ha import ReplicasInfo
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.controller import ControllerGetSyncStateData
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

NAME, TOPIC = "broker-a", "Controlled"
GONE = (OSError, RemotingClosed, RemotingTimeout, RequestError)
ELECTED_S = 90.0
"""An official replica learns its master's port for the log with its registration, every 30 s."""


class Cluster:
    """Our controller in a namesrv of ours, and official brokers under it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self.controller_address = f"127.0.0.1:{free_port()}"
        self.gateway = self._start_gateway()
        self.brokers: list[ControlledBroker] = []

    def _start_gateway(self) -> Gateway:
        arguments = ["--port", str(free_port()), "--host", "127.0.0.1"]
        for setting in (
            "enableControllerInNamesrv=true",
            f"controllerDLegerPeers=n0-{self.controller_address}",
            f"controllerStorePath={self.directory / 'controller'}",
        ):
            arguments += ["--set", setting]
        return self._stack.enter_context(Gateway(self.directory / "n", *arguments, command="namesrv"))

    @property
    def namesrv(self) -> str:
        return self.gateway.namesrv

    def add_broker(self) -> ControlledBroker:
        directory = self.directory / f"b{len(self.brokers) + 1}"
        broker = ControlledBroker(directory, self.namesrv, self.controller_address, {"brokerName": NAME})
        self._stack.enter_context(broker)
        self.brokers.append(broker)
        return broker

    def replicas(self) -> ReplicasInfo:
        with connect(self.controller_address) as controller:
            request = ControllerGetSyncStateData()
            request.body = f'["{NAME}"]'.encode()
            return controller.ask(request).data.replicas_info_table.get(NAME, ReplicasInfo())

    def master(self) -> str | None:
        return self.replicas().master_address

    def in_sync(self) -> set[str | None]:
        return {replica.broker_address for replica in self.replicas().in_sync_replicas}

    def broker_at(self, address: str | None) -> ControlledBroker:
        (broker,) = [broker for broker in self.brokers if broker.broker == address]
        return broker


def send_one(address: str, body: bytes) -> bool:
    try:
        with connect(address, timeout_s=6) as broker:
            return send(broker, TOPIC, body).code == 0
    except GONE:
        return False


def is_shown_as_master(namesrv: str, address: str) -> bool:
    try:
        with connect(namesrv) as client:
            route = client.ask(GetRouteInfoByTopic(topic=TOPIC)).data
    except GONE:
        return False
    return any(broker.broker_addrs.get(0) == address for broker in route.broker_datas)


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    with ExitStack() as stack, available():
        yield Cluster(directory, stack)


def count_at(address: str) -> int:
    try:
        with connect(address) as broker:
            return sum(broker.ask(GetMaxOffset(topic=TOPIC, queue_id=queue)).offset for queue in range(4))
    except GONE:
        return -1


def test_a_killed_master_of_official_brokers_is_replaced_and_returns_as_slave(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        first = running.add_broker()
        eventually(lambda: running.master() == first.broker, ELECTED_S)
        second = running.add_broker()
        eventually(lambda: running.in_sync() == {first.broker, second.broker}, ELECTED_S)
        with connect(first.broker) as broker:
            broker.ask(topic_request(TOPIC, 4))
        eventually(lambda: send_one(first.broker, b"before"), 30)
        for number in range(20):
            assert send_one(first.broker, b"%d" % number)
        sent = count_at(first.broker)

        epoch = running.replicas().master_epoch
        killed_at = time.monotonic()
        first.crash()
        eventually(lambda: running.master() == second.broker, 20, every_s=0.05)
        elected_s = time.monotonic() - killed_at
        eventually(lambda: send_one(second.broker, b"after"), 30)
        print(f"elected {elected_s:.1f} s, writable {time.monotonic() - killed_at:.1f} s after the kill")
        assert elected_s < 10
        assert running.replicas().master_epoch == (epoch or 0) + 1
        assert running.in_sync() == {second.broker}
        assert count_at(second.broker) == sent + 1
        eventually(lambda: is_shown_as_master(running.namesrv, second.broker), 30)

        first.start()
        eventually(lambda: running.in_sync() == {first.broker, second.broker}, ELECTED_S)
        assert running.master() == second.broker
        eventually(lambda: count_at(first.broker) == count_at(second.broker), 30)
        assert "Traceback" not in running.gateway.output()
