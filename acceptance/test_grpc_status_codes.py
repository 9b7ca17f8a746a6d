"""Each status code of the gRPC protocol, provoked once at our proxy and at the official Proxy, before brokers of both.

`PROVOKED` has a call for each code that a front can answer, `PROVOKED_ELSEWHERE` names the file that needs other
servers for it, and `NEVER_ANSWERED` the reason why no front answers the rest. Together they are the enumeration.

Codes that depend on the state of a broker are provoked before brokers of ours, which the official Proxy serves as well:
what a front makes of their answers is its own affair.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acceptance.test_cluster import available
from acceptance.test_test_double import Control
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.cases.test_grpc_codes import (
    BODY_LIMIT,
    ILLEGAL,
    Fields,
    Place,
    message,
    receive_handle,
    send_messages,
)
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import CLIENT_METADATA, StockGrpcClient
from compat_tests.clients.typed import connect, create_group, has_route, set_broker_config, topic_request
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.server import eventually
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

PROTOCOL = Path(__file__).parents[1] / "gateway" / "grpc_front" / "messages.proto"
OUR_PROXY, OFFICIAL_PROXY = "our proxy", "official Proxy"
FRONTS = (OUR_PROXY, OFFICIAL_PROXY)
CLUSTERS = ("ours", "official")
TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
WRITE_ONLY = 2
ROUTE_TIMEOUT_S = 40.0
SLOW_CALL_S = 45.0
"""Longer than fronts wait for a broker."""
SYNC_BROKERS: Mapping[str, Mapping[str, str]] = {
    "HA_NOT_AVAILABLE": {"brokerRole": "SYNC_MASTER"},
    "SLAVE_PERSISTENCE_TIMEOUT": {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "200"},
    "MASTER_PERSISTENCE_TIMEOUT": {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "1"},
}
"""Settings of brokers of ours by the code that a send to them is answered with."""


@dataclass(frozen=True)
class Cluster:
    """A namesrv and its first broker. ``control`` injects faults into ours."""

    kind: str
    namesrv: str
    broker: str
    control: Control | None = None

    def configure(self, **settings: str) -> None:
        """Change settings of the broker."""
        with connect(self.broker) as broker:
            set_broker_config(broker, **settings)


@dataclass(frozen=True)
class Side:
    """A front before a cluster, with topics of its own."""

    front: str
    cluster: Cluster
    place: Place

    def call(self, method: str, request: Fields, **options: Any) -> str:
        """Return the code of an answer; gRPC's own status if it has none."""
        result = self.place.client.call(method, request, **options)
        return result.code or f"gRPC status {result.status}: {result.text}"

    def send(self, topic: str = "NORMAL", **fields: Any) -> str:
        return send_messages(self.place, message(self.place, topic, **fields))

    def receive(self, *, timeout_s: float = 25, **fields: Any) -> str:
        self.place.start_consumer()
        request = {
            "group": {"name": self.place.group},
            "messageQueue": self.place.queue(),
            "filterExpression": {"type": "TAG", "expression": "*"},
            "batchSize": 1,
            "invisibleDuration": "30s",
            "longPollingTimeout": "5s",
            **fields,
        }
        return self.call("ReceiveMessage", request, timeout_s=timeout_s)

    def ack(self, *entries: Fields) -> str:
        request = {"group": {"name": self.place.group}, "topic": self.place.topic(), "entries": entries}
        return self.call("AckMessage", request)

    def end_transaction(self, **fields: Any) -> str:
        request = {
            "topic": self.place.topic("TRANSACTION"),
            "messageId": "x",
            "transactionId": "y",
            "resolution": "COMMIT",
            "source": "SOURCE_CLIENT",
        }
        return self.call("EndTransaction", {**request, **fields})


def multiple_results(side: Side) -> str:
    with connect(side.cluster.broker) as broker:
        handle = receive_handle(side.place, broker)
    return side.ack(handle, {**handle, "receiptHandle": "none"})


def long_endpoints(side: Side) -> str:
    addresses = [{"host": "x" * 250, "port": 1}] * 5
    return side.call(
        "QueryRoute",
        {"topic": side.place.topic(), "endpoints": {"scheme": "DOMAIN_NAME", "addresses": addresses}},
    )


def handle_of_a_stranger(side: Side) -> str:
    handle = f"0 {int(time.time() * 1000)} 60000 0 0 no-such-broker 0 0 0"
    return side.ack({"messageId": "x", "receiptHandle": handle})


