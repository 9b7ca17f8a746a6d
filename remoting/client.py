"""Opens a connection to a server and sends it typed requests, under trio.

`gateway/shadow/clusters` chooses servers and reconnects.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from remoting.connection import Connection, Handler
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.transport import Opener, Transport, connect


@asynccontextmanager
async def open_client(
    host: str,
    port: int,
    handlers: Mapping[int, Handler] | None = None,
    *,
    limits: ConnectionLimits | None = None,
    opener: Opener = connect,
) -> AsyncIterator[Connection]:
    """Open a connection for the length of the block; ``handlers`` serve the server's requests. Raises OSError.

    ``opener`` connects, by default without TLS.
    """
    async with open_client_over(await opener(host, port), handlers, limits=limits) as connection:
        yield connection


@asynccontextmanager
async def open_client_over(
    transport: Transport,
    handlers: Mapping[int, Handler] | None = None,
    *,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Connection]:
    """Open a client over a transport that is already connected."""
    async with trio.open_nursery() as nursery:
        connection = FrameConnection(transport, handlers or {}, nursery, limits or ConnectionLimits())
        nursery.start_soon(connection.run)
        try:
            yield connection
        finally:
            connection.close("done")
            nursery.cancel_scope.cancel()
