"""The clients of a cluster: senders to each broker and through routes, stock Java and gRPC clients, and readers."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Final

from compat_tests.cases.conftest import warm_up
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, create_group, has_route, topic_request
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.server import eventually
from tools.failovers.cluster import FailoverCluster
from tools.failovers.readers import BrokerReader, ReadMessages
from tools.failovers.timeline import Timeline
from tools.pairings.load import (
    GRPC_TOPIC,
    DeliveryCounts,
    GrpcTraffic,
    JavaDeliveries,
    JavaSender,
    SenderLoad,
    TypedSender,
    find_master,
    judge_consumers,
)
from tools.pairings.members import QUEUES, TOPIC

DIRECT: Final = "direct"
"""Senders that send to one broker each, whatever its role: the first accepted send shows that a broker is writable."""
ROUTED: Final = "routed"
"""Our client, which asks the namesrv for the master whenever a send fails."""
GRPC: Final = "gRPC"
JAVA_PROFILES: Final = {"4.9.8": "client-4.9", "5.4.0": "server-5.4"}
"""Stock Java clients by version, with the profile of their jars."""
CLIENTS: Final = ("4.9.8", "5.4.0", GRPC)
FIRST_DIRECT: Final = 10
FIRST_ROUTED: Final = 20
ROUTED_SENDERS: Final = 2
FIRST_JAVA: Final = 100
GRPC_PRODUCER: Final = 200
GRPC_GROUP: Final = "FailoverGrpcGroup"
PAUSE_S: Final = 0.03
DRAIN_S: Final = 60.0


class ClientTraffic:
    """All clients of a cluster that has a master; senders run in blocks of `load.running()`."""

    def __init__(self, cluster: FailoverCluster, clients: tuple[str, ...], stack: ExitStack) -> None:
        self.history, self.load, self.messages = Timeline(), SenderLoad(), ReadMessages()
        self._cluster, self._stack = cluster, stack
        self._deliveries: dict[str, JavaDeliveries] = {}
        self._grpc: GrpcTraffic | None = None
        stack.callback(self.load.close)
        versions = [client for client in clients if client != GRPC]
        self._create_topics(versions)
        for number, broker in enumerate(cluster.brokers, FIRST_DIRECT):
            self.history.name_producer(number, DIRECT)
            direct = self._direct_sender(broker.address)
            self.load.add(number, direct.send, PAUSE_S, direct.close)
            stack.callback(BrokerReader(broker.address, self.messages).close)
        for number in range(FIRST_ROUTED, FIRST_ROUTED + ROUTED_SENDERS):
            self.history.name_producer(number, ROUTED)
            routed = TypedSender(partial(find_master, cluster.namesrv), self.history)
            self.load.add(number, routed.send, PAUSE_S, routed.close)
        for number, version in enumerate(versions, FIRST_JAVA):
            self._start_java(number, version)
        if GRPC in clients:
            self._start_grpc()

    def _direct_sender(self, address: str) -> TypedSender:
        """Return a sender to one broker, whatever its role."""
        note_broker = self.history.note_broker
        return TypedSender(lambda: address, self.history, lambda body, reply: note_broker(body, reply.msg_id))

    def _create_topics(self, versions: list[str]) -> None:
        with connect(self._cluster.master().address) as broker:
            broker.ask(topic_request(TOPIC, QUEUES))
            broker.ask(topic_request(GRPC_TOPIC, QUEUES))
            for group in (*map(_group, versions), GRPC_GROUP):
                create_group(broker, group)
        with connect(self._cluster.namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, TOPIC), 60)

    def _start_java(self, number: int, version: str) -> None:
        self.history.name_producer(number, f"Java {version}")
        driver = self._stack.enter_context(closing(JavaDriver(JAVA_PROFILES[version], self._cluster.namesrv)))
        client = JavaClient(driver, version)
        warm_up(client)
        name = f"{_group(version)}-producers"
        self._stack.enter_context(client.producer(name, pollNameServerInterval=1000, sendMsgTimeout=4000))
        consumer = client.push(_group(version), TOPIC, orderly=version == "4.9.8")
        self._deliveries[version] = JavaDeliveries(self._stack.enter_context(consumer))
        self.load.add(number, JavaSender(client, name, self.history).send, PAUSE_S)

    def _start_grpc(self) -> None:
        self.history.name_producer(GRPC_PRODUCER, GRPC)
        proxy = self._stack.enter_context(OfficialProxy(self._cluster.namesrv))
        driver = self._stack.enter_context(closing(start_grpc_driver(proxy.address)))
        note_times = partial(self.history.note_times, GRPC_PRODUCER)
        self._grpc = GrpcTraffic(StockGrpcClient(driver, proxy.address), GRPC_GROUP, note_times)
        self._stack.enter_context(self._grpc.running(self.load, GRPC_PRODUCER, 2 * PAUSE_S))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send during the block, once a first message is accepted; no request is under way after it."""
        begun_s = time.monotonic()
        with self.load.running():
            eventually(lambda: self.history.accepted(begun_s), 60)
            yield
        for deliveries in self._deliveries.values():
            deliveries.take()

    def judge_consumers(self) -> dict[str, DeliveryCounts]:
        """Wait until the consumers have everything that was acknowledged; return what each got."""
        return judge_consumers(self.history.promised_bodies(), self._deliveries, self._grpc, DRAIN_S)


def _group(version: str) -> str:
    return "FailoverGroup-" + version.replace(".", "-")
