"""Access control and TLS of 5.x clients: our gRPC port, our proxy before either server, and the official Proxy.

The Proxy asks its broker for users and rules. One process of each stock client serves the file: each of its clients has
keys of its own.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance.secured import (
    ROOT,
    SECRET,
    SETTINGS,
    Server,
    add_user,
    dial,
    run_official,
    run_ours,
    secret_of,
)
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.command_driver import CommandDriver, StockClientError
from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.grpc_drivers import start_go_driver, start_python_driver
from compat_tests.clients.typed import create_group, topic_request
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ports import find_ports
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.acl import Credentials
from remoting.certificates import CertificateAuthority, CertificateFiles
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

SERVERS = ("ours", "official", "proxy before ours", "proxy before official")
OTHER_CLIENTS = ("python", "go")
MODES = ("disabled", "permissive", "enforcing")
TOPIC, GROUP, USER, STRANGER = "grpc-orders", "grpc-group", "grpc-clerk", "grpc-stranger"
PUBLISHER, SUBSCRIBER = "grpc-publisher", "grpc-subscriber"
TYPED = {
    "NORMAL": "grpc-least",
    "FIFO": "grpc-least-fifo",
    "TRANSACTION": "grpc-least-half",
    "DELAY": "grpc-least-late",
}
"""A topic for each type of message, of which one user has Pub and another one Sub."""
UNAUTHORIZED = 40100
PROXY_SETTINGS = {
    **SETTINGS,
    "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
    "authorizationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider",
}


@dataclass(frozen=True)
class Front:
    """A server with access control, and the address of its gRPC side."""

    server: Server
    address: str

    def own(self, name: str) -> str:
        """Return a name of this front's own. Fronts share brokers, and push consumers read on for 20 s at their end."""
        return f"{name}-{self.address.rpartition(':')[2]}"


@pytest.fixture(scope="module")
def driver() -> Iterator[JavaDriver]:
    driver = start_grpc_driver("")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def others() -> Iterator[Mapping[str, CommandDriver]]:
    """The stock Python and Go clients."""
    with ExitStack() as stack:
        try:
            drivers = {"python": start_python_driver("5.1.2"), "go": start_go_driver("5.1.4")}
        except Unavailable as missing:
            skip_or_fail(str(missing))
        for each in drivers.values():
            stack.callback(each.close)
        yield drivers


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Front]]:
    """Both servers, each with a user who may send to a topic and consume it in a group."""
    (port,) = find_ports(1)
    with ExitStack() as stack:
        ours = stack.enter_context(run_ours(tmp_path_factory.mktemp("ours"), "--grpc-port", str(port)))
        official = stack.enter_context(run_official())
        proxy = stack.enter_context(OfficialProxy(official.namesrv, PROXY_SETTINGS, keys=(ROOT, SECRET)))
        found = {"ours": Front(ours, f"127.0.0.1:{port}"), "official": Front(official, proxy.address)}
        for kind, front in list(found.items()):
            ours_before = stack.enter_context(
                run_our_proxy(tmp_path_factory.mktemp("proxy"), front.server.namesrv)
            )
            found[f"proxy before {kind}"] = Front(front.server, str(ours_before.ready["grpc"]))
        for front in (found["ours"], found["official"]):
            with dial(front.server.broker) as root:
                root.ask(topic_request(TOPIC, 4))
                add_user(
                    root, USER, (f"Topic:{TOPIC}", "Pub,Sub", "Allow"), (f"Group:{GROUP}", "Sub", "Allow")
                )
                add_user(root, STRANGER, ("Topic:other", "Pub,Sub", "Allow"))
                for message_type, topic in TYPED.items():
                    root.ask(topic_request(topic, 2, attributes=f"+message.type={message_type}"))
                create_group(root, "least-simple")
                add_user(root, PUBLISHER, ("Topic:grpc-least*", "Pub", "Allow"))
                add_user(
                    root, SUBSCRIBER, ("Topic:grpc-least*", "Sub", "Allow"), ("Group:least-*", "Sub", "Allow")
                )
        for front in found.values():
            with dial(front.server.broker) as root:
                root.ask(topic_request(front.own(TYPED["FIFO"]), 2, attributes="+message.type=FIFO"))
                create_group(root, front.own("least-push"))
                create_group(root, front.own("least-ordered"), consume_message_orderly=True)
        yield found


