"""TLS with stock clients, on our server and on the official one: each mode, each client, and certificates of all kinds.

The Java clients and the admin tool can use TLS; the Go and the Node client cannot. One JVM of each version serves the
file: which connections its next clients make is set by `use_tls` and `use_plain_connections`. Starting servers, and
clients that are refused, is mostly waiting, so all servers start together, and all clients with the same kind of
connection run together (`World.is_served`). Each case looks at one result.
"""

import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from acceptance.secured import Server
from compat_tests.cases.conftest import stock_client, warm_up
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
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

T = TypeVar("T")

MODES = ("disabled", "permissive", "enforcing")
KINDS = ("ours", "official")
JAVA_VERSIONS = {"java4": "4.9.8", "java5": "5.4.0"}
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


def own_context(certificates: Certificates) -> ssl.SSLContext:
    """Return the context of our own client, with the certificate that servers trust."""
    own = certificates.client
    return client_context(ca_file=certificates.authority, certificate_file=own.certificate, key_file=own.key)


Place = tuple[str, str]
"""Kind and name of a server: its mode, UNCHECKED, or the certificate that it shows."""
UNCHECKED = "unchecked"
"""Enforces TLS and requires certificates of clients, without `tls.server.authClient`."""

EVERY_MODE = [(kind, mode) for kind in KINDS for mode in MODES]
VERIFYING = [(kind, mode) for kind in KINDS for mode in ("permissive", "enforcing")]
BAD_SERVERS = [("ours", "expired"), ("ours", "foreign")]
BOTH_CLIENTS, NEW_CLIENT = tuple(JAVA_VERSIONS), ("java5",)
RUNS: dict[str, list[tuple[tuple[str, ...], list[Place]]]] = {
    "plain": [(BOTH_CLIENTS, EVERY_MODE)],
    "trusted": [(BOTH_CLIENTS, EVERY_MODE)],
    "none": [(NEW_CLIENT, VERIFYING), (BOTH_CLIENTS, BAD_SERVERS)],
    "expired": [(NEW_CLIENT, VERIFYING)],
    "foreign": [(NEW_CLIENT, [*VERIFYING, ("ours", UNCHECKED), ("official", UNCHECKED)])],
    "unverified": [(BOTH_CLIENTS, BAD_SERVERS)],
}
"""The clients and the servers that they try to use, by the kind of connection, or the certificate that they show."""


def use_connections(java: JavaClient, kind: str, certificates: Certificates) -> None:
    """Make a JVM's next clients connect without TLS, without verifying the server, or with one of the certificates."""
    if kind == "plain":
        java.use_plain_connections()
    elif kind == "unverified":
        java.use_tls()
    elif kind == "none":
        java.use_tls(trust=certificates.authority)
    else:
        shown = certificates.client if kind == "trusted" else getattr(certificates, kind)
        java.use_tls(trust=certificates.authority, certificate=shown.certificate, key=shown.key)


@dataclass
class World:
    """The running servers and clients, and what came of all attempts so far."""

    certificates: Certificates
    servers: Mapping[Place, Server]
    clients: Mapping[str, JavaClient]
    programs: Mapping[tuple[str, Place], Future[ProgramResult]]
    served: dict[str, dict[tuple[str, Place], bool]] = field(default_factory=dict)

    def is_served(self, connections: str, client: str, place: Place) -> bool:
        """Tell whether a client with such connections sends and receives a message; one of `RUNS`."""
        if connections not in self.served:
            for java in self.clients.values():
                use_connections(java, connections, self.certificates)
            attempts = [
                (name, tried) for names, places in RUNS[connections] for name in names for tried in places
            ]
            with ThreadPoolExecutor(len(attempts)) as pool:
                found = pool.map(
                    lambda each: is_served(self.clients[each[0]], self.servers[each[1]]), attempts
                )
                self.served[connections] = dict(zip(attempts, found, strict=True))
        return self.served[connections][client, place]


@contextmanager
def run_together(services: Mapping[Place, AbstractContextManager[T]]) -> Iterator[dict[Place, T]]:
    """Enter contexts at the same time, and leave them so."""
    with ThreadPoolExecutor(len(services)) as pool:
        entered = {name: pool.submit(service.__enter__) for name, service in services.items()}
        wait(entered.values())
        try:
            yield {name: future.result() for name, future in entered.items()}
        finally:
            ended = [
                pool.submit(services[name].__exit__, None, None, None)
                for name, future in entered.items()
                if future.exception() is None
            ]
            for future in ended:
                future.result()


@contextmanager
def run_java(namesrv: str, version: str) -> Iterator[JavaClient]:
    with stock_client(namesrv, version) as client:
        warm_up(client)
        yield client


def our_servers(directory: Path, certificates: Certificates) -> dict[Place, AbstractContextManager[Server]]:
    def server(name: str, keys: dict[str, str], tls: ssl.SSLContext | None) -> AbstractContextManager[Server]:
        return run_ours(directory / name, keys, tls)

    trusted = own_context(certificates)
    servers = {
        ("ours", mode): server(
            mode, server_keys(certificates, mode), trusted if mode == "enforcing" else None
        )
        for mode in MODES
    }
    servers["ours", UNCHECKED] = server(UNCHECKED, unchecked_keys(certificates), trusted)
    for name, files in (("expired", certificates.expired), ("foreign", certificates.foreign)):
        servers["ours", name] = server(name, server_keys(certificates, "permissive", files), None)
    return servers


