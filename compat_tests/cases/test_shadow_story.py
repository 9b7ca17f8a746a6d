"""The story of a move: from an official broker to ours, under load, with everything that may happen on the way."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat_tests.cases.conftest import JAVA_CLIENTS
from compat_tests.cases.moving import BRISK, CHECKS, KeyedLoad, Shadow, Transacting
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
GROUPS = {"Orders": "OrderReaders", "Bills": "BillReaders", "Payments": "PaymentReaders"}


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


@dataclass
class Payments:
    """Transactions of a stock producer, every other one committed when the broker asks, and their reader."""

    sending: Transacting
    reader: Push

    def move_on(self) -> None:
        before = self.sending.sent
        eventually(lambda: self.sending.sent >= before + 4, PATIENCE_S)

    def ends_well(self) -> None:
        """Every transaction arrived."""
        self.sending.stop()
        wanted = {f"tx {number}" for number in range(self.sending.sent)}
        eventually(lambda: wanted <= {each["body"] for each in self.reader.received(0)}, PATIENCE_S)


def prepare(primary: Official) -> None:
    """Three topics with a group each, and history from before the gateway."""
    with connect(primary.broker) as broker:
        for topic, group in GROUPS.items():
            broker.ask(topic_request(topic, 4))
            create_group(broker, group)
        for number in range(HISTORY):
            send(broker, "Archive", b"%d" % number, queue_id=number % 4)
    eventually(lambda: sum(ends(primary.broker, "Archive")) == HISTORY)


def begin(java: Java, topic: str, group: str, story: ExitStack) -> Traffic:
    """Clients of one topic, which come through the gateway."""
    producer = f"{topic}_p"
    story.enter_context(java.producer(producer, heartbeatBrokerInterval=1000))
    reader = story.enter_context(java.push(group, topic, orderly=True, settings=BRISK))
    return Traffic(story.enter_context(KeyedLoad(java, producer, topic)), reader)


def begin_payments(java: Java, story: ExitStack) -> Payments:
    producer = story.enter_context(java.transactions("Payments_p", heartbeatBrokerInterval=1000))
    reader = story.enter_context(java.push(GROUPS["Payments"], "Payments", settings=BRISK))
    return Payments(story.enter_context(Transacting(producer, "Payments")), reader)


def history_comes_over(gateway: Shadow, primary: Official, target: Ours) -> None:
    """By a command of its own, before the gateway runs."""
    gateway.command("backfill", "-q", "-t", "Archive")
    assert ends(target.broker, "Archive") == ends(primary.broker, "Archive")


def settings_are_copied(gateway: Shadow) -> None:
    table = gateway.command("sync")
    assert {"Archive", *GROUPS.keys(), *GROUPS.values()} <= set(table.split())
    assert "failed" not in table


def history_is_the_same(gateway: Shadow, primary: Official, target: Ours) -> None:
    assert ends(target.broker, "Archive") == ends(primary.broker, "Archive")
    gateway.command("parity", "-q", "-t", "Archive")


def nobody_notices_an_outage(target: Ours, *traffic: Traffic) -> None:
    target.crash()
    for each in traffic:
        moves_on(each.load)
    target.start()


def orders_move(gateway: Shadow, primary: Official, orders: Traffic) -> list[int]:
    """Under load, while the gateway is killed between two steps; where the primary's queues ended for good."""
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


def payments_move(gateway: Shadow, payments: Payments) -> None:
    """Transactions are ended on the side where they began, so they need not stop for it."""
    words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
    gateway.step("advance", "Payments", *words, state="CONSUMERS_SWITCHED")
    payments.move_on()


def parity_is_proven(gateway: Shadow, file: Path) -> Path:
    """Of everything, under load, after the outage."""
    gateway.step("advance", "Orders", state="CAUGHT_UP")
    file.write_text(gateway.command("parity", "-q", "--json"))
    return file


def the_report_tells_of_it(gateway: Shadow, compared: Path, page: Path) -> None:
    gateway.command("report", "--parity", str(compared), "-o", str(page))
    text = page.read_text()
    assert all(topic in text for topic in GROUPS)


def test_the_story_of_a_move(tmp_path: Path) -> None:
    try:
        primary = Official(CHECKS, tmp_path / "primary")
    except Unavailable as missing:
        unavailable(str(missing))
    target = Ours({**CHECKS, "mirrorTarget": "true"}, tmp_path / "target")
    gateway = Shadow(tmp_path / "gateway", primary.namesrv, target.namesrv, kind="ours")
    with primary, target, ExitStack() as story:
        prepare(primary)
        history_comes_over(gateway, primary, target)
        story.enter_context(gateway)
        settings_are_copied(gateway)
        java = story.enter_context(stock_client(gateway.namesrv))
        orders = begin(java, "Orders", GROUPS["Orders"], story)
        bills = begin(java, "Bills", GROUPS["Bills"], story)
        payments = begin_payments(java, story)
        moves_on(orders.load)
        history_is_the_same(gateway, primary, target)
        nobody_notices_an_outage(target, orders, bills)
        payments.move_on()
        compared = parity_is_proven(gateway, tmp_path / "parity.json")
        final = orders_move(gateway, primary, orders)
        payments_move(gateway, payments)
        bills_move_and_come_back(gateway, bills)
        payments.ends_well()
        orders.ends_well()
        bills.ends_well()
        assert ends(primary.broker, "Orders") == final
        both_have_the_same_bills(gateway, primary, target)
        assert gateway.get("/mirror")["diverged"] == []
        the_report_tells_of_it(gateway, compared, tmp_path / "report.html")
