"""The story of a move: from an official broker to ours, under load, with everything that may happen on the way."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat_tests.cases.conftest import JAVA_CLIENTS
from compat_tests.cases.moving import BRISK, KeyedLoad, Shadow
from compat_tests.cases.test_ordered import by_key
from compat_tests.clients.driver import Driver
from compat_tests.clients.java_api import Java, Push
from compat_tests.clients.typed import connect, create_group, send, topic_request
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.ours import Ours
from compat_tests.jars import Unavailable
from compat_tests.plugin import unavailable
from compat_tests.server import eventually
from remoting.requests.offsets import GetMaxOffset

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

PATIENCE_S = 120
HISTORY = 40


@contextmanager
def stock_client(namesrv: str) -> Iterator[Java]:
    driver = Driver(JAVA_CLIENTS["5.4.0"], namesrv, admin=True)
    try:
        yield Java(driver, "5.4.0")
    finally:
        driver.close()


def consumed(consumer: Push, load: KeyedLoad) -> bool:
    """Every message that was acknowledged has been delivered."""
    got = by_key(consumer.received(0))
    return all(set(range(load.sent[key])) <= set(got.get(key, ())) for key in load.keys)


def in_order(consumer: Push, load: KeyedLoad) -> None:
    """Each key's messages came in their order; a message that was sent again may come again."""
    for key, numbers in by_key(consumer.received(0)).items():
        assert numbers == sorted(numbers), key
        assert len(numbers) >= load.sent[key]


def ends(where: str, topic: str) -> list[int]:
    with connect(where) as broker:
        return [broker.ask(GetMaxOffset(topic=topic, queue_id=queue)).offset for queue in range(4)]


def moves_on(load: KeyedLoad, by: int = 20) -> None:
    """Producers do their work."""
    before = load.total
    eventually(lambda: load.total >= before + by, PATIENCE_S)


@dataclass
class Traffic:
    """One topic's stock producer and orderly consumer, at work."""

    load: KeyedLoad
    reader: Push

    def ends_well(self) -> None:
        """Everything that was acknowledged was delivered, in the order of each key."""
        self.load.stop()
        eventually(lambda: consumed(self.reader, self.load), PATIENCE_S)
        in_order(self.reader, self.load)


def prepare(primary: Official) -> None:
    """Two topics with a group each, and history from before the gateway."""
    with connect(primary.broker) as broker:
        for topic, group in (("Orders", "OrderReaders"), ("Bills", "BillReaders")):
            broker.ask(topic_request(topic, 4))
            create_group(broker, group)
        for number in range(HISTORY):
            send(broker, "Archive", b"%d" % number, queue_id=number % 4)


def begin(java: Java, topic: str, group: str, story: ExitStack) -> Traffic:
    """Clients of one topic, which come through the gateway."""
    producer = f"{topic}_p"
    story.enter_context(java.producer(producer, heartbeatBrokerInterval=1000))
    reader = story.enter_context(java.push(group, topic, orderly=True, settings=BRISK))
    return Traffic(story.enter_context(KeyedLoad(java, producer, topic)), reader)


def settings_are_copied(gateway: Shadow) -> None:
    table = gateway.command("sync")
    assert {"Orders", "Bills", "Archive", "OrderReaders"} <= set(table.split())
    assert "failed" not in table


def history_is_the_same(gateway: Shadow, primary: Official, target: Ours) -> None:
    eventually(lambda: ends(target.broker, "Archive") == ends(primary.broker, "Archive"), PATIENCE_S)
    gateway.command("parity", "-q", "-t", "Archive")


def nobody_notices_an_outage(target: Ours, *traffic: Traffic) -> None:
    target.crash()
    for each in traffic:
        moves_on(each.load)
    target.start()


def orders_move(gateway: Shadow, primary: Official, orders: Traffic) -> list[int]:
    """Under load, while the gateway is killed between two steps; where the primary's queues ended for good."""
    gateway.step("advance", "Orders", state="CAUGHT_UP")
    gateway.kill()
    gateway.start()
    moves_on(orders.load)
    gateway.step("advance", "Orders", state="PRODUCERS_SWITCHED")
    moves_on(orders.load)
    gateway.step("advance", "Orders", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
    final = ends(primary.broker, "Orders")
    moves_on(orders.load)
    gateway.step("advance", "Orders", state="DONE")
    return final


def bills_move_and_come_back(gateway: Shadow, bills: Traffic) -> None:
    gateway.step("advance", "Bills", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
    moves_on(bills.load)
    gateway.step("rollback", "Bills", "--all", state="MIRRORING")
    moves_on(bills.load)


def both_have_the_same_bills(gateway: Shadow, primary: Official, target: Ours) -> None:
    eventually(lambda: ends(target.broker, "Bills") == ends(primary.broker, "Bills"), PATIENCE_S)
    gateway.step("advance", "Bills", state="CAUGHT_UP")


def the_report_tells_of_it(gateway: Shadow, page: Path) -> None:
    gateway.command("report", "-o", str(page))
    assert "Orders" in page.read_text()


def test_the_story_of_a_move(tmp_path: Path) -> None:
    try:
        primary = Official(directory=tmp_path / "primary")
    except Unavailable as missing:
        unavailable(str(missing))
    target = Ours({"mirrorTarget": "true"}, tmp_path / "target")
    gateway = Shadow(tmp_path / "gateway", primary.namesrv, target.namesrv, kind="ours")
    with primary, target, ExitStack() as story:
        prepare(primary)
        story.enter_context(gateway)
        settings_are_copied(gateway)
        java = story.enter_context(stock_client(gateway.namesrv))
        orders = begin(java, "Orders", "OrderReaders", story)
        bills = begin(java, "Bills", "BillReaders", story)
        moves_on(orders.load)
        history_is_the_same(gateway, primary, target)
        nobody_notices_an_outage(target, orders, bills)
        final = orders_move(gateway, primary, orders)
        bills_move_and_come_back(gateway, bills)
        orders.ends_well()
        bills.ends_well()
        assert ends(primary.broker, "Orders") == final
        both_have_the_same_bills(gateway, primary, target)
        the_report_tells_of_it(gateway, tmp_path / "report.html")
