"""Servers with access control, ours and the official one, and the users on them."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from codec.constants import ResponseCode
from compat_tests.clients.typed import topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint, access_control_settings
from compat_tests.plugin import skip_or_fail
from compat_tests.server import split_address
from remoting.acl import Credentials, make_signer
from remoting.blocking import BlockingClient
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from remoting.errors import RequestError
from remoting.requests.auth import AuthCreateAcl, AuthCreateUser, AuthDeleteUser
from tools.processes import Gateway

ROOT, SECRET = "root", "open sesame 4711"
SETTINGS = access_control_settings(ROOT, SECRET)


class Server(Protocol):
    """The addresses of a server under test."""

    @property
    def namesrv(self) -> str: ...

    @property
    def broker(self) -> str: ...


@contextmanager
def run_ours(directory: Path, *arguments: str) -> Iterator[Gateway]:
    """Run our namesrv and broker with access control; no secret may be in what they print."""
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
    with Gateway(directory, "--memory", "-c", str(conf), *arguments) as process:
        yield process
        assert "Traceback" not in process.output()
        assert SECRET not in process.output()


@contextmanager
def run_official() -> Iterator[OfficialEndpoint]:
    """Run the official servers; only their broker has access control."""
    try:
        endpoint = OfficialEndpoint(SETTINGS)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with endpoint:
        yield endpoint


def dial(
    address: str,
    user: str | None = ROOT,
    secret: str = SECRET,
    *,
    timeout_s: float = 15,
    tls: ssl.SSLContext | None = None,
) -> BlockingClient:
    """Connect a client that signs as a user; as nobody for None."""
    sign = None if user is None else make_signer(Credentials(user, secret))
    return BlockingClient(*split_address(address), timeout_s=timeout_s, tls=tls, sign=sign)


def write_private(file: Path, text: str) -> Path:
    """Write a file that only its owner can read, as the documentation asks for."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(text)
    return file


def secret_of(name: str) -> str:
    """Return the password of a user of `add_user`."""
    return f"secret of {name}"


def add_user(root: BlockingClient, name: str, *rules: tuple[str, str, str]) -> None:
    """Create a user with rules (resource, actions, decision)."""
    root.ask(AuthCreateUser(username=name, data=UserInfo(username=name, password=secret_of(name))))
    if rules:
        put_rules(root, name, *rules)


@contextmanager
def create_user(server: Server, name: str, *rules: tuple[str, str, str]) -> Iterator[BlockingClient]:
    """Create a user with rules (resource, actions, decision), and yield a client that signs as that user."""
    with dial(server.broker) as root:
        add_user(root, name, *rules)
    with dial(server.broker, name, secret_of(name)) as client:
        yield client
    # A connection of its own: building a program meanwhile may take longer than a server keeps an idle one.
    with dial(server.broker) as root:
        root.ask(AuthDeleteUser(username=name))


def put_rules(
    root: BlockingClient, name: str, *rules: tuple[str, str, str], source_ips: tuple[str, ...] = ()
) -> None:
    entries = [
        PolicyEntryInfo(
            resource=resource, actions=actions.split(","), source_ips=list(source_ips), decision=decision
        )
        for resource, actions, decision in rules
    ]
    acl = AclInfo(subject=f"User:{name}", policies=[PolicyInfo(policy_type="Custom", entries=entries)])
    root.ask(AuthCreateAcl(subject=f"User:{name}", data=acl))


def denial(client: BlockingClient, request: Any) -> str:
    """Return the remark of a denied request."""
    with pytest.raises(RequestError) as refused:
        client.ask(request)
    assert refused.value.code == ResponseCode.NO_PERMISSION
    return refused.value.remark or ""


def create_topics(server: Server, *topics: str) -> None:
    with dial(server.broker) as root:
        for topic in topics:
            root.ask(topic_request(topic, 1))
