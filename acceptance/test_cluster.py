"""Clusters of our and official servers, seen by stock clients and the official admin tool; one store used by both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acceptance.workload import commit_request, committed_offset, read_queue
from codec.constants import ResponseCode
from compat_tests.cases.conftest import JAVA_CLIENTS, stock_client, warm_up
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient, JavaProducer
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import connect, create_group, has_route, send_many, topic_request
from compat_tests.endpoints.official import NAMESRV_HEAP, OfficialEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

# A freshly started JVM on a busy machine takes longer than the default of 200 ms for its first sends.
PATIENT = {"waitTimeMillsInSendQueue": "20000"}
BROKERS = {"4.9": "server-4.9", "5.4.0": "server-5.4"}


class OfficialNamesrv(OfficialEndpoint):
    """An official namesrv without a broker."""

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = {"listenPort": str(self.namesrv_port), "bindAddress": "127.0.0.1"}
        lines["kvConfigPath"] = str(self.directory / "kvConfig.json")
        self._start_java("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", NAMESRV_HEAP, lines)
        self._wait_for_namesrv()


@contextmanager
def available() -> Iterator[None]:
    """Skip the case if the official server is not available."""
    try:
        yield
    except Unavailable as missing:
        skip_or_fail(str(missing))


def send_and_consume(java: JavaClient, topic: str, brokers: set[str]) -> None:
    """Assert that a stock producer spreads a new topic over these brokers, and a stock consumer gets everything."""
    warm_up(java)
    with java.producer(f"p_{topic}") as producer:
        sent = producer.send_numbered(topic, 24)
        assert {one["status"] for one in sent} == {"SEND_OK"}
        eventually(lambda: brokers_of(producer, topic) == brokers, 30)
    with java.push(f"g_{topic}", topic) as consumer:
        received = consumer.received(24, 60)
        assert {one["body"] for one in received} == {str(number) for number in range(24)}


def brokers_of(producer: JavaProducer, topic: str) -> set[str]:
    """Return the brokers in a topic's route; none while a broker has not yet told the namesrv of the new topic."""
    try:
        return {queue["broker"] for queue in producer.queues(topic)}
    except JavaClientError as problem:
        if problem.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return set()


def namesrv_alone(directory: Path) -> Gateway:
    return Gateway(directory, "--port", str(find_server_ports()[0]), command="namesrv")


def masters(namesrv: str, topic: str) -> dict[str, str]:
    with connect(namesrv) as client:
        data = client.ask(GetRouteInfoByTopic(topic=topic)).data
    return {broker.broker_name: broker.broker_addrs[0] for broker in data.broker_datas}


def knows(namesrv: str, topic: str) -> bool:
    try:
        with connect(namesrv) as client:
            return has_route(client, topic)
    except RemotingClosed:
        return False


# official brokers, our namesrv


@pytest.mark.parametrize("version", BROKERS)
def test_official_broker_with_our_namesrv(tmp_path: Path, version: str) -> None:
    with available(), namesrv_alone(tmp_path / "n") as namesrv:
        with OfficialEndpoint(profile=BROKERS[version], namesrv=namesrv.namesrv) as official:
            assert masters(namesrv.namesrv, "TBW102") == {"broker-a": official.broker}
            with stock_client(namesrv.namesrv, "5.4.0") as java:
                send_and_consume(java, f"on_official_{version.replace('.', '_')}", {"broker-a"})
                assert java.driver.call("admin.cluster") == ["broker-a"]
            printed = run_mqadmin(tmp_path / "admin", "clusterList", "-n", namesrv.namesrv)
            (line,) = [line.split() for line in printed.splitlines() if official.broker in line]
            assert line[:3] == ["DefaultCluster", "broker-a", "0"]
            official.crash()
            # The namesrv notices the closed connection.
            eventually(lambda: not knows(namesrv.namesrv, "TBW102"), 10)
        assert "Traceback" not in namesrv.output()
        assert namesrv.stop() == 0


def test_both_brokers_in_one_cluster(tmp_path: Path) -> None:
    """An official broker and ours share our namesrv; stock clients spread over both."""
    with available(), namesrv_alone(tmp_path / "n") as namesrv:
        arguments = [
            "-n",
            namesrv.namesrv,
            "--store",
            str(tmp_path / "store"),
            "--set",
            "brokerName=broker-b",
        ]
        official = OfficialEndpoint(namesrv=namesrv.namesrv)
        with official, Gateway(tmp_path / "b", *arguments, command="broker") as ours:
            both = {"broker-a": official.broker, "broker-b": ours.broker}
            eventually(lambda: masters(namesrv.namesrv, "TBW102") == both, 15)
            with connect(namesrv.namesrv) as client:
                info = client.ask(GetBrokerClusterInfo()).data
                assert set(info.cluster_addr_table["DefaultCluster"]) == set(both)
            with stock_client(namesrv.namesrv, "4.9.8") as java:
                send_and_consume(java, "on_both", set(both))