def official_servers(certificates: Certificates) -> dict[Place, AbstractContextManager[Server]]:
    # An official broker is itself a client of its namesrv.
    own, trusted = certificates.client, own_context(certificates)
    as_client = {
        "tls.enable": "true",
        "tls.client.certPath": str(own.certificate),
        "tls.client.keyPath": str(own.key),
    }
    return {
        ("official", "disabled"): run_official(server_keys(certificates, "disabled"), None),
        ("official", "permissive"): run_official(server_keys(certificates, "permissive"), None),
        ("official", "enforcing"): run_official(server_keys(certificates, "enforcing") | as_client, trusted),
        ("official", UNCHECKED): run_official(unchecked_keys(certificates) | as_client, trusted),
    }


def unchecked_keys(certificates: Certificates) -> dict[str, str]:
    keys = server_keys(certificates, "enforcing")
    del keys["tls.server.authClient"]
    return keys


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[World]:
    with ExitStack() as stack:
        ours = stack.enter_context(run_together(our_servers(tmp_path_factory.mktemp("ours"), certificates)))
        namesrv = ours["ours", "permissive"].namesrv
        jvms: dict[Place, AbstractContextManager[Server | JavaClient]] = {
            **official_servers(certificates),
            **{("client", name): run_java(namesrv, version) for name, version in JAVA_VERSIONS.items()},
        }
        started = stack.enter_context(run_together(jvms))
        clients = {name: each for (_, name), each in started.items() if isinstance(each, JavaClient)}
        official = {place: each for place, each in started.items() if not isinstance(each, JavaClient)}
        servers = {**ours, **official}
        pool = stack.enter_context(ThreadPoolExecutor())
        programs = {
            (name, (kind, mode)): pool.submit(run, servers[kind, mode].namesrv, TOPIC, 1, TIMEOUT_S, "send")
            for name, run in PROGRAMS.items()
            for kind in KINDS
            for mode in ("disabled", "enforcing")
        }
        yield World(certificates, servers, clients, programs)


def is_served(java: JavaClient, server: Server) -> bool:
    """Tell whether a new client sends and receives a message.

    One that is refused gets no route: it says so, or which answer it missed.
    """
    client, name = java.acting_as(server.namesrv), f"tls-{split_address(server.namesrv)[1]}"
    with client.producer(f"p-{name}", mqClientApiTimeout=10_000) as producer:
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
        with client.pull(f"g-{name}") as consumer:
            eventually(lambda: consumer.pull(queue, sent["offset"])["messages"])
        return True


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", JAVA_VERSIONS)
def test_plain_connections(world: World, mode: str, kind: str, client: str) -> None:
    assert world.is_served("plain", client, (kind, mode)) is (mode != "enforcing")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", JAVA_VERSIONS)
def test_tls_connections(world: World, mode: str, kind: str, client: str) -> None:
    """The client verifies the server, and shows a certificate."""
    assert world.is_served("trusted", client, (kind, mode)) is (mode != "disabled")


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shown", ["none", "expired", "foreign"])
def test_certificates_of_clients(world: World, mode: str, kind: str, shown: str) -> None:
    """Only a server that requires certificates looks at them."""
    assert world.is_served(shown, "java5", (kind, mode)) is (mode == "permissive")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_admin_tool(world: World, mode: str, kind: str) -> None:
    java = world.clients["java5"]
    use_connections(java, "plain" if mode == "disabled" else "trusted", world.certificates)
    assert "broker-a" in java.acting_as(world.servers[kind, mode].namesrv).run_mqadmin("clusterList")


@pytest.mark.parametrize("mode", ["disabled", "enforcing"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_clients_without_tls(world: World, mode: str, kind: str, program: str) -> None:
    result = world.programs[program, (kind, mode)]
    try:
        if mode == "enforcing":
            with pytest.raises(AssertionError, match="ended with 1"):
                result.result()
        else:
            assert result.result().sent == 1
    except Unavailable as missing:
        skip_or_fail(str(missing))


@pytest.mark.parametrize("client", JAVA_VERSIONS)
@pytest.mark.parametrize("shown", ["expired", "foreign"])
def test_a_server_with_a_bad_certificate(world: World, client: str, shown: str) -> None:
    """A client that verifies refuses it, one that does not (the default) takes it."""
    assert not world.is_served("none", client, ("ours", shown))
    assert world.is_served("unverified", client, ("ours", shown))


def test_required_client_certificates_are_not_verified_officially_unchecked(world: World) -> None:
    """Without `tls.server.authClient` the official server takes a certificate of any authority, or an expired one."""
    assert world.is_served("foreign", "java5", ("official", UNCHECKED))
    assert not world.is_served("foreign", "java5", ("ours", UNCHECKED))
