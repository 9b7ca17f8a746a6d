"""Cut-over from an official broker to ours with preserved offsets, under pop consumption and transactions."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acceptance.moving import (
    FREQUENT_REPORTS,
    QUICK_CHECK_BACKS,
    REFUSED,
    KeyedProducer,
    ShadowProcess,
    TransactionSender,
)
from acceptance.test_shadow_any import try_switch_mode
from acceptance.test_shadow_story import assert_in_order, max_offsets, wait_for_progress
from compat_tests.cases.conftest import warm_up
from compat_tests.cases.test_ordered import by_key
from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.clients.java_api import JavaClient, JavaProducer, JavaPushConsumer
from compat_tests.clients.typed import connect, create_group, iter_queue, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually

pytestmark = pytest.mark.both_servers

ARRIVES_S = 120.0
QUEUES = 4
POPPING = {"clientRebalance": False, "popInvisibleTime": 10_000, "heartbeatBrokerInterval": 1000}


@dataclass
class Clusters:
    """An official broker, the gateway in front of it, our server as the target, and a stock client."""

    primary: OfficialEndpoint
    target: OursEndpoint
    gateway: ShadowProcess
    java: JavaClient

    def topic(self, topic: str, group: str, *, pop: bool) -> None:
        """Create a topic and its group, which pops if `pop`."""
        with connect(self.gateway.broker) as broker:
            broker.ask(topic_request(topic, QUEUES))
            create_group(broker, group)
        if pop:
            self.java.driver.call("admin.mode", topic=topic, group=group, mode="POP")

    def ends_alike(self, topic: str) -> None:
        where = self.target.broker, self.primary.broker
        eventually(
            lambda: max_offsets(where[0], topic) == max_offsets(where[1], topic), ARRIVES_S, every_s=0.5
        )


@pytest.fixture(scope="module")
def clusters(server: ServerUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here: Path = tmp_path_factory.mktemp("kept-moves")
    try:
        primary = OfficialEndpoint(QUICK_CHECK_BACKS, here / "primary")
    except Unavailable as missing:
        skip_or_fail(str(missing))
    target = OursEndpoint({**QUICK_CHECK_BACKS, "mirrorTarget": "true"}, here / "target")
    with primary, target:
        more = '[replication]\ndiscover_ms = 500\noffsets_ms = 1000\n[mirroring]\nstate_file = "%s"' % (
            here / "state"
        )
        gateway = ShadowProcess(here / "gateway", primary.namesrv, target.namesrv, kind="ours", more=more)
        with gateway, closing(JavaDriver("server-5.4", gateway.namesrv, admin=True)) as driver:
            java = JavaClient(driver, "5.4.0")
            warm_up(java)
            yield Clusters(primary, target, gateway, java)


@dataclass
class MixedTraffic:
    """Keyed messages, transactions, and a group that consumes both."""

    load: KeyedProducer
    transactions: TransactionSender
    reader: JavaPushConsumer

    def expected_bodies(self) -> set[str]:
        """Return the bodies that must arrive: acknowledged messages, and transactions that are eventually committed."""
        plain = {f"{key} {number}" for key in self.load.keys for number in range(self.load.sent[key])}
        return plain | {f"tx {number}" for number in range(self.transactions.sent)}

    def delivery_counts(self) -> Counter[str]:
        return Counter(each["body"] for each in self.reader.received(0))

    def stop_and_count(self) -> Counter[str]:
        """Stop sending, wait until everything has arrived, and return the number of deliveries of each body."""
        self.transactions.stop()
        self.load.stop()
        wanted = self.expected_bodies()
        eventually(lambda: wanted <= self.delivery_counts().keys(), ARRIVES_S, every_s=0.5)
        return self.delivery_counts()


def start_mixed_traffic(
    clusters: Clusters, topic: str, group: str, stack: ExitStack, **options: Any
) -> MixedTraffic:
    java = clusters.java
    stack.enter_context(java.producer(f"{topic}_p"))
    ending = stack.enter_context(java.transactions(f"{topic}_tx", heartbeatBrokerInterval=1000))
    load = stack.enter_context(KeyedProducer(java, f"{topic}_p", topic))
    reader = stack.enter_context(java.push(group, topic, **options))
    wait_for_progress(load)
    traffic = MixedTraffic(load, stack.enter_context(TransactionSender(ending, topic)), reader)
    eventually(lambda: len(reader.received(0)) > 20 and traffic.transactions.sent > 4, ARRIVES_S)
    return traffic


def unexpected_duplicates(traffic: MixedTraffic, times: Counter[str], *, of: int = 1) -> set[str]:
    """Return the bodies delivered more than `of` times, except transactions and messages that were sent twice."""
    often = {body for body, count in times.items() if count > of and not body.startswith("tx ")}
    return often - traffic.load.resent_bodies


def test_a_group_that_pops_and_transactions_in_the_middle_of_a_move(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic, group = server.topic_name("popped"), server.topic_name("poppers")
    clusters.topic(topic, group, pop=True)
    with ExitStack() as stack:
        traffic = start_mixed_traffic(clusters, topic, group, stack, settings=POPPING)
        words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
        clusters.gateway.run_step("advance", topic, *words, state="CONSUMERS_SWITCHED")
        final = max_offsets(clusters.primary.broker, topic)
        wait_for_progress(traffic.load)
        assert not unexpected_duplicates(traffic, traffic.stop_and_count())
        clusters.gateway.run_step("advance", topic, state="DONE")
        assert max_offsets(clusters.primary.broker, topic) == final


def test_messages_that_a_popping_group_fails_with_come_again_on_either_side(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    """A popping group's retries wait in a topic of its own, which must be consumed before the group is switched."""
    topic, group = server.topic_name("failed"), server.topic_name("failing")
    clusters.topic(topic, group, pop=True)
    with ExitStack() as stack:
        traffic = start_mixed_traffic(clusters, topic, group, stack, settings=POPPING, failures=1)
        words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
        clusters.gateway.run_step("advance", topic, *words, state="CONSUMERS_SWITCHED")
        wait_for_progress(traffic.load)
        traffic.stop_and_count()
        wanted = traffic.expected_bodies()

        def again() -> bool:
            times = traffic.delivery_counts()
            return all(times[body] >= 2 for body in wanted)

        eventually(again, ARRIVES_S, every_s=0.5)
        assert not unexpected_duplicates(traffic, traffic.delivery_counts(), of=2)


