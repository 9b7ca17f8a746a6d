"""The configuration of a controller, under the official keys where the official controller has them."""

import re
from dataclasses import dataclass
from typing import Final

from gateway.config.keys import key

_MEMBER: Final = r"[\w.]+-[^\s;]+:\d{1,5}"
DEFAULT_PEERS: Final = "n0-127.0.0.1:9878"
_ETCD_URL: Final = r"https?://[^\s;/]+"


@dataclass(frozen=True, slots=True)
class ControllerPeer:
    """A controller of the group: its id, and the address at which brokers find it."""

    member_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Source: ControllerConfig, 5.4.0."""

    group: str = key(
        "controllerDLegerGroup",
        "controllers",
        "name of the group of controllers; groups with different names may share an etcd cluster",
        pattern=r"[\w.-]{1,64}",
    )
    peers: str = key(
        "controllerDLegerPeers",
        DEFAULT_PEERS,
        "all controllers of the group, each with the address at which brokers find it: "
        "n0-host:port;n1-host:port (port 0 for a free one)",
        pattern=rf"{_MEMBER}(;{_MEMBER})*",
    )
    self_id: str = key(
        "controllerDLegerSelfId",
        "n0",
        "the one of controllerDLegerPeers that this controller is, whose port it opens",
        pattern=r"[\w.]+",
    )
    store_path: str = key(
        "controllerStorePath",
        "~/rocketmq-gateway/controller",
        "directory of the file with the state of a single controller",
        path=True,
    )
    etcd: str = key(
        "controllerEtcd",
        "",
        "addresses of the etcd members that hold the state, needed for several controllers: "
        "http://host:2379;http://host:2379; empty: the file in controllerStorePath",
        pattern=rf"({_ETCD_URL}(;{_ETCD_URL})*)?",
        unofficial=True,
    )
    etcd_user: str = key("controllerEtcdUser", "", "user for etcd; empty: none", unofficial=True)
    etcd_password: str = key(
        "controllerEtcdPassword", "", "password of controllerEtcdUser", unofficial=True, secret=True
    )
    etcd_ca: str = key(
        "controllerEtcdCa",
        "",
        "file with the certificates that https:// addresses of controllerEtcd are checked against; empty: those of "
        "the system",
        path=True,
        unofficial=True,
    )
    etcd_certificate: str = key(
        "controllerEtcdCert",
        "",
        "PEM file of the certificate that this controller shows etcd; empty: none",
        path=True,
        unofficial=True,
    )
    etcd_key: str = key(
        "controllerEtcdKey",
        "",
        "PEM file of its private key; empty: it is in controllerEtcdCert",
        path=True,
        unofficial=True,
    )
    lease_s: int = key(
        "controllerLeaseSeconds",
        5,
        "time after which another controller leads in the place of one that died, in seconds",
        low=2,
        high=60,
        unofficial=True,
    )
    scan_not_active_broker_interval_ms: int = key(
        "scanNotActiveBrokerInterval",
        5_000,
        "longest time between searches for brokers whose heartbeats do not come",
        low=100,
        high=600_000,
    )
    scan_inactive_master_interval_ms: int = key(
        "scanInactiveMasterInterval",
        5_000,
        "longest time between searches for broker names without a live master",
        low=100,
        high=600_000,
    )
    enable_elect_unclean_master: bool = key(
        "enableElectUncleanMaster",
        False,
        "whether a replica that is not in sync may become master when no other is alive; acknowledged messages may be "
        "lost then",
        live=True,
    )
    notify_broker_role_changed: bool = key(
        "notifyBrokerRoleChanged",
        True,
        "whether brokers are told of a new master; otherwise they learn it when they ask",
        live=True,
    )
    config_black_list: str = key(
        "configBlackList",
        "configBlackList;configStorePath",
        "keys that cannot be changed by request, separated by ;",
    )

    def all_peers(self) -> list[ControllerPeer]:
        """Return the controllers of the group."""
        return [_parse_peer(text) for text in self.peers.split(";") if text]

    def own_peer(self) -> ControllerPeer | None:
        """Return the entry of this controller; None if controllerDLegerPeers does not have it."""
        return next((peer for peer in self.all_peers() if peer.member_id == self.self_id), None)

    def etcd_urls(self) -> list[str]:
        """Return the addresses of etcd's members; empty if the state is in a file."""
        return [url for url in self.etcd.split(";") if url]

    def etcd_is_encrypted(self) -> bool:
        """Tell whether any member of etcd is reached with TLS."""
        return any(url.startswith("https://") for url in self.etcd_urls())


def _parse_peer(text: str) -> ControllerPeer:
    member_id, _, address = text.partition("-")
    host, _, port = address.rpartition(":")
    return ControllerPeer(member_id, host.strip("[]"), int(re.sub(r"^0+(?=\d)", "", port)))
