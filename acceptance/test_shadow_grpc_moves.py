"""5.x clients while a topic is cut over from an official broker to ours, comes back, and is cut over again; receipts
that a consumer holds meanwhile; and a gateway that is killed under load.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from acceptance.both_sides import wait_for_same_messages
from acceptance.moving import QUICK_CHECK_BACKS, REFUSED, ShadowProcess
from acceptance.test_shadow_story import max_offsets
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.command_driver import CommandDriver, StockClientError
from compat_tests.clients.grpc_api import GrpcProducer, GrpcSimpleConsumer, StockGrpcClient
from compat_tests.clients.grpc_drivers import start_go_driver, start_python_driver
from compat_tests.clients.typed import connect, create_group, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.ports import find_ports
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually

pytestmark = pytest.mark.both_servers

ARRIVES_S = 120.0
AT_A_TIME = 10
PAUSE_S = 0.1
WAIT_S = 200
MORE_MESSAGES = 100
INVISIBLE_S = 10.0
"""The server's smallest; a group that pops is moved only after this time."""
DRIVERS: Mapping[str, Callable[[], CommandDriver]] = {
    "java": lambda: start_grpc_driver(""),
    "python": lambda: start_python_driver("5.1.2"),
    "go": lambda: start_go_driver("v5.1.4"),
}
HOLD_S = 40.0
"""Invisible time of a message that is not acknowledged."""
INVALID_RECEIPT_HANDLE = 40013
MORE = """
[listen]
grpc_port = %d
[replication]
discover_ms = 500
offsets_ms = 1000
[mirroring]
state_file = "%s"
"""


