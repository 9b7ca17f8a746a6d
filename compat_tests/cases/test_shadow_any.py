"""Stock clients through the gateway to an official broker: everything is sent again there, at offsets of its own."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat_tests.cases.both_sides import ARRIVES_S, QUEUES, Held, held_by_both
from compat_tests.cases.conftest import warm_up
from compat_tests.cases.moving import BRISK, CHECKS, KeyedLoad, Shadow, Transacting
from compat_tests.cases.test_shadow_story import begin, ends, moves_on
from compat_tests.clients.driver import Driver
from compat_tests.clients.java_api import Java
from compat_tests.clients.typed import connect, create_group, send, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.ours import Ours
from compat_tests.plugin import unavailable
from compat_tests.server import eventually
from remoting.errors import RequestError
from remoting.requests.offsets import QueryConsumerOffset

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

THEIRS = {"brokerName": "broker-t", "brokerClusterName": "TargetCluster"}
MORE = """
[listen]
vip = true
[mirroring]
order_ms = 1000
hold_ms = 20000
state_file = "{state}"
"""


@dataclass
class Setting:
    """Our broker, the gateway in front of it, an official broker as the target, a stock client."""

    primary: Ours
    target: Official
    gateway: Shadow
    java: Java

    def same(self, topic: str, count: int, *, in_order: bool = True) -> Held:
        """What both hold, queue by queue, once the primary has `count` messages, and then no more."""
        primary, target = self.primary.broker, self.target.broker
        here, there = held_by_both(primary, target, topic, count, in_order=in_order)
        assert there == here
        assert sum(map(len, here)) == count
        return here


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    here: Path = tmp_path_factory.mktemp("any")
    try:
        target = Official({**CHECKS, **THEIRS}, here / "target")
    except Unavailable as missing:
        unavailable(str(missing))
    primary = Ours(CHECKS, here / "primary")
    more = MORE.format(state=here / "mirror.state")
    with primary, target:
        gateway = Shadow(here / "gateway", primary.namesrv, target.namesrv, kind="any", more=more)
        with gateway, closing(Driver("server-5.4", gateway.namesrv, admin=True)) as driver:
            java = Java(driver, "5.4.0")
            warm_up(java)
            yield Setting(primary, target, gateway, java)


@pytest.mark.parametrize("mode", ["async", "strict-dual"])
def test_every_kind_of_message(setting: Setting, mode: str) -> None:
    topic = f"kinds-{mode}"
    setting.gateway.command("mode", topic, mode)
    with setting.java.producer("kinds") as producer:
        producer.bodies(topic, 40, tags="T", keys="k", flag=3, properties={"mine": "grüße"})
        producer.send(*[{"topic": topic, "body": f"async {n}"} for n in range(60)], mode="async")
        for key in range(3):
            ordered = [{"topic": topic, "body": f"{key}: {n}"} for n in range(10)]
            producer.send(*ordered, mode="selector", arg=key)
        producer.send(*[{"topic": topic, "body": f"batch {n}"} for n in range(16)], mode="batch")
        producer.send(*[{"topic": topic, "body": f"later {n}", "delay": 1} for n in range(4)])
    setting.same(topic, 40 + 60 + 30 + 16 + 4)
    setting.gateway.command("parity", "-q", "-t", topic)


def test_transactions(setting: Setting) -> None:
    """Ended by their producer at once, or when the broker asks; the target, which asks as well, gets the same."""
    topic, java = "tx", setting.java
    with java.producer("tx_plain") as plain:
        plain.bodies(topic, 1)
    ways = ["local", "check"] * 6
    states = ["COMMIT_MESSAGE", "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "ROLLBACK_MESSAGE"] * 3
    halves = [
        {"topic": topic, "body": f"{way} {state} {number}", "properties": {way: state}}
        for number, (way, state) in enumerate(zip(ways, states, strict=True))
    ]
    with java.transactions("tx_group", heartbeatBrokerInterval=1000) as producer:
        producer.send(*halves)
        queues = setting.same(topic, 7, in_order=False)
    bodies = [each["body"].decode() for queue in queues for each in queue]
    assert not [body for body in bodies if "ROLLBACK" in body]


def offsets(where: str, group: str, topic: str) -> list[int]:
    """Where a group goes on in each queue; -1 where that is not written."""
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


def commits_are_left_out(gateway: Shadow) -> bool:
    """Whether none of the next ones gets to the target; clients repeat theirs all the time."""

    def counted(what: str) -> int:
        return sum(each[what] for each in gateway.get("/mirror")["streams"])

    mirrored, skipped = counted("mirrored"), counted("skipped")
    eventually(lambda: counted("skipped") > skipped + 10, ARRIVES_S)
    return counted("mirrored") == mirrored


def test_offsets_of_a_group_are_translated_never_ahead_and_never_over_an_active_group(
    setting: Setting,
) -> None:
    topic, group, ahead = "consumed", "readers", 5
    with connect(setting.target.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
        for number in range(QUEUES * ahead):
            send(broker, topic, b"of the target", queue_id=number % QUEUES)

    def translated() -> bool:
        """Never ahead; true when it is as far."""
        there = offsets(setting.target.broker, group, topic)  # first: the primary only goes on
        here = offsets(setting.primary.broker, group, topic)
        assert all(theirs <= ours + ahead for ours, theirs in zip(here, there, strict=True)), (here, there)
        return sum(here) == 60 and there == [offset + ahead for offset in here]

    with connect(setting.gateway.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
    with (
        setting.java.producer("consumed_p") as producer,
        setting.java.push(group, topic, settings=BRISK) as consumer,
    ):
        producer.bodies(topic, 60)
        assert len(consumer.received(60, ARRIVES_S)) == 60
        eventually(translated, ARRIVES_S)
        with closing(Driver("server-5.4", setting.target.namesrv)) as driver:
            active = Java(driver, "5.4.0")
            with active.push(group, topic, settings=BRISK) as other:
                other.suspend()
                eventually(lambda: commits_are_left_out(setting.gateway), ARRIVES_S)
                before = offsets(setting.target.broker, group, topic)
                producer.bodies(topic, 20)
                eventually(lambda: sum(offsets(setting.primary.broker, group, topic)) == 80, ARRIVES_S)
                setting.gateway.quiet()
                assert offsets(setting.target.broker, group, topic) == before


def prepared(setting: Setting, topic: str, group: str) -> None:
    with connect(setting.gateway.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
        create_group(broker, group)


def test_a_topic_moves_under_load_and_another_comes_back(setting: Setting) -> None:
    gateway = setting.gateway
    for topic, group in (("Orders", "OrderReaders"), ("Bills", "BillReaders")):
        prepared(setting, topic, group)
    with ExitStack() as stack:
        orders = begin(setting.java, "Orders", "OrderReaders", stack)
        bills = begin(setting.java, "Bills", "BillReaders", stack)
        moves_on(orders.load)
        assert "CAUGHT_UP" in gateway.command("plan", "Orders")
        gateway.step("advance", "Orders", state="CAUGHT_UP")
        gateway.step("advance", "Orders", state="PRODUCERS_SWITCHED")
        moves_on(orders.load)
        gateway.step("advance", "Orders", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
        assert "CONSUMERS_SWITCHED" in gateway.command("status")
        final = ends(setting.primary.broker, "Orders")
        moves_on(orders.load)
        gateway.step("advance", "Orders", state="DONE")
        gateway.step("advance", "Bills", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
        moves_on(bills.load)
        gateway.step("rollback", "Bills", "--all", state="MIRRORING")
        moves_on(bills.load)
        orders.ends_well()
        bills.ends_well()
    assert ends(setting.primary.broker, "Orders") == final


def test_the_target_leads_for_a_while_under_load(setting: Setting) -> None:
    """Roles flipped and back: consumers at the primary get everything in order, and both have it in that order."""
    topic, gateway = "Leads", setting.gateway
    prepared(setting, topic, "LeadReaders")
    with ExitStack() as stack:
        traffic = begin(setting.java, topic, "LeadReaders", stack)
        moves_on(traffic.load)
        eventually(lambda: switched(gateway, topic, "target-primary"), ARRIVES_S)
        moves_on(traffic.load, 40)
        assert "target leads" in gateway.command("advance", topic, code=3)
        eventually(lambda: switched(gateway, topic, "async"), ARRIVES_S)
        moves_on(traffic.load)
        traffic.ends_well()
        setting.same(topic, traffic.load.total + traffic.load.again)
    (back,) = [each for each in gateway.get("/mirror")["streams"] if each["name"].startswith("target-")]
    assert back["mirrored"] >= 40
    assert not back["refused"] + back["dropped"] + back["queued"]


def switched(gateway: Shadow, topic: str, mode: str) -> bool:
    """Whether a mode could be switched; on a busy machine the pause may be too short."""
    try:
        gateway.command("mode", topic, mode)
    except AssertionError as refused:
        if "pause" not in str(refused):
            raise
        return False
    return True


def test_clients_of_the_vip_port(setting: Setting) -> None:
    """They dial the port two below the one that routes name."""
    with setting.java.producer("vip", vipChannelEnabled=True) as producer:
        producer.bodies("vip-sends", 10)
    setting.same("vip-sends", 10)


def test_a_group_that_pops_and_transactions_in_the_middle_of_a_move(setting: Setting) -> None:
    """Nothing is lost. Twice comes at most what the broker asked its producer about: official brokers commit again what
    is answered twice, and allowed transactions may be delivered by both sides."""
    topic, group, java, gateway = "Popped", "Poppers", setting.java, setting.gateway
    java.driver.call("admin.create_topic", topic=topic, queues=QUEUES)
    java.driver.call("admin.mode", topic=topic, group=group, mode="POP")
    settings = {"clientRebalance": False, "popInvisibleTime": 10_000, "heartbeatBrokerInterval": 1000}
    with ExitStack() as stack:
        stack.enter_context(java.producer("popped_p"))
        ending = stack.enter_context(java.transactions("popped_tx", heartbeatBrokerInterval=1000))
        load = stack.enter_context(KeyedLoad(java, "popped_p", topic))
        popping = stack.enter_context(java.push(group, topic, settings=settings))
        moves_on(load)
        transactions = stack.enter_context(Transacting(ending, topic))
        eventually(lambda: len(popping.received(0)) > 20, ARRIVES_S)
        gateway.step(
            "advance",
            topic,
            "--allow",
            "transactions",
            "--to",
            "CONSUMERS_SWITCHED",
            state="CONSUMERS_SWITCHED",
        )
        moves_on(load)
        transactions.stop()
        load.stop()
        wanted = {f"{key} {number}" for key in load.keys for number in range(load.sent[key])}
        wanted |= {f"tx {number}" for number in range(transactions.sent)}
        eventually(lambda: wanted <= {each["body"] for each in popping.received(0)}, ARRIVES_S)
        times = Counter(each["body"] for each in popping.received(0))
    assert {
        body for body, count in times.items() if count > 1 and not body.startswith("tx ")
    } <= load.repeated
