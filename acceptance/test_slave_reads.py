"""Consumers read from our slave while its master is gone, and their progress reaches the master when it is back."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from acceptance.test_cluster import available, namesrv_alone
from codec.topics import PERM_WRITE
from compat_tests.cases.conftest import warm_up
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, has_route, send
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.errors import RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import QueryConsumerOffset
from remoting.requests.topics import GetTopicConfig
from tools.processes import Gateway

MESSAGES, QUEUES = 100, 4
SEND_OK, SLAVE_NOT_AVAILABLE = 0, 11


def run_master(directory: Path, namesrv: str, port: int, *more: str) -> Gateway:
    place = ("-n", namesrv, "--store", str(directory / "master"), "--port", str(port))
    return Gateway(directory, *place, "--set", "brokerRole=SYNC_MASTER", *more, command="broker")


def run_slave(directory: Path, namesrv: str, *more: str) -> Gateway:
    settings = ("--set", "brokerRole=SLAVE", "--set", "brokerId=1", *more)
    return Gateway(
        directory / "s", "-n", namesrv, "--store", str(directory / "slave"), *settings, command="broker"
    )


@contextmanager
def stock_client(profile: str, namesrv: str) -> Iterator[JavaClient]:
    driver = JavaDriver(profile, namesrv)
    try:
        client = JavaClient(driver, profile.partition("-")[2])
        warm_up(client)
        yield client
    finally:
        driver.close()


def progress(address: str) -> int:
    """Return the sum of the group's offsets in all queues."""
    with connect(address) as broker:
        return sum(
            broker.ask(QueryConsumerOffset(consumer_group="g", topic="T", queue_id=queue_id)).offset
            for queue_id in range(QUEUES)
        )


@pytest.mark.both_servers
@pytest.mark.parametrize("profile", ["server-5.4", "server-4.9"])
def test_a_slave_serves_the_backlog_of_a_killed_master(tmp_path: Path, profile: str) -> None:
    _, port = find_server_ports()
    with namesrv_alone(tmp_path / "n") as namesrv, available():
        address = namesrv.namesrv
        with run_master(tmp_path, address, port) as master, connect(address) as client:
            eventually(lambda: has_route(client, "TBW102"), 20)
            with connect(master.broker) as broker:
                assert send(broker, "T", b"alone").code == SLAVE_NOT_AVAILABLE
                with run_slave(tmp_path, address) as slave:
                    first = iter(range(1, 1000))
                    eventually(lambda: send(broker, "T", b"first").code == SEND_OK or not next(first), 30)
                    total = MESSAGES + 1 + next(first)
                    codes = Counter(
                        send(broker, "T", b"%d" % number, queue_id=number % QUEUES).code
                        for number in range(MESSAGES)
                    )
                    assert codes == {SEND_OK: MESSAGES}
                    with stock_client(profile, address) as java:
                        master.kill()
                        with java.push("g", "T", wait_stop=True) as consumer:
                            received = consumer.received(total, 60)
                        numbers = {int(one["body"]) for one in received if one["body"].isdigit()}
                        assert numbers == set(range(MESSAGES))
                    eventually(lambda: progress(slave.broker) >= total, 30)
                    with run_master(tmp_path, address, port) as again:
                        eventually(lambda: progress(again.broker) >= total, 60)


@pytest.mark.both_servers
def test_an_ordered_consumer_goes_on_at_the_slave_of_a_master_that_hangs(tmp_path: Path) -> None:
    ports = find_server_ports()
    acting = ("--set", "enableSlaveActingMaster=true")
    with (
        Gateway(
            tmp_path / "n", "--port", str(ports[0]), "--set", "supportActingMaster=true", command="namesrv"
        ) as namesrv,
        available(),
        run_master(tmp_path, namesrv.namesrv, ports[1], *acting) as master,
        connect(namesrv.namesrv) as client,
        run_slave(tmp_path, namesrv.namesrv, *acting) as slave,
        connect(master.broker) as broker,
        stock_client("server-5.4", namesrv.namesrv) as java,
    ):
        eventually(lambda: send(broker, "T", b"first").code == SEND_OK, 30)
        for number in range(MESSAGES):
            assert send(broker, "T", b"%d" % number, queue_id=1).code == SEND_OK

        def shown_master() -> tuple[str | None, bool]:
            data = client.ask(GetRouteInfoByTopic(topic="T")).data
            return data.broker_datas[0].broker_addrs.get(0), bool(data.queue_datas[0].perm & PERM_WRITE)

        def is_copied() -> bool:
            with connect(slave.broker) as copy, suppress(RequestError):
                return copy.ask(GetTopicConfig(topic="T")) is not None
            return False

        assert shown_master() == (master.broker, True)
        eventually(is_copied, 5)  # It does not wait for the next copy of all tables.
        master.signal(signal.SIGSTOP)
        eventually(lambda: shown_master() == (slave.broker, False), 25)
        with java.push("ordered", "T", orderly=True) as consumer:
            received = consumer.received(MESSAGES + 1, 60)
            in_order = [int(one["body"]) for one in received if one["body"].isdigit()]
            assert in_order == list(range(MESSAGES))
        master.signal(signal.SIGCONT)
        eventually(lambda: shown_master() == (master.broker, True), 40)
        assert slave.lines("acts as master for reads")
        eventually(lambda: slave.lines("acts as master no longer"), 10)
