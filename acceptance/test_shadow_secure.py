"""TLS and signatures through the shadow gateway, in front of an official broker that requires signatures."""

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from codec.command import Command
from compat_tests.cases.conftest import stock_client
from compat_tests.clients.typed import messages, pull, send, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import QUICK_START_WITH_TLS, OfficialEndpoint, access_control_settings
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually, split_address
from remoting.acl import Credentials, make_signer
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.tls import client_context
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

NO_PERMISSION = 16
USER, SECRET = "admin", "open sesame 4711"
SETTINGS = access_control_settings(USER, SECRET)
# Without certificate files the official server uses a self-signed one, and accepts clients with and without TLS.
ANYBODY = client_context(verify=False)
SIGNED = make_signer(Credentials(USER, SECRET))


@pytest.fixture(scope="module")
def primary() -> Iterator[OfficialEndpoint]:
    """An official broker with authentication and one user."""
    try:
        official = OfficialEndpoint(SETTINGS, jvm=QUICK_START_WITH_TLS)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with official:
        yield official


def dial(
    where: str, *, tls: ssl.SSLContext | None = None, sign: Callable[[Command], None] | None = SIGNED
) -> BlockingClient:
    return BlockingClient(*split_address(where), timeout_s=15, tls=tls, sign=sign)


@contextmanager
def gateway(directory: Path, primary: OfficialEndpoint, mode: str, *, tls: bool) -> Iterator[Gateway]:
    """Run a gateway with credentials of its own, and assert that its log does not contain the secret."""
    file = directory / "shadow.toml"
    file.write_text(
        f"""
        [primary]
        namesrv = ["{primary.namesrv}"]
        tls = {{ enabled = {json.dumps(tls)}, verify = false }}
        credentials = {{ access_key = "{USER}", secret_key = "{SECRET}" }}
        [listen.tls]
        mode = "{mode}"
        """
    )
    with Gateway(directory, "-c", str(file), "--log-level", "debug", command="shadow") as process:
        yield process
        assert SECRET not in process.output()


def test_signatures_as_the_official_broker_checks_them(primary: OfficialEndpoint) -> None:
    """Both header forms, bodies, and non-ASCII texts."""
    for binary in (False, True):
        with dial(primary.broker) as client:
            client.binary = binary
            client.ask(topic_request(f"signed-{binary}", 1))
            sent = send(client, f"signed-{binary}", "bödy".encode(), properties={"KEYS": "schlüssel"})
            assert sent.queue_offset == 0
            (found,) = messages(pull(client, f"signed-{binary}"))
            assert found.body == "bödy".encode()


@pytest.mark.parametrize(
    ("sign", "reason"),
    [
        (make_signer(Credentials(USER, "wrong")), "check signature failed"),
        (make_signer(Credentials("stranger", SECRET)), "User:stranger is not found"),
        (None, "username cannot be null"),
    ],
)
def test_other_credentials_are_refused(
    primary: OfficialEndpoint, sign: Callable[[Command], None] | None, reason: str
) -> None:
    with dial(primary.broker, sign=sign) as client, pytest.raises(RequestError, match=reason) as refused:
        client.ask(topic_request("refused", 1))
    assert refused.value.code == NO_PERMISSION
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("upstream_tls", [False, True])
def test_tls_on_either_side(primary: OfficialEndpoint, tmp_path: Path, upstream_tls: bool) -> None:
    """Signatures remain valid, and answers larger than a TLS record arrive whole."""
    with gateway(tmp_path, primary, "permissive", tls=upstream_tls) as process:
        for tls in (None, ANYBODY):
            topic = f"either-{upstream_tls}-{tls is None}"
            with dial(process.broker, tls=tls) as client:
                client.ask(topic_request(topic, 1))
                body = bytes(range(256)) * 160
                for _ in range(5):
                    send(client, topic, body)
                assert [each.body for each in messages(pull(client, topic))] == [body] * 5
            unsigned = dial(process.broker, tls=tls, sign=None)
            with unsigned, pytest.raises(RequestError, match="username"):
                send(unsigned, topic, b"unsigned")


def test_stock_client_with_tls_and_signatures(primary: OfficialEndpoint, tmp_path: Path) -> None:
    """With TLS required on both sides a stock client works, and a plain connection is closed."""
    with gateway(tmp_path, primary, "enforcing", tls=True) as process:
        with dial(process.namesrv) as plain, pytest.raises(RemotingClosed):
            plain.ask(GetBrokerClusterInfo())
        topic = "stock-secure"
        with dial(process.broker, tls=ANYBODY) as client:
            client.ask(topic_request(topic, 4))
        with stock_client(process.namesrv, properties={"tls.enable": "true"}) as plain:
            java = plain.acting_as(process.namesrv, Credentials(USER, SECRET))
            with java.producer("secure_producer") as producer:
                eventually(lambda: _has_queues(producer, topic), 60)
                assert [each["status"] for each in producer.send_numbered(topic, 20)] == ["SEND_OK"] * 20
            with java.push("secure_consumer", topic) as consumer:
                bodies = {each["body"] for each in consumer.received(20, timeout_s=60)}
            assert bodies == {str(number) for number in range(20)}


