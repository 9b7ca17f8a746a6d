"""A slave for tests of masters: it reports what it is told to, and keeps what it is sent."""

import functools
import inspect
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from gateway.broker.replication.ha_wire import FRAME_HEAD, encode_report
from remoting.tests.virtual import AsyncTest, set_signature

MAX_TEST_S = 300
"""Ends a test that hangs; on a busy machine one takes many times what it takes alone."""


def real_time(test: AsyncTest) -> Callable[..., None]:
    """Run an async test under the real clock, because sockets of the system do not know another one."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def main() -> None:
            with trio.fail_after(MAX_TEST_S):
                await test(**fixtures)

        trio.run(main)

    set_signature(run, inspect.signature(test).parameters.values())
    return run


class FakeSlave:
    """A connection to a HA port. ``log`` are the bytes of the log received so far, from ``start`` on."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.start: int | None = None
        self.log = bytearray()
        self.frames: list[tuple[int, int]] = []
        self.acknowledges = True

    @property
    def end(self) -> int:
        """The physical offset of the next byte."""
        return (self.start or 0) + len(self.log)

    async def report(self, offset: int) -> None:
        await self.stream.send_all(encode_report(offset))

    async def read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await self.stream.receive_some(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    async def read_frame(self) -> tuple[int, bytes]:
        """Read a frame and, unless told otherwise, acknowledge it. Raises EOFError when the master closes."""
        return await self.read_piece(*FRAME_HEAD.unpack(await self.read_exactly(FRAME_HEAD.size)))

    async def read_piece(self, offset: int, size: int) -> tuple[int, bytes]:
        """Read the bytes of a frame whose head is read, as `read_frame` does."""
        body = await self.read_exactly(size)
        self.frames.append((offset, size))
        if self.start is None:
            self.start = offset
        assert offset == self.end
        self.log += body
        if size and self.acknowledges:
            await self.report(self.end)
        return offset, body

    async def read_until(self, end: int) -> None:
        """Read frames up to a physical offset."""
        while self.end < end:
            await self.read_frame()

    async def wait_closed(self) -> None:
        """Read on until the master closes the connection."""
        try:
            while await self.stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


@asynccontextmanager
async def connected(listener: socket.socket) -> AsyncIterator[FakeSlave]:
    """Connect to a listener."""
    stream = await trio.open_tcp_stream(*listener.getsockname()[:2])
    async with stream:
        yield FakeSlave(stream)