@contextmanager
def run_our_proxy(directory: Path, namesrv: str) -> Iterator[Gateway]:
    """Run our proxy, which asks the brokers for their users; no secret may be in what it prints."""
    conf = directory / "proxy.conf"
    keys = ("authenticationEnabled", "innerClientAuthenticationCredentials")
    conf.write_text("".join(f"{key}={SETTINGS[key]}\n" for key in keys))
    with Gateway(directory, "--namesrv", namesrv, "--port", "0", "-c", str(conf), command="proxy") as process:
        yield process
        assert "Traceback" not in process.output()
        assert SECRET not in process.output()


@pytest.fixture(params=SERVERS)
def front(request: pytest.FixtureRequest, fronts: dict[str, Front]) -> Front:
    return fronts[request.param]


def refusal(client: StockGrpcClient, topic: str = TOPIC) -> JavaClientError:
    """Return the error that a producer meets, when it starts or with its first message."""
    with pytest.raises(JavaClientError) as refused, client.producer(topic, attempts=1) as producer:
        producer.send({"topic": topic, "body": "x"})
    return refused.value


# -- access control ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [ROOT, USER])
def test_right_keys(driver: JavaDriver, front: Front, user: str) -> None:
    secret = SECRET if user == ROOT else secret_of(user)
    client = StockGrpcClient(driver, "").acting_as(front.address, Credentials(user, secret))
    with client.producer(TOPIC) as producer, client.simple(GROUP, TOPIC) as consumer:
        (receipt,) = producer.send({"topic": TOPIC, "body": user})
        message = eventually(consumer.receive, 30)[0]
        consumer.ack(message)
    assert (message["id"], message["body"]) == (receipt["id"], user)


@pytest.mark.parametrize(
    "keys",
    [Credentials(ROOT, "wrong"), Credentials("stranger", SECRET), None],
    ids=["wrong secret", "unknown user", "none"],
)
def test_wrong_keys(driver: JavaDriver, front: Front, keys: Credentials | None) -> None:
    client = StockGrpcClient(driver, "").acting_as(front.address, keys)
    assert refusal(client).code == UNAUTHORIZED


def test_a_topic_that_the_user_may_not_use(driver: JavaDriver, front: Front) -> None:
    keys = Credentials(STRANGER, secret_of(STRANGER))
    client = StockGrpcClient(driver, "").acting_as(front.address, keys)
    assert refusal(client).code == UNAUTHORIZED  # not FORBIDDEN, also officially


def test_a_group_that_the_user_may_not_consume_in(driver: JavaDriver, front: Front) -> None:
    """The server refuses the consumer's settings, and the client does not start; it tells no code."""
    client = StockGrpcClient(driver, "").acting_as(front.address, Credentials(USER, secret_of(USER)))
    with pytest.raises(JavaClientError, match="has FAILED"), client.simple("other-group", TOPIC):
        pass


@pytest.mark.parametrize("kind", OTHER_CLIENTS)
def test_right_keys_of_other_clients(others: Mapping[str, CommandDriver], front: Front, kind: str) -> None:
    client = StockGrpcClient(others[kind], "").acting_as(front.address, Credentials(USER, secret_of(USER)))
    # With a tag, a message that one client leaves behind does not fail the other one's case as well.
    with client.producer(TOPIC) as producer, client.simple(GROUP, TOPIC, tags=kind) as consumer:
        (receipt,) = producer.send({"topic": TOPIC, "body": kind, "tag": kind})
        message = eventually(consumer.receive, 30)[0]
        consumer.ack(message)
    assert (message["id"], message["body"]) == (receipt["id"], kind)


