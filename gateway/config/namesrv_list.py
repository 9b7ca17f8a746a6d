"""The settings of a broker that learns its namesrvs from an address server or from DNS."""

from dataclasses import dataclass

from gateway.config.keys import key
from toolkit.address_server import DEFAULT_DOMAIN, DEFAULT_SUBGROUP, address_server_url


@dataclass(frozen=True, slots=True)
class NamesrvListSettings:
    """Source: BrokerConfig, and BrokerStartup for the two keys of the address server, 5.4.0."""

    uses_address_server: bool = key(
        "fetchNamesrvAddrByAddressServer",
        False,
        "whether to register with the namesrvs that an address server lists, if namesrvAddr is empty",
    )
    address_server_domain: str = key(
        "rmqAddressServerDomain",
        DEFAULT_DOMAIN,
        "host[:port] of the address server; without a port it is 8080",
        pattern=r"(\[[0-9A-Fa-f:.%]+\]|[^\s;:/?#@]+)(:[0-9]{1,5})?",
    )
    address_server_subgroup: str = key(
        "rmqAddressServerSubGroup",
        DEFAULT_SUBGROUP,
        "last part of the path at the address server, /rocketmq/nsaddr",
        pattern=r"[A-Za-z0-9%|_.-]{1,255}",
    )
    fetch_interval_ms: int = key(
        "fetchNamesrvAddrInterval",
        10_000,
        "time between requests to the address server",
        low=1_000,
        high=3_600_000,
    )
    uses_dns: bool = key(
        "fetchNameSrvAddrByDnsLookup",
        False,
        "whether each host in namesrvAddr stands for all addresses that DNS has for it",
    )
    dns_period_ms: int = key(
        "updateNameServerAddrPeriod",
        120_000,
        "time between such DNS queries",
        low=1_000,
        high=3_600_000,
    )

    @property
    def url(self) -> str:
        """The address of the list at the address server; empty if it is not asked."""
        if not self.uses_address_server:
            return ""
        return address_server_url(self.address_server_domain, self.address_server_subgroup)
