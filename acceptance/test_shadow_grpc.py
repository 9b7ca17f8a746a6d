"""5.x clients through the shadow gateway: served at the primary, and mirrored to the target."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance.both_sides import wait_for_same_messages
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.typed import connect, create_group, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.probe import Probe
from compat_tests.endpoints.shadow import ShadowEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest

pytestmark = pytest.mark.both_servers
GROUP = "shadow-grpc"


@pytest.fixture(scope="module")
def java() -> Iterator[JavaDriver]:
    driver = start_grpc_driver("")
    yield driver
    driver.close()


@dataclass(frozen=True)
class Clusters:
    """A broker behind the gateway, our server as the target, and a stock 5.x client of the gateway."""

    shadow: ShadowEndpoint
    target: OursEndpoint
    client: StockGrpcClient

    def create_topic(self, topic: str, kind: str = "NORMAL") -> None:
        with connect(self.shadow.broker) as broker:
            broker.ask(topic_request(topic, 4, attributes=f"+message.type={kind}"))
            create_group(broker, GROUP)


@pytest.fixture(scope="module", params=["official", "ours"])
def clusters(
    request: pytest.FixtureRequest,
    server: ServerUnderTest,
    tmp_path_factory: pytest.TempPathFactory,
    java: JavaDriver,
) -> Iterator[Clusters]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here: Path = tmp_path_factory.mktemp("shadow-grpc")
    endpoint = OfficialEndpoint if request.param == "official" else OursEndpoint
    try:
        with OursEndpoint({}, here / "target") as target:
            extra = (
                *("--set", f"target.namesrv={json.dumps([target.namesrv])}"),
                *("--set", "mirroring.order_ms=10000"),
                *("--set", f"mirroring.state_file={json.dumps(str(here / 'mirror.state'))}"),
                *("--set", "listen.grpc_port=0"),
            )
            with ShadowEndpoint(endpoint({}, here / "primary"), extra) as shadow:
                yield Clusters(shadow, target, StockGrpcClient(java, shadow.ready["grpc"]))
    except Unavailable as missing:
        skip_or_fail(str(missing))


def test_messages_are_received_once_and_mirrored(clusters: Clusters, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    clusters.create_topic(topic)
    bodies = {f"plain {number}" for number in range(100)}
    with clusters.client.producer(topic) as producer, clusters.client.simple(GROUP, topic) as consumer:
        for body in sorted(bodies):
            producer.send({"topic": topic, "body": body})
        messages = consumer.receive_until(lambda messages: len(messages) >= len(bodies), 60)
    assert sorted(message["body"] for message in messages) == sorted(bodies)
    primary, target = clusters.shadow.primary.broker, clusters.target.broker
    here, there = wait_for_same_messages(primary, target, topic, len(bodies))
    assert there == here


def test_committed_transactions_are_mirrored(clusters: Clusters, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    clusters.create_topic(topic, "TRANSACTION")
    with clusters.client.producer(topic, transactions=True) as producer:
        for number in range(6):
            decision = "commit" if number % 2 == 0 else "rollback"
            producer.send_half({"topic": topic, "body": f"{decision} {number}"}, decision)
    primary, target = clusters.shadow.primary.broker, clusters.target.broker
    here, _ = wait_for_same_messages(primary, target, topic, 3, in_order=False)
    assert {message["body"].decode().split()[0] for queue in here for message in queue} == {"commit"}


def test_a_push_consumer_shares_its_group_with_remoting_clients(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic = server.topic_name()
    clusters.create_topic(topic)
    with clusters.client.push(GROUP, topic) as consumer, Probe(clusters.shadow.broker) as probe:
        for number in range(20):
            probe.send(topic, f"remoting {number}".encode())
        messages = consumer.received(20, 60)
    assert sorted(message["body"] for message in messages) == sorted(
        f"remoting {number}" for number in range(20)
    )
