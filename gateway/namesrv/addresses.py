"""Broker addresses as namesrvs hand them out, with ``auto`` for the host by which each client reached this server.

Only brokers of the namesrv's own process use ``auto``: `gateway.namesrv.registered_broker` resolves it for them alone.
An address that comes by request is handed out as it is.
"""

from typing import Final

from codec.hosts import format_host
from codec.java_numbers import parse_java_integer

AUTO_HOST: Final = "auto"
_AUTO_PREFIX: Final = AUTO_HOST + ":"


def join_address(host: str, port: int) -> str:
    """Return host:port, IPv6 hosts in brackets; an IPv4-mapped IPv6 address is written as IPv4."""
    plain = host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host
    return format_host((plain.strip("[]"), port))


def address_for(address: str, local_host: str) -> str:
    """Return the address for a client that connected to ``local_host``: ``auto:port`` becomes that host and port."""
    if not address.startswith(_AUTO_PREFIX):
        return address
    return join_address(local_host, parse_java_integer(address.removeprefix(_AUTO_PREFIX)))
