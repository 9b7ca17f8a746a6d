"""TLS with stock clients, on our server and on the official one: each mode, each client, and certificates of all kinds.

The Java clients and the admin tool can use TLS; the Go and the Node client cannot. One JVM of each version serves the
file: which connections its next clients make is set by `use_tls` and `use_plain_connections`.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat_tests.cases.conftest import stock_client, warm_up
from compat_tests.cases.processes import Gateway
from compat_tests.cases.secured import Server
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.programs import ProgramResult, run_go, run_node
from compat_tests.clients.typed import topic_request
from compat_tests.endpoints.official import QUICK_START_WITH_TLS, OfficialEndpoint
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.certificates import CertificateAuthority, CertificateFiles
from remoting.tls import client_context

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

MODES = ("disabled", "permissive", "enforcing")
PROGRAMS = {"go": run_go, "node": run_node}
TOPIC = "tls-topic"
TIMEOUT_S = 150


@dataclass(frozen=True)
class Certificates:
    """The certificates of this file: good ones, an expired one, and those of an authority that nobody trusts."""

    authority: Path
    server: CertificateFiles
    client: CertificateFiles
    expired: CertificateFiles
    foreign: CertificateFiles


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = CertificateAuthority.create(tmp_path_factory.mktemp("authority"))
    stranger = CertificateAuthority.create(tmp_path_factory.mktemp("stranger"))
    hosts = ["localhost", "127.0.0.1"]
    return Certificates(
        authority.files.certificate,
        authority.issue("server", hosts),
        authority.issue("client"),
        authority.issue("expired", hosts, days=0),
        stranger.issue("foreign", hosts),
    )


def server_keys(
    certificates: Certificates, mode: str, served: CertificateFiles | None = None
) -> dict[str, str]:
    """Return the keys of a server of one mode; the one that enforces TLS wants certificates of clients, too."""
    served = served or certificates.server
    keys = {
        "tls.server.mode": mode,
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(served.certificate),
        "tls.server.keyPath": str(served.key),
    }
    if mode == "enforcing":
        keys |= {
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": str(certificates.authority),
        }
    return keys


@contextmanager
def run_ours(directory: Path, keys: dict[str, str], tls: ssl.SSLContext | None) -> Iterator[Server]:
    flags = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    with Gateway(directory, "--memory", *flags) as process:
        create_topic(process, tls)
        yield process
        assert "Traceback" not in process.output()


@contextmanager
def run_official(keys: dict[str, str], tls: ssl.SSLContext | None) -> Iterator[Server]:
    options = " ".join(f"-D{key}={value}" for key, value in keys.items())
    try:
        endpoint = OfficialEndpoint(jvm=f"{QUICK_START_WITH_TLS} {options}", tls=tls)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with endpoint:
        create_topic(endpoint, tls)
        yield endpoint


def create_topic(server: Server, tls: ssl.SSLContext | None) -> None:
    with BlockingClient(*split_address(server.broker), timeout_s=15, tls=tls) as client:
        client.ask(topic_request(TOPIC, 4))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[dict[str, Server]]:
    """Our servers by mode."""
    tls = {mode: own_context(certificates) if mode == "enforcing" else None for mode in MODES}
    directory = tmp_path_factory.mktemp
    with (
        run_ours(directory("d"), server_keys(certificates, "disabled"), tls["disabled"]) as disabled,
        run_ours(directory("p"), server_keys(certificates, "permissive"), tls["permissive"]) as permissive,
        run_ours(directory("e"), server_keys(certificates, "enforcing"), tls["enforcing"]) as enforcing,
    ):
        yield {"disabled": disabled, "permissive": permissive, "enforcing": enforcing}


def own_context(certificates: Certificates) -> ssl.SSLContext:
    """Return the context of our own client, with the certificate that servers trust."""
    own = certificates.client
    return client_context(ca_file=certificates.authority, certificate_file=own.certificate, key_file=own.key)


@pytest.fixture(scope="module")
def moded(
    request: pytest.FixtureRequest, ours: dict[str, Server], certificates: Certificates
) -> Iterator[tuple[str, dict[str, Server]]]:
    """A mode, with our server and the official one in it; only one official server runs at a time."""
    mode = request.param
    keys = server_keys(certificates, mode)
    tls = None
    if mode == "enforcing":
        # The official broker is itself a client of its namesrv.
        own = certificates.client
        keys |= {
            "tls.enable": "true",
            "tls.client.certPath": str(own.certificate),
            "tls.client.keyPath": str(own.key),
        }
        tls = own_context(certificates)
    with run_official(keys, tls) as official:
        yield mode, {"ours": ours[mode], "official": official}


@pytest.fixture(scope="module")
def java4(ours: dict[str, Server]) -> Iterator[JavaClient]:
    with stock_client(ours["permissive"].namesrv, "4.9.8") as client:
        warm_up(client)
        yield client


@pytest.fixture(scope="module")
def java5(ours: dict[str, Server]) -> Iterator[JavaClient]:
    with stock_client(ours["permissive"].namesrv, "5.4.0") as client:
        warm_up(client)
        yield client


@pytest.fixture(params=["java4", "java5"])
def java(request: pytest.FixtureRequest) -> JavaClient:
    found: JavaClient = request.getfixturevalue(request.param)
    return found


def is_served(java: JavaClient, server: Server) -> bool:
    """Tell whether a new client sends and receives a message.

    One that is refused gets no route: it says so, or which answer it missed.
    """
    client = java.acting_as(server.namesrv)
    with client.producer("p-tls", mqClientApiTimeout=10_000) as producer, client.pull("g-tls") as consumer:
        try:
            (sent,) = producer.send({"topic": TOPIC, "body": "x"})
        except JavaClientError as refused:
            if not any(
                text in refused.message for text in ("Remoting", "No route info")
            ):  # an answer that says no
                raise
            return False
        assert sent["status"] == "SEND_OK"
        queue = {"topic": TOPIC, "broker": sent["broker"], "queue": sent["queue"]}
        eventually(lambda: consumer.pull(queue, sent["offset"])["messages"])
        return True


SERVERS = ("ours", "official")


@pytest.mark.parametrize("moded", MODES, indirect=True)
@pytest.mark.parametrize("kind", SERVERS)
def test_plain_connections(moded: tuple[str, dict[str, Server]], kind: str, java: JavaClient) -> None:
    mode, servers = moded
    java.use_plain_connections()
    assert is_served(java, servers[kind]) is (mode != "enforcing")


@pytest.mark.parametrize("moded", MODES, indirect=True)
@pytest.mark.parametrize("kind", SERVERS)
def test_tls_connections(
    moded: tuple[str, dict[str, Server]], kind: str, java: JavaClient, certificates: Certificates
) -> None:
    """The client verifies the server, and shows a certificate."""
    mode, servers = moded
    own = certificates.client
    java.use_tls(trust=certificates.authority, certificate=own.certificate, key=own.key)
    assert is_served(java, servers[kind]) is (mode != "disabled")


@pytest.mark.parametrize("moded", ["permissive", "enforcing"], indirect=True)
@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("shown", ["none", "expired", "foreign"])
def test_certificates_of_clients(
    moded: tuple[str, dict[str, Server]], kind: str, shown: str, java5: JavaClient, certificates: Certificates
) -> None:
    """Only a server that requires certificates looks at them."""
    mode, servers = moded
    own = {"expired": certificates.expired, "foreign": certificates.foreign}.get(shown)
    if own is None:
        java5.use_tls(trust=certificates.authority)
    else:
        java5.use_tls(trust=certificates.authority, certificate=own.certificate, key=own.key)
    assert is_served(java5, servers[kind]) is (mode == "permissive")


@pytest.mark.parametrize("moded", MODES, indirect=True)
@pytest.mark.parametrize("kind", SERVERS)
def test_the_admin_tool(
    moded: tuple[str, dict[str, Server]], kind: str, java5: JavaClient, certificates: Certificates
) -> None:
    mode, servers = moded
    own = certificates.client
    if mode == "disabled":
        java5.use_plain_connections()
    else:
        java5.use_tls(trust=certificates.authority, certificate=own.certificate, key=own.key)
    assert "broker-a" in java5.acting_as(servers[kind].namesrv).run_mqadmin("clusterList")


@pytest.mark.parametrize("moded", ["disabled", "enforcing"], indirect=True)
@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_clients_without_tls(moded: tuple[str, dict[str, Server]], kind: str, program: str) -> None:
    mode, servers = moded

    def run() -> ProgramResult:
        return PROGRAMS[program](servers[kind].namesrv, TOPIC, 1, TIMEOUT_S, "send")

    try:
        if mode == "enforcing":
            with pytest.raises(AssertionError, match="ended with 1"):
                run()
        else:
            assert run().sent == 1
    except Unavailable as missing:
        skip_or_fail(str(missing))


@pytest.mark.parametrize("served", ["expired", "foreign"])
def test_a_server_with_a_bad_certificate(
    tmp_path: Path, certificates: Certificates, java: JavaClient, served: str
) -> None:
    """A client that verifies refuses it, one that does not (the default) takes it."""
    files = certificates.expired if served == "expired" else certificates.foreign
    with run_ours(tmp_path, server_keys(certificates, "permissive", files), None) as server:
        java.use_tls(trust=certificates.authority)
        assert not is_served(java, server)
        java.use_tls()
        assert is_served(java, server)


def test_required_client_certificates_are_not_verified_officially_unchecked(
    tmp_path: Path, certificates: Certificates, java5: JavaClient
) -> None:
    """Without `tls.server.authClient` the official server takes a certificate of any authority, or an expired one."""
    keys = server_keys(certificates, "enforcing")
    del keys["tls.server.authClient"]
    foreign, own = certificates.foreign, certificates.client
    broker = {
        "tls.enable": "true",
        "tls.client.certPath": str(own.certificate),
        "tls.client.keyPath": str(own.key),
    }
    java5.use_tls(trust=certificates.authority, certificate=foreign.certificate, key=foreign.key)
    with run_official(keys | broker, own_context(certificates)) as official:
        assert is_served(java5, official)
    with run_ours(tmp_path, keys, own_context(certificates)) as server:
        assert not is_served(java5, server)
