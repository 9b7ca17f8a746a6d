"""Broker addresses as namesrvs hand them out, with ``auto`` for the host by which each client reached this server."""

AUTO_HOST = "auto"
_AUTO_PREFIX = AUTO_HOST + ":"


def join_address(host: str, port: int) -> str:
    """Return host:port, IPv6 hosts in brackets; an IPv4-mapped IPv6 address is written as IPv4."""
    plain = host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host
    return f"[{plain}]:{port}" if ":" in plain and not plain.startswith("[") else f"{plain}:{port}"


def address_for(address: str, local_host: str) -> str:
    """Return the address for a client that connected to ``local_host``: ``auto:port`` becomes that host and port."""
    port = address.removeprefix(_AUTO_PREFIX)
    if port == address or not (port.isascii() and port.isdecimal()):
        return address
    return join_address(local_host, int(port))
