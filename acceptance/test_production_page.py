"""The configuration on the page "Run it in production safely" starts, and is closed to strangers."""

import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from acceptance.secured import dial, write_private
from compat_tests.clients.typed import messages, pull, send, send_request, topic_request
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.bodies.auth import UserInfo
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.auth import AuthCreateUser
from remoting.tls import client_context
from tools.processes import Gateway, environment

PAGE_FILE = Path(__file__).parents[1] / "docs" / "how-to" / "production.md"
PAGE = PAGE_FILE.read_text()
GATEWAY_SECRET, OTTO = "secret of the gateway", "otto:a long password"


def block(language: str) -> str:
    """Return the page's only block in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def run_command(
    directory: Path, *words: str, given: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gateway.commands.cli", *words]
    env = {**os.environ, **environment(directory, more)}
    return subprocess.run(line, input=given, env=env, capture_output=True, text=True, timeout=60, check=False)


def dial_as_root(directory: Path, address: str) -> BlockingClient:
    return dial(address, "root", "change this", tls=client_context(ca_file=directory / "ca.pem"))


class Site:
    """The folder of the configuration, both clusters, and the gateway."""

    def __init__(self, directory: Path, primary: Gateway, target: Gateway, gateway: Gateway) -> None:
        self.directory, self.primary, self.target, self.gateway = directory, primary, target, gateway


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("production")
    words = block("sh").replace("/etc/rocketmq", str(directory)).split()
    assert run_command(directory, *words[1:]).returncode == 0
    with ExitStack() as stack:
        primary, target = (
            stack.enter_context(start_cluster(directory, name)) for name in ("primary", "target")
        )
        for cluster, name in ((primary, "primary"), (target, "target")):
            write_private(directory / f"{name}.secret", GATEWAY_SECRET)
            with dial_as_root(directory, cluster.broker) as root:
                user = UserInfo(username="gateway", password=GATEWAY_SECRET, user_type="Super")
                root.ask(AuthCreateUser(username="gateway", data=user))
        text = block("toml").replace("/etc/rocketmq", str(directory))
        text = text.replace("namesrv.example.org:9876", primary.namesrv)
        text = text.replace("target.example.org:9876", target.namesrv)
        words = ["shadow", "console-user", "otto", "--role", "operator"]
        text += run_command(directory, *words, given="a long password\n").stdout
        write_private(directory / "shadow.toml", text)
        flags = ("-c", str(directory / "shadow.toml"))
        gateway = stack.enter_context(Gateway(directory / "gateway", *flags, command="shadow"))
        yield Site(directory, primary, target, gateway)
        for process in (primary, target, gateway):
            assert "Traceback" not in process.output()
            for secret in ("change this", "change-this", GATEWAY_SECRET, "a long password"):
                assert secret not in process.output()


def start_cluster(directory: Path, name: str) -> Gateway:
    """Start namesrv and broker with the page's configuration, on free ports and with a store of their own."""
    text = block("properties").replace("/etc/rocketmq", str(directory)).replace("httpPort=9881", "httpPort=0")
    text = text.replace("/var/lib/rocketmq", str(directory / name / "store"))
    write_private(directory / f"{name}.conf", text)
    return Gateway(directory / name, "-c", str(directory / f"{name}.conf"))


def test_servers_are_closed_to_strangers(site: Site) -> None:
    address = split_address(site.primary.broker)
    with BlockingClient(*address, timeout_s=15) as plain, pytest.raises(RemotingClosed):
        plain.ask(send_request("orders"))
    unsigned = BlockingClient(*address, timeout_s=15, tls=client_context(ca_file=site.directory / "ca.pem"))
    with unsigned, pytest.raises(RequestError, match="username cannot be null"):
        unsigned.ask(send_request("orders"))
    assert metrics_status(site, site.primary) == 401
    assert metrics_status(site, site.primary, Authorization="Bearer change-this-as-well") == 200
    with pytest.raises((ConnectionResetError, urllib.error.URLError)):
        metrics_status(site, site.primary, scheme="http")