def stranger(side: Side) -> str:
    metadata = {**CLIENT_METADATA, "x-mq-client-id": f"stranger-{time.monotonic_ns()}"}
    return side.call("Heartbeat", {"clientType": "PRODUCER"}, metadata=metadata)


def unreadable_topic(side: Side) -> str:
    request = {"topic": side.place.topic("WRITE_ONLY"), "group": {"name": side.place.group}}
    return side.call("QueryAssignment", {**request, "endpoints": side.place.endpoints})


def nothing_to_receive(side: Side) -> str:
    return side.receive(filterExpression={"type": "TAG", "expression": "no-such-tag"})


def unknown_group(side: Side) -> str:
    side.cluster.configure(autoCreateSubscriptionGroup="false")
    try:
        return side.receive(group={"name": f"no-such-group-{time.monotonic_ns()}"})
    finally:
        side.cluster.configure(autoCreateSubscriptionGroup="true")


def full_polls(side: Side) -> str:
    side.cluster.configure(maxPopPollingSize="0")
    try:
        return nothing_to_receive(side)
    finally:
        side.cluster.configure(maxPopPollingSize="100000")


def faulty(side: Side, provoke: Callable[[], str], **fault: Any) -> str:
    """Provoke an answer while a broker of ours misbehaves."""
    control = side.cluster.control
    assert control is not None
    control.post("faults", **fault)
    try:
        return provoke()
    finally:
        control.post("faults/clear")


def unsupported_request(side: Side) -> str:
    """A broker that does not know a request, as one of 4.9 pops."""
    return faulty(side, side.send, action="error", request="send", code=3)


def silent_broker(side: Side) -> str:
    request = message(side.place)
    return faulty(
        side,
        lambda: side.call("SendMessage", {"messages": [request]}, timeout_s=SLOW_CALL_S),
        action="drop-answer",
        request="send",
    )


def late_flush(side: Side) -> str:
    """A flush may be done within the millisecond that it has."""
    return eventually(
        lambda: code if (code := side.send("MASTER_PERSISTENCE_TIMEOUT")) != "OK" else "", 60, every_s=0
    )


@dataclass(frozen=True)
class Provocation:
    """A call that is answered with a code; ``official`` is that of the official Proxy where it answers another one.

    With ``our_brokers`` it needs a state that only brokers of ours are brought into.
    """

    call: Callable[[Side], str]
    official: str = ""
    our_brokers: bool = False