@pytest.mark.parametrize("kind", OTHER_CLIENTS)
@pytest.mark.parametrize("keys", [Credentials(ROOT, "wrong"), None], ids=["wrong secret", "none"])
def test_wrong_keys_of_other_clients(
    others: Mapping[str, CommandDriver], front: Front, kind: str, keys: Credentials | None
) -> None:
    """Both clients refuse to start or to send, each with words of its own."""
    client = StockGrpcClient(others[kind], "").acting_as(front.address, keys)
    words = "CODE: UNAUTHORIZED" if kind == "go" else f"failed to fetch topic:{TOPIC} route"
    with pytest.raises(StockClientError, match=words), client.producer(TOPIC, attempts=1) as producer:
        producer.send({"topic": TOPIC, "body": "x"})


# -- least rights -----------------------------------------------------------------------------------------------


def acting_as(driver: JavaDriver | CommandDriver, front: Front, user: str) -> StockGrpcClient:
    return StockGrpcClient(driver, "").acting_as(front.address, Credentials(user, secret_of(user)))


@pytest.mark.parametrize("group", ["least-simple", "least-push"])
def test_a_producer_with_pub_and_a_consumer_with_sub(driver: JavaDriver, front: Front, group: str) -> None:
    topic, tag = TYPED["NORMAL"], front.own(group)
    consumer = acting_as(driver, front, SUBSCRIBER)
    with acting_as(driver, front, PUBLISHER).producer(topic) as producer:
        (receipt,) = producer.send({"topic": topic, "body": group, "tag": tag})
    if group == "least-push":
        with consumer.push(front.own(group), topic, tags=tag, failures=1) as push:
            # The failed delivery comes again by the group's retry topic, which belongs to the group.
            assert [each["id"] for each in push.received(2, 60)] == [receipt["id"]] * 2
        return
    with consumer.simple(group, topic, tags=tag) as simple:
        (message,) = eventually(simple.receive, 30)
        simple.change_invisible(message, 1)
        (again,) = eventually(simple.receive, 30)
        simple.ack(again)
    assert (message["id"], again["id"]) == (receipt["id"], receipt["id"])


def test_an_ordered_consumer_with_sub(driver: JavaDriver, front: Front) -> None:
    topic = front.own(TYPED["FIFO"])
    with acting_as(driver, front, PUBLISHER).producer(topic) as producer:
        for number in range(5):
            producer.send({"topic": topic, "body": str(number), "group": "one"})
    with acting_as(driver, front, SUBSCRIBER).push(front.own("least-ordered"), topic) as push:
        assert [each["body"] for each in push.received(5, 60)] == list("01234")


def test_transactions_and_delays_with_pub(driver: JavaDriver, front: Front) -> None:
    half, late = TYPED["TRANSACTION"], TYPED["DELAY"]
    publisher, subscriber = acting_as(driver, front, PUBLISHER), acting_as(driver, front, SUBSCRIBER)
    with publisher.producer(half, transactions=True) as producer:
        for end in ("commit", "rollback"):
            producer.send_half({"topic": half, "body": end}, end)
        producer.send_half({"topic": half, "body": "checked", "properties": {"check": "COMMIT"}})
        with subscriber.simple("least-simple", half) as simple:
            bodies: set[str] = set()

            def receive_rest() -> bool:
                bodies.update(each["body"] for each in simple.receive())
                return bodies == {"commit", "checked"}

            eventually(receive_rest, 120)
    with publisher.producer(late) as producer:
        producer.send({"topic": late, "body": "late", "delay_ms": 1000})
        with subscriber.simple("least-simple", late) as simple:
            assert [each["body"] for each in eventually(simple.receive, 60)] == ["late"]


@pytest.mark.parametrize("kind", OTHER_CLIENTS)
def test_other_clients_with_least_rights(
    others: Mapping[str, CommandDriver], front: Front, kind: str
) -> None:
    topic = TYPED["NORMAL"]
    with acting_as(others[kind], front, PUBLISHER).producer(topic) as producer:
        (receipt,) = producer.send({"topic": topic, "body": kind, "tag": kind})
    with acting_as(others[kind], front, SUBSCRIBER).simple("least-simple", topic, tags=kind) as simple:
        (message,) = eventually(simple.receive, 30)
        simple.ack(message)
    assert message["id"] == receipt["id"]


