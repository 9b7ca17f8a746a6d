"""Fixtures shared by the cases."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from compat_tests.cases.grpc_fixtures import fifo_group, grpc_address, grpc_java, typed_topic  # noqa: F401 - fixtures
from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.clients.java_api import JavaClient, JavaProducer
from compat_tests.clients.typed import connect, create_group, create_topic
from compat_tests.endpoints import MARKED_VERSION, official_version
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient

JAVA_CLIENTS = {"4.9.8": "client-4.9", "5.4.0": "server-5.4"}


@pytest.fixture(scope="session")
def drivers(server: ServerUnderTest) -> Iterator[dict[str, JavaDriver]]:
    """The running JVMs by client version; `java_client` adds them."""
    running: dict[str, JavaDriver] = {}
    yield running
    for driver in running.values():
        driver.close()


def java_client(server: ServerUnderTest, drivers: dict[str, JavaDriver], version: str) -> JavaClient:
    """Return the client of one version, starting its JVM at the first use."""
    if version not in drivers:
        drivers[version] = new_driver(server, version)
    return JavaClient(drivers[version], version)


def new_driver(server: ServerUnderTest, version: str) -> JavaDriver:
    """Start a JVM of its own and warm its client up; skip the case if this machine lacks something."""
    driver = _start_driver(server.namesrv, version)
    warm_up(JavaClient(driver, version))
    return driver


def _start_driver(namesrv: str, version: str, properties: Mapping[str, str] | None = None) -> JavaDriver:
    try:
        return JavaDriver(JAVA_CLIENTS[version], namesrv, admin=version == "5.4.0", properties=properties)
    except Unavailable as missing:
        skip_or_fail(str(missing))


@contextmanager
def stock_client(
    namesrv: str, version: str = "5.4.0", properties: Mapping[str, str] | None = None
) -> Iterator[JavaClient]:
    """Run a client, which has fetched no route yet, in a JVM of its own with these system properties."""
    driver = _start_driver(namesrv, version, properties)
    try:
        yield JavaClient(driver, version)
    finally:
        driver.close()


def warm_up(java: JavaClient) -> None:
    """Make a client fetch its first route: a cold client may give up on that and use the route of the template."""
    with java.producer("compat_warm_up") as producer:
        eventually(lambda: has_queues(producer, "TBW102"), 90)


def has_queues(producer: JavaProducer, topic: str) -> bool:
    """Return False while a client gets no route of a topic."""
    try:
        return bool(producer.queues(topic))
    except JavaClientError:
        return False


@pytest.fixture(scope="session")
def recorded_server(server: ServerUnderTest) -> ServerUnderTest:
    """The server, if the recordings are about it: a server with the settings and names that the suite gives it."""
    if server.kind not in ("ours", "official"):
        pytest.skip("the recordings are of servers with the suite's own settings and names")
    if server.kind == "official" and official_version(server.label) not in (MARKED_VERSION, None):
        pytest.skip(f"the recordings are of official {MARKED_VERSION}")
    return server


@pytest.fixture(params=list(JAVA_CLIENTS))
def java(
    request: pytest.FixtureRequest, server: ServerUnderTest, drivers: dict[str, JavaDriver]
) -> JavaClient:
    """A stock Java client; every case that asks for it runs on each client version."""
    return java_client(server, drivers, request.param)


@pytest.fixture
def java5(server: ServerUnderTest, drivers: dict[str, JavaDriver]) -> JavaClient:
    """The 5.4.0 client, which has the admin operations as well."""
    return java_client(server, drivers, "5.4.0")


@pytest.fixture
def doomed(server: ServerUnderTest) -> Iterator[JavaClient]:
    """The 5.4.0 client in a JVM of its own, which a case may kill."""
    driver = new_driver(server, "5.4.0")
    yield JavaClient(driver, "5.4.0")
    driver.close()


@pytest.fixture
def broker(server: ServerUnderTest) -> Iterator[BlockingClient]:
    """A connection of our typed client to the broker."""
    with connect(server.broker) as client:
        yield client


@pytest.fixture
def other(server: ServerUnderTest) -> Iterator[BlockingClient]:
    """A second connection to the broker."""
    with connect(server.broker) as client:
        yield client


@pytest.fixture
def namesrv(server: ServerUnderTest) -> Iterator[BlockingClient]:
    with connect(server.namesrv) as client:
        yield client


@pytest.fixture
def admin_rights() -> None:
    """The right to change settings of the cluster; `selection.py` skips cases that need it where it is not given."""


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: ServerUnderTest) -> str:
    """A new topic with four queues; with --read-only one that every broker has, with one queue that stays empty."""
    if request.config.getoption("--read-only"):
        return "SELF_TEST_TOPIC"
    name = server.topic_name()
    create_topic(server, name, 4)
    return name


@pytest.fixture
def group(server: ServerUnderTest, broker: BlockingClient) -> str:
    """A new consumer group the broker knows."""
    return create_group(broker, server.unique_name("group"))
