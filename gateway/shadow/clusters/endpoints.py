"""Where the two clusters are: tables `[primary]` and `[target]`. Not responsible for clients' way to them."""

from dataclasses import dataclass
from functools import partial

from gateway.shadow.clusters.cluster import Cluster, split_address
from gateway.shadow.clusters.embedded_target import EmbeddedSettings
from gateway.shadow.clusters.security import CredentialSettings, UpstreamTls, make_signer, upstream_opener
from remoting.connection import Handler
from remoting.reactor import Reactor
from remoting.transport import connect
from toolkit.settings import SettingsError, setting


def check_namesrvs(table: str, namesrvs: list[str]) -> None:
    """Raises SettingsError for what is no "host:port"."""
    for address in namesrvs:
        try:
            split_address(address)
        except ValueError as error:
            raise SettingsError(f"{table}.namesrv: {error}") from error


@dataclass(frozen=True, slots=True)
class PrimarySettings:
    """The cluster whose clients come to the gateway."""

    namesrv: list[str] = setting(
        description="Its namesrvs, each of which gets a listener.", example=["10.0.0.1:9876"]
    )
    tls: UpstreamTls = setting(UpstreamTls, "How the gateway connects to the primary.")
    credentials: CredentialSettings = setting(CredentialSettings, "For whom the gateway asks the primary.")

    def __post_init__(self) -> None:
        if not self.namesrv:
            raise SettingsError("primary.namesrv: at least one address must be given")
        check_namesrvs("primary", self.namesrv)


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The cluster that traffic is mirrored to, and moves to in the end; none without a namesrv."""

    namesrv: list[str] = setting(
        list, "Its namesrvs; none: there is no target, traffic is forwarded only.", example=["127.0.0.1:9976"]
    )
    kind: str = setting(
        "any",
        "ours: brokers of this project, which keep the primary's queue offsets.",
        choices=("any", "ours"),
    )
    brokers: dict[str, str] = setting(
        dict,
        "Its broker for each of the primary's, by name; else the one of the same name, or the only one.",
        example={"broker-a": "broker-x"},
    )
    tls: UpstreamTls = setting(UpstreamTls, "How the gateway connects to the target.")
    credentials: CredentialSettings = setting(CredentialSettings, "For whom the gateway asks the target.")
    embedded: EmbeddedSettings = setting(
        EmbeddedSettings,
        "A target of this project that the gateway starts itself, instead of namesrv and kind.",
    )

    def __post_init__(self) -> None:
        check_namesrvs("target", self.namesrv)
        if self.embedded.store:
            if self.namesrv:
                raise SettingsError("target: either namesrv or embedded.store can be given")
            object.__setattr__(self, "namesrv", [self.embedded.namesrv])
            object.__setattr__(self, "kind", "ours")


def make_cluster(
    settings: PrimarySettings | TargetSettings,
    table: str,
    handlers: dict[int, Handler] | None = None,
    *,
    reactor: Reactor | None = None,
) -> Cluster:
    """One of the two clusters, as the gateway itself asks it. Raises SettingsError, which names the table."""
    return Cluster(
        settings.namesrv,
        opener=upstream_opener(settings.tls, partial(connect, reactor=reactor), f"{table}.tls"),
        sign=make_signer(settings.credentials, f"{table}.credentials"),
        handlers=handlers,
    )
