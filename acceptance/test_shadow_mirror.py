"""Mirroring of stock producers from an official broker to ours: the same messages in the same queues."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance.both_sides import QueueContents, wait_for_same_messages
from compat_tests.cases.conftest import warm_up
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.shadow import ShadowEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest

pytestmark = pytest.mark.both_servers


class Clusters:
    """An official broker with the gateway in front, our server as the target, and a stock client."""

    def __init__(self, shadow: ShadowEndpoint, target: OursEndpoint, java: JavaClient) -> None:
        self.shadow, self.target, self.java = shadow, target, java

    def same(self, topic: str, count: int, *, in_order: bool = True) -> QueueContents:
        """Wait until both brokers hold the same `count` messages, and return the contents of their queues."""
        primary, target = self.shadow.primary.broker, self.target.broker
        here, there = wait_for_same_messages(primary, target, topic, count, in_order=in_order)
        assert there == here
        return here


@pytest.fixture(scope="module")
def clusters(server: ServerUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here: Path = tmp_path_factory.mktemp("mirror")
    try:
        primary = OfficialEndpoint({}, here / "primary")
        target = OursEndpoint({}, here / "target")
        with target:
            extra = (
                *("--set", f"target.namesrv={json.dumps([target.namesrv])}"),
                # On a busy machine an answer may arrive long after the answers to later messages.
                *("--set", "mirroring.order_ms=10000"),
                *("--set", f"mirroring.state_file={json.dumps(str(here / 'mirror.state'))}"),
            )
            with ShadowEndpoint(primary, extra) as shadow:
                driver = JavaDriver("server-5.4", shadow.namesrv, admin=True)
                try:
                    java = JavaClient(driver, "5.4.0")
                    warm_up(java)
                    yield Clusters(shadow, target, java)
                finally:
                    driver.close()
    except Unavailable as missing:
        skip_or_fail(str(missing))


def test_plain_ordered_batched_and_delayed_messages(clusters: Clusters, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with clusters.java.producer("mirror_plain") as producer:
        producer.send_numbered(topic, 60, tags="T", keys="k", flag=3, properties={"mine": "grüße"})
        producer.send(*[{"topic": topic, "body": f"async {n}"} for n in range(100)], mode="async")
        for key in range(3):
            ordered = [{"topic": topic, "body": f"{key}: {n}"} for n in range(20)]
            producer.send(*ordered, mode="selector", arg=key)
        producer.send(*[{"topic": topic, "body": f"batch {n}"} for n in range(16)], mode="batch")
        producer.send(*[{"topic": topic, "body": f"later {n}", "delay": 1} for n in range(4)])
    held = clusters.same(topic, 60 + 100 + 60 + 16 + 4)
    assert {each["properties"].get("mine") for queue in held for each in queue} == {None, "grüße"}


def test_transactions(clusters: Clusters, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    with clusters.java.producer("mirror_plain") as plain:
        plain.send_numbered(topic, 1)
    states = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "COMMIT_MESSAGE"] * 5
    halves = [
        {"topic": topic, "body": f"{state} {number}", "properties": {"local": state}}
        for number, state in enumerate(states)
    ]
    with clusters.java.transactions("mirror_tx") as producer:
        producer.send(*halves)
    # A producer sends its commits oneway, and brokers process them concurrently, so their order is arbitrary.
    held = clusters.same(topic, 11, in_order=False)
    bodies = [each["body"].decode() for queue in held for each in queue]
    assert len(bodies) == 11
    assert not [body for body in bodies if body.startswith("ROLLBACK")]
