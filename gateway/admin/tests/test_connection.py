"""Connections of commands: TLS, signatures, and servers that do not answer."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.admin.client import AdminClient
from gateway.admin.settings import ConnectionSettings
from gateway.admin.tests.local_server import LocalServer, run_server
from gateway.config.auth import AuthConfig
from gateway.config.tls import TlsConfig
from remoting.certificates import CertificateAuthority
from remoting.requests.namesrv import GetAllTopicListFromNameserver

USER, SECRET = "operator", "top-secret-1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secure(
    tmp_path_factory: pytest.TempPathFactory, authority: CertificateAuthority
) -> Iterator[LocalServer]:
    """A server that accepts only TLS and signed requests."""
    issued = authority.issue("server", ["rocketmq.example"])
    tls = TlsConfig(mode="enforcing", certificate=str(issued.certificate), private_key=str(issued.key))
    auth = AuthConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_user=f'{{"username":"{USER}","password":"{SECRET}"}}',
        inner_credentials=f'{{"accessKey":"{USER}","secretKey":"{SECRET}"}}',
    )
    with run_server(tmp_path_factory.mktemp("secure"), parts={"tls": tls, "auth": auth}) as running:
        yield running


@pytest.fixture
def flags(tmp_path: Path, authority: CertificateAuthority) -> list[str]:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    return [
        "--tls-ca", str(authority.files.certificate), "--tls-server-name", "rocketmq.example",
        "--access-key", USER, "--secret-key-file", str(secret),
    ]  # fmt: skip


def refusal(server: LocalServer, *flags: str) -> str:
    result = server.invoke("topic", "list", *flags)
    assert result.exit_code != 0, result.output
    return f"{result.exit_code} {result.stderr}"


def test_a_signed_command_over_tls(secure: LocalServer, flags: list[str]) -> None:
    assert secure.run("topic", "create", "secured", *flags) == "Created secured on broker-a.\n"


def test_another_name_in_the_certificate(secure: LocalServer, flags: list[str]) -> None:
    text = refusal(secure, *flags[:2], *flags[4:])
    assert text.startswith("1 ")
    assert "the server's certificate is not accepted" in text
    assert "--tls-server-name" in text


def test_an_unknown_authority(secure: LocalServer, flags: list[str]) -> None:
    assert "--tls-ca" in refusal(secure, "--tls", *flags[4:])
    secure.run("topic", "list", "--tls-insecure", *flags[4:])


def test_no_tls_where_it_is_required(secure: LocalServer, flags: list[str]) -> None:
    assert "the server may require TLS (--tls)" in refusal(secure, *flags[4:])


def test_no_signature_and_a_wrong_one(secure: LocalServer, flags: list[str], tmp_path: Path) -> None:
    assert "--access-key" in refusal(secure, *flags[:4])
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    assert "refused" in refusal(secure, *flags[:-1], str(wrong))


def test_files_that_cannot_be_used(secure: LocalServer, flags: list[str]) -> None:
    text = refusal(secure, "--tls-ca", "/no/such/ca.pem", *flags[4:])
    assert text.startswith("2 ")
    assert "/no/such/ca.pem cannot be used" in text


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = refusal(LocalServer(address, {}))
    assert text == (
        f"1 Error: namesrv {address} cannot be reached: connection refused. Is it running? "
        "Set its address with --namesrv.\n"
    )


def test_a_broker_in_the_place_of_a_namesrv(server: LocalServer) -> None:
    text = refusal(LocalServer(server.brokers["broker-a"], {}))
    assert text.startswith(f"1 Error: {server.brokers['broker-a']} refused GET_BROKER_CLUSTER_INFO")
    assert "this is probably a broker: pass a namesrv with --namesrv" in text


def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        text = refusal(LocalServer(address, {}), "--timeout", "0.2")
    assert f"{address} did not answer GET_BROKER_CLUSTER_INFO within 0.2 s" in text
    assert "--timeout" in text


def test_the_next_namesrv_is_asked(server: LocalServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
        LocalServer(dead, {}).run("topic", "list", "--namesrv", server.namesrv)
        assert "no namesrv answers" in refusal(LocalServer(dead, {}), "--namesrv", dead)


def answer_as_web_server(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def test_a_web_server_in_the_place_of_a_namesrv() -> None:
    """It ended in a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as web:
        address = f"127.0.0.1:{web.getsockname()[1]}"
        thread = threading.Thread(target=answer_as_web_server, args=(web,))
        thread.start()
        text = refusal(LocalServer(address, {}))
        thread.join()
    assert f"{address} answers in another protocol" in text
    assert "It is not a RocketMQ server: check host and port." in text


def test_a_url_in_the_place_of_an_address() -> None:
    text = refusal(LocalServer("http://127.0.0.1:9876", {}))
    assert (
        text
        == '2 Error: --namesrv: "http://127.0.0.1:9876" is a URL; expected host:port, without "http://"\n'
    )


def test_a_silent_namesrv_costs_its_timeout_once(server: LocalServer) -> None:
    """It cost the timeout for every request of a command."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        first = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = ConnectionSettings(namesrv=(first, server.namesrv), timeout_s=0.5)
        with AdminClient(settings) as client:
            started_s = time.monotonic()
            for _ in range(20):
                client.ask_namesrv(GetAllTopicListFromNameserver())
            assert 0.5 <= time.monotonic() - started_s < 9
            assert client.namesrvs == (first, server.namesrv)
