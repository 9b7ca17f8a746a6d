import pytest
import trio

from gateway.runtime.listener_tls import ListenTls, listener_acceptor
from gateway.shadow.clusters.endpoints import (
    CredentialSettings,
    UpstreamTls,
    load_credentials,
    upstream_opener,
)
from remoting.acl import Credentials
from remoting.tests.certificates import Authority
from remoting.tests.test_transport import pair
from remoting.transport import SocketTransport
from toolkit.settings import SettingsError
from toolkit.toml_tables import load_table


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    certificate, key = authority.issue("server", password="open sesame")
    return {"certificate": str(certificate), "key": str(key), "key_password": "open sesame"}, authority


@pytest.mark.parametrize(
    ("upstream", "welcome"), [({}, False), ({"verify": False}, True), ({"ca": "?"}, True)]
)
def test_listener_and_upstream_settings(files, upstream, welcome):
    table, authority = files
    if "ca" in upstream:
        upstream = {"ca": str(authority.file)}
    sockets = pair()
    near, far = (SocketTransport(sock) for sock in sockets)
    acceptor = listener_acceptor(load_table(ListenTls, table, "listen.tls"))
    settings = load_table(UpstreamTls, {"enabled": True, **upstream}, "primary.tls")
    errors = []

    async def plain(host, port):
        return far

    async def attempt(transport, work):
        try:
            await work()
        except OSError as error:
            errors.append(error)
            transport.close()

    async def main():
        open_upstream = upstream_opener(settings, plain, "primary.tls")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, near, lambda: acceptor.accept(near))
            nursery.start_soon(attempt, far, lambda: open_upstream("127.0.0.1", 1))

    trio.run(main)
    for sock in sockets:
        sock.close()
    assert bool(errors) != welcome


def test_tls_is_off_by_default():
    async def plain(host, port):
        raise AssertionError

    assert upstream_opener(UpstreamTls(), plain, "primary.tls") is plain


def test_disabled_listeners_need_no_files():
    listener_acceptor(ListenTls(mode="disabled", certificate="missing.pem"))


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"mode": "sometimes"}, 'expected "disabled", "permissive" or "enforcing"'),
        ({"certificate": "missing.pem"}, "No such file"),
        ({"client_required": True}, "certificate must be set"),
        ({"client_ca": "ca.pem"}, "certificate must be set"),
    ],
)
def test_invalid_listener_settings(table, reason):
    with pytest.raises(SettingsError, match=reason):
        listener_acceptor(load_table(ListenTls, table, "listen.tls"))


def test_wrong_password_and_missing_authority(files):
    table, _ = files
    with pytest.raises(SettingsError, match=r"listen\.tls") as refused:
        listener_acceptor(load_table(ListenTls, {**table, "key_password": "guess"}, "listen.tls"))
    assert "guess" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"target\.tls: .*No such file"):
        upstream_opener(UpstreamTls(enabled=True, ca="missing.pem"), None, "target.tls")


def test_credentials_from_the_table_or_a_file(tmp_path):
    table = {"access_key": "me", "secret_key": "open sesame", "security_token": "t"}
    found = load_credentials(
        load_table(CredentialSettings, table, "target.credentials"), "target.credentials"
    )
    assert found == Credentials("me", "open sesame", "t")
    file = tmp_path / "secret"
    file.write_text("open sesame\n")
    assert load_credentials(CredentialSettings("me", secret_key_file=str(file)), "x") == Credentials(
        "me", "open sesame"
    )
    assert load_credentials(CredentialSettings(), "x") is None


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"secret_key": "open sesame"}, "access_key must be set"),
        ({"access_key": "me"}, "set either secret_key or secret_key_file"),
        ({"access_key": "me", "secret_key": "open sesame", "secret_key_file": "x"}, "either"),
        ({"access_key": "me", "secret_key_file": "missing"}, "No such file"),
        ({"access_key": "me", "secret_key": 4711}, "invalid value .*redacted.* .expected text"),
        ({"access_key": "me", "secret_keys": "open sesame"}, 'did you mean "secret_key"'),
    ],
)
def test_credential_errors_do_not_show_the_secret(table, reason):
    with pytest.raises(SettingsError, match=reason) as refused:
        load_credentials(load_table(CredentialSettings, table, "target.credentials"), "target.credentials")
    assert "sesame" not in str(refused.value)
    assert "4711" not in str(refused.value)


def test_empty_or_unreadable_secret_file(tmp_path):
    file = tmp_path / "secret"
    for content, reason in ((b"\n", "is empty"), (b"\xff\xfe\xff", "not UTF-8")):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=reason):
            load_credentials(CredentialSettings("me", secret_key_file=str(file)), "x")


def test_printed_settings_hide_secrets():
    shown = f"{CredentialSettings('me', 'open sesame', security_token='open')!r} {ListenTls(key_password='open')!r}"
    assert "open" not in shown