PROVOKED: Mapping[str, Provocation] = {
    "OK": Provocation(lambda side: side.send()),
    "MULTIPLE_RESULTS": Provocation(multiple_results),
    "BAD_REQUEST": Provocation(
        lambda side: side.send(
            "TRANSACTION", messageType="TRANSACTION", orphanedTransactionRecoveryDuration="7201s"
        )
    ),
    "ILLEGAL_ACCESS_POINT": Provocation(long_endpoints, official="OK"),
    "ILLEGAL_TOPIC": Provocation(lambda side: side.send(ILLEGAL)),
    "ILLEGAL_CONSUMER_GROUP": Provocation(lambda side: side.receive(group={"name": ILLEGAL})),
    "ILLEGAL_MESSAGE_TAG": Provocation(lambda side: side.send(tag="a|b")),
    "ILLEGAL_MESSAGE_KEY": Provocation(lambda side: side.send(keys=[" "])),
    "ILLEGAL_MESSAGE_GROUP": Provocation(
        lambda side: side.send("FIFO", messageType="FIFO", messageGroup="g" * 65)
    ),
    "ILLEGAL_MESSAGE_PROPERTY_KEY": Provocation(lambda side: side.send(user={"KEYS": "x"})),
    "INVALID_TRANSACTION_ID": Provocation(lambda side: side.end_transaction(transactionId="")),
    "ILLEGAL_MESSAGE_ID": Provocation(lambda side: side.send(messageId="")),
    "ILLEGAL_FILTER_EXPRESSION": Provocation(
        lambda side: side.receive(filterExpression={"type": "SQL", "expression": ""})
    ),
    "ILLEGAL_INVISIBLE_TIME": Provocation(lambda side: side.receive(invisibleDuration="1s")),
    "ILLEGAL_DELIVERY_TIME": Provocation(
        lambda side: side.send("DELAY", messageType="DELAY", delay_s=2 * 86_400)
    ),
    "INVALID_RECEIPT_HANDLE": Provocation(handle_of_a_stranger),
    "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE": Provocation(lambda side: side.send("DELAY")),
    "UNRECOGNIZED_CLIENT_TYPE": Provocation(stranger),
    "MESSAGE_CORRUPTED": Provocation(lambda side: side.call("SendMessage", {"messages": []})),
    "CLIENT_ID_REQUIRED": Provocation(lambda side: side.call("QueryRoute", {}, metadata={})),
    "ILLEGAL_POLLING_TIME": Provocation(lambda side: side.receive(timeout_s=3)),
    "FORBIDDEN": Provocation(unreadable_topic),
    "MESSAGE_NOT_FOUND": Provocation(nothing_to_receive),
    "TOPIC_NOT_FOUND": Provocation(
        lambda side: side.call(
            "QueryRoute", {"topic": {"name": "no-such-topic"}, "endpoints": side.place.endpoints}
        )
    ),
    "CONSUMER_GROUP_NOT_FOUND": Provocation(unknown_group),
    "MESSAGE_BODY_TOO_LARGE": Provocation(lambda side: side.send(body_size=BODY_LIMIT + 1)),
    "MESSAGE_BODY_EMPTY": Provocation(lambda side: side.send(body_size=0)),
    "TOO_MANY_REQUESTS": Provocation(full_polls),
    "MESSAGE_PROPERTIES_TOO_LARGE": Provocation(lambda side: side.send(user={"a": "x" * 16_384})),
    "INTERNAL_SERVER_ERROR": Provocation(lambda side: side.end_transaction()),
    "HA_NOT_AVAILABLE": Provocation(lambda side: side.send("HA_NOT_AVAILABLE"), our_brokers=True),
    "NOT_IMPLEMENTED": Provocation(unsupported_request, our_brokers=True),
    "PROXY_TIMEOUT": Provocation(silent_broker, our_brokers=True),
    "MASTER_PERSISTENCE_TIMEOUT": Provocation(late_flush, our_brokers=True),
    "SLAVE_PERSISTENCE_TIMEOUT": Provocation(
        lambda side: side.send("SLAVE_PERSISTENCE_TIMEOUT"), our_brokers=True
    ),
}
PROVOKED_ELSEWHERE: Mapping[str, str] = {"UNAUTHORIZED": "test_grpc_access.py"}
"""By the file in this folder that provokes the code at both proxies, because it needs servers with users."""
_OFFSETS = "belongs to PullMessage, UpdateOffset and QueryOffset, which fronts leave unimplemented"
_LITE = "belongs to lite topics, which brokers of 5.4.0 do not have"
_CLIENT = "is what clients report about messages that a server has them verify, which fronts never ask for"
_UNUSED = "is used nowhere in the Proxy 5.4.0"
NEVER_ANSWERED: Mapping[str, str] = {
    "CODE_UNSPECIFIED": "is the default value of the field",
    "ILLEGAL_OFFSET": _OFFSETS,
    "OFFSET_NOT_FOUND": _OFFSETS,
    "ILLEGAL_LITE_TOPIC": _LITE,
    "LITE_TOPIC_QUOTA_EXCEEDED": _LITE,
    "LITE_SUBSCRIPTION_QUOTA_EXCEEDED": _LITE,
    "VERIFY_FIFO_MESSAGE_UNSUPPORTED": _CLIENT,
    "FAILED_TO_CONSUME_MESSAGE": _CLIENT,
    "INVALID_CLIENT_PROPERTIES": _UNUSED,
    "PAYMENT_REQUIRED": _UNUSED,
    "NOT_FOUND": _UNUSED,
    "REQUEST_TIMEOUT": _UNUSED,
    "PAYLOAD_TOO_LARGE": _UNUSED,
    "PRECONDITION_FAILED": _UNUSED,
    "REQUEST_HEADER_FIELDS_TOO_LARGE": _UNUSED,
    "INTERNAL_ERROR": "only marks where the numbers of server errors begin",
    "UNSUPPORTED": _UNUSED,
    "VERSION_UNSUPPORTED": _UNUSED,
}


