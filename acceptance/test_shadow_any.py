"""Mirroring to an official broker by sending again, with stock clients: the target assigns offsets of its own.

The primary is ours. Covers all kinds of messages, translation of consumer offsets, moves, and roles reversed.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance.both_sides import ARRIVAL_TIMEOUT_S, QUEUES, QueueContents, wait_for_same_messages
from acceptance.moving import (
    FREQUENT_REPORTS,
    QUICK_CHECK_BACKS,
    KeyedProducer,
    ShadowProcess,
    TransactionSender,
)
from acceptance.test_shadow_story import max_offsets, start_traffic, wait_for_progress
from compat_tests.cases.conftest import warm_up
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, create_group, send, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.errors import RequestError
from remoting.requests.offsets import QueryConsumerOffset

pytestmark = pytest.mark.both_servers

THEIRS = {"brokerName": "broker-t", "brokerClusterName": "TargetCluster"}
MORE = """
[mirroring]
order_ms = 1000
hold_ms = 20000
state_file = "{state}"
"""


@dataclass
class Clusters:
    """Our broker, the gateway in front of it, an official broker as the target, a stock client."""

    primary: OursEndpoint
    target: OfficialEndpoint
    gateway: ShadowProcess
    java: JavaClient

    def same(self, topic: str, count: int, *, in_order: bool = True) -> QueueContents:
        """Wait until both brokers hold the same `count` messages, and return the contents of their queues."""
        primary, target = self.primary.broker, self.target.broker
        here, there = wait_for_same_messages(primary, target, topic, count, in_order=in_order)
        assert there == here
        assert sum(map(len, here)) == count
        return here


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    here: Path = tmp_path_factory.mktemp("any")
    try:
        target = OfficialEndpoint({**QUICK_CHECK_BACKS, **THEIRS}, here / "target")
    except Unavailable as missing:
        skip_or_fail(str(missing))
    primary = OursEndpoint(QUICK_CHECK_BACKS, here / "primary")
    more = MORE.format(state=here / "mirror.state")
    with primary, target:
        gateway = ShadowProcess(here / "gateway", primary.namesrv, target.namesrv, kind="any", more=more)
        with gateway, closing(JavaDriver("server-5.4", gateway.namesrv, admin=True)) as driver:
            java = JavaClient(driver, "5.4.0")
            warm_up(java)
            yield Clusters(primary, target, gateway, java)


@pytest.mark.parametrize("mode", ["async", "strict-dual"])
def test_every_kind_of_message(clusters: Clusters, mode: str) -> None:
    topic = f"kinds-{mode}"
    clusters.gateway.run_command("mode", topic, mode)
    with clusters.java.producer("kinds") as producer:
        producer.send_numbered(topic, 40, tags="T", keys="k", flag=3, properties={"mine": "grüße"})
        producer.send(*[{"topic": topic, "body": f"async {n}"} for n in range(60)], mode="async")
        for key in range(3):
            ordered = [{"topic": topic, "body": f"{key}: {n}"} for n in range(10)]
            producer.send(*ordered, mode="selector", arg=key)
        producer.send(*[{"topic": topic, "body": f"batch {n}"} for n in range(16)], mode="batch")
        producer.send(*[{"topic": topic, "body": f"later {n}", "delay": 1} for n in range(4)])
    clusters.same(topic, 40 + 60 + 30 + 16 + 4)
    clusters.gateway.run_command("parity", "-q", "-t", topic)


def test_transactions(clusters: Clusters) -> None:
    """Transactions ended at once or at a check-back have the same outcome at the target, which checks back as well."""
    topic, java = "tx", clusters.java
    with java.producer("tx_plain") as plain:
        plain.send_numbered(topic, 1)
    ways = ["local", "check"] * 6
    states = ["COMMIT_MESSAGE", "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "ROLLBACK_MESSAGE"] * 3
    halves = [
        {"topic": topic, "body": f"{way} {state} {number}", "properties": {way: state}}
        for number, (way, state) in enumerate(zip(ways, states, strict=True))
    ]
    with java.transactions("tx_group", heartbeatBrokerInterval=1000) as producer:
        producer.send(*halves)
        queues = clusters.same(topic, 7, in_order=False)
    bodies = [each["body"].decode() for queue in queues for each in queue]
    assert not [body for body in bodies if "ROLLBACK" in body]


def committed_offsets(where: str, group: str, topic: str) -> list[int]:
    """Return a group's committed offset in each queue; -1 where there is none."""
    found = []
    with connect(where) as broker:
        for queue in range(QUEUES):
            asked = QueryConsumerOffset(
                consumer_group=group, topic=topic, queue_id=queue, set_zero_if_not_found=False
            )
            try:
                found.append(broker.ask(asked).offset)
            except RequestError:
                found.append(-1)
    return found


