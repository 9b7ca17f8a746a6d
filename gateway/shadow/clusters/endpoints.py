"""Endpoints of the two clusters: the tables `[primary]` and `[target]` with TLS and credentials, and their clusters.

The protocols live in `remoting.tls` and `remoting.acl`, TLS of listeners in `gateway.runtime.listener_tls`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from codec.command import Command
from codec.hosts import parse_host
from gateway.shadow.clusters.address_policy import AddressPolicy, parse_networks
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.embedded_target import EmbeddedSettings
from gateway.shadow.clusters.loop_guard import LoopGuard
from remoting import acl, tls
from remoting.acl import Credentials
from remoting.connection import Handler
from remoting.reactor import Reactor
from remoting.transport import Opener, connect
from toolkit.secret_file import read_secret_file
from toolkit.settings import SettingsError, setting


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """`[primary.tls]` and `[target.tls]`: TLS of the gateway's connections to namesrvs and brokers."""

    enabled: bool = setting(False, "connect with TLS")
    ca: str = setting(
        "", "PEM file of the authority that signs servers' certificates; none: the system's authorities"
    )
    verify: bool = setting(True, "refuse servers with other certificates; stock clients accept any")
    check_host: bool = setting(True, "require that the certificate is for the address that is dialled")
    certificate: str = setting("", "PEM file of the gateway's own certificate")
    key: str = setting("", "PEM file of the private key; none: the key is in the certificate's file")
    key_password: str = setting("", "password of the private key", secret=True)


@dataclass(frozen=True, slots=True)
class CredentialSettings:
    """`[primary.credentials]` and `[target.credentials]`: the user that signs the gateway's own requests.

    Clients' requests to the primary keep the signatures of the clients.
    """

    access_key: str = setting("", "access key of the user; none: requests are not signed")
    secret_key: str = setting("", "the user's secret", secret=True)
    secret_key_file: str = setting("", "file with the secret, used instead of secret_key")
    security_token: str = setting("", "security token, for servers that require one", secret=True)


def upstream_opener(
    settings: UpstreamTls, open_plain: Opener, where: str, *, application_protocols: Sequence[str] = ()
) -> Opener:
    """Return a function that opens connections as ``open_plain`` does, with TLS if configured. Raises SettingsError.

    ``application_protocols`` are offered to the server (ALPN).
    """
    if not settings.enabled:
        return open_plain
    try:
        context = tls.client_context(
            ca_file=Path(settings.ca) if settings.ca else None,
            verify=settings.verify,
            check_host=settings.check_host,
            certificate_file=Path(settings.certificate) if settings.certificate else None,
            key_file=Path(settings.key) if settings.key else None,
            key_password=settings.key_password,
        )
        if application_protocols:
            context.set_alpn_protocols(list(application_protocols))
    except OSError as error:
        raise SettingsError(f"{where}: {error}") from error
    return tls.tls_opener(context, open_plain)


def make_signer(settings: CredentialSettings, where: str) -> Callable[[Command], None] | None:
    """Return a function that signs the gateway's own requests; None if they are not signed. Raises SettingsError."""
    credentials = load_credentials(settings, where)
    return None if credentials is None else acl.make_signer(credentials)


def load_credentials(settings: CredentialSettings, where: str) -> Credentials | None:
    """Return the credentials to sign requests with; None if requests are not signed. Raises SettingsError."""
    if not settings.access_key:
        if settings.secret_key or settings.secret_key_file:
            raise SettingsError(f"{where}: access_key must be set together with a secret")
        return None
    if bool(settings.secret_key) == bool(settings.secret_key_file):
        raise SettingsError(f"{where}: set either secret_key or secret_key_file")
    secret = settings.secret_key or read_secret_file(settings.secret_key_file, f"{where}: secret_key_file")
    return Credentials(settings.access_key, secret, settings.security_token or None)


def check_namesrvs(table: str, namesrvs: list[str]) -> None:
    """Raise SettingsError for an address that is not "host:port"."""
    for address in namesrvs:
        try:
            parse_host(address)
        except ValueError as error:
            raise SettingsError(f"{table}.namesrv: {error}") from error


