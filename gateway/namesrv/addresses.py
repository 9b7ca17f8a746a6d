"""Broker addresses as namesrvs hand them out, with `auto` for the host each client reached us by.

It does not find out any address itself: the asking connection's local host is given.
"""

AUTO_HOST = "auto"
_AUTO_PREFIX = AUTO_HOST + ":"


def join_address(host: str, port: int) -> str:
    """host:port, IPv6 hosts in brackets; an IPv4 address in IPv6 clothes is told as IPv4."""
    plain = host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host
    return f"[{plain}]:{port}" if ":" in plain and not plain.startswith("[") else f"{plain}:{port}"


def address_for(address: str, local_host: str) -> str:
    """The address to tell a client that reached us at `local_host`: `auto:port` is that host and port."""
    port = address.removeprefix(_AUTO_PREFIX)
    if port == address or not (port.isascii() and port.isdecimal()):
        return address
    return join_address(local_host, int(port))
