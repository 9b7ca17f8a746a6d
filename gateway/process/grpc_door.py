"""gRPC on the remoting ports: a connection that begins as HTTP/2 does is handed over to the gRPC front.

So a 5.x client works with an address that people already have. The front is loaded with the first such connection.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from gateway.process.grpc_endpoint import GrpcEndpoint
from remoting.frame_connection import FrameConnection
from remoting.server import ConnectionType
from remoting.transport import Transport


class GrpcDoor:
    """Hands connections over to the front that ``open_front`` returns, and opens at its first call."""

    def __init__(self, open_front: Callable[[], Awaitable[GrpcEndpoint]]) -> None:
        self._open_front = open_front
        self._opening = trio.Lock()

    def watching(self, connection_type: ConnectionType) -> ConnectionType:
        """Return a type of connections that are handed over once they turn out to be HTTP/2."""

        def build(*parts: Any) -> FrameConnection:
            connection = connection_type(*parts)
            connection.hand_over = self._hand_over
            return connection

        return build

    async def _hand_over(self, transport: Transport, received: bytes) -> None:
        try:
            async with self._opening:
                front = await self._open_front()
        except BaseException:
            transport.close()
            raise
        await front.serve_transport(transport, received)
