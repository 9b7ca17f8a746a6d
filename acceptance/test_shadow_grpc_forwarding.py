"""5.x clients through a shadow gateway that forwards to the primary's own Proxy, whose accounts check them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from acceptance.secured import (
    ROOT,
    SECRET,
    Server,
    add_user,
    dial,
    run_official,
    secret_of,
    write_private,
)
from acceptance.test_grpc_access import PROXY_SETTINGS
from acceptance.test_proxy import sending
from codec.capture import CaptureRecord, scan_records
from codec.command import Command, decode_frame
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.command_driver import CommandDriver, StockClientError
from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.grpc_drivers import start_python_driver
from compat_tests.clients.typed import create_group, topic_request
from compat_tests.endpoints.official import QUICK_START_WITH_TLS, OfficialEndpoint
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.acl import Credentials
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

KINDS = ("java", "python")
PLAIN, HALF = "forwarded-plain", "forwarded-half"
USER, STRANGER = "forwarded-clerk", "forwarded-stranger"
UNAUTHORIZED = 40100
SEND, ACK = 310, 200_051
CAPTURE_INTERVAL_MS = 100
MIN_STORED = 30
LOST = "rocketmq_shadow_grpc_forward_lost_connections_total"
FAILED = "rocketmq_shadow_grpc_forward_failed_connects_total"


@dataclass(frozen=True)
class Site:
    """An official cluster with its Proxy, which has access control, and the gateway before the Proxy."""

    server: Server
    proxy: OfficialProxy
    gateway: Gateway
    captures: Path

    def client(self, driver: CommandDriver, user: str = USER, secret: str = "") -> StockGrpcClient:
        keys = Credentials(user, secret or secret_of(user))
        return StockGrpcClient(driver, "").acting_as(self.gateway.ready["grpc"], keys)

    def metrics(self) -> dict[str, float]:
        """Return the values of the gateway's metrics by their names and labels."""
        with urlopen(f"http://{self.gateway.ready['console']}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def ended_calls(self, method: str, code: str) -> float:
        """Return how many calls of a method ended with a code."""
        return sum(
            value
            for name, value in self.metrics().items()
            if "grpc_calls_total" in name and f'method="{method}"' in name and f'code="{code}"' in name
        )

    def records(self) -> list[CaptureRecord]:
        """Return what is captured so far; a block that is still being written comes later."""
        paths = sorted(self.captures.glob("*.rmqcap"))
        records = [record for path in paths for record in scan_records(path.read_bytes())]
        return [record for record in records if isinstance(record, CaptureRecord)]


@pytest.fixture(scope="module")
def drivers() -> Iterator[Mapping[str, CommandDriver]]:
    with ExitStack() as stack:
        java: JavaDriver = stack.enter_context(closing(start_grpc_driver("")))
        try:
            python = stack.enter_context(closing(start_python_driver("5.1.2")))
        except Unavailable as missing:
            skip_or_fail(str(missing))
        yield {"java": java, "python": python}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("forwarding")
    captures = directory / "captures"
    with ExitStack() as stack:
        server = stack.enter_context(run_official())
        proxy = stack.enter_context(OfficialProxy(server.namesrv, PROXY_SETTINGS, keys=(ROOT, SECRET)))
        with dial(server.broker) as root:
            root.ask(topic_request(PLAIN, 4))
            root.ask(topic_request(HALF, 4, attributes="+message.type=TRANSACTION"))
            rules = [(f"{kind}:forwarded-*", "Pub,Sub", "Allow") for kind in ("Topic", "Group")]
            add_user(root, USER, *rules)
            add_user(root, STRANGER, ("Topic:other", "Pub,Sub", "Allow"))
            for group in ("simple-java", "simple-python", "push", "half", "crash"):
                create_group(root, f"forwarded-{group}")
        lines = [
            *("[primary]", f"namesrv = {json.dumps([server.namesrv])}"),
            *("[primary.credentials]", f'access_key = "{ROOT}"', f"secret_key = {json.dumps(SECRET)}"),
            *("[listen]", "grpc_port = 0", f'grpc_forward_to = "{proxy.address}"'),
            *("[capture]", f"directory = {json.dumps(str(captures))}"),
            f"block_interval_ms = {CAPTURE_INTERVAL_MS}",
        ]
        config = write_private(directory / "shadow.toml", "\n".join(lines))
        gateway = stack.enter_context(Gateway(directory / "gateway", "-c", str(config), command="shadow"))
        yield Site(server, proxy, gateway, captures)
        assert "Traceback" not in gateway.output()
        for secret in (SECRET, secret_of(USER)):
            assert secret not in gateway.output()


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_sent_received_and_acknowledged_once(
    drivers: Mapping[str, CommandDriver], site: Site, kind: str
) -> None:
    client = site.client(drivers[kind])
    bodies = {f"{kind} {number}" for number in range(20)}
    with (
        client.producer(PLAIN) as producer,
        client.simple(f"forwarded-simple-{kind}", PLAIN, tags=kind) as simple,
    ):
        receipts = producer.send(*({"topic": PLAIN, "body": body, "tag": kind} for body in sorted(bodies)))
        messages = simple.receive_until(lambda messages: len(messages) >= len(bodies), 60)
    assert sorted(message["body"] for message in messages) == sorted(bodies)
    # What a route names leads to the gateway, so it has seen every call.
    assert site.ended_calls("SendMessage", "OK") >= len(bodies)
    assert site.ended_calls("AckMessage", "OK") >= 1
    check_records(site, kind, bodies, {receipt["id"] for receipt in receipts})


def check_records(site: Site, kind: str, bodies: set[str], ids: set[str]) -> None:
    """Assert that sends and acknowledgements were captured as remoting requests, without credentials."""

    def sends() -> list[CaptureRecord] | None:
        records = [
            record
            for record in site.records()
            if record.code == SEND and bytes(command_of(record).body).decode().startswith(f"{kind} ")
        ]
        return records if len(records) >= len(bodies) else None

    def acknowledgements() -> list[CaptureRecord] | None:
        group = f"forwarded-simple-{kind}"
        records = [record for record in site.records() if record.code == ACK and record.group == group]
        return records if len(records) >= len(bodies) else None

    records = eventually(sends, 30)
    assert {bytes(command_of(record).body).decode() for record in records} == bodies
    answers = [decode_frame(record.answer, 4, len(record.answer)) for record in records if record.answer]
    assert {answer.ext["msgId"] for answer in answers} == ids
    assert {record.upstream for record in records} == {site.proxy.address}
    assert {record.topic for record in records} == {PLAIN}
    ack_records = eventually(acknowledgements, 30)
    assert {record.topic for record in ack_records} == {PLAIN}
    assert all(record.broker for record in ack_records)
    capture = b"".join(path.read_bytes() for path in site.captures.glob("*.rmqcap"))
    assert USER.encode() not in capture


def command_of(record: CaptureRecord) -> Command:
    return decode_frame(record.request, 4, len(record.request))


def test_a_push_consumer(drivers: Mapping[str, CommandDriver], site: Site) -> None:
    client = site.client(drivers["java"])
    with client.push("forwarded-push", PLAIN, tags="pushed", failures=1) as push:
        with client.producer(PLAIN) as producer:
            (receipt,) = producer.send({"topic": PLAIN, "body": "pushed", "tag": "pushed"})
        # The failed delivery comes again.
        assert [message["id"] for message in push.received(2, 60)] == [receipt["id"]] * 2


def test_transactions_and_their_checks(drivers: Mapping[str, CommandDriver], site: Site) -> None:
    """The Proxy asks the producer back over the Telemetry stream that the gateway forwards."""
    client = site.client(drivers["java"])
    with (
        client.producer(HALF, transactions=True) as producer,
        client.simple("forwarded-half", HALF) as simple,
    ):
        for end in ("commit", "rollback"):
            producer.send_half({"topic": HALF, "body": end}, end)
        producer.send_half({"topic": HALF, "body": "checked", "properties": {"check": "COMMIT"}})
        simple.receive_until(
            lambda messages: {message["body"] for message in messages} == {"commit", "checked"}, 150
        )


def test_refusals_are_those_of_the_proxy(drivers: Mapping[str, CommandDriver], site: Site) -> None:
    for client in (site.client(drivers["java"], USER, "wrong"), site.client(drivers["java"], STRANGER)):
        with (
            pytest.raises(JavaClientError) as refusal,
            client.producer(PLAIN, attempts=1) as producer,
        ):
            producer.send({"topic": PLAIN, "body": "x"})
        direct = StockGrpcClient(client.driver, site.proxy.address, client.identity)
        with (
            pytest.raises(JavaClientError) as refusal_of_proxy,
            direct.producer(PLAIN, attempts=1) as producer,
        ):
            producer.send({"topic": PLAIN, "body": "x"})
        assert refusal.value.code == refusal_of_proxy.value.code == UNAUTHORIZED
    wrong = site.client(drivers["python"], USER, "wrong")
    with (
        pytest.raises(StockClientError, match=f"failed to fetch topic:{PLAIN} route"),
        wrong.producer(PLAIN, attempts=1) as producer,
    ):
        producer.send({"topic": PLAIN, "body": "x"})


@pytest.mark.parametrize("kind", KINDS)
def test_clients_go_on_when_a_killed_proxy_is_back(
    drivers: Mapping[str, CommandDriver], site: Site, kind: str
) -> None:
    """Each message that a producer was told of is received, and the gateway goes on by itself."""
    client = site.client(drivers[kind])
    tag = f"crash-{kind}"
    with client.producer(PLAIN, waits=False) as producer, sending(producer, PLAIN, tag=tag) as stored_ids:
        eventually(lambda: len(stored_ids) > MIN_STORED, 60)
        metrics = site.metrics()
        site.proxy.kill()
        eventually(lambda: site.metrics()[LOST] > metrics[LOST], 30)
        # The client tries again, and is sent away at once.
        eventually(lambda: site.metrics()[FAILED] > metrics[FAILED], 60)
        site.proxy.restart()
        count = len(stored_ids)
        eventually(lambda: len(stored_ids) > count + MIN_STORED, 150)
    with client.simple("forwarded-crash", PLAIN, tags=tag) as simple:
        simple.receive_until(lambda messages: {message["id"] for message in messages} >= set(stored_ids), 150)


def test_tls_on_either_side(drivers: Mapping[str, CommandDriver], tmp_path: Path) -> None:
    """The Proxy takes TLS only; clients come with and without."""
    try:
        endpoint = OfficialEndpoint(jvm=QUICK_START_WITH_TLS)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with endpoint, OfficialProxy(endpoint.namesrv, tls_mode="enforcing") as proxy:
        with dial(endpoint.broker, None) as broker:
            broker.ask(topic_request(PLAIN, 4))
        sets = {
            "primary.namesrv": json.dumps([endpoint.namesrv]),
            "primary.tls.enabled": "true",
            "primary.tls.verify": "false",
            "listen.grpc_port": "0",
            "listen.grpc_forward_to": proxy.address,
        }
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        with Gateway(tmp_path, *words, command="shadow") as gateway:
            for tls in (False, True):
                client = StockGrpcClient(drivers["java"], "").acting_as(gateway.ready["grpc"], tls=tls)
                with client.producer(PLAIN) as producer:
                    (receipt,) = producer.send({"topic": PLAIN, "body": "x"})
                assert receipt["id"]
            assert "Traceback" not in gateway.output()
