"""Secrets from start to stop: nothing that our servers print, answer or write shows one to others than its owner.

A namesrv, a broker and a shadow gateway run with users, signed requests between them, and keys of certificates that
have passwords. They serve requests of every code, are asked for metrics, crash, and fail to start. Then every byte of
their output, answers, command lines and files is searched.
"""

import base64
import json
import os
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from acceptance.secured import dial, write_private
from codec.command import Command
from compat_tests.clients.typed import send, send_request, topic_request
from compat_tests.endpoints.process import descendants
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.bodies.auth import UserInfo
from remoting.certificates import CertificateAuthority
from remoting.declare import REQUESTS
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.auth import AuthCreateUser, AuthGetUser, AuthListUser, AuthUpdateUser
from remoting.requests.namesrv import GetNamesrvConfig, UpdateNamesrvConfig
from remoting.requests.replication import GetReplicatedAccounts
from tools.fuzz.json_mutations import write_json
from tools.fuzz.valid_requests import RequestSource
from tools.fuzz.values import Chance
from tools.fuzz.world import FuzzWorld
from tools.processes import Gateway, ProcessEndedEarly

SECRETS = {
    name: f"tell-nobody-{name}"
    for name in (
        "root",
        "inner",
        "created",
        "changed",
        "server-key",
        "client-key",
        "primary",
        "target",
        "plain",
    )
}
SMALL_FILES = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=2000")
ANY_MODE = ("sh", "-c", 'umask 0; exec "$@"', "sh")
"""Runs a command whose files get whatever mode it gives them."""
NOT_SENT = {106, 904, 25, 318, GetReplicatedAccounts.code}
"""Codes of requests that are left out of the round of all codes: they change settings or end connections, or, the last
one, let a slave copy all accounts as a super user."""


def places_of(data: bytes) -> list[str]:
    """Return the names of the secrets in these bytes, plain or in base 64."""
    found = []
    for name, secret in SECRETS.items():
        encoded = base64.b64encode(secret.encode()).rstrip(b"=")[:-1]
        if secret.encode() in data or encoded in data:
            found.append(name)
    return found


@dataclass
class Seen:
    """Everything somebody could have seen while the servers ran, by place."""

    data: list[tuple[str, bytes]] = field(default_factory=list)

    def add(self, place: str, data: bytes | memoryview) -> None:
        self.data.append((place, bytes(data)))

    def add_processes(self, processes: Iterable[Gateway]) -> None:
        """Take the command lines, which every user of the machine can read."""
        for process in processes:
            for pid in descendants(process.pid):
                with suppress(OSError):
                    self.add("command line", Path(f"/proc/{pid}/cmdline").read_bytes())


@dataclass(frozen=True)
class Site:
    """The running servers and the directory with everything that they and their owner write."""

    directory: Path
    namesrv: Gateway
    broker: Gateway
    shadow: Gateway


def pair(names: tuple[str, str], user: str) -> str:
    return json.dumps({names[0]: user, names[1]: SECRETS[user]})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    owned = directory / "owned"
    owned.mkdir()
    authority = CertificateAuthority.create(owned)
    server = authority.issue("server", ["localhost", "127.0.0.1"], password=SECRETS["server-key"])
    client = authority.issue("client", password=SECRETS["client-key"])
    settings = f"""
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={pair(("username", "password"), "root")}
innerClientAuthenticationCredentials={pair(("accessKey", "secretKey"), "inner")}
tls.server.mode=permissive
tls.server.certPath={server.certificate}
tls.server.keyPath={server.key}
tls.server.keyPassword={SECRETS["server-key"]}
tls.enable=true
tls.client.trustCertPath={authority.files.certificate}
tls.client.certPath={client.certificate}
tls.client.keyPath={client.key}
tls.client.keyPassword={SECRETS["client-key"]}
"""
    conf = write_private(owned / "server.conf", settings)
    kv = f"kvConfigPath={directory}/namesrv/kv.json"
    store = f"configStorePath={directory}/namesrv/namesrv.properties"
    debug = ["--log-level", "debug", "-c", str(conf)]
    with (
        ExitStack() as stack,
        Gateway(
            directory / "n", *debug, "--set", kv, "--set", store, command="namesrv", prefix=ANY_MODE
        ) as namesrv,
        Gateway(
            directory / "b",
            *("-n", namesrv.namesrv, "--store", str(directory / "store"), *debug, "--set", "httpPort=0"),
            *(word for setting in SMALL_FILES for word in ("--set", setting)),
            command="broker",
            prefix=ANY_MODE,
        ) as broker,
    ):
        write_private(owned / "primary.secret", SECRETS["root"])
        target = stack.enter_context(Gateway(directory / "t", "--memory"))
        toml = f"""
[primary]
namesrv = ["{namesrv.namesrv}"]
credentials = {{ access_key = "root", secret_key_file = "{owned}/primary.secret" }}
[listen.tls]
certificate = "{server.certificate}"
key = "{server.key}"
key_password = "{SECRETS["server-key"]}"
[target]
namesrv = ["{target.namesrv}"]
credentials = {{ access_key = "target", secret_key = "{SECRETS["target"]}" }}
[capture]
directory = "{directory}/capture"
"""
        file = write_private(owned / "shadow.toml", toml)
        options = ["--log-level", "debug", "-c", str(file)]
        with Gateway(directory / "s", *options, command="shadow", prefix=ANY_MODE) as shadow:
            yield Site(directory, namesrv, broker, shadow)


