"""TLS on the ports of our server: modes, certificates of both sides, reloading, and stock clients of all versions."""

import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from compat_tests.cases.conftest import JAVA_CLIENTS, has_queues, stock_client
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import has_route, messages, pull, send, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import QUICK_START_WITH_TLS, OfficialEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.certificates import CertificateAuthority
from remoting.errors import RemotingClosed
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.tls import client_context
from tools.processes import Gateway, ProcessEndedEarly

pytestmark = pytest.mark.both_servers

ANYBODY = client_context(verify=False)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    directory = tmp_path / "certificates"
    directory.mkdir()
    return CertificateAuthority.create(directory)


def server_flags(authority: CertificateAuthority, name: str = "server", **more: str) -> list[str]:
    """Return the flags of a server that requires TLS, with a certificate of this authority."""
    files = authority.issue(name, ["localhost", "127.0.0.1"])
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
        **more,
    }
    return [part for name, value in keys.items() for part in ("--set", f"{name}={value}")]


def trusting(authority: CertificateAuthority, **more: Any) -> ssl.SSLContext:
    return client_context(ca_file=authority.files.certificate, **more)


def dial(address: str, tls: ssl.SSLContext | None) -> BlockingClient:
    return BlockingClient(*split_address(address), timeout_s=15, tls=tls)


def asks(address: str, tls: ssl.SSLContext | None) -> None:
    with dial(address, tls) as client:
        client.ask(GetBrokerClusterInfo())


def send_and_consume(java: JavaClient, topic: str) -> None:
    with java.producer(f"p_{topic}") as producer:
        # Client 4.9 fetches its first routes in the background, and a send gives up after 6 s in which it waits for
        # them. The first TLS handshake of a cold JVM takes longer on a busy machine.
        eventually(lambda: has_queues(producer, "TBW102"), 90)
        assert [each["status"] for each in producer.send_numbered(topic, 20)] == ["SEND_OK"] * 20
    with java.push(f"g_{topic}", topic) as consumer:
        assert {each["body"] for each in consumer.received(20, timeout_s=60)} == set(map(str, range(20)))