def test_stock_clients_use_all_brokers_of_one_process(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory", "--brokers", "3") as gateway:
        for version in JAVA_CLIENTS:
            with stock_client(gateway.namesrv, version) as java:
                send_and_consume(java, f"on_three_{version.replace('.', '_')}", set(gateway.brokers))


# our broker, official namesrv


def test_our_broker_with_an_official_namesrv(tmp_path: Path) -> None:
    with available():
        official = OfficialNamesrv()
    store = ["--store", str(tmp_path / "store")]
    with official:
        place = ["-n", official.namesrv, "--port", str(find_server_ports()[1]), *store]
        with Gateway(tmp_path / "b", *place, command="broker") as ours:
            eventually(lambda: knows(official.namesrv, "TBW102"), 15)
            assert masters(official.namesrv, "TBW102") == {"broker-a": ours.broker}
            with stock_client(official.namesrv, "5.4.0") as java:
                send_and_consume(java, "through_official", {"broker-a"})
            printed = run_mqadmin(tmp_path / "admin", "clusterList", "-n", official.namesrv)
            assert ours.broker in printed
            ours.kill()
            eventually(lambda: not knows(official.namesrv, "TBW102"), 10)
        with Gateway(tmp_path / "b", *place, command="broker") as again:
            eventually(lambda: knows(official.namesrv, "through_official"), 15)
            assert again.stop() == 0
            # An orderly stop unregisters at once.
            eventually(lambda: not knows(official.namesrv, "through_official"), 10)


def test_our_broker_finds_an_official_namesrv_that_restarts(tmp_path: Path) -> None:
    with available():
        official = OfficialNamesrv()
    arguments = ["-n", official.namesrv, "--memory"]
    with official, Gateway(tmp_path, *arguments, command="broker") as ours:
        eventually(lambda: knows(official.namesrv, "TBW102"), 15)
        official.crash()
        eventually(lambda: ours.lines("registration with namesrv failed"))
        official.start()
        eventually(lambda: knows(official.namesrv, "TBW102"), 10)
        assert len(ours.lines("registration with namesrv failed")) == 1


# one store, both brokers in turn


def bodies_of(client: BlockingClient, topic: str) -> list[bytes]:
    return [message.body for message in read_queue(client, topic)]


def write(client: BlockingClient, start: int, count: int) -> list[bytes]:
    """Send messages and return their bodies in offset order: the official broker may store them in any order."""
    bodies = [b"%d " % number * 50 for number in range(start, start + count)]
    replies = send_many(client, "moved", bodies)
    placed = {reply.queue_offset: body for reply, body in zip(replies, bodies, strict=True)}
    assert sorted(placed) == list(range(start, start + count))
    return [placed[offset] for offset in sorted(placed)]


def check(client: BlockingClient, written: list[bytes], offset: int) -> None:
    assert bodies_of(client, "moved") == written
    assert committed_offset(client, "moved", group="mover") == offset


def test_a_store_changes_hands(tmp_path: Path) -> None:
    """Ours, official, then ours again on one directory: messages, topics, groups and offsets carry over."""
    with available():
        official = OfficialEndpoint({**PATIENT, "mappedFileSizeCommitLog": str(1 << 20)}, tmp_path)
    ours = ["--store", str(tmp_path / "store"), "--set", "mappedFileSizeCommitLog=1048576"]
    with Gateway(tmp_path, *ours) as first, first.connect() as client:
        client.ask(topic_request("moved", 3))
        create_group(client, "mover", retry_max_times=7)
        written = write(client, 0, 9000)
        client.ask(commit_request("moved", 4321, group="mover"))
        assert first.stop() == 0
    with official:
        with connect(official.broker) as client:
            check(client, written, 4321)
            written += write(client, 9000, 3000)
            client.ask(commit_request("moved", 10_000, group="mover"))
        with stock_client(official.namesrv, "5.4.0") as java, java.push("mover", "moved") as consumer:
            received = consumer.received(2000, 60)
            assert {one["body"].encode() for one in received} == set(written[10_000:])
            with connect(official.broker) as client:  # the client commits only every few seconds
                eventually(lambda: committed_offset(client, "moved", group="mover") == 12_000, 30)
        official.stop()
    with Gateway(tmp_path, *ours) as last, last.connect() as client:
        check(client, written, 12_000)
        written += write(client, 12_000, 10)
        assert bodies_of(client, "moved") == written
        assert not last.lines("recovering")
