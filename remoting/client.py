"""Opens a connection to a server and asks it typed requests, under trio.

Not responsible for reconnecting or for choosing a server.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from remoting.connection import Connection, Handler
from remoting.limits import ConnectionLimits
from remoting.transport import Transport, connect


@asynccontextmanager
async def open_client(
    host: str,
    port: int,
    handlers: Mapping[int, Handler] | None = None,
    *,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Connection]:
    """A connection for the length of the block; ``handlers`` answer what the server asks. Raises OSError."""
    async with open_client_over(await connect(host, port), handlers, limits=limits) as connection:
        yield connection


@asynccontextmanager
async def open_client_over(
    transport: Transport,
    handlers: Mapping[int, Handler] | None = None,
    *,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Connection]:
    """The same over a transport that is already open."""
    async with trio.open_nursery() as nursery:
        connection = Connection(transport, handlers or {}, nursery, limits or ConnectionLimits())
        nursery.start_soon(connection.run)
        try:
            yield connection
        finally:
            connection.close("done")
            nursery.cancel_scope.cancel()
