import tomllib

import click
import pytest
import trio
from click import ClickException
from click.testing import CliRunner

from gateway.http_server.errors import ConsoleError
from gateway.http_server.server import Console
from gateway.http_server.settings import ConsoleSettings
from gateway.runtime.metrics import MetricRegistry
from gateway.shadow.commands.root import shadow
from gateway.shadow.console.client import (
    ConsoleClient,
    ConsoleNotTrusted,
    ConsoleRefused,
    ConsoleUnreachable,
    console_from_options,
    console_options,
    make_console_client,
    make_context,
    read_login,
)
from remoting.certificates import CertificateAuthority
from toolkit.toml_tables import load_table


def _make_console(**settings):
    made = Console(ConsoleSettings(port=0, **settings), MetricRegistry(), "rocketmq_test_")

    def refuse(given):
        raise ConsoleError("not now", 409)

    made.get("/echo", lambda given: given)
    made.post("/echo", lambda given: given)
    made.post("/refuse", refuse)
    return made


def test_console_client_over_a_real_port(tmp_path):
    async def main():
        served = _make_console(token="sesame", max_connections=2)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(served.run)
            config = tmp_path / "shadow.toml"
            config.write_text(f'[console]\nport = {port}\ntoken = "sesame"\n[primary]\nnamesrv = []\n')
            client = make_console_client(config)

            def talk():
                assert client.get("/echo", topic="ä b") == {"topic": "ä b"}
                assert client.post("/echo", {"a": 1}) == {"a": 1}
                assert client.post("/echo") == {}
                with pytest.raises(ConsoleRefused, match="not now") as refused:
                    client.post("/refuse")
                assert refused.value.status == 409
                with pytest.raises(ConsoleRefused, match="token"):
                    ConsoleClient(host, port).get("/status")

            async with trio.open_nursery() as talking:
                for _ in range(5):
                    talking.start_soon(trio.to_thread.run_sync, talk)
            nursery.cancel_scope.cancel()
        with pytest.raises(ConsoleUnreachable, match=f":{port}"):
            await trio.to_thread.run_sync(client.get, "/status")

    trio.run(main)


def test_client_address_comes_from_the_configuration(tmp_path):
    config = tmp_path / "shadow.toml"
    config.write_text('[console]\nhost = "0.0.0.0"\nport = 1\ntoken = "t"\nplain_http = true\n')
    client = make_console_client(config)
    assert (client.host, client.port) == ("127.0.0.1", 1)
    assert isinstance(make_console_client(config, "somewhere:7"), ConsoleClient)
    for text, problem in (
        ("[console]\nenabled = false\n", "enabled = false"),
        ("[console\n", "shadow.toml"),
        ("[console]\npart = 1\n", 'did you mean "port"'),
    ):
        config.write_text(text)
        with pytest.raises(ClickException, match=problem):
            make_console_client(config)
    with pytest.raises(ClickException, match="nowhere"):
        make_console_client(tmp_path / "nowhere.toml")


def _configure(tmp_path, port, users, tls=""):
    config = tmp_path / "shadow.toml"
    config.write_text(f"[console]\nport = {port}\n{tls}\n{users}")
    return config


def _print_user(name, *options, password="a long password"):
    done = CliRunner().invoke(shadow, ["console-user", name, *options], input=f"{password}\n")
    assert done.exit_code == 0, done.output
    return done.output


