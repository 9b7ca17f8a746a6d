"""Cut-over from an official broker to ours, which keeps its offsets, with stock clients that pop and that send
transactions in the middle of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compat_tests.cases.conftest import warm_up
from compat_tests.cases.moving import CHECKS, KeyedLoad, Shadow, Transacting
from compat_tests.cases.test_shadow_any import switched
from compat_tests.cases.test_shadow_story import ends, in_order, moves_on
from compat_tests.clients.driver import Driver
from compat_tests.clients.java_api import Java, Push
from compat_tests.clients.typed import all_of, connect, create_group, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.ours import Ours
from compat_tests.plugin import unavailable
from compat_tests.server import Server, eventually

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

ARRIVES_S = 120.0
QUEUES = 4
POPPING = {"clientRebalance": False, "popInvisibleTime": 10_000, "heartbeatBrokerInterval": 1000}


@dataclass
class Setting:
    """An official broker, the gateway in front of it, ours as the target, a stock client."""

    primary: Official
    target: Ours
    gateway: Shadow
    java: Java

    def topic(self, topic: str, group: str, *, pop: bool) -> None:
        """A topic and its group, which pops if asked for."""
        with connect(self.gateway.broker) as broker:
            broker.ask(topic_request(topic, QUEUES))
            create_group(broker, group)
        if pop:
            self.java.driver.call("admin.mode", topic=topic, group=group, mode="POP")

    def ends_alike(self, topic: str) -> None:
        where = self.target.broker, self.primary.broker
        eventually(lambda: ends(where[0], topic) == ends(where[1], topic), ARRIVES_S, every_s=0.5)


@pytest.fixture(scope="module")
def setting(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here: Path = tmp_path_factory.mktemp("kept-moves")
    try:
        primary = Official(CHECKS, here / "primary")
    except Unavailable as missing:
        unavailable(str(missing))
    target = Ours({**CHECKS, "mirrorTarget": "true"}, here / "target")
    with primary, target:
        more = '[kept]\ndiscover_ms = 500\noffsets_ms = 1000\n[mirroring]\nstate_file = "%s"' % (
            here / "state"
        )
        gateway = Shadow(here / "gateway", primary.namesrv, target.namesrv, kind="ours", more=more)
        with gateway, closing(Driver("server-5.4", gateway.namesrv, admin=True)) as driver:
            java = Java(driver, "5.4.0")
            warm_up(java)
            yield Setting(primary, target, gateway, java)


@dataclass
class Traffic:
    """Keyed messages, transactions, and a group that consumes both."""

    load: KeyedLoad
    transactions: Transacting
    reader: Push

    def wanted(self) -> set[str]:
        """What was acknowledged, or is committed sooner or later."""
        plain = {f"{key} {number}" for key in self.load.keys for number in range(self.load.sent[key])}
        return plain | {f"tx {number}" for number in range(self.transactions.sent)}

    def times(self) -> Counter[str]:
        return Counter(each["body"] for each in self.reader.received(0))

    def ends_well(self) -> Counter[str]:
        """Everything arrives; how often."""
        self.transactions.stop()
        self.load.stop()
        wanted = self.wanted()
        eventually(lambda: wanted <= self.times().keys(), ARRIVES_S, every_s=0.5)
        return self.times()


def begin(setting: Setting, topic: str, group: str, stack: ExitStack, **options: Any) -> Traffic:
    java = setting.java
    stack.enter_context(java.producer(f"{topic}_p"))
    ending = stack.enter_context(java.transactions(f"{topic}_tx", heartbeatBrokerInterval=1000))
    load = stack.enter_context(KeyedLoad(java, f"{topic}_p", topic))
    reader = stack.enter_context(java.push(group, topic, **options))
    moves_on(load)
    traffic = Traffic(load, stack.enter_context(Transacting(ending, topic)), reader)
    eventually(lambda: len(reader.received(0)) > 20 and traffic.transactions.sent > 4, ARRIVES_S)
    return traffic


def twice(traffic: Traffic, times: Counter[str], *, of: int = 1) -> set[str]:
    """What came more often than it should; not what was sent twice, or what the broker asked its producer about."""
    often = {body for body, count in times.items() if count > of and not body.startswith("tx ")}
    return often - traffic.load.repeated


def test_a_group_that_pops_and_transactions_in_the_middle_of_a_move(setting: Setting, server: Server) -> None:
    topic, group = server.topic_name("popped"), server.topic_name("poppers")
    setting.topic(topic, group, pop=True)
    with ExitStack() as stack:
        traffic = begin(setting, topic, group, stack, settings=POPPING)
        words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
        setting.gateway.step("advance", topic, *words, state="CONSUMERS_SWITCHED")
        final = ends(setting.primary.broker, topic)
        moves_on(traffic.load)
        assert not twice(traffic, traffic.ends_well())
        setting.gateway.step("advance", topic, state="DONE")
        assert ends(setting.primary.broker, topic) == final


def test_messages_that_a_popping_group_fails_with_come_again_on_either_side(
    setting: Setting, server: Server
) -> None:
    """Retries of a pop wait in a topic of group and topic; they are consumed before the group follows."""
    topic, group = server.topic_name("failed"), server.topic_name("failing")
    setting.topic(topic, group, pop=True)
    with ExitStack() as stack:
        traffic = begin(setting, topic, group, stack, settings=POPPING, failures=1)
        words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
        setting.gateway.step("advance", topic, *words, state="CONSUMERS_SWITCHED")
        moves_on(traffic.load)
        traffic.ends_well()
        wanted = traffic.wanted()

        def again() -> bool:
            times = traffic.times()
            return all(times[body] >= 2 for body in wanted)

        eventually(again, ARRIVES_S, every_s=0.5)
        assert not twice(traffic, traffic.times(), of=2)


def test_transactions_and_a_group_that_pulls_move_and_come_back(setting: Setting, server: Server) -> None:
    topic, group = server.topic_name("pulled"), server.topic_name("pullers")
    setting.topic(topic, group, pop=False)
    brisk = {"persistConsumerOffsetInterval": 1000, "heartbeatBrokerInterval": 1000}
    with ExitStack() as stack:
        traffic = begin(setting, topic, group, stack, settings=brisk)
        words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
        setting.gateway.step("advance", topic, *words, state="CONSUMERS_SWITCHED")
        moves_on(traffic.load)
        setting.gateway.step("rollback", topic, "--all", "--allow", "transactions", state="MIRRORING")
        moves_on(traffic.load)
        times = traffic.ends_well()
    # Reads that still waited at the primary since before the move get the first copy of a queue each.
    again = twice(traffic, times)
    assert len(again) <= QUEUES
    assert max((times[body] for body in again), default=2) == 2


def test_the_target_leads_for_a_while_and_offsets_stay_the_same(setting: Setting, server: Server) -> None:
    """Sends go to the target and come back to the primary; afterwards the target keeps the primary's offsets again."""
    topic, group, gateway = server.topic_name("led"), server.topic_name("led_readers"), setting.gateway
    setting.topic(topic, group, pop=False)
    java = setting.java
    with ExitStack() as stack:
        stack.enter_context(java.producer("led_p"))
        load = stack.enter_context(KeyedLoad(java, "led_p", topic))
        reader = stack.enter_context(java.push(group, topic, orderly=True))
        moves_on(load)
        eventually(lambda: switched(gateway, topic, "target-primary"), ARRIVES_S)
        moves_on(load, 100)
        eventually(lambda: switched(gateway, topic, "async"), ARRIVES_S)
        moves_on(load)
        load.stop()
        wanted = {f"{key} {number}" for key in load.keys for number in range(load.sent[key])}
        eventually(lambda: wanted <= {each["body"] for each in reader.received(0)}, ARRIVES_S, every_s=0.5)
        in_order(reader, load)
    setting.ends_alike(topic)
    assert bodies(setting.primary.broker, topic) == bodies(setting.target.broker, topic)
    (back,) = [each for each in gateway.get("/mirror")["streams"] if each["name"].startswith("target-")]
    assert back["mirrored"] >= 100
    assert not back["refused"] + back["dropped"] + back["queued"]


def bodies(where: str, topic: str) -> list[list[bytes]]:
    """What each queue holds, in order."""
    with connect(where) as broker:
        return [[each.body for each in all_of(broker, topic, queue)] for queue in range(QUEUES)]