@dataclass(frozen=True, slots=True)
class PrimarySettings:
    """The cluster that the gateway's clients use."""

    namesrv: list[str] = setting(
        description="Addresses of its namesrvs; the gateway listens on one port for each.",
        example=["10.0.0.1:9876"],
    )
    broker_networks: list[str] = setting(
        list,
        "Networks (CIDR) in which its brokers may be; the gateway connects to no other address that route data names. "
        "Default: all except link-local, metadata services, multicast and unspecified addresses, and loopback only "
        "where a namesrv is on loopback itself.",
    )
    tls: UpstreamTls = setting(UpstreamTls, "TLS of connections to the primary.")
    credentials: CredentialSettings = setting(
        CredentialSettings, "Credentials of the gateway's own requests to the primary."
    )

    def __post_init__(self) -> None:
        if not self.namesrv:
            raise SettingsError("primary.namesrv: at least one address must be given")
        check_namesrvs("primary", self.namesrv)
        parse_networks(self.broker_networks, "primary.broker_networks")


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The cluster that traffic is mirrored to and that topics move to; none without a namesrv."""

    namesrv: list[str] = setting(
        list,
        "Addresses of its namesrvs; none: there is no target, and traffic is only forwarded.",
        example=["127.0.0.1:9976"],
    )
    kind: str = setting(
        "any",
        "any: any RocketMQ cluster; ours: brokers of this project, which preserve the primary's queue offsets.",
        choices=("any", "ours"),
    )
    brokers: dict[str, str] = setting(
        dict,
        "Target broker for each broker of the primary, by name; default: the broker of the same name, or the only one.",
        example={"broker-a": "broker-x"},
    )
    broker_networks: list[str] = setting(
        list,
        "Networks (CIDR) in which its brokers may be; the gateway connects to no other address that route data names. "
        "Default: all except link-local, metadata services, multicast and unspecified addresses, and loopback only "
        "where a namesrv is on loopback itself.",
    )
    tls: UpstreamTls = setting(UpstreamTls, "TLS of connections to the target.")
    credentials: CredentialSettings = setting(
        CredentialSettings, "Credentials of the gateway's own requests to the target."
    )
    embedded: EmbeddedSettings = setting(
        EmbeddedSettings,
        "A target of this project that the gateway starts itself; replaces namesrv and kind.",
    )

    def __post_init__(self) -> None:
        check_namesrvs("target", self.namesrv)
        parse_networks(self.broker_networks, "target.broker_networks")
        if self.embedded.store:
            if self.namesrv:
                raise SettingsError("target: either namesrv or embedded.store can be given")
            object.__setattr__(self, "namesrv", [self.embedded.namesrv])
            object.__setattr__(self, "kind", "ours")


@dataclass(frozen=True, slots=True)
class UpstreamDialer:
    """Opens connections to one cluster: ``opener`` connects only to addresses that ``policy`` allows."""

    policy: AddressPolicy
    opener: Opener


def make_upstream_dialer(
    settings: PrimarySettings | TargetSettings, table: str, reactor: Reactor | None = None
) -> UpstreamDialer:
    """Return what opens connections to one of the two clusters. Raises SettingsError, which names the table."""
    policy = AddressPolicy(settings.namesrv, settings.broker_networks, f"{table}.broker_networks")
    open_plain = policy.guard_opener(partial(connect, reactor=reactor))
    return UpstreamDialer(policy, upstream_opener(settings.tls, open_plain, f"{table}.tls"))


def make_cluster(
    settings: PrimarySettings | TargetSettings,
    table: str,
    handlers: dict[int, Handler] | None = None,
    *,
    reactor: Reactor | None = None,
    guard: LoopGuard | None = None,
) -> Cluster:
    """Return one of the two clusters for the gateway's own requests. Raises SettingsError, which names the table.

    ``guard`` marks the requests, and may stop them.
    """
    sign = make_signer(settings.credentials, f"{table}.credentials")
    return Cluster(
        settings.namesrv,
        opener=make_upstream_dialer(settings, table, reactor).opener,
        sign=sign if guard is None else guard.sign_with(sign),
        handlers=handlers,
    )
