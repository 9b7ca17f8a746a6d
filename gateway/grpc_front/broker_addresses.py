"""The addresses of brokers to which a gRPC front may connect (``grpcBrokerAddresses``).

A front connects to brokers at the addresses that they registered with a namesrv, and whoever reaches the namesrv can
register any. Without rules it would send its own signed requests and clients' messages to ports of its machine, or to
the metadata service of a cloud. Host names are resolved here and the connection is opened to the address that was
checked, because a name may stand for another address a moment later.

Namesrvs are configured, so they are always permitted.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from codec.hosts import MAX_DIALED_PORT, format_host
from codec.java_numbers import quoted
from remoting.transport import Address, Opener, Transport

log = logging.getLogger(__name__)

IpAddress = IPv4Address | IPv6Address
ResolveHost = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a host. Raises OSError."""

SETTING: Final = "grpcBrokerAddresses"
MAX_LOGGED_REFUSALS: Final = 1_000
"""Addresses whose refusal is logged: anybody can register any number of them."""


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Permits a network, or hosts by a pattern of their names; with ``port`` only that port."""

    target: IPv4Network | IPv6Network | str
    port: int | None = None

    def permits(self, host: str, address: IpAddress, port: int) -> bool:
        """Tell whether a broker that registered with this host, which has this address, may be connected to."""
        if self.port not in (None, port):
            return False
        if isinstance(self.target, str):
            return fnmatchcase(host.lower(), self.target)
        return address.version == self.target.version and address in self.target


def parse_rules(text: str) -> list[AddressRule]:
    """Return the rules of a list such as "10.0.0.0/8;broker-1:10911;*.mq.svc". Raises ValueError."""
    return [_parse_rule(entry.strip()) for entry in text.split(";") if entry.strip()]


def _parse_rule(entry: str) -> AddressRule:
    network = _parse_network(entry)
    if network is not None:
        return AddressRule(network)
    head, colon, port_text = entry.rpartition(":")
    target, port = (head, int(port_text)) if colon and port_text.isdecimal() else (entry, None)
    if port is not None and not 0 < port <= MAX_DIALED_PORT:
        raise ValueError(f"{entry!r}: a port is a number from 1 to {MAX_DIALED_PORT}")
    network = _parse_network(target.removeprefix("[").removesuffix("]"))
    if network is not None:
        return AddressRule(network, port)
    # What looks like a mistyped address or network must not become the name of a host that never matches; "10.*" would
    # also permit any address to whoever has the name 10.example.
    is_numeric = target != "*" and set(target) <= set("0123456789.*?")
    if not target or is_numeric or set(target) & set("/:[]"):
        raise ValueError(f"{entry!r} is neither an address, nor a network, nor a host name")
    return AddressRule(target.lower(), port)


def _parse_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


class BrokerAddresses:
    """Decides about addresses. ``rules`` list those that are permitted.

    Without rules, all are but link-local, multicast and unspecified ones. Loopback addresses are only permitted once a
    namesrv was found on this machine: one that runs elsewhere names its own machine by them.
    """

    def __init__(self, rules: Iterable[AddressRule] = ()) -> None:
        self._rules = list(rules)
        self._has_local_namesrv = False

    def note_namesrv(self, transport: Transport) -> None:
        """Take note of a connection to a namesrv: both ends of one on this machine have the same host."""
        remote = _parse_address(transport.remote[0])
        is_local = transport.local[0] == transport.remote[0] or (remote is not None and remote.is_loopback)
        self._has_local_namesrv = self._has_local_namesrv or is_local

    def find_refusal(self, host: str, address: str, port: int) -> str | None:
        """Return why a broker that registered with this host must not be connected to; None if it may."""
        parsed = _parse_address(address)
        if parsed is None:
            return f"{address} is not an address"
        if self._rules:
            if any(rule.permits(host, parsed, port) for rule in self._rules):
                return None
            return f"{format_host((address, port))} is not listed in {SETTING}"
        if parsed.is_loopback:
            problem = (
                "" if self._has_local_namesrv else "a loopback address, and no namesrv is on this machine"
            )
        elif parsed.is_link_local:
            problem = "a link-local address"
        else:
            problem = "not an address of a machine" if parsed.is_multicast or parsed.is_unspecified else ""
        return f"{address} is {problem}; list it in {SETTING} to permit it" if problem else None


def _parse_address(text: str) -> IpAddress | None:
    """Return an address without its zone; the one of IPv4 that an IPv6 address stands for."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def guarded_opener(
    addresses: BrokerAddresses, namesrvs: Collection[Address], open_plain: Opener, resolve: ResolveHost
) -> Opener:
    """Return what connects to namesrvs, and to brokers at permitted addresses. Raises OSError for others."""
    logged: set[Address] = set()

    def refuse(host: str, port: int, reason: str) -> OSError:
        if (host, port) not in logged and len(logged) < MAX_LOGGED_REFUSALS:
            logged.add((host, port))
            log.warning(
                "address of a broker is not permitted",
                extra={"address": quoted(format_host((host, port))), "reason": reason},
            )
        return OSError(reason)

    async def open_permitted(host: str, port: int) -> Transport:
        if (host, port) in namesrvs:
            transport = await open_plain(host, port)
            addresses.note_namesrv(transport)
            return transport
        try:
            resolved = await resolve(host)
        except ValueError as error:  # UnicodeError: the name comes from a peer, and is not a host name.
            raise OSError(f"{quoted(host)!r} is not a host name: {error}") from error
        problem: OSError | None = None
        for address in resolved:
            refusal = addresses.find_refusal(host, address, port)
            if refusal is not None:
                problem = problem or refuse(host, port, refusal)
                continue
            try:
                return await open_plain(address, port)
            except OSError as error:
                problem = error
        raise problem or OSError(f"{quoted(host)} has no address")

    return open_permitted