def ask_everything(client: BlockingClient, seen: Seen, chance: Chance) -> None:
    """Send valid requests of every code as the super user, and take the answers."""
    source = RequestSource(chance, FuzzWorld())
    for code in sorted(REQUESTS.keys() - NOT_SENT):
        for _ in range(2):
            request = source.request(code)
            body = write_json(request.json_body) if request.has_json_body else request.body
            ext = {name: str(value) for name, value in request.ext.items()}
            try:
                answer = client.send_command(Command(code, ext=ext, body=body, language="JAVA"))
            except RemotingTimeout:  # it waits for a message
                break
            seen.add(f"answer to {code}", f"{answer.ext} {answer.remark}".encode())
            seen.add(f"answer to {code}", answer.body)


def administrate(site: Site, seen: Seen) -> None:
    """Create and change users, look at settings and users, and meet refusals."""
    with dial(site.broker.broker, "root", SECRETS["root"]) as root:
        root.ask(AuthCreateUser(username="clerk", data=UserInfo(password=SECRETS["created"])))
        root.ask(AuthUpdateUser(username="clerk", data=UserInfo(password=SECRETS["changed"])))
        change = UpdateBrokerConfig()
        change.body = b"fileReservedTime=71\n"
        root.ask(change)
        for request in (GetBrokerConfig(), AuthGetUser(username="root"), AuthListUser()):
            reply = root.ask(request)
            seen.add(type(request).__name__, bytes(reply.body) + str(reply.to_ext()).encode())
            seen.add(type(request).__name__, str(getattr(reply, "data", "")).encode())
        stolen = UpdateBrokerConfig()
        stolen.body = f"initAuthenticationUser={SECRETS['root']}\ntls.server.keyPassword=x\n".encode()
        with pytest.raises(RequestError) as refused:
            root.ask(stolen)
        seen.add("refused change", str(refused.value).encode())
        root.ask(topic_request("secrets", 1))
        send(root, "secrets")
    with dial(site.namesrv.namesrv, "root", SECRETS["root"]) as root:
        namesrv_change = UpdateNamesrvConfig()
        namesrv_change.body = b"deleteTopicWithBrokerRegistration=true\n"
        root.ask(namesrv_change)
        seen.add("GetNamesrvConfig", root.ask(GetNamesrvConfig()).body)
    for user, secret in (("root", "wrong"), ("nobody", SECRETS["root"]), ("clerk", SECRETS["created"])):
        with dial(site.broker.broker, user, secret) as client, pytest.raises(RequestError) as denied:
            client.ask(send_request("secrets"))
        seen.add("denial", str(denied.value).encode())


def read_http(site: Site, seen: Seen) -> None:
    for path in ("/metrics", "/healthz", "/readyz"):
        with urlopen(f"http://{site.broker.ready['http']}{path}", timeout=15) as answer:
            seen.add(path, answer.read())
    for path in ("/", "/config", "/metrics", "/status", "/report"):
        with suppress(OSError), urlopen(f"http://{site.shadow.ready['console']}{path}", timeout=15) as answer:
            seen.add(f"console {path}", answer.read())


