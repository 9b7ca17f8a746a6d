"""Offset-preserving replication to a target of ours: every message has the same offset there as at the primary."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acceptance.both_sides import ARRIVAL_TIMEOUT_S, QUEUES, wait_until_same
from compat_tests.cases.conftest import warm_up
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, iter_queue
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.shadow import ShadowEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest
from remoting.errors import RequestError
from remoting.requests.offsets import QueryConsumerOffset

pytestmark = pytest.mark.both_servers

COMPARED_FIELDS = (
    "queue_id", "queue_offset", "body", "properties", "flag", "sys_flag", "born_timestamp", "born_host",
    "store_timestamp", "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip


class Clusters:
    """An official broker, the gateway in front of it, our server as the target, and a stock client."""

    def __init__(self, shadow: ShadowEndpoint, target: OursEndpoint, java: JavaClient) -> None:
        self.shadow, self.target, self.java = shadow, target, java

    def until_same(self, topic: str, count: int) -> None:
        """Wait until the primary has `count` messages of a topic, and the target the same ones at the same offsets."""
        primary, target = self.shadow.primary.broker, self.target.broker
        here, there = wait_until_same(
            lambda where: read_messages(where, topic), primary, target, lambda found: len(found) >= count
        )
        assert len(here) == count
        assert there == here

    def until_same_offsets(self, group: str, topic: str, consumed: int) -> None:
        """Wait until a group has consumed `consumed` messages, and its committed offsets are the same at the target."""
        primary, target = self.shadow.primary.broker, self.target.broker
        here, there = wait_until_same(
            lambda where: committed_offsets(where, group, topic),
            primary,
            target,
            lambda found: sum(found) == consumed,
        )
        assert here == there
        assert sum(here) == consumed


def read_messages(where: str, topic: str) -> list[tuple[Any, ...]]:
    """Return the parts that must be the same of every message of every queue, in offset order."""
    with connect(where) as broker:
        return [
            tuple(getattr(each, name) for name in COMPARED_FIELDS)
            for queue in range(QUEUES)
            for each in iter_queue(broker, topic, queue)
        ]


def committed_offsets(where: str, group: str, topic: str) -> list[int]:
    """Return a group's committed offset in each queue; 0 where there is none."""
    found = []
    with connect(where) as broker:
        for queue in range(QUEUES):
            asked = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue)
            try:
                found.append(broker.ask(asked).offset)
            except RequestError:
                found.append(0)
    return found


@pytest.fixture(scope="module")
def clusters(server: ServerUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here: Path = tmp_path_factory.mktemp("kept")
    try:
        primary = OfficialEndpoint({"transactionCheckInterval": "1000"}, here / "primary")
        with OursEndpoint({"mirrorTarget": "true"}, here / "target") as target:
            tables = {
                "target.namesrv": json.dumps([target.namesrv]),
                "target.kind": '"ours"',
                "replication.discover_ms": "500",
                "replication.offsets_ms": "1000",
            }
            extra = tuple(word for key, value in tables.items() for word in ("--set", f"{key}={value}"))
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


def test_every_offset_is_kept_through_a_crash_and_a_group_goes_on_where_it_was(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic, group, java = server.topic_name(), server.topic_name("group"), clusters.java
    with java.producer("kept_plain") as producer, java.transactions("kept_tx") as transactions:
        producer.send_numbered(topic, 40, keys="k", tags="T")
        producer.send(*[{"topic": topic, "body": f"batch {n}"} for n in range(8)], mode="batch")
        producer.send(*[{"topic": topic, "body": f"later {n}", "delay": 1} for n in range(2)])
        states = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"] * 2
        transactions.send(
            *[{"topic": topic, "body": state, "properties": {"local": state}} for state in states]
        )
        clusters.until_same(topic, 40 + 8 + 2 + 2)
        with java.push(group, topic, failures=1, delay_level=1, wait_stop=True) as consumer:
            assert len(consumer.received(104, ARRIVAL_TIMEOUT_S)) >= 104
            # While the consumer still commits, every half a second: the official broker may carry out two commits that
            # follow each other in the wrong order, and the last one would be that of an earlier offset.
            clusters.until_same_offsets(group, topic, 52)
            clusters.until_same(f"%RETRY%{group}", 52)
            clusters.until_same_offsets(group, f"%RETRY%{group}", 52)
        clusters.target.crash()
        producer.send_numbered(topic, 20)
        clusters.target.start()
        producer.send_numbered(topic, 20)
        clusters.until_same(topic, 92)
        clusters.until_same_offsets(group, topic, 52)
        clusters.until_same_offsets(group, f"%RETRY%{group}", 52)
    driver = JavaDriver("server-5.4", clusters.target.namesrv, admin=True)
    try:
        with JavaClient(driver, "5.4.0").push(group, topic) as consumer:
            bodies = sorted(each["body"] for each in consumer.received(40, ARRIVAL_TIMEOUT_S))
        assert bodies == sorted(str(number) for number in range(20) for _ in range(2))
    finally:
        driver.close()