def test_every_code_of_the_protocol_is_provoked_or_has_a_reason() -> None:
    tables = (PROVOKED, PROVOKED_ELSEWHERE, NEVER_ANSWERED)
    (enumeration,) = re.findall(r"^enum Code \{(.*?)^\}", PROTOCOL.read_text(), re.M | re.S)
    codes = re.findall(r"^ *([A-Z_]+) = \d+;", enumeration, re.M)
    assert len(codes) > 50
    assert sorted(code for table in tables for code in table) == sorted(codes)
    for code, name in PROVOKED_ELSEWHERE.items():
        assert code in (Path(__file__).parent / name).read_text()


@pytest.fixture(scope="module")
def java() -> Iterator[JavaDriver]:
    driver = start_grpc_driver("")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def sides(
    java: JavaDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[tuple[str, str], Side]]:
    """Both fronts before a cluster of ours and an official one."""
    directory = tmp_path_factory.mktemp("codes")
    with ExitStack() as stack, available():
        clusters = [run_ours(stack, directory / "ours"), run_official(stack)]
        side_by_names: dict[tuple[str, str], Side] = {}
        for cluster in clusters:
            proxy = stack.enter_context(
                Gateway(
                    directory / f"proxy-{cluster.kind}",
                    *("--namesrv", cluster.namesrv, "--host", "127.0.0.1"),
                    command="proxy",
                )
            )
            official = stack.enter_context(OfficialProxy(cluster.namesrv))
            for front, address in ((OUR_PROXY, str(proxy.ready["grpc"])), (OFFICIAL_PROXY, official.address)):
                client = StockGrpcClient(java, "").acting_as(address)
                side_by_names[front, cluster.kind] = Side(
                    front, cluster, create_place(client, cluster, front)
                )
        yield side_by_names


def run_ours(stack: ExitStack, directory: Path) -> Cluster:
    """Run a server in memory that takes faults, and brokers that answer late or without slaves."""
    server = stack.enter_context(Gateway(directory / "first", "--memory", "--control", "0"))
    for code, settings in SYNC_BROKERS.items():
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        broker = stack.enter_context(
            Gateway(
                directory / code,
                *("--namesrv", server.namesrv, "--host", "127.0.0.1"),
                *("--store", str(directory / code / "store"), "--set", f"brokerName={broker_name(code)}"),
                *words,
                command="broker",
            )
        )
        with connect(broker.broker) as client:
            for front in FRONTS:
                client.ask(topic_request(topic_name(code, front), 1))
    return Cluster("ours", server.namesrv, server.broker, Control(server.ready["control"]))


def run_official(stack: ExitStack) -> Cluster:
    server = stack.enter_context(OfficialEndpoint())
    return Cluster("official", server.namesrv, server.broker)


def broker_name(code: str) -> str:
    return code.lower().replace("_", "-")


def topic_name(kind: str, front: str) -> str:
    """Return a topic that only one front uses: they are asked one after the other, and find no message of the other."""
    return f"codes-{kind.lower()}-{FRONTS.index(front)}"


def create_place(client: StockGrpcClient, cluster: Cluster, front: str) -> Place:
    topics = {kind: topic_name(kind, front) for kind in (*TYPES, "WRITE_ONLY")}
    with connect(cluster.broker) as broker, connect(cluster.namesrv) as namesrv:
        for kind in TYPES:
            broker.ask(topic_request(topics[kind], 4, attributes=f"+message.type={kind}"))
        broker.ask(topic_request(topics["WRITE_ONLY"], 4, perm=WRITE_ONLY))
        if cluster.kind == "ours":
            topics |= {code: topic_name(code, front) for code in SYNC_BROKERS}
        for topic in topics.values():
            eventually(lambda: has_route(namesrv, topic), ROUTE_TIMEOUT_S)  # noqa: B023 - called at once
        group = create_group(broker, f"codes-group-{FRONTS.index(front)}")
    return Place(client, topics, group)


@pytest.mark.parametrize(
    ("code", "front", "cluster"),
    [
        (code, front, cluster)
        for code, provocation in PROVOKED.items()
        for front in FRONTS
        for cluster in CLUSTERS
        if cluster == "ours" or not provocation.our_brokers
    ],
)
def test_code(sides: Mapping[tuple[str, str], Side], code: str, front: str, cluster: str) -> None:
    provocation = PROVOKED[code]
    expected = provocation.official or code if front == OFFICIAL_PROXY else code
    assert provocation.call(sides[front, cluster]) == expected