def metrics_status(site: Site, server: Gateway, *, scheme: str = "https", **headers: str) -> int:
    request = urllib.request.Request(f"{scheme}://{server.ready['http']}/metrics", headers=headers)
    trusting = client_context(ca_file=site.directory / "ca.pem")
    try:
        with urllib.request.urlopen(request, timeout=60, context=trusting) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_messages_go_through_the_gateway_to_both_clusters(site: Site) -> None:
    with dial_as_root(site.directory, site.gateway.broker) as client:
        client.ask(topic_request("orders", 1))
        assert send(client, "orders", b"one", properties={"UNIQ_KEY": "PRODUCTION-1"}).queue_offset == 0
    for cluster in (site.primary, site.target):
        with dial_as_root(site.directory, cluster.broker) as root:
            found = eventually(lambda: bodies(root), 60)
        assert found == [b"one"]


def bodies(root: BlockingClient) -> list[bytes]:
    try:
        return [each.body for each in messages(pull(root, "orders"))]
    except RequestError:  # not there yet
        return []


def test_the_console_knows_its_operators(site: Site) -> None:
    where = f"https://127.0.0.1:{split_address(site.gateway.ready['console'])[1]}"
    words = ("shadow", "status", "-c", str(site.directory / "shadow.toml"), "--console", where)
    refused = run_command(site.directory, *words)
    assert refused.returncode == 1
    assert "name and password" in refused.stderr
    allowed = run_command(site.directory, *words, RMQ_GATEWAY_CONSOLE_LOGIN=OTTO)
    assert (allowed.returncode, allowed.stderr) == (0, "")
    login_file = site.directory / "login"
    write_private(login_file, f"{OTTO}\n")
    change = ("shadow", "mode", "orders", "strict-dual", *words[2:], "--login-file", str(login_file))
    assert run_command(site.directory, *change).returncode == 0
    assert any("user=otto" in line for line in site.gateway.lines("console action"))


def listeners(site: Site) -> dict[str, tuple[str, int]]:
    """Return the address of every port that the servers of the page listen on."""
    places = {
        "namesrv": site.primary.namesrv,
        "broker": site.primary.broker,
        "HTTP port": site.primary.ready["http"],
        "shadow namesrv": site.gateway.namesrv,
        "shadow broker": site.gateway.broker,
        "console": site.gateway.ready["console"],
    }
    return {name: ("127.0.0.1", split_address(place)[1]) for name, place in places.items()}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_every_listener_speaks_tls_1_2_and_newer(site: Site, version: ssl.TLSVersion) -> None:
    context = client_context(ca_file=site.directory / "ca.pem")
    context.set_ciphers("ALL:@SECLEVEL=0")
    # 1.1 is deprecated in the client as well, which says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    for name, place in listeners(site).items():
        with socket.create_connection(place, timeout=15) as sock:
            if version is ssl.TLSVersion.TLSv1_1:
                with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
                    context.wrap_socket(sock, server_hostname="127.0.0.1")
            else:
                with context.wrap_socket(sock, server_hostname="127.0.0.1") as secure:
                    assert secure.version() == version.name.replace("_", "."), name


def test_every_listener_shows_a_renewed_certificate(site: Site) -> None:
    """The files are replaced, and nothing is restarted."""
    before = {name: ssl.get_server_certificate(place) for name, place in listeners(site).items()}
    assert len(set(before.values())) == 1
    words = ("cert", str(site.directory), "--name", "renewed", "--host", "127.0.0.1")
    assert run_command(site.directory, *words).returncode == 0
    for ending in ("key", "pem"):
        (site.directory / f"renewed.{ending}").replace(site.directory / f"server.{ending}")
    trusting = client_context(ca_file=site.directory / "ca.pem")
    for name, place in listeners(site).items():
        eventually(partial(shows_another, place, before[name]))
        with socket.create_connection(place, timeout=15) as sock:
            trusting.wrap_socket(sock, server_hostname="127.0.0.1").close()


def shows_another(place: tuple[str, int], certificate: str) -> bool:
    return ssl.get_server_certificate(place) != certificate


def test_administrators_leave_lines(site: Site) -> None:
    lines = site.primary.lines("administrative request")
    created = [line for line in lines if "AUTH_CREATE_USER" in line]
    assert any("by=root" in line and "username=gateway" in line and "result=done" in line for line in created)