def _has_queues(producer, topic) -> bool:
    try:
        return len(producer.queues(topic)) == 4
    except Exception:  # noqa: BLE001 - no route yet, or no answer in time
        return False


@pytest.mark.parametrize("secret", [SECRET, "wrong"])
def test_a_target_that_wants_signatures(primary: OfficialEndpoint, tmp_path: Path, secret: str) -> None:
    """Mirrored requests are signed for the target; refusals there are counted, and clients do not notice them."""
    target, topic = primary, f"mirrored-{secret == SECRET}"
    settings = f"""
    [target]
    namesrv = ["{target.namesrv}"]
    credentials = {{ access_key = "{USER}", secret_key = "{secret}" }}
    """
    file = tmp_path / "shadow.toml"
    with OursEndpoint(directory=tmp_path / "primary") as plain:
        file.write_text(f'[primary]\nnamesrv = ["{plain.namesrv}"]\n{settings}')
        with Gateway(tmp_path, "-c", str(file), command="shadow") as process, dial(process.broker) as client:
            client.ask(topic_request(topic, 1))
            for number in range(20):
                assert (
                    send(client, topic, b"%d" % number, properties={"UNIQ_KEY": f"U{number}"}).queue_offset
                    == number
                )
            found = eventually(lambda: _settled(process, 21), 60)
        with dial(target.broker) as reader:
            bodies = [] if secret != SECRET else [each.body for each in messages(pull(reader, topic))]
    right = secret == SECRET
    assert bodies == [b"%d" % number for number in range(20 if right else 0)]
    (stream,) = found["streams"]
    assert (stream["mirrored"], stream["refused"], stream["dropped"]) == ((21, 0, 0) if right else (0, 21, 0))
    assert [(mark["topic"], mark["count"]) for mark in found["diverged"]] == ([] if right else [(topic, 20)])


@contextmanager
def mirror_with_tls(
    directory: Path, target: OfficialEndpoint, *, verify: bool, mode: str
) -> Iterator[tuple[Gateway, str]]:
    """Run a gateway between a primary of ours without TLS and a target with TLS; yield it and the primary's broker."""
    file = directory / "shadow.toml"
    with OursEndpoint(directory=directory / "primary") as plain:
        file.write_text(
            f"""
            [primary]
            namesrv = ["{plain.namesrv}"]
            [target]
            namesrv = ["{target.namesrv}"]
            tls = {{ enabled = true, verify = {json.dumps(verify)} }}
            credentials = {{ access_key = "{USER}", secret_key = "{SECRET}" }}
            [[mirror]]
            mode = "{mode}"
            """
        )
        with Gateway(directory, "-c", str(file), command="shadow") as process:
            yield process, plain.broker


@pytest.mark.parametrize("mode", ["async", "target-primary"])
def test_tls_to_the_target(primary: OfficialEndpoint, tmp_path: Path, mode: str) -> None:
    """Mirrored messages go over TLS, and so do clients' sends while the target leads."""
    target, topic = primary, f"over-tls-{mode}"
    with dial(target.broker) as reader:
        reader.ask(topic_request(topic, 1))
        with mirror_with_tls(tmp_path, target, verify=False, mode=mode) as (process, broker):
            with dial(process.broker) as client:
                client.ask(topic_request(topic, 1))
                for number in range(20):
                    send(client, topic, b"%d" % number, properties={"UNIQ_KEY": f"U{number}"})
            with dial(broker) as plain:
                for side in (plain, reader):
                    eventually(lambda: len(_bodies(side, topic)) == 20, 60)  # noqa: B023 - called in this iteration
                    assert _bodies(side, topic) == [b"%d" % number for number in range(20)]


def test_a_target_whose_certificate_nobody_signed(primary: OfficialEndpoint, tmp_path: Path) -> None:
    """With `verify` the mirror refuses a self-signed certificate and reports it; clients do not notice."""
    with mirror_with_tls(tmp_path, primary, verify=True, mode="async") as (process, _):
        with dial(process.broker) as client:
            client.ask(topic_request("unsigned", 1))
            assert send(client, "unsigned", b"1").queue_offset == 0

        def problem() -> str:
            return str(_mirror(process)["streams"][0]["problem"])

        assert "certificate" in eventually(problem, 60)


def _bodies(client: BlockingClient, topic: str) -> list[bytes]:
    return [each.body for each in messages(pull(client, topic))]


def _mirror(process: Gateway) -> dict[str, Any]:
    with urlopen(f"http://{process.ready['console']}/mirror", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _settled(process: Gateway, count: int) -> dict[str, Any]:
    """Return the mirror's status once `count` exchanges have an outcome; {} before."""
    found = _mirror(process)
    decided = sum(each["mirrored"] + each["refused"] + each["dropped"] for each in found["streams"])
    return found if decided >= count else {}