def test_the_printed_user_signs_in_over_tls(tmp_path):
    """The path of an operator: print a user, put it into the configuration, and use the console with a login file."""
    files = CertificateAuthority.create(tmp_path, "ca").issue("console", ("console.example.org",), days=1)
    tls = f'[console.tls]\nmode = "enforcing"\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
    users = _print_user("vera") + _print_user("otto", "--role", "operator")
    config = _configure(tmp_path, 0, users, tls)
    settings = load_table(ConsoleSettings, tomllib.loads(config.read_text())["console"], "console")
    login_file = tmp_path / "login"
    login_file.touch(0o600)
    login_file.write_text("otto:a long password\n")

    @click.command()
    @console_options
    def ask(file, address):
        found = console_from_options(file, address)
        click.echo(f"{found.get('/echo', a='1')} {found.post('/echo')}")

    async def main():
        served = Console(settings, MetricRegistry(), "rocketmq_test_")
        served.get("/echo", lambda given: given)
        served.post("/echo", lambda given: given)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(served.run)

            def run(*words, env=None, address=f"https://{host}:{port}"):
                given = {"RMQ_GATEWAY_CONSOLE_LOGIN": "", "RMQ_GATEWAY_CONSOLE_LOGIN_FILE": "", **(env or {})}
                return CliRunner().invoke(ask, ["-c", str(config), "--console", address, *words], env=given)

            def talk():
                done = run("--login-file", str(login_file))
                assert (done.exit_code, done.output) == (0, "{'a': '1'} {}\n")
                by_variable = run(env={"RMQ_GATEWAY_CONSOLE_LOGIN": "otto:a long password"})
                assert by_variable.exit_code == 0
                by_file = run(env={"RMQ_GATEWAY_CONSOLE_LOGIN_FILE": str(login_file)})
                assert by_file.exit_code == 0
                looking = run(env={"RMQ_GATEWAY_CONSOLE_LOGIN": "vera:a long password"})
                assert "vera may only look" in looking.output
                assert "name and password" in run().output
                authority = str(files.certificate.parent / "ca.pem")
                by_authority = run("--console-ca", authority, "--login-file", str(login_file))
                assert "not valid for '127.0.0.1'" in by_authority.output, "then the address must be right"
                assert "use an address that is in the certificate" in by_authority.output
                foreign = make_context(settings, authority)
                with pytest.raises(
                    ConsoleNotTrusted
                ):  # and not that nobody answers: then `sync` goes on alone
                    ConsoleClient(host, port, context=foreign).get("/echo")

            await trio.to_thread.run_sync(talk)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_console_user_asks_for_good_passwords_and_names():
    for words, given, problem in (
        (["otto"], "short\n", "at least 8 characters"),
        (["o:o"], "a long password\n", "name"),
        (["otto", "--role", "root"], "a long password\n", "root"),
    ):
        done = CliRunner().invoke(shadow, ["console-user", *words], input=given)
        assert done.exit_code != 0
        assert problem in done.output
        assert "a long password" not in done.output


def test_logins_come_from_private_files(tmp_path, monkeypatch):
    monkeypatch.setenv("RMQ_GATEWAY_CONSOLE_LOGIN", "")
    assert read_login("") == ""
    file = tmp_path / "login"
    file.write_text("otto:secret\n")
    file.chmod(0o640)
    with pytest.raises(ClickException, match="chmod 600"):
        read_login(str(file))
    file.chmod(0o600)
    assert read_login(str(file)) == "otto:secret"
    file.write_text("otto")
    with pytest.raises(ClickException, match="NAME:PASSWORD"):
        read_login(str(file))
    with pytest.raises(ClickException, match="nowhere"):
        read_login(str(tmp_path / "nowhere"))
    monkeypatch.setenv("RMQ_GATEWAY_CONSOLE_LOGIN", "otto")
    with pytest.raises(ClickException, match="NAME:PASSWORD"):
        read_login("")


def test_credentials_do_not_travel_readably(tmp_path):
    config = _configure(tmp_path, 9880, "")
    with pytest.raises(ClickException, match="in the clear"):
        make_console_client(config, "gateway.example.org:9880", login="otto:secret")
    make_console_client(config, "127.0.0.1:9880", login="otto:secret")
    make_console_client(config, "gateway.example.org:9880")
    config.write_text("[console]\nplain_http = true\n")
    make_console_client(config, "gateway.example.org:9880", login="otto:secret")
    make_console_client(None, "https://gateway.example.org:9880", login="otto:secret")


def test_only_the_first_certificate_of_the_configuration_is_trusted(tmp_path):
    authority = CertificateAuthority.create(tmp_path, "ca")
    files = authority.issue("console", ("console.example.org",), days=1)
    chain = tmp_path / "chain.pem"
    chain.write_text(files.certificate.read_text() + authority.files.certificate.read_text())
    settings = load_table(ConsoleSettings, {"tls": {"certificate": str(chain)}}, "console")
    context = make_context(settings, "")
    assert context.cert_store_stats()["x509"] == 1, "neither the chain nor the system's authorities"
    assert not context.get_ca_certs()
    assert not context.check_hostname
    by_authority = make_context(settings, str(authority.files.certificate))
    assert by_authority.check_hostname


def test_certificates_that_cannot_be_used_are_named(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.touch()
    settings = load_table(ConsoleSettings, {"tls": {"certificate": str(empty)}}, "console")
    with pytest.raises(
        ClickException, match=r"\[console.tls\] certificate .*empty.pem: holds no certificate"
    ):
        make_context(settings, "")
    with pytest.raises(ClickException, match=r"--console-ca nowhere\.pem: No such file"):
        make_context(settings, "nowhere.pem")
