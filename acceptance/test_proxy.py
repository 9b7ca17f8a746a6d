"""`rmq-gateway proxy`, and the gRPC port of broker processes: stock clients, crashes under load, and a stop."""

import itertools
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from acceptance.secured import ROOT, SECRET, SETTINGS
from acceptance.secured import dial as dial_as_root
from acceptance.test_controlled_brokers import TOPIC as CONTROLLED
from acceptance.test_controlled_brokers import running as controlled_brokers
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.command_driver import StockClientError
from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.clients.grpc_api import GrpcProducer, StockGrpcClient
from compat_tests.clients.typed import connect, create_group, topic_request
from compat_tests.endpoints.our_proxy import OurProxyEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.server import eventually, split_address
from remoting.acl import Credentials
from remoting.blocking import BlockingClient
from remoting.requests.client import GetConsumerConnectionList
from remoting.tls import client_context
from tools.processes import Gateway

TOPIC, GROUP, MEMBERS = "proxy-orders", "proxy-group", "proxy-members"
MIN_STORED = 200
"""Messages that are stored before a crash, and after it."""


@pytest.fixture(scope="module")
def java() -> Iterator[JavaDriver]:
    driver = start_grpc_driver("")
    yield driver
    driver.close()


def check_round_trip(client: StockGrpcClient, count: int = 20) -> None:
    """Send messages, receive each of them once, and acknowledge it."""
    with client.producer(TOPIC) as producer, client.push(GROUP, TOPIC) as consumer:
        receipts = producer.send(*({"topic": TOPIC, "body": str(number)} for number in range(count)))
        messages = consumer.received(count, 60)
    assert sorted(message["id"] for message in messages) == sorted(receipt["id"] for receipt in receipts)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_broker_processes_have_a_grpc_port(java: JavaDriver, tmp_path: Path, mode: str) -> None:
    arguments = ("--brokers", "2", "--processes", "--grpc-port", "0", "--set", f"tls.server.mode={mode}")
    with Gateway(tmp_path, "--store", str(tmp_path / "store"), *arguments) as server:
        tls = client_context(verify=False) if mode == "enforcing" else None
        for address in server.ready["brokers"].values():
            with BlockingClient(*split_address(address), timeout_s=15, tls=tls) as broker:
                broker.ask(topic_request(TOPIC, 2))
                create_group(broker, GROUP)
        client = StockGrpcClient(java, "").acting_as(server.ready["grpc"], tls=mode == "enforcing")
        check_round_trip(client)
        with client.simple(MEMBERS, TOPIC):
            for address in server.ready["brokers"].values():
                with BlockingClient(*split_address(address), timeout_s=15, tls=tls) as broker:
                    reply = broker.ask(GetConsumerConnectionList(consumer_group=MEMBERS))
                    assert len(reply.data.connection_set) == 1
        assert "Traceback" not in server.output()