def test_neither_has_the_right_of_the_other(driver: JavaDriver, front: Front) -> None:
    """The client reports the refusal of its settings or, behind the official Proxy at times, only that it failed."""
    topic = TYPED["NORMAL"]
    refused = refusal(acting_as(driver, front, SUBSCRIBER), topic)
    assert refused.code == UNAUTHORIZED or (
        not isinstance(front.server, Gateway) and "has FAILED" in refused.message
    )
    with (
        pytest.raises(JavaClientError, match="has FAILED"),
        acting_as(driver, front, PUBLISHER).simple("least-simple", topic),
    ):
        pass


# -- TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_official() -> Iterator[OfficialEndpoint]:
    """An official server without access control, behind the Proxies of each mode."""
    try:
        endpoint = OfficialEndpoint()
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with endpoint:
        with dial(endpoint.broker, None) as client:
            client.ask(topic_request(TOPIC, 4))
        yield endpoint


@pytest.mark.parametrize("mode", MODES)
def test_tls_of_the_official_proxy(driver: JavaDriver, plain_official: OfficialEndpoint, mode: str) -> None:
    with OfficialProxy(plain_official.namesrv, tls_mode=mode) as proxy:
        check_connections(driver, proxy.address, mode)


@pytest.mark.parametrize("mode", MODES)
def test_tls_of_ours(driver: JavaDriver, tmp_path: Path, mode: str) -> None:
    (port,) = find_ports(1)
    with Gateway(
        tmp_path, "--memory", "--grpc-port", str(port), "--set", f"tls.server.mode={mode}"
    ) as process:
        if mode != "enforcing":
            with process.connect() as client:
                client.ask(topic_request(TOPIC, 4))
        check_connections(driver, f"127.0.0.1:{port}", mode)


def check_connections(driver: JavaDriver, address: str, mode: str) -> None:
    """Assert that plain clients and those with TLS reach the server as the mode says, and get an answer."""
    for tls in (False, True):
        client = StockGrpcClient(driver, "").acting_as(address, tls=tls)
        is_served = mode == "permissive" or tls is (mode == "enforcing")
        if is_served:
            with client.producer() as producer, pytest.raises(JavaClientError) as refused:
                producer.send({"topic": "no-such-topic", "body": "x"})
            assert refused.value.code == 40402
        else:
            assert "UNAVAILABLE" in refusal(client).message


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: CertificateAuthority) -> CertificateFiles:
    return authority.issue("server", ["localhost", "127.0.0.1"])


def test_other_clients_with_tls_on_the_official_proxy(
    plain_official: OfficialEndpoint, authority: CertificateAuthority, certificate: CertificateFiles
) -> None:
    shown = {
        "tlsTestModeEnable": False,
        "tlsCertPath": str(certificate.certificate),
        "tlsKeyPath": str(certificate.key),
    }
    with OfficialProxy(plain_official.namesrv, shown, tls_mode="enforcing") as proxy:
        send_with_tls(proxy.address, authority)


def test_other_clients_with_tls_on_ours(
    tmp_path: Path, authority: CertificateAuthority, certificate: CertificateFiles
) -> None:
    (port,) = find_ports(1)
    shown = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(certificate.certificate),
        "tls.server.keyPath": str(certificate.key),
    }
    sets = [word for key, value in shown.items() for word in ("--set", f"{key}={value}")]
    with Gateway(tmp_path, "--memory", "--grpc-port", str(port), *sets) as process:
        with process.connect() as client:
            client.ask(topic_request(TOPIC, 4))
        send_with_tls(f"127.0.0.1:{port}", authority)


def send_with_tls(address: str, authority: CertificateAuthority) -> None:
    """Send with the Python client, which verifies the server, and with the Go client, which does not."""
    try:
        drivers = [
            start_python_driver("5.1.2", trust=authority.files.certificate),
            start_go_driver("5.1.4", tls=True),
        ]
    except Unavailable as missing:
        skip_or_fail(str(missing))
    for driver in drivers:
        with closing(driver):
            client = StockGrpcClient(driver, "").acting_as(address, tls=True)
            with client.producer(TOPIC) as producer:
                (receipt,) = producer.send({"topic": TOPIC, "body": "x"})
            assert receipt["id"]
