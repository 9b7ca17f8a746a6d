"""The story of a migration from an official broker to ours, under load.

One test walks through it: backfill of history, synced settings, mirroring, an outage of the target, a parity check, a
move with a kill of the gateway in the middle, a rollback, transactions, and the final report.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance.moving import (
    FREQUENT_REPORTS,
    QUICK_CHECK_BACKS,
    KeyedProducer,
    ShadowProcess,
    TransactionSender,
)
from compat_tests.cases.conftest import stock_client, warm_up
from compat_tests.cases.test_ordered import by_key
from compat_tests.clients.java_api import JavaClient, JavaPushConsumer
from compat_tests.clients.typed import connect, create_group, send, topic_request
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.requests.offsets import GetMaxOffset

pytestmark = pytest.mark.both_servers

PROGRESS_TIMEOUT_S = 120
# On a busy machine it takes longer than the default of 10 s to make up for the target's outage.
PATIENT_PARITY = "[compare]\nlag_ms = 60000"
HISTORY = 40
GROUPS = {"Orders": "OrderReaders", "Bills": "BillReaders", "Payments": "PaymentReaders"}


def has_consumed_all(consumer: JavaPushConsumer, load: KeyedProducer) -> bool:
    """Return True if every acknowledged message has been delivered."""
    got = by_key(consumer.received(0))
    return all(set(range(load.sent[key])) <= set(got.get(key, ())) for key in load.keys)


def assert_in_order(consumer: JavaPushConsumer, load: KeyedProducer) -> None:
    """Assert that each key's messages came in order; a message that was sent again may come again."""
    for key, numbers in by_key(consumer.received(0)).items():
        assert numbers == sorted(numbers), key
        assert len(numbers) >= load.sent[key]


def max_offsets(where: str, topic: str) -> list[int]:
    with connect(where) as broker:
        return [broker.ask(GetMaxOffset(topic=topic, queue_id=queue)).offset for queue in range(4)]


def wait_for_progress(load: KeyedProducer, by: int = 20) -> None:
    """Wait until the producer has sent `by` more messages."""
    before = load.total
    eventually(lambda: load.total >= before + by, PROGRESS_TIMEOUT_S)


@dataclass
class OrderedTraffic:
    """A stock producer and an orderly consumer of one topic, both running."""

    load: KeyedProducer
    reader: JavaPushConsumer

    def stop_and_check(self) -> None:
        """Stop sending, and assert that every acknowledged message was delivered, in order within each key."""
        self.load.stop()
        eventually(lambda: has_consumed_all(self.reader, self.load), PROGRESS_TIMEOUT_S)
        assert_in_order(self.reader, self.load)


@dataclass
class PaymentTraffic:
    """Transactions of a stock producer, every other one committed at a check-back, and their consumer."""

    sending: TransactionSender
    reader: JavaPushConsumer

    def wait_for_progress(self) -> None:
        before = self.sending.sent
        eventually(lambda: self.sending.sent >= before + 4, PROGRESS_TIMEOUT_S)

    def stop_and_check(self) -> None:
        """Stop sending, and wait until every transaction has arrived."""
        self.sending.stop()
        wanted = {f"tx {number}" for number in range(self.sending.sent)}
        eventually(lambda: wanted <= {each["body"] for each in self.reader.received(0)}, PROGRESS_TIMEOUT_S)


def prepare(primary: OfficialEndpoint) -> None:
    """Create three topics with a group each, and a topic with history from before the gateway."""
    with connect(primary.broker) as broker:
        for topic, group in GROUPS.items():
            broker.ask(topic_request(topic, 4))
            create_group(broker, group)
        for number in range(HISTORY):
            send(broker, "Archive", b"%d" % number, queue_id=number % 4)
    eventually(lambda: sum(max_offsets(primary.broker, "Archive")) == HISTORY)


def start_traffic(java: JavaClient, topic: str, group: str, story: ExitStack) -> OrderedTraffic:
    """Start the clients of one topic, which connect through the gateway."""
    producer = f"{topic}_p"
    story.enter_context(java.producer(producer, heartbeatBrokerInterval=1000))
    reader = story.enter_context(java.push(group, topic, orderly=True, settings=FREQUENT_REPORTS))
    return OrderedTraffic(story.enter_context(KeyedProducer(java, producer, topic)), reader)


def begin_payments(java: JavaClient, story: ExitStack) -> PaymentTraffic:
    producer = story.enter_context(java.transactions("Payments_p", heartbeatBrokerInterval=1000))
    reader = story.enter_context(java.push(GROUPS["Payments"], "Payments", settings=FREQUENT_REPORTS))
    return PaymentTraffic(story.enter_context(TransactionSender(producer, "Payments")), reader)


