"""Helpers of tests: async tests in virtual time, and peers that tests play by hand."""

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
import trio.testing
from trio.testing import MockClock, memory_stream_pair

from codec.command import Command, encode_command
from codec.frames import FrameSplitter
from remoting.connection import Handler
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.transport import Buffer, StreamTransport

LONG_TURN_S = 60.0
"""A turn that no busy machine ends in the middle of what a test calls one read."""

AsyncTest = Callable[..., Awaitable[None]]


def set_signature(test: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> None:
    """Give a wrapper the parameters for which pytest is to look up fixtures."""
    test.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]


def virtual(test: AsyncTest) -> Callable[..., None]:
    """Run an async test under a clock that jumps ahead whenever every task waits."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        trio.run(functools.partial(test, **fixtures), clock=MockClock(autojump_threshold=0))

    set_signature(run, inspect.signature(test).parameters.values())
    return run


class TurnCounter:
    """The number of turns that another task had."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def counting_turns() -> AsyncIterator[TurnCounter]:
    """Count the turns of another task during the block: none are added while the block keeps the event loop."""
    turns = TurnCounter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        yield turns
        nursery.cancel_scope.cancel()


class Kernel:
    """A transport whose peer is the test: it decides what arrives and how many bytes are taken.

    With `reactive` the connection is called when something has arrived, as a reactor does.
    """

    reactive = False

    def __init__(self, room: int | None = None) -> None:
        self.remote = ("10.0.0.1", 50000)
        self.local = ("10.0.0.9", 10911)
        self.room = room
        self.sent = bytearray()
        self.writes = 0
        self.read_sizes: list[int] = []
        self.closed = False
        self.fail: Exception | None = None
        self._push, self._incoming = trio.open_memory_channel[bytes | Exception](1000)
        self._more_room = trio.Event()
        self._reader: Callable[[], None] | None = None

    def arrive(self, data: Exception | bytes | bytearray | memoryview) -> None:
        """Deliver bytes from the peer; b"" is its end, an exception an error of the kernel."""
        self._push.send_nowait(data if isinstance(data, Exception) else bytes(data))
        self._call_readable()

    def _call_readable(self):
        while self._reader is not None and self._incoming.statistics().current_buffer_used:
            self._reader()

    def take(self, room: int | None = None) -> None:
        """Let the peer read again."""
        self.room = room
        self._more_room.set()
        self._more_room = trio.Event()

    def commands(self) -> list[Command]:
        """Return the commands sent so far."""
        return FrameSplitter().feed(bytes(self.sent))

    def watch(self, readable: Callable[[], None]) -> bool:
        if self.reactive:
            self._reader = readable
            trio.lowlevel.current_trio_token().run_sync_soon(self._call_readable)
        return self.reactive

    def unwatch(self) -> None:
        self._reader = None

    def receive_now(self, max_bytes: int) -> bytes:
        self.read_sizes.append(max_bytes)
        data = self._incoming.receive_nowait()
        if isinstance(data, Exception):
            raise data
        return data

    async def receive(self, max_bytes: int) -> bytes:
        self.read_sizes.append(max_bytes)
        try:
            data = await self._incoming.receive()
        except trio.EndOfChannel:
            return b""
        if isinstance(data, Exception):
            raise data
        return data

    def send_now(self, data: Buffer) -> int:
        if self.fail or self.closed:
            raise self.fail or OSError("closed")
        if self.room == 0:
            raise BlockingIOError
        size = len(data) if self.room is None else min(len(data), self.room)
        if self.room is not None:
            self.room -= size
        self.sent += memoryview(data)[:size]
        self.writes += 1
        return size

    async def send_all(self, data: Buffer) -> None:
        left = memoryview(data)
        while left:
            with suppress(BlockingIOError):
                left = left[self.send_now(left) :]
            if left:
                await self._more_room.wait()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.unwatch()
            self._push.close()
            self._more_room.set()
            self._more_room = trio.Event()
            self._push, _ = trio.open_memory_channel(1)


class Bench:
    """One connection with a played peer, run in a nursery."""

    def __init__(
        self,
        nursery: trio.Nursery,
        handlers: Mapping[int, Handler] | None = None,
        limits: ConnectionLimits | None = None,
        on_batch: Callable[[], None] | None = None,
        room: int | None = None,
    ) -> None:
        self.kernel = Kernel(room)
        self.connection = FrameConnection(
            self.kernel, handlers or {}, nursery, limits or ConnectionLimits(max_turn_s=LONG_TURN_S), on_batch
        )
        nursery.start_soon(self.connection.run)

    async def feed(self, *pieces: bytes) -> list[Command]:
        """Lets bytes arrive one piece at a time and everything that follows happen."""
        for piece in pieces:
            self.kernel.arrive(piece)
            await settle()
        return self.kernel.commands()


async def settle() -> None:
    """Waits until nothing more happens at this moment."""
    await trio.testing.wait_all_tasks_blocked()


def frame(
    code: int = 1,
    opaque: int = 7,
    *,
    flag: int = 0,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    binary: bool = False,
) -> bytes:
    """Encode one request."""
    return encode_command(Command(code, opaque, flag, ext, body, binary=binary))


def transports() -> tuple[StreamTransport, StreamTransport]:
    """Return the two ends of a connection in memory."""
    here, there = memory_stream_pair()
    return (
        StreamTransport(here, remote=("10.0.0.9", 10911), local=("10.0.0.1", 50000)),
        StreamTransport(there, remote=("10.0.0.1", 50000), local=("10.0.0.9", 10911)),
    )