def commits_are_left_out(gateway: ShadowProcess) -> bool:
    """Return True if the mirror skips the next commits, which clients repeat periodically."""

    def counted(what: str) -> int:
        return sum(each[what] for each in gateway.get_json("/mirror")["streams"])

    mirrored, skipped = counted("mirrored"), counted("skipped")
    eventually(lambda: counted("skipped") > skipped + 10, ARRIVAL_TIMEOUT_S)
    return counted("mirrored") == mirrored


def test_offsets_of_a_group_are_translated_never_ahead_and_never_over_an_active_group(
    clusters: Clusters,
) -> None:
    topic, group, ahead = "consumed", "readers", 5
    with connect(clusters.target.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
        for number in range(QUEUES * ahead):
            send(broker, topic, b"of the target", queue_id=number % QUEUES)

    def translated() -> bool:
        """Assert that the target's offsets are not ahead, and return True once they have caught up."""
        there = committed_offsets(
            clusters.target.broker, group, topic
        )  # read first, because the primary's only increase
        here = committed_offsets(clusters.primary.broker, group, topic)
        assert all(theirs <= ours + ahead for ours, theirs in zip(here, there, strict=True)), (here, there)
        return sum(here) == 60 and there == [offset + ahead for offset in here]

    with connect(clusters.gateway.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
    with (
        clusters.java.producer("consumed_p") as producer,
        clusters.java.push(group, topic, settings=FREQUENT_REPORTS) as consumer,
    ):
        producer.send_numbered(topic, 60)
        assert len(consumer.received(60, ARRIVAL_TIMEOUT_S)) == 60
        eventually(translated, ARRIVAL_TIMEOUT_S)
        with closing(JavaDriver("server-5.4", clusters.target.namesrv)) as driver:
            active = JavaClient(driver, "5.4.0")
            with active.push(group, topic, settings=FREQUENT_REPORTS) as other:
                other.suspend()
                eventually(lambda: commits_are_left_out(clusters.gateway), ARRIVAL_TIMEOUT_S)
                before = committed_offsets(clusters.target.broker, group, topic)
                producer.send_numbered(topic, 20)
                eventually(
                    lambda: sum(committed_offsets(clusters.primary.broker, group, topic)) == 80,
                    ARRIVAL_TIMEOUT_S,
                )
                clusters.gateway.wait_until_mirrored()
                assert committed_offsets(clusters.target.broker, group, topic) == before


def prepared(clusters: Clusters, topic: str, group: str) -> None:
    with connect(clusters.gateway.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
        create_group(broker, group)


def test_a_topic_moves_under_load_and_another_comes_back(clusters: Clusters) -> None:
    gateway = clusters.gateway
    for topic, group in (("Orders", "OrderReaders"), ("Bills", "BillReaders")):
        prepared(clusters, topic, group)
    with ExitStack() as stack:
        orders = start_traffic(clusters.java, "Orders", "OrderReaders", stack)
        bills = start_traffic(clusters.java, "Bills", "BillReaders", stack)
        wait_for_progress(orders.load)
        assert "CAUGHT_UP" in gateway.run_command("plan", "Orders")
        gateway.run_step("advance", "Orders", state="CAUGHT_UP")
        gateway.run_step("advance", "Orders", state="PRODUCERS_SWITCHED")
        wait_for_progress(orders.load)
        gateway.run_step("advance", "Orders", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
        assert "CONSUMERS_SWITCHED" in gateway.run_command("status")
        final = max_offsets(clusters.primary.broker, "Orders")
        wait_for_progress(orders.load)
        gateway.run_step("advance", "Orders", state="DONE")
        gateway.run_step("advance", "Bills", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
        wait_for_progress(bills.load)
        gateway.run_step("rollback", "Bills", "--all", state="MIRRORING")
        wait_for_progress(bills.load)
        orders.stop_and_check()
        bills.stop_and_check()
    assert max_offsets(clusters.primary.broker, "Orders") == final


def test_the_target_leads_for_a_while_under_load(clusters: Clusters) -> None:
    """With roles reversed and back, consumers at the primary get everything in order, and both brokers agree."""
    topic, gateway = "Leads", clusters.gateway
    prepared(clusters, topic, "LeadReaders")
    with ExitStack() as stack:
        traffic = start_traffic(clusters.java, topic, "LeadReaders", stack)
        wait_for_progress(traffic.load)
        eventually(lambda: try_switch_mode(gateway, topic, "target-primary"), ARRIVAL_TIMEOUT_S)
        wait_for_progress(traffic.load, 40)
        assert "target leads" in gateway.run_command("advance", topic, code=3)
        eventually(lambda: try_switch_mode(gateway, topic, "async"), ARRIVAL_TIMEOUT_S)
        wait_for_progress(traffic.load)
        traffic.stop_and_check()
        clusters.same(topic, traffic.load.total + traffic.load.resend_count)
    (back,) = [each for each in gateway.get_json("/mirror")["streams"] if each["name"].startswith("target-")]
    assert back["mirrored"] >= 40
    assert not back["refused"] + back["dropped"] + back["queued"]


def try_switch_mode(gateway: ShadowProcess, topic: str, mode: str) -> bool:
    """Return True if the mode could be switched; on a busy machine the pause may be too short."""
    try:
        gateway.run_command("mode", topic, mode)
    except AssertionError as refused:
        if "pause" not in str(refused):
            raise
        return False
    return True


def test_clients_of_the_vip_port(clusters: Clusters) -> None:
    """Clients of the VIP channel connect to the port two below the one in routes, which is open by default."""
    with clusters.java.producer("vip", vipChannelEnabled=True) as producer:
        producer.send_numbered("vip-sends", 10)
    clusters.same("vip-sends", 10)


def test_a_group_that_pops_and_transactions_in_the_middle_of_a_move(clusters: Clusters) -> None:
    """Nothing is lost, and only transactions may be delivered twice.

    Official brokers commit a message again if a check-back is answered twice, and with `--allow transactions` both
    sides may deliver it.
    """
    topic, group, java, gateway = "Popped", "Poppers", clusters.java, clusters.gateway
    java.driver.call("admin.create_topic", topic=topic, queues=QUEUES)
    java.driver.call("admin.mode", topic=topic, group=group, mode="POP")
    settings = {"clientRebalance": False, "popInvisibleTime": 10_000, "heartbeatBrokerInterval": 1000}
    with ExitStack() as stack:
        stack.enter_context(java.producer("popped_p"))
        ending = stack.enter_context(java.transactions("popped_tx", heartbeatBrokerInterval=1000))
        load = stack.enter_context(KeyedProducer(java, "popped_p", topic))
        popping = stack.enter_context(java.push(group, topic, settings=settings))
        wait_for_progress(load)
        transactions = stack.enter_context(TransactionSender(ending, topic))
        eventually(lambda: len(popping.received(0)) > 20, ARRIVAL_TIMEOUT_S)
        gateway.run_step(
            "advance",
            topic,
            "--allow",
            "transactions",
            "--to",
            "CONSUMERS_SWITCHED",
            state="CONSUMERS_SWITCHED",
        )
        wait_for_progress(load)
        transactions.stop()
        load.stop()
        wanted = {f"{key} {number}" for key in load.keys for number in range(load.sent[key])}
        wanted |= {f"tx {number}" for number in range(transactions.sent)}
        eventually(lambda: wanted <= {each["body"] for each in popping.received(0)}, ARRIVAL_TIMEOUT_S)
        times = Counter(each["body"] for each in popping.received(0))
    assert {
        body for body, count in times.items() if count > 1 and not body.startswith("tx ")
    } <= load.resent_bodies
