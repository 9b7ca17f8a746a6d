"""5.x clients on the remoting ports of our server, with the addresses that people already have."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.command_driver import CommandDriver
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.grpc_drivers import start_python_driver
from compat_tests.clients.typed import create_group, topic_request
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.tls import client_context
from tools.fuzz.grpc_probe import GrpcProbe
from tools.processes import Gateway

TOPIC, GROUP = "door-orders", "door-group"
TLS_CLIENTS = {"disabled": (False,), "permissive": (False, True), "enforcing": (True,)}
"""Clients without (False) and with TLS, by the mode of the server."""


@pytest.fixture(scope="module")
def java() -> Iterator[JavaDriver]:
    driver = start_grpc_driver("")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def python() -> Iterator[CommandDriver]:
    driver = start_python_driver("5.1.2")
    yield driver
    driver.close()


def dial(address: str, tls: ssl.SSLContext | None = None) -> BlockingClient:
    return BlockingClient(*split_address(address), timeout_s=15, tls=tls)


def create_topic(address: str, tls: ssl.SSLContext | None = None) -> None:
    with dial(address, tls) as broker:
        broker.ask(topic_request(TOPIC, 4))
        create_group(broker, GROUP)


def check_round_trip(client: StockGrpcClient, body: str) -> None:
    """Send a message, receive it, and acknowledge it."""
    with client.producer(TOPIC) as producer, client.simple(GROUP, TOPIC) as consumer:
        (receipt,) = producer.send({"topic": TOPIC, "body": body})
        (message,) = eventually(consumer.receive, 30)
        consumer.ack(message)
    assert (message["id"], message["body"]) == (receipt["id"], body)


@pytest.mark.parametrize("mode", TLS_CLIENTS)
def test_java_clients_on_both_ports(tmp_path: Path, java: JavaDriver, mode: str) -> None:
    with Gateway(tmp_path, "--memory", "--set", f"tls.server.mode={mode}") as process:
        create_topic(process.broker, client_context(verify=False) if mode == "enforcing" else None)
        for address in (process.namesrv, process.broker):
            for tls in TLS_CLIENTS[mode]:
                check_round_trip(StockGrpcClient(java, "").acting_as(address, tls=tls), f"{address} {tls}")
        assert process.stop() == 0
        assert "Traceback" not in process.output()


def test_python_clients_beside_remoting_clients(tmp_path: Path, python: CommandDriver) -> None:
    with Gateway(tmp_path, "--memory") as process, dial(process.broker) as broker:
        create_topic(process.broker)
        check_round_trip(StockGrpcClient(python, process.namesrv), "python")
        broker.ask(topic_request(TOPIC, 8))
        assert process.stop() == 0


def test_many_first_connections_load_one_front(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory") as process:
        probes = [GrpcProbe(process.broker, 15) for _ in range(30)]
        for number, probe in enumerate(probes):
            assert probe.ask_route(f"missing-{number}")
        for probe in probes:
            probe.close()
        with dial(process.namesrv) as namesrv:
            namesrv.ask(GetBrokerClusterInfo())
        assert process.stop() == 0
        assert "Traceback" not in process.output()


def test_bytes_that_begin_like_http_2_end_their_connection(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory") as process:
        for data in (b"PRI ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/3.0\r\n\r\n" + bytes(99)):
            with socket.create_connection(split_address(process.broker), 15) as peer:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65_536):
                    pass
        with GrpcProbe(process.broker, 15) as probe:
            assert probe.ask_route("missing")
        assert process.stop() == 0
        assert "Traceback" not in process.output()


def test_ports_that_serve_remoting_alone_say_so(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory", "--set", "grpcOnRemotingPorts=false") as process:
        with socket.create_connection(split_address(process.broker), 15) as peer:
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert not peer.recv(65_536)
        eventually(lambda: process.lines("the peer speaks another protocol"))
        assert "grpcOnRemotingPorts" in process.output()