def test_no_secret_is_shown_from_start_to_stop(site: Site) -> None:
    seen = Seen()
    processes = (site.namesrv, site.broker, site.shadow)
    administrate(site, seen)
    for address in (site.broker.broker, site.namesrv.namesrv, site.shadow.broker, site.shadow.namesrv):
        with suppress(RemotingClosed), dial(address, "root", SECRETS["root"], timeout_s=0.5) as root:
            ask_everything(root, seen, Chance(29))
    assert len({place for place, _ in seen.data}) > 60
    read_http(site, seen)
    seen.add_processes(processes)
    os.kill(site.broker.pid, signal.SIGABRT)  # writes the stacks of all threads, if anything does
    site.broker.wait()
    assert site.shadow.stop() == 0
    assert site.namesrv.stop() == 0
    for process in processes:
        assert process.lines("DEBUG")
        seen.add(f"output of {process.child.name}", process.output().encode())
    assert [(place, found) for place, data in seen.data if (found := places_of(data))] == []
    assert_files_are_private(site.directory)


def assert_files_are_private(directory: Path) -> None:
    """Assert that secrets are in users.json and the owner's files only, and that others can read neither, nor captures.

    The servers run with a umask that allows everything.
    """
    holders = set()
    for file in directory.rglob("*"):
        if not file.is_file() or file.parent == directory / "owned":
            continue
        if found := places_of(file.read_bytes()):
            holders.add(file.name)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, (file, found)
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700, (file.parent, found)
    for file in (directory / "capture").iterdir():
        assert not file.stat().st_mode & stat.S_IRWXO, file
    assert stat.S_IMODE((directory / "capture").stat().st_mode) == 0o700
    assert "users.json" in holders
    assert {name for name in holders if not name.startswith("users.json")} == set()


@pytest.mark.parametrize(
    ("file", "text", "settings"),
    [
        ("users.json", f'{{"users":{{"root":{{"password":"{SECRETS["root"]}",', []),
        ("users.json", f'{{"users":{{"root":"{SECRETS["root"]}"}}}}', []),
        ("acls.json", f'{{"acls":{{"root":"{SECRETS["root"]}"}}}}', []),
        ("plain_acl.yml", f"accounts:\n  - {{secretKey: {SECRETS['plain']}, x: [}}\n", ["aclEnable=true"]),
        (
            "plain_acl.yml",
            f"accounts:\n  - {{accessKey: a, secretKey: {SECRETS['plain']}}}\n",
            ["aclEnable=true"],
        ),
    ],
)
def test_a_failed_start_shows_no_secret(tmp_path: Path, file: str, text: str, settings: list[str]) -> None:
    write_private(tmp_path / "auth" / file, text)
    enabled = settings or ["authenticationEnabled=true"]
    lines = [*enabled, f"authConfigPath={tmp_path}/auth", f"plainAclFile={tmp_path}/auth/plain_acl.yml"]
    if not settings:
        lines.append(f"initAuthenticationUser={pair(('username', 'password'), 'root')}")
    conf = write_private(tmp_path / "server.conf", "\n".join(lines))
    output = ""
    try:
        with Gateway(tmp_path, "--store", str(tmp_path / "store"), "-c", str(conf)) as process:
            eventually(lambda: process.lines(file))  # what cannot be used is named
            output = process.output()
    except ProcessEndedEarly as ended:
        output = ended.output
    assert file in output
    assert places_of(output.encode()) == []


@pytest.mark.parametrize("key", ["initAuthenticationUser", "innerClientAuthenticationCredentials"])
@pytest.mark.parametrize("value", ['{"username":"root" "password":"%s"}', '"%s"', "%s", '{"password":"%s"}'])
def test_a_setting_that_does_not_fit_is_not_shown(tmp_path: Path, key: str, value: str) -> None:
    conf = write_private(
        tmp_path / "a.conf", f"authenticationEnabled=true\n{key}={value % SECRETS['root']}\n"
    )
    with pytest.raises(ProcessEndedEarly) as ended:
        Gateway(tmp_path, "--memory", "-c", str(conf))
    assert key in ended.value.output
    assert places_of(ended.value.output.encode()) == []


def test_broker_processes_get_secrets_through_no_command_line(tmp_path: Path) -> None:
    conf = write_private(
        tmp_path / "a.conf",
        f"authenticationEnabled=true\ninitAuthenticationUser={pair(('username', 'password'), 'root')}\n",
    )
    seen = Seen()
    place = ["--store", str(tmp_path / "store"), "--brokers", "2", "--processes", "-c", str(conf)]
    with Gateway(tmp_path, *place, "--log-level", "debug") as process:
        seen.add_processes([process])
        assert len(seen.data) >= 3
        assert process.stop() == 0
        seen.add("output", process.output().encode())
    assert [(place, found) for place, data in seen.data if (found := places_of(data))] == []