def test_plain_and_tls_on_one_port_by_default(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory") as process:
        for number, tls in enumerate((None, ANYBODY)):
            asks(process.namesrv, tls)
            with dial(process.broker, tls) as client:
                client.ask(topic_request("either", 1))
                body = bytes(range(256)) * 1000
                assert send(client, "either", body).queue_offset == number
                assert messages(pull(client, "either"))[-1].body == body
        with pytest.raises(ssl.SSLCertVerificationError):
            dial(process.broker, client_context())
        assert process.stop() == 0
        assert "Traceback" not in process.output()


def test_disabled(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory", "--set", "tls.server.mode=disabled") as process:
        asks(process.namesrv, None)
        with pytest.raises((ssl.SSLError, OSError)):
            dial(process.namesrv, ANYBODY)


def test_enforcing_with_a_certificate_that_clients_verify(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    with Gateway(tmp_path, "--memory", *server_flags(authority)) as process:
        for address in (process.namesrv, process.broker):
            with dial(address, None) as plain, pytest.raises(RemotingClosed):
                plain.ask(GetBrokerClusterInfo())
        asks(process.namesrv, trusting(authority))
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        with pytest.raises(ssl.SSLCertVerificationError):
            dial(process.namesrv, trusting(CertificateAuthority.create(foreign)))
        eventually(lambda: process.lines("connection without TLS refused"))
        eventually(lambda: process.lines("TLS handshake failed"))


def test_client_certificates(tmp_path: Path, authority: CertificateAuthority) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    stranger = CertificateAuthority.create(foreign)
    flags = server_flags(
        authority,
        **{
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": str(authority.files.certificate),
        },
    )
    with Gateway(tmp_path, "--memory", *flags) as process:
        for issuer, days, is_welcome in ((authority, 30, True), (stranger, 30, False), (None, 0, False)):
            own: dict[str, Path] = {}
            if issuer is not None:
                files = issuer.issue("client", days=days)
                own = {"certificate_file": files.certificate, "key_file": files.key}
            if is_welcome:
                asks(process.namesrv, trusting(authority, **own))
            else:
                # TLS 1.3: the client learns of the refusal with its first read.
                with pytest.raises((OSError, RemotingClosed)):
                    asks(process.namesrv, trusting(authority, **own))


def test_an_expired_certificate_is_replaced_without_a_restart(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    flags = server_flags(authority)
    expired = authority.issue("expired", ["localhost", "127.0.0.1"], days=0)
    installed = (
        authority.files.certificate.with_name("server.pem"),
        authority.files.certificate.with_name("server.key"),
    )
    fresh = [file.read_bytes() for file in installed]
    shutil.copy(expired.certificate, installed[0])
    shutil.copy(expired.key, installed[1])
    with Gateway(tmp_path, "--memory", *flags) as process, dial(process.namesrv, ANYBODY) as open_before:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            dial(process.namesrv, trusting(authority))
        for file, content in zip(installed, fresh, strict=True):
            file.write_bytes(content)
        eventually(lambda: process.lines("certificate loaded again"))
        asks(process.namesrv, trusting(authority))
        open_before.ask(GetBrokerClusterInfo())


@pytest.mark.parametrize("version", JAVA_CLIENTS)
def test_stock_java_clients(tmp_path: Path, authority: CertificateAuthority, version: str) -> None:
    """With the official client properties: the server's certificate verified, and one of the client's shown."""
    own = authority.issue("client")
    flags = server_flags(
        authority,
        **{
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": str(authority.files.certificate),
        },
    )
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority.files.certificate),
        "tls.client.certPath": str(own.certificate),
        "tls.client.keyPath": str(own.key),
    }
    with Gateway(tmp_path, "--memory", *flags) as process:
        with stock_client(process.namesrv, version, properties) as java:
            send_and_consume(java, "secure")
        with (
            stock_client(process.namesrv, version) as plain,
            plain.producer("plain") as producer,
            pytest.raises(JavaClientError),
        ):
            producer.send({"topic": "secure", "body": "without TLS"})


@pytest.mark.parametrize("version", JAVA_CLIENTS)
def test_stock_java_clients_against_the_default(tmp_path: Path, version: str) -> None:
    with (
        Gateway(tmp_path, "--memory") as process,
        stock_client(process.namesrv, version, {"tls.enable": "true"}) as java,
    ):
        send_and_consume(java, "permissive")


def test_our_broker_registers_with_a_namesrv_that_requires_tls(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    flags = server_flags(authority)
    client_flags = [
        "--set",
        "tls.enable=true",
        "--set",
        f"tls.client.trustCertPath={authority.files.certificate}",
    ]
    with Gateway(tmp_path / "n", *flags, command="namesrv") as namesrv:

        def knows() -> bool:
            with dial(namesrv.namesrv, trusting(authority)) as client:
                return has_route(client, "TBW102")

        place = ["-n", namesrv.namesrv, "--memory"]
        with Gateway(tmp_path / "b", *place, *client_flags, command="broker") as broker:
            eventually(knows)
            assert broker.stop() == 0
            eventually(lambda: not knows())
        with Gateway(tmp_path / "c", *place, command="broker") as plain:
            eventually(lambda: plain.lines("registration with namesrv failed"))
            assert not knows()
        with Gateway(tmp_path / "d", *place, "--set", "tls.enable=true", command="broker") as distrustful:
            eventually(lambda: distrustful.lines("certificate verify failed"))
            assert not knows()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["tls.test.mode.enable=false"], "tls.server.certPath is not set"),
        (["tls.server.certPath=missing.pem"], "missing.pem"),
        (["tls.server.mode=sometimes"], "tls.server.mode"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_start(
    tmp_path: Path, settings: list[str], reason: str
) -> None:
    flags = [part for setting in settings for part in ("--set", setting)]
    with pytest.raises(ProcessEndedEarly) as ended:
        Gateway(tmp_path, "--memory", *flags)
    assert ended.value.code == 2
    assert reason in ended.value.output
    assert "Traceback" not in ended.value.output


def test_official_server_and_ours_with_tls_on_the_namesrv(tmp_path: Path) -> None:
    """The official broker with the official self-signed test mode: it uses TLS to our namesrv."""
    with Gateway(tmp_path / "n", "--port", str(find_server_ports()[0]), command="namesrv") as namesrv:
        try:
            official = OfficialEndpoint(
                jvm=f"{QUICK_START_WITH_TLS} -Dtls.enable=true", namesrv=namesrv.namesrv
            )
        except Unavailable as missing:
            skip_or_fail(str(missing))
        with official, stock_client(namesrv.namesrv, "5.4.0", {"tls.enable": "true"}) as java:
            send_and_consume(java, "official_tls")
