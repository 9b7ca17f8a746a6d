"""A primary with a replica behind the gateway: clients find both, and continue when the master is killed."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.clients.java_api import JavaClient, JavaProducer
from compat_tests.clients.typed import connect
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint, ReplicaEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.endpoints.shadow import ShadowEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.errors import RequestError
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.topics import GetTopicConfig

pytestmark = pytest.mark.both_servers

NAME = "broker-a"
# Client settings: fetch routes and send heartbeats every second.
OFTEN = {"pollNameServerInterval": 1000, "heartbeatBrokerInterval": 1000}
# Without this setting a slave redirects its readers to the master.
READABLE = {"slaveReadEnable": "true"}
SLAVE = {"brokerId": "1", "brokerRole": "SLAVE", **READABLE}
TAKES_OVER_S = 90
# A slave copies topic settings every 10 s.
COPIES_S = 60


@dataclass
class Clusters:
    """A master with a replica, the gateway in front of both, a stock client."""

    primary: OfficialEndpoint
    replica: ReplicaEndpoint
    gateway: ShadowEndpoint
    java: JavaClient

    def kill_master(self) -> None:
        """Kill the master broker; the namesrv keeps running."""
        self.primary.children.pop().kill()

    def copied(self, topic: str, count: int) -> bool:
        """Return True if the replica has all messages of a topic. Raises RequestError until it knows the topic."""
        with connect(self.replica.broker) as broker:
            broker.ask(GetTopicConfig(topic=topic))
            ends = [broker.ask(GetMaxOffset(topic=topic, queue_id=queue)).offset for queue in range(4)]
        return sum(ends) == count


def addresses(namesrv: str) -> dict[int, str]:
    """Return the addresses of the brokers named `NAME` by broker id, according to a namesrv."""
    with connect(namesrv) as client:
        table = client.ask(GetBrokerClusterInfo()).data.broker_addr_table or {}
    return dict(table[NAME].broker_addrs) if NAME in table else {}


def route(namesrv: str, topic: str) -> dict[int, str]:
    """Return the broker addresses in a topic's route by broker id."""
    with connect(namesrv) as client:
        (data,) = client.ask(GetRouteInfoByTopic(topic=topic)).data.broker_datas
    return dict(data.broker_addrs)


@contextmanager
def running(
    here: Path, master: dict[str, str], replica: dict[str, str], namesrv_settings: dict[str, str]
) -> Iterator[Clusters]:
    try:
        primary = OfficialEndpoint(master, here / "primary", namesrv_settings=namesrv_settings)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with ExitStack() as stack:
        # A short refresh interval, so that the test need not wait for it.
        gateway = stack.enter_context(ShadowEndpoint(primary, ("--set", "listen.refresh_s=1")))
        second = ReplicaEndpoint(
            replica, here / "replica", primary.namesrv, lambda at: at in addresses(primary.namesrv).values()
        )
        stack.enter_context(second)
        driver = stack.enter_context(closing(JavaDriver("server-5.4", gateway.namesrv)))
        yield Clusters(primary, second, gateway, JavaClient(driver, "5.4.0"))


def go_on(producer: JavaProducer, topic: str, count: int) -> None:
    """Send one message until it is accepted, then `count` more."""

    def taken() -> bool:
        try:
            producer.send_numbered(topic, 1)
        except JavaClientError:
            return False
        return True

    eventually(taken, TAKES_OVER_S)
    producer.send_numbered(topic, count)


def test_consumers_read_from_the_slave_while_the_master_is_gone(tmp_path: Path) -> None:
    topic = "slaves"
    with (
        running(tmp_path, READABLE, SLAVE, {}) as clusters,
        clusters.java.push("readers", topic, settings=OFTEN) as consumer,
    ):
        with clusters.java.producer("slaves") as producer:
            producer.send_numbered(topic, 8)
            assert len(consumer.received(8, TAKES_OVER_S)) == 8
            consumer.suspend()
            producer.send_numbered(topic, 40)
        theirs, ours = addresses(clusters.primary.namesrv), both(clusters)
        assert theirs == {0: clusters.primary.broker, 1: clusters.replica.broker}
        assert not set(ours.values()) & set(theirs.values())
        assert route(clusters.gateway.namesrv, topic) == ours
        all_copied(clusters, topic, 48)
        clusters.kill_master()
        eventually(lambda: route(clusters.gateway.namesrv, topic) == {1: ours[1]}, TAKES_OVER_S)
        consumer.resume()
        assert len({each["body"] for each in consumer.received(48, TAKES_OVER_S)}) == 40


def test_clients_follow_a_master_that_the_controller_elects(tmp_path: Path) -> None:
    controller = f"127.0.0.1:{find_server_ports()[0]}"
    in_namesrv = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-{controller}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(tmp_path / "controller"),
        "scanNotActiveBrokerInterval": "1000",
    }
    member = {
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        "controllerHeartBeatTimeoutMills": "3000",
    }
    with running(tmp_path, member, member, in_namesrv) as clusters:
        before = both(clusters)
        with (
            clusters.java.producer("elected") as producer,
            clusters.java.push("readers", "elected") as consumer,
        ):
            producer.send_numbered("elected", 40)
            assert len(consumer.received(40, TAKES_OVER_S)) == 40
            all_copied(clusters, "elected", 40)
            clusters.kill_master()
            go_on(producer, "elected", 20)
            assert route(clusters.gateway.namesrv, "elected")[0] == before[2]
            assert len(consumer.received(61, TAKES_OVER_S)) >= 61


def both(clusters: Clusters) -> dict[int, str]:
    """Wait until the gateway's namesrv knows both brokers, and return their addresses by broker id."""

    def found() -> dict[int, str]:
        known = addresses(clusters.gateway.namesrv)
        return known if len(known) == 2 else {}

    return eventually(found, TAKES_OVER_S)


def all_copied(clusters: Clusters, topic: str, count: int) -> None:
    """Wait until the replica has all messages of a topic."""

    def copied() -> bool:
        try:
            return clusters.copied(topic, count)
        except RequestError:
            return False

    eventually(copied, COPIES_S)