def history_comes_over(gateway: ShadowProcess, primary: OfficialEndpoint, target: OursEndpoint) -> None:
    """Backfill the history with the command, before the gateway runs."""
    gateway.run_command("backfill", "-q", "-t", "Archive")
    assert max_offsets(target.broker, "Archive") == max_offsets(primary.broker, "Archive")


def settings_are_copied(gateway: ShadowProcess) -> None:
    table = gateway.run_command("sync", "--all")
    assert {"Archive", *GROUPS.keys(), *GROUPS.values()} <= set(table.split())
    assert "failed" not in table


def history_is_the_same(gateway: ShadowProcess, primary: OfficialEndpoint, target: OursEndpoint) -> None:
    assert max_offsets(target.broker, "Archive") == max_offsets(primary.broker, "Archive")
    gateway.run_command("parity", "-q", "-t", "Archive")


def nobody_notices_an_outage(target: OursEndpoint, *traffic: OrderedTraffic) -> None:
    target.crash()
    for each in traffic:
        wait_for_progress(each.load)
    target.start()


def orders_move(gateway: ShadowProcess, primary: OfficialEndpoint, orders: OrderedTraffic) -> list[int]:
    """Move the orders under load with a kill of the gateway in between; return the primary's final queue ends."""
    gateway.kill()
    gateway.start()
    wait_for_progress(orders.load)
    gateway.run_step("advance", "Orders", state="PRODUCERS_SWITCHED")
    wait_for_progress(orders.load)
    gateway.run_step("advance", "Orders", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
    final = max_offsets(primary.broker, "Orders")
    wait_for_progress(orders.load)
    gateway.run_step("advance", "Orders", state="DONE")
    return final


def bills_move_and_come_back(gateway: ShadowProcess, bills: OrderedTraffic) -> None:
    gateway.run_step("advance", "Bills", "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
    wait_for_progress(bills.load)
    gateway.run_step("rollback", "Bills", "--all", state="MIRRORING")
    wait_for_progress(bills.load)


def both_have_the_same_bills(gateway: ShadowProcess, primary: OfficialEndpoint, target: OursEndpoint) -> None:
    eventually(
        lambda: max_offsets(target.broker, "Bills") == max_offsets(primary.broker, "Bills"),
        PROGRESS_TIMEOUT_S,
    )
    gateway.run_step("advance", "Bills", state="CAUGHT_UP")


def payments_move(gateway: ShadowProcess, payments: PaymentTraffic) -> None:
    """Move the payments without a pause: each transaction is ended on the side where it began."""
    words = "--allow", "transactions", "--to", "CONSUMERS_SWITCHED"
    gateway.run_step("advance", "Payments", *words, state="CONSUMERS_SWITCHED")
    payments.wait_for_progress()


def parity_is_proven(gateway: ShadowProcess, file: Path) -> Path:
    """Compare all topics under load after the outage, and write the result to `file`."""
    gateway.run_step("advance", "Orders", state="CAUGHT_UP")
    file.write_text(gateway.run_command("parity", "-q", "--json"))
    return file


def the_report_tells_of_it(gateway: ShadowProcess, compared: Path, page: Path) -> None:
    gateway.run_command("report", "--parity", str(compared), "-o", str(page))
    text = page.read_text()
    assert all(topic in text for topic in GROUPS)


def test_the_story_of_a_move(tmp_path: Path) -> None:
    try:
        primary = OfficialEndpoint(QUICK_CHECK_BACKS, tmp_path / "primary")
    except Unavailable as missing:
        skip_or_fail(str(missing))
    target = OursEndpoint({**QUICK_CHECK_BACKS, "mirrorTarget": "true"}, tmp_path / "target")
    gateway = ShadowProcess(
        tmp_path / "gateway", primary.namesrv, target.namesrv, kind="ours", more=PATIENT_PARITY
    )
    with primary, target, ExitStack() as story:
        prepare(primary)
        history_comes_over(gateway, primary, target)
        story.enter_context(gateway)
        settings_are_copied(gateway)
        java = story.enter_context(stock_client(gateway.namesrv))
        warm_up(java)
        orders = start_traffic(java, "Orders", GROUPS["Orders"], story)
        bills = start_traffic(java, "Bills", GROUPS["Bills"], story)
        payments = begin_payments(java, story)
        wait_for_progress(orders.load)
        history_is_the_same(gateway, primary, target)
        nobody_notices_an_outage(target, orders, bills)
        payments.wait_for_progress()
        compared = parity_is_proven(gateway, tmp_path / "parity.json")
        final = orders_move(gateway, primary, orders)
        payments_move(gateway, payments)
        bills_move_and_come_back(gateway, bills)
        payments.stop_and_check()
        orders.stop_and_check()
        bills.stop_and_check()
        assert max_offsets(primary.broker, "Orders") == final
        both_have_the_same_bills(gateway, primary, target)
        assert gateway.get_json("/mirror")["diverged"] == []
        the_report_tells_of_it(gateway, compared, tmp_path / "report.html")