def test_broker_processes_with_users_have_a_grpc_port(java: JavaDriver, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
    arguments = ("--store", str(tmp_path / "store"), "--processes", "--grpc-port", "0", "-c", str(conf))
    with Gateway(tmp_path, *arguments) as server:
        with dial_as_root(server.broker) as root:
            root.ask(topic_request(TOPIC, 2))
            create_group(root, GROUP)
        client = StockGrpcClient(java, "")
        check_round_trip(client.acting_as(server.ready["grpc"], Credentials(ROOT, SECRET)))
        with (
            pytest.raises(JavaClientError, match="check signature failed"),
            client.acting_as(server.ready["grpc"], Credentials(ROOT, "wrong")).producer(TOPIC),
        ):
            pass


@contextmanager
def sending(producer: GrpcProducer, topic: str, **fields: str) -> Iterator[list[str]]:
    """Send messages one by one during the block; yield the growing list of the ids of those that were stored."""
    stored_ids: list[str] = []
    is_over = threading.Event()

    def send_all() -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            try:
                receipts = producer.send({"topic": topic, "body": str(number), **fields})
                stored_ids.extend(receipt["id"] for receipt in receipts)
            except StockClientError:
                is_over.wait(0.1)

    with ThreadPoolExecutor() as pool:
        load = pool.submit(send_all)
        try:
            yield stored_ids
        finally:
            is_over.set()
        load.result()


@pytest.mark.parametrize("victim", ["proxy", "brokers"])
def test_a_crash_under_load_loses_nothing(java: JavaDriver, victim: str) -> None:
    """Every message that a producer was told of is consumed, though the proxy or the brokers were killed meanwhile."""
    with OurProxyEndpoint(OursEndpoint()) as endpoint:
        with BlockingClient(*split_address(endpoint.broker), timeout_s=15) as broker:
            broker.ask(topic_request(TOPIC, 4))
            create_group(broker, GROUP)
        client = StockGrpcClient(java, "").acting_as(endpoint.grpc)
        with client.push(GROUP, TOPIC) as consumer, client.producer(TOPIC) as producer:
            with sending(producer, TOPIC) as stored_ids:
                eventually(lambda: len(stored_ids) > MIN_STORED, 30)
                count = len(stored_ids)
                if victim == "proxy":
                    endpoint.kill_front()
                    endpoint.start_front()
                else:
                    endpoint.crash()
                    endpoint.start()
                eventually(lambda: len(stored_ids) > count + MIN_STORED, 60)
            # What was on its way when the proxy was killed comes again after a minute.
            eventually(lambda: set(stored_ids) <= {message["id"] for message in consumer.received(1)}, 150)


def test_a_master_that_is_killed_under_load_is_replaced(java: JavaDriver, tmp_path: Path) -> None:
    """The proxy finds the master that a controller elects, and its clients go on without a new connection."""
    with (
        controlled_brokers(tmp_path, "ours") as group,
        Gateway(tmp_path, "--namesrv", group.namesrv, "--host", "127.0.0.1", command="proxy") as proxy,
    ):
        old_master = group.brokers[group.master()]
        with connect(old_master.broker) as broker:
            create_group(broker, GROUP)
        client = StockGrpcClient(java, "").acting_as(proxy.ready["grpc"])
        with client.push(GROUP, CONTROLLED) as consumer, client.producer(CONTROLLED) as producer:
            with sending(producer, CONTROLLED) as stored_ids:
                eventually(lambda: len(stored_ids) > MIN_STORED, 60)
                old_master.kill()
                eventually(lambda: group.replicas().master_address not in (None, old_master.broker), 60)
                count = len(stored_ids)
                eventually(lambda: len(stored_ids) > count + MIN_STORED, 120)
            eventually(lambda: set(stored_ids) <= {message["id"] for message in consumer.received(1)}, 150)
        assert len(proxy.lines("master moved")) == 1
        assert "Traceback" not in proxy.output()


def test_a_broker_at_an_address_that_is_not_permitted_is_not_dialled(
    java: JavaDriver, tmp_path: Path
) -> None:
    rules = ("--set", "grpcBrokerAddresses=10.0.0.0/8;127.0.0.1:1")
    with (
        Gateway(tmp_path, "--memory") as server,
        Gateway(
            tmp_path, "--namesrv", server.namesrv, "--host", "127.0.0.1", *rules, command="proxy"
        ) as proxy,
    ):
        with connect(server.broker) as broker:
            broker.ask(topic_request(TOPIC, 4))
        client = StockGrpcClient(java, "").acting_as(proxy.ready["grpc"])
        with (
            pytest.raises(JavaClientError, match=f"{server.broker} is not listed in grpcBrokerAddresses"),
            client.producer(TOPIC),
        ):
            pass
        assert len(proxy.lines("address of a broker is not permitted")) == 1


def test_a_stop_answers_what_is_in_progress(java: JavaDriver, tmp_path: Path) -> None:
    with (
        Gateway(tmp_path, "--memory") as server,
        Gateway(tmp_path, "--namesrv", server.namesrv, "--host", "127.0.0.1", command="proxy") as proxy,
    ):
        assert (proxy.ready["namesrv"], proxy.ready["brokers"]) == (None, {})
        with BlockingClient(*split_address(server.broker), timeout_s=15) as broker:
            broker.ask(topic_request(TOPIC, 4))
            create_group(broker, GROUP)
        client = StockGrpcClient(java, "").acting_as(proxy.ready["grpc"])
        check_round_trip(client)
        with client.simple(GROUP, TOPIC) as consumer, ThreadPoolExecutor() as pool:
            waiting = pool.submit(consumer.receive)
            proxy.child.terminate(10)
            assert proxy.child.exit_code() == 0
            assert waiting.exception() is not None or waiting.result() == []
        assert "Traceback" not in proxy.output()


def test_a_proxy_without_a_namesrv_says_so_to_probes(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory") as server:
        arguments = ("--namesrv", server.namesrv, "--host", "127.0.0.1", "--set", "httpPort=0")
        with Gateway(tmp_path, *arguments, command="proxy") as proxy:
            url = f"http://{proxy.ready['http']}/readyz"
            assert eventually(lambda: status_of(url) == 200, 10)
            server.kill()
            assert eventually(lambda: status_of(url) == 503, 60)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
