"""Decides which addresses of a cluster's route data the gateway may dial: route data is what anybody registered.

A cluster's namesrv accepts the registration of any "broker" at any host and port. Without a policy, such a registration
would make the gateway connect to internal services that only it can reach. `proxy/broker_check.py` also asks an address
whether it is a broker before it passes clients' bytes on.

Host names are resolved here, and exactly the address that was checked is dialed.
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

import trio

from codec.hosts import parse_host
from codec.java_numbers import quoted
from remoting.transport import Opener, Transport
from toolkit.settings import SettingsError

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
Endpoint = tuple[str, int]

REFUSED_NETWORKS: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "169.254.0.0/16",  # link-local, and the metadata service of most clouds
            "100.100.100.200/32",  # metadata service of Alibaba Cloud
            "168.63.129.16/32",  # platform service of Azure
            "192.0.0.192/32",  # metadata service of Oracle Cloud
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/128",
            "fe80::/10",
            "fd00:ec2::254/128",  # metadata service of AWS
            "fd20:ce::254/128",  # metadata service of Google Cloud
            "ff00::/8",
        ),
    )
)
"""Networks in which no broker is expected: unspecified, link-local, metadata services, multicast, reserved."""
LOOPBACK_NETWORKS: Final = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
RESOLVE_TIMEOUT_S: Final = 5.0
MAX_CONCURRENT_LOOKUPS: Final = 16
"""Name look-ups at a time. They have threads of their own: a slow name server must not hold up files being written."""
MAX_PINNED_ADDRESSES: Final = 4096


class AddressRefused(OSError):
    """An address that the gateway does not dial; the text names the setting that allows it."""


class AddressPolicy:
    """The networks that the brokers of one cluster may be in.

    ``networks`` are the allowed ones. Without any, all are allowed but `REFUSED_NETWORKS`, and loopback only if a
    namesrv of the cluster is on loopback itself. ``setting`` is the name of this setting for error messages. The
    namesrvs themselves come from the configuration and are always allowed.
    """

    def __init__(
        self,
        namesrvs: Sequence[str],
        networks: Iterable[str] = (),
        setting: str = "primary.broker_networks",
    ) -> None:
        self._setting = setting
        self._namesrvs = frozenset(map(parse_host, namesrvs))
        self._networks = parse_networks(networks, setting)
        self._is_local: bool | None = None
        self._pinned: dict[Endpoint, Endpoint] = {}
        self._lookups = trio.CapacityLimiter(MAX_CONCURRENT_LOOKUPS)

    async def resolve(self, host: str, port: int) -> Endpoint:
        """Return the numeric address to dial for a host and port of route data.

        Raises AddressRefused, and OSError for a name that cannot be resolved.
        """
        refused = ""
        for address in await self._look_up(host):
            if await self._is_allowed(address):
                return str(address), port
            refused = f" ({address})" if str(address) != host else ""
        raise AddressRefused(
            f"{quoted(host)}{refused} is not in a network that brokers may be in; to allow it: {self._setting}"
        )

    async def pin(self, host: str, port: int) -> Endpoint:
        """Resolve as `resolve` does, and let `open_allowed` dial just this address until `forget_pin`."""
        endpoint = await self.resolve(host, port)
        if len(self._pinned) >= MAX_PINNED_ADDRESSES:
            del self._pinned[next(iter(self._pinned))]
        self._pinned[host, port] = endpoint
        return endpoint

    def forget_pin(self, host: str, port: int) -> None:
        """Resolve the host again when it is dialed next."""
        self._pinned.pop((host, port), None)

    def guard_opener(self, open_plain: Opener) -> Opener:
        """Return an opener that connects only to namesrvs and to addresses that the policy allows."""

        async def open_allowed(host: str, port: int) -> Transport:
            if (host, port) not in self._namesrvs:
                host, port = self._pinned.get((host, port)) or await self.resolve(host, port)
            return await open_plain(host, port)

        return open_allowed

    async def _is_allowed(self, address: IpAddress) -> bool:
        addresses = _with_embedded(address)
        if self._networks:
            return all(_is_in(candidate, self._networks) for candidate in addresses)
        if any(_is_in(candidate, REFUSED_NETWORKS) for candidate in addresses):
            return False
        is_loopback = any(_is_in(candidate, LOOPBACK_NETWORKS) for candidate in addresses)
        return not is_loopback or await self._is_cluster_local()

    async def _is_cluster_local(self) -> bool:
        if self._is_local is None:
            is_local = False
            for host, _ in self._namesrvs:
                try:
                    is_local = is_local or any(
                        _is_in(candidate, LOOPBACK_NETWORKS)
                        for address in await self._look_up(host)
                        for candidate in _with_embedded(address)
                    )
                except OSError:
                    return False  # asked again for the next address
            self._is_local = is_local
        return self._is_local

    async def _look_up(self, host: str) -> list[IpAddress]:
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            pass
        with trio.move_on_after(RESOLVE_TIMEOUT_S):
            addresses = await trio.to_thread.run_sync(
                _resolve_name, host, limiter=self._lookups, abandon_on_cancel=True
            )
            return list(dict.fromkeys(addresses))
        raise OSError(f"the name {quoted(host)} was not resolved within {RESOLVE_TIMEOUT_S:g} s")


def parse_networks(networks: Iterable[str], setting: str) -> tuple[IpNetwork, ...]:
    """Return networks from texts such as "10.0.0.0/8". Raises SettingsError."""
    try:
        return tuple(ipaddress.ip_network(network, strict=False) for network in networks)
    except ValueError as error:
        raise SettingsError(f"{setting}: {error}") from error


def _resolve_name(host: str) -> list[IpAddress]:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [ipaddress.ip_address(str(entry[4][0])) for entry in entries]
    except ValueError as error:  # UnicodeError: the name is not a host name
        raise OSError(f"{quoted(host)} is not a host name: {error}") from error


def _is_in(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    return any(address in network for network in networks)


def _with_embedded(address: IpAddress) -> tuple[IpAddress, ...]:
    """Return an address and the IPv4 address that its packets go to, if it stands for one.

    An IPv4 address written as IPv6 (``::ffff:…``) is replaced by the IPv4 address.
    """
    if isinstance(address, IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        return address, IPv4Address(address.packed[-4:])
    return (address,) if address.sixtofour is None else (address, address.sixtofour)
