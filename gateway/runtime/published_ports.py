"""Recognises clients that reach a container through its published ports, and gives them the address they can dial.

A container cannot see which address a client on its host dials, only the address that the connection comes from. The
engine forwards connections to a published port from its own end of the container's network, which is the container's
default gateway (rootless engines: from the container's own address). Such a client, for example a test or a developer's
program, runs on the host and reaches the port at 127.0.0.1. All others, such as containers in the same network, dial
the container's own address.
"""

import logging
from pathlib import Path
from typing import Any, Final

from remoting.frame_connection import FrameConnection
from remoting.server import ConnectionType
from remoting.transport import Transport

log = logging.getLogger(__name__)

ROUTES: Final = Path("/proc/net/route")
ANYWHERE: Final = "00000000"
HOST_OF_PUBLISHED_PORTS: Final = "127.0.0.1"


def find_default_gateway(routes: Path = ROUTES) -> str | None:
    """Return the IPv4 address of the default gateway; None if there is none, or if it cannot be read."""
    try:
        lines = routes.read_text().splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and fields[1] == ANYWHERE and fields[2] != ANYWHERE:
            return ".".join(str(byte) for byte in reversed(bytes.fromhex(fields[2])))
    return None


def host_for(gateway: str | None, remote: str, local: str) -> str:
    """Return the host that a client can dial: 127.0.0.1 if it runs on the container's host."""
    return HOST_OF_PUBLISHED_PORTS if remote in (gateway, local) else local


def show_loopback_to_host(gateway: str | None, build: ConnectionType = FrameConnection) -> ConnectionType:
    """Return a type of connections in which 127.0.0.1 is the local address for clients on the host."""

    def build_connection(transport: Transport, *parts: Any) -> FrameConnection:
        host, port = transport.local
        transport.local = (host_for(gateway, transport.remote[0], host), port)
        return build(transport, *parts)

    return build_connection
