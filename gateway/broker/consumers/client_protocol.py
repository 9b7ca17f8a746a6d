"""The protocol that a client speaks: remoting, or gRPC through a front that registers it at the broker.

To a broker every client is a connection that sends heartbeats. A front in the broker's process marks the connection
that stands for a client; one elsewhere, `rmq-gateway proxy` for example, says it in the header of the heartbeats, where
official brokers ignore it. Members of groups are listed with it.
"""

from typing import Final

from codec.command import Command
from remoting.connection import Connection
from remoting.connection_state import StateSlot

REMOTING: Final = "remoting"
GRPC: Final = "grpc"
PROTOCOL_FIELD: Final = "clientProtocol"
"""Header field of a heartbeat with the protocol of the client that a front registers."""
CLIENT_PROTOCOL: Final = StateSlot[str]("protocol of the client")


def protocol_of(connection: Connection, heartbeat: Command) -> str:
    """Return the protocol of the client that sends a heartbeat. Anything but gRPC counts as remoting."""
    stated = connection.state.get(CLIENT_PROTOCOL) or heartbeat.ext.get(PROTOCOL_FIELD)
    return GRPC if stated == GRPC else REMOTING
