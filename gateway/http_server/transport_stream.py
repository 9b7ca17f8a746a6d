"""A transport of `remoting` as the trio stream that the HTTP connection of a console reads and writes."""

import trio

from remoting.transport import Buffer, Transport

DEFAULT_READ_BYTES = 4096


class TransportStream(trio.abc.Stream):
    """A stream over a transport, such as TLS. An OSError of the transport becomes a BrokenResourceError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.remote_address = transport.remote[0]

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self._transport.receive(max_bytes or DEFAULT_READ_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: Buffer) -> None:
        try:
            await self._transport.send_all(data)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._transport.close()
        await trio.lowlevel.checkpoint()