def test_transactions_and_a_group_that_pulls_move_and_come_back(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic, group = server.topic_name("pulled"), server.topic_name("pullers")
    clusters.topic(topic, group, pop=False)
    brisk = {"persistConsumerOffsetInterval": 1000, "heartbeatBrokerInterval": 1000}
    with ExitStack() as stack:
        traffic = start_mixed_traffic(clusters, topic, group, stack, settings=brisk)
        words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
        clusters.gateway.run_step("advance", topic, *words, state="CONSUMERS_SWITCHED")
        wait_for_progress(traffic.load)
        clusters.gateway.run_step("rollback", topic, "--all", "--allow", "transactions", state="MIRRORING")
        wait_for_progress(traffic.load)
        times = traffic.stop_and_count()
    # A pull that has waited at the primary since before the move may get the first copied message of its queue.
    again = unexpected_duplicates(traffic, times)
    assert len(again) <= QUEUES
    assert max((times[body] for body in again), default=2) == 2


def test_the_target_leads_for_a_while_and_offsets_stay_the_same(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    """While the target leads, sends are mirrored back to the primary; afterwards offsets are preserved again."""
    topic, group, gateway = server.topic_name("led"), server.topic_name("led_readers"), clusters.gateway
    clusters.topic(topic, group, pop=False)
    java = clusters.java
    with ExitStack() as stack:
        stack.enter_context(java.producer("led_p"))
        load = stack.enter_context(KeyedProducer(java, "led_p", topic))
        reader = stack.enter_context(java.push(group, topic, orderly=True))
        wait_for_progress(load)
        eventually(lambda: try_switch_mode(gateway, topic, "target-primary"), ARRIVES_S)
        wait_for_progress(load, 100)
        eventually(lambda: try_switch_mode(gateway, topic, "async"), ARRIVES_S)
        wait_for_progress(load)
        load.stop()
        wanted = {f"{key} {number}" for key in load.keys for number in range(load.sent[key])}
        eventually(lambda: wanted <= {each["body"] for each in reader.received(0)}, ARRIVES_S, every_s=0.5)
        assert_in_order(reader, load)
    clusters.ends_alike(topic)
    assert bodies(clusters.primary.broker, topic) == bodies(clusters.target.broker, topic)
    (back,) = [each for each in gateway.get_json("/mirror")["streams"] if each["name"].startswith("target-")]
    assert back["mirrored"] >= 100
    assert not back["refused"] + back["dropped"] + back["queued"]


def bodies(where: str, topic: str) -> list[list[bytes]]:
    """Return the bodies of each queue, in order."""
    with connect(where) as broker:
        return [[each.body for each in iter_queue(broker, topic, queue)] for queue in range(QUEUES)]


def can_send(producer: JavaProducer, topic: str) -> bool:
    try:
        return bool(producer.send({"topic": topic, "body": "stray"})[0]["status"] == "SEND_OK")
    except JavaClientError:
        return False


def test_a_producer_that_bypasses_the_gateway_gets_errors_once_the_topic_is_read_only(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    """Clients of the gateway go on meanwhile, although they read the same routes; the rollback undoes it."""
    topic, group, gateway = server.topic_name("bypassed"), server.topic_name("bypassed_g"), clusters.gateway
    clusters.topic(topic, group, pop=False)
    quick = {"pollNameServerInterval": 1000, "heartbeatBrokerInterval": 1000}
    with ExitStack() as stack:
        stack.enter_context(clusters.java.producer("kept_p", instanceName="kept", **quick))
        load = stack.enter_context(KeyedProducer(clusters.java, "kept_p", topic))
        reader = stack.enter_context(
            clusters.java.push(group, topic, orderly=True, settings=FREQUENT_REPORTS)
        )
        driver = stack.enter_context(closing(JavaDriver("server-5.4", clusters.primary.namesrv)))
        stray = stack.enter_context(JavaClient(driver, "5.4.0").producer("stray_p", **quick))
        wait_for_progress(load)
        gateway.run_step("advance", topic, "--to", "PRODUCERS_SWITCHED", state="PRODUCERS_SWITCHED")
        assert can_send(stray, topic)
        eventually(  # the primary knows the producer after its next heartbeat
            lambda: "(group stray_p, client " in " ".join(gateway.run_command("plan", topic).split()),
            ARRIVES_S,
            every_s=1,
        )
        refused = " ".join(gateway.run_command("advance", topic, code=REFUSED).split())
        assert f"messages of {topic} were sent to the primary past the gateway" in refused
        assert f"`rmq-gateway shadow read-only {topic}` makes their sends fail" in refused
        gateway.run_command("read-only", topic)
        eventually(lambda: not can_send(stray, topic), ARRIVES_S)
        wait_for_progress(load, 50)
        assert "target (read-only at the primary)" in gateway.run_command("status")
        gateway.run_step("rollback", topic, state="MIRRORING")
        eventually(lambda: can_send(stray, topic), ARRIVES_S)
        wait_for_progress(load)
        load.stop()
        wanted = {f"{key} {number}" for key in load.keys for number in range(load.sent[key])}
        eventually(lambda: wanted <= {each["body"] for each in reader.received(0)}, ARRIVES_S, every_s=0.5)
        got = by_key([each for each in reader.received(0) if each["body"] != "stray"])
        assert all(numbers == sorted(numbers) for numbers in got.values())


def count_bodies(where: str, topic: str) -> Counter[str]:
    """Return the bodies of a topic with one queue."""
    with connect(where) as broker:
        return Counter(each.body.decode() for each in iter_queue(broker, topic, 0))


def test_dead_letters_of_both_sides_survive_a_move_back_and_forth(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    """Those stored at the target stayed there after a rollback, and later ones of the primary never reached it."""
    topic, group, gateway = server.topic_name("given_up"), server.topic_name("giving_up"), clusters.gateway
    clusters.topic(topic, group, pop=False)
    dead = f"%DLQ%{group}"
    expected: set[str] = set()

    def send_and_give_up(name: str, where: str) -> None:
        bodies = {f"{name} {number}" for number in range(20)}
        for body in sorted(bodies):
            producer.send({"topic": topic, "body": body})
        expected.update(bodies)
        eventually(lambda: bodies <= count_bodies(where, dead).keys(), ARRIVES_S, every_s=0.5)

    with ExitStack() as stack:
        producer = stack.enter_context(clusters.java.producer("given_up_p"))
        stack.enter_context(
            clusters.java.push(
                group, topic, failures=1, settings={**FREQUENT_REPORTS, "maxReconsumeTimes": 0}
            )
        )
        send_and_give_up("before", clusters.primary.broker)
        gateway.run_step("advance", topic, "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
        send_and_give_up("moved", clusters.target.broker)
        gateway.run_step("rollback", topic, "--all", state="MIRRORING")
        assert count_bodies(clusters.primary.broker, dead).keys() == expected
        send_and_give_up("back", clusters.primary.broker)
        gateway.run_step("advance", topic, "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
        gateway.run_step("advance", topic, state="DONE")
    at_target = count_bodies(clusters.target.broker, dead)
    assert at_target.keys() == expected
    # A message whose delivery was not committed at a switch may be given up twice, but no dead letter is copied twice.
    assert at_target == count_bodies(clusters.primary.broker, dead)
    assert "left_out" in gateway.run_command("parity", "-t", topic, "--json")
