"""Send statuses of a SYNC_MASTER, as stock clients see them, with a slave that a test plays by hand."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from acceptance.test_cluster import available, namesrv_alone
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, has_route, send, send_request
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.requests.ha import ExchangeBrokerHaInfo, GetBrokerHaStatus
from tools.processes import Gateway

OK, SLAVE_TIMEOUT, NO_SLAVE = 0, 12, 11


class PlayedSlave:
    """A connection to a HA port that reads everything, and acknowledges it if it is told to."""

    def __init__(self, address: str, start: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.acknowledges = True
        self.end = start
        self.log = bytearray()
        self._socket = socket.create_connection((host, int(port)), 5)
        self._stream = self._socket.makefile("rb")
        self.report(start)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def report(self, offset: int) -> None:
        self._socket.sendall(struct.pack(">q", offset))

    def _copy(self) -> None:
        while len(head := self._stream.read(12)) == 12:
            offset, size = struct.unpack(">qi", head)
            data = self._stream.read(size)
            self.log += data
            self.end = offset + len(data)
            if self.acknowledges and size:
                self.report(self.end)

    def join(self) -> None:
        """Wait until the master has closed the connection."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._socket.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._socket.close()


@contextmanager
def sync_master(directory: Path, *settings: str) -> Iterator[tuple[str, BlockingClient, str]]:
    """Run a namesrv and a SYNC_MASTER; return the namesrv, a connection to the broker, and its HA address."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_alone(directory / "n"))
        options = [
            "-n",
            namesrv.namesrv,
            "--store",
            str(directory / "store"),
            "--set",
            "brokerRole=SYNC_MASTER",
        ]
        for setting in settings:
            options += ["--set", setting]
        broker = stack.enter_context(Gateway(directory / "b", *options, command="broker"))
        with connect(namesrv.namesrv) as client:
            eventually(lambda: has_route(client, "TBW102"), 20)
        client = stack.enter_context(connect(*broker.brokers.values()))
        yield namesrv.namesrv, client, client.ask(ExchangeBrokerHaInfo()).master_ha_address or ""


def status_of_send(broker: BlockingClient) -> tuple[int, float]:
    """Send a message; return the code of the answer and the seconds that it took."""
    before = time.monotonic()
    answer = broker.send_command(send_request("T").to_command(1))
    return answer.code, time.monotonic() - before


def slaves(broker: BlockingClient) -> int:
    return len(broker.ask(GetBrokerHaStatus()).data.ha_connection_info)


def test_statuses_follow_the_slaves(tmp_path: Path) -> None:
    with sync_master(tmp_path, "slaveTimeout=500") as (_, broker, ha_address):
        assert status_of_send(broker)[0] == NO_SLAVE
        with closing(PlayedSlave(ha_address)) as slave:
            eventually(lambda: slaves(broker) == 1, 5)
            assert [status_of_send(broker)[0] for _ in range(20)] == [OK] * 20
            slave.acknowledges = False
            code, took_s = status_of_send(broker)
            assert code == SLAVE_TIMEOUT
            assert 0.45 < took_s < 3
        eventually(lambda: slaves(broker) == 0, 5)
        assert status_of_send(broker)[0] == NO_SLAVE


def test_the_official_meaning_can_be_configured(tmp_path: Path) -> None:
    with sync_master(tmp_path / "one", "inSyncReplicas=1") as (_, broker, _):
        assert status_of_send(broker)[0] == OK
    with sync_master(tmp_path / "two", "inSyncReplicas=2", "slaveTimeout=300") as (_, broker, ha_address):
        assert status_of_send(broker)[0] == SLAVE_TIMEOUT
        with closing(PlayedSlave(ha_address)):
            eventually(lambda: slaves(broker) == 1, 5)
            assert status_of_send(broker)[0] == OK


def test_a_lying_slave_confirms_nothing(tmp_path: Path) -> None:
    """At an official master its report turns every later send into a success."""
    with sync_master(tmp_path, "slaveTimeout=300") as (_, broker, ha_address):
        send(broker, "T")
        with closing(PlayedSlave(ha_address)) as slave:
            eventually(lambda: slaves(broker) == 1, 5)
            slave.acknowledges = False
            slave.report(1 << 40)
            eventually(lambda: slaves(broker) == 0, 5)
        assert status_of_send(broker)[0] == NO_SLAVE
        with closing(PlayedSlave(ha_address, start=1 << 40)):
            time.sleep(0.3)
            assert slaves(broker) == 0
            assert status_of_send(broker)[0] == NO_SLAVE


def test_a_master_that_stops_leaves_nothing_unsent(tmp_path: Path) -> None:
    with Gateway(
        tmp_path, "--store", str(tmp_path / "store"), "--set", "mappedFileSizeCommitLog=1048576"
    ) as running:
        with connect(*running.brokers.values()) as broker:
            slave = PlayedSlave(broker.ask(ExchangeBrokerHaInfo()).master_ha_address or "")
            eventually(lambda: slaves(broker) == 1, 5)
            for number in range(300):
                send(broker, "T", b"%d" % number)
        assert running.stop() == 0
        slave.join()
    (path,) = (tmp_path / "store" / "commitlog").iterdir()
    log = path.read_bytes()
    assert b"299" in slave.log
    assert log.startswith(slave.log)
    assert not any(log[len(slave.log) :])


@pytest.mark.parametrize("profile", ["client-4.9", "client-5.5"])
def test_stock_clients_see_the_statuses(tmp_path: Path, profile: str) -> None:
    with (
        sync_master(tmp_path, "slaveTimeout=500") as (namesrv, broker, ha_address),
        available(),
        closing(JavaDriver(profile, namesrv)) as driver,
        JavaClient(driver, profile).producer("p") as producer,
    ):

        def status() -> str:
            return str(producer.send_numbered("T", 1)[0]["status"])

        assert status() == "SLAVE_NOT_AVAILABLE"
        with closing(PlayedSlave(ha_address)) as slave:
            eventually(lambda: slaves(broker) == 1, 5)
            assert status() == "SEND_OK"
            slave.acknowledges = False
            assert status() == "FLUSH_SLAVE_TIMEOUT"
