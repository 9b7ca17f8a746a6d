"""The gRPC side of the server under test, its stock clients, and topics that accept one type of message."""

from collections.abc import Callable, Iterator

import pytest

from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.programs import grpc_classes
from compat_tests.clients.typed import connect, create_group, has_route, topic_request
from compat_tests.endpoints import MARKED_VERSION, official_version
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually

GRPC_CLIENTS = {"5.1.0": "grpc-client-5.1", "5.0.8": "grpc-client-5.0"}
MakeTopic = Callable[[str], str]


@pytest.fixture(scope="session")
def grpc_address(server: ServerUnderTest) -> Iterator[str]:
    """The address for 5.x clients; for the official server that of a Proxy, which starts with the first case."""
    if server.grpc is not None:
        yield server.grpc
        return
    if server.kind != "official":
        pytest.skip("no gRPC address is known; --proxy HOST:PORT gives one")
    if (official_version(server.label) or MARKED_VERSION).startswith("4."):
        pytest.skip("gRPC is not served by 4.x, whose releases have no Proxy")
    try:
        proxy = OfficialProxy(server.namesrv)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with proxy:
        yield proxy.address


@pytest.fixture(scope="session")
def grpc_java(grpc_address: str) -> Iterator[StockGrpcClient]:
    """The stock Java client that speaks gRPC, in one JVM for all cases."""
    driver = start_grpc_driver(grpc_address)
    yield StockGrpcClient(driver, grpc_address)
    driver.close()


def start_grpc_driver(address: str, version: str = "5.1.0") -> JavaDriver:
    """Start a JVM with that client; skip the case if this machine lacks something."""
    try:
        return JavaDriver(GRPC_CLIENTS[version], address, program=("GrpcDriver", grpc_classes()))
    except Unavailable as missing:
        skip_or_fail(str(missing))


@pytest.fixture
def typed_topic(server: ServerUnderTest) -> MakeTopic:
    """A function that creates a topic for one type of message: NORMAL, FIFO, DELAY or TRANSACTION."""

    def create(message_type: str) -> str:
        topic = server.topic_name(message_type.lower())
        with connect(server.broker) as broker:
            broker.ask(topic_request(topic, 4, attributes=f"+message.type={message_type}"))
        with connect(server.namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, topic), 20)
        return topic

    return create


@pytest.fixture
def fifo_group(server: ServerUnderTest) -> str:
    """A new consumer group that gets the messages of each message group one after the other."""
    with connect(server.broker) as broker:
        return create_group(broker, server.unique_name("group"), consume_message_orderly=True)