@dataclass
class Traffic:
    """A producer, and consumers of a group each, that never give up, until the end of the block.

    ``resent`` are bodies that were sent again because no receipt came, ``unacknowledged`` those by consumer whose
    acknowledgement failed, ``late`` those acknowledged after the invisible time, as may happen on a busy machine.
    ``received`` counts the bodies by consumer.
    """

    topic: str
    producer: GrpcProducer
    consumers: Mapping[str, GrpcSimpleConsumer]
    sent: list[str] = field(default_factory=list)
    resent: set[str] = field(default_factory=set)
    received: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    unacknowledged: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    late: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _stops_sending: threading.Event = field(default_factory=threading.Event)
    _stops: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads.append(threading.Thread(target=self._send, daemon=True))
        for name in self.consumers:
            self._threads.append(threading.Thread(target=self._receive, args=(name,), daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stops_sending.set()
        self._stops.set()
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads)

    def _send(self) -> None:
        while not self._stops_sending.wait(PAUSE_S):
            bodies = [f"{len(self.sent) + number}" for number in range(AT_A_TIME)]
            for body in bodies:
                self._send_one(body)
            self.sent += bodies

    def _send_one(self, body: str) -> None:
        while True:
            try:
                self.producer.send({"topic": self.topic, "body": body})
                return
            except StockClientError:
                self.resent.add(body)

    def _receive(self, name: str) -> None:
        consumer = self.consumers[name]
        while not self._stops.is_set():
            begun_s = time.monotonic()
            try:
                messages = consumer.receive(invisible_s=INVISIBLE_S)
            except StockClientError:
                self._stops.wait(PAUSE_S)
                continue
            for message in messages:
                self.received[name][message["body"]] += 1
                try:
                    consumer.ack(message)
                except StockClientError:
                    self.unacknowledged[name].add(message["body"])
                if time.monotonic() - begun_s >= INVISIBLE_S:
                    self.late[name].add(message["body"])

    def progress(self) -> None:
        """Wait until more has been sent, and received by everybody."""
        sent, received = len(self.sent), {name: self.received[name].total() for name in self.consumers}
        eventually(
            lambda: (
                len(self.sent) > sent + MORE_MESSAGES
                and all(
                    self.received[name].total() > received[name] + MORE_MESSAGES for name in self.consumers
                )
            ),
            ARRIVES_S,
        )

    def finish(self) -> None:
        """Stop sending, and wait until everything has been received."""
        self._stops_sending.set()
        self._threads[0].join(60)
        eventually(
            lambda: all(set(self.sent) <= self.received[name].keys() for name in self.consumers),
            ARRIVES_S,
            every_s=0.5,
        )


@pytest.fixture(scope="module")
def gateway(server: ServerUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShadowProcess]:
    """Start an official broker with its Proxy, our server as the target, and the gateway between them."""
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here: Path = tmp_path_factory.mktemp("grpc-moves")
    with ExitStack() as stack:
        try:
            primary = stack.enter_context(OfficialEndpoint(QUICK_CHECK_BACKS, here / "primary"))
            stack.enter_context(OfficialProxy(primary.namesrv))
        except Unavailable as missing:
            skip_or_fail(str(missing))
        settings = {**QUICK_CHECK_BACKS, "mirrorTarget": "true"}
        target = stack.enter_context(OursEndpoint(settings, here / "target"))
        more = MORE % (*find_ports(1), here / "state")
        process = ShadowProcess(here / "gateway", primary.namesrv, target.namesrv, kind="ours", more=more)
        with process:
            process.addresses = primary.broker, target.broker
            yield process


@contextmanager
def running_traffic(gateway: ShadowProcess, server: ServerUnderTest, name: str) -> Iterator[Traffic]:
    """Run a producer, and a consumer in each language, on a new topic; yield when all of them make progress."""
    topic = server.topic_name(name)
    assert gateway.process is not None
    address = gateway.process.ready["grpc"]
    with ExitStack() as stack, connect(gateway.broker) as broker:
        broker.ask(topic_request(topic, 4))
        consumers = {}
        for language, start in DRIVERS.items():
            group = server.topic_name(language)
            create_group(broker, group)
            client = StockGrpcClient(stack.enter_context(closing(start())), address)
            consumers[language] = stack.enter_context(client.simple(group, topic))
        sender = StockGrpcClient(stack.enter_context(closing(start_grpc_driver(""))), address)
        producer = stack.enter_context(sender.producer(topic))
        traffic = stack.enter_context(Traffic(topic, producer, consumers))
        traffic.progress()
        yield traffic


def test_each_message_is_received_once_through_a_cut_over_a_rollback_and_another_cut_over(
    gateway: ShadowProcess, server: ServerUnderTest
) -> None:
    primary, target = gateway.addresses
    with running_traffic(gateway, server, "moved") as traffic:
        topic = traffic.topic
        gateway.run_step(
            "advance", topic, "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED", wait_s=WAIT_S
        )
        traffic.progress()
        gateway.run_step("rollback", topic, "--all", state="MIRRORING", wait_s=WAIT_S)
        traffic.progress()
        gateway.run_step(
            "advance", topic, "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED", wait_s=WAIT_S
        )
        at_primary = max_offsets(primary, topic)
        traffic.progress()
        traffic.finish()
        assert max_offsets(primary, topic) == at_primary
        assert sum(max_offsets(target, topic)) >= len(traffic.sent)
        for name, received in traffic.received.items():
            twice = (
                {body for body, count in received.items() if count > 1} - traffic.resent - traffic.late[name]
            )
            assert not twice, name
        gateway.run_step("advance", topic, state="DONE")


def test_what_a_consumer_popped_before_a_move_comes_back_before_its_group_switches(
    gateway: ShadowProcess, server: ServerUnderTest
) -> None:
    topic, group = server.topic_name("held"), server.unique_name("holders")
    assert gateway.process is not None
    with ExitStack() as stack, connect(gateway.broker) as broker:
        broker.ask(topic_request(topic, 4))
        create_group(broker, group)
        client = StockGrpcClient(
            stack.enter_context(closing(start_grpc_driver(""))), gateway.process.ready["grpc"]
        )
        consumer = stack.enter_context(client.simple(group, topic))
        producer = stack.enter_context(client.producer(topic))
        producer.send({"topic": topic, "body": "held"})
        (first_delivery,) = eventually(lambda: consumer.receive(invisible_s=HOLD_S), ARRIVES_S)
        gateway.run_step("advance", topic, "--to", "PRODUCERS_SWITCHED", state="PRODUCERS_SWITCHED")
        producer.send({"topic": topic, "body": "at the target"})
        text = gateway.run_command("advance", topic, code=REFUSED)
        assert "popped messages may come back" in text
        # A gateway that does not know what was popped before its start waits as well, from the group's first pop on.
        gateway.kill()
        gateway.start()
        eventually(lambda: _receives_nothing(consumer), ARRIVES_S)
        text = gateway.run_command("advance", topic, code=REFUSED)
        assert "popped messages may come back" in text
        (redelivery,) = eventually(lambda: consumer.receive(invisible_s=INVISIBLE_S), ARRIVES_S)
        assert (redelivery["body"], redelivery["attempt"]) == ("held", 2)
        consumer.ack(redelivery)
        gateway.run_step(
            "advance", topic, "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED", wait_s=WAIT_S
        )
        with pytest.raises(StockClientError) as refusal:
            consumer.ack(first_delivery)
        assert refusal.value.code == INVALID_RECEIPT_HANDLE
        (message,) = eventually(lambda: consumer.receive(invisible_s=INVISIBLE_S), ARRIVES_S)
        assert (message["body"], message["attempt"]) == ("at the target", 1)
        consumer.ack(message)
        gateway.run_step("rollback", topic, "--all", state="MIRRORING", wait_s=WAIT_S)
        assert consumer.receive() == []


def _receives_nothing(consumer: GrpcSimpleConsumer) -> bool:
    try:
        return consumer.receive(invisible_s=HOLD_S) == []
    except StockClientError:
        return False  # it is not connected again yet


def test_a_gateway_that_is_killed_under_load_loses_nothing(
    gateway: ShadowProcess, server: ServerUnderTest
) -> None:
    primary, target = gateway.addresses
    with running_traffic(gateway, server, "killed") as traffic:
        topic = traffic.topic
        for _ in range(2):
            gateway.kill()
            gateway.start()
            traffic.progress()
        traffic.finish()
        at_primary, at_target = wait_for_same_messages(primary, target, topic, len(traffic.sent))
        assert at_target == at_primary
        for name, received in traffic.received.items():
            excused = traffic.resent | traffic.unacknowledged[name] | traffic.late[name]
            assert not {body for body, count in received.items() if count > 1} - excused, name
