"""Moves bytes to and from a peer: sockets on the fast path, any trio stream elsewhere.

A send that the kernel accepts at once does not enter the scheduler, as trio's `SocketStream` would. `StreamTransport`
is for other streams, as in simulation tests. `connection.py` handles frames, limits and order.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import trio

from codec.java_numbers import quoted
from remoting.reactor import Reactor

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview


class Transport(Protocol):
    """A byte stream with a send that never waits."""

    remote: Address
    local: Address

    async def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes; ``b""`` is the end of the stream."""

    def watch(self, readable: Callable[[], None]) -> bool:
        """Call ``readable`` whenever `receive_now` has data; return False if this transport cannot do so."""

    def unwatch(self) -> None:
        """End these calls, until the next `watch`."""

    def receive_now(self, max_bytes: int, /) -> bytes:
        """Return received bytes, ``b""`` at the end of the stream. Raises BlockingIOError when there are none."""

    def send_now(self, data: Buffer, /) -> int:
        """Send as much as possible without waiting and return its length. Raises BlockingIOError for none."""

    async def send_all(self, data: Buffer) -> None:
        """Wait until everything is handed to the kernel or the stream."""

    def close(self) -> None: ...


def _address(name: object) -> Address:
    """Return the first two parts of a socket name; an IPv4 peer of a dual-stack listener appears as IPv4."""
    if isinstance(name, tuple) and len(name) >= 2:
        host = str(name[0])
        return (host[7:] if host.startswith("::ffff:") and "." in host else host), int(name[1])
    return "", 0


Opener = Callable[[str, int], Awaitable[Transport]]
"""Connects to a host and port. Raises OSError."""


class SocketTransport:
    """A non-blocking socket driven by trio's readiness calls.

    A trio SocketStream passes through the scheduler for each receive and each send. Here a send costs one system call
    if the kernel takes it at once. A receive costs one pass through the scheduler, or none with a `Reactor`. `send_now`
    and `receive_now` are the socket's own methods.
    """

    __slots__ = ("_fileno", "_reactor", "_socket", "local", "receive_now", "remote", "send_now")

    def __init__(self, sock: socket.socket, reactor: Reactor | None = None) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._fileno = sock.fileno()
        self._reactor = reactor
        self.receive_now: Callable[[int], bytes] = sock.recv
        self.send_now: Callable[[Buffer], int] = sock.send
        self.remote = _address(sock.getpeername())
        self.local = _address(sock.getsockname())

    async def receive(self, max_bytes: int) -> bytes:
        while True:
            try:
                await trio.lowlevel.wait_readable(self._fileno)
                return self._socket.recv(max_bytes)
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                return b""

    async def peek(self) -> bytes:
        """Wait for the next byte and leave it in place; ``b""`` is the end of the stream."""
        while True:
            try:
                await trio.lowlevel.wait_readable(self._fileno)
                return self._socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                return b""

    def watch(self, readable: Callable[[], None]) -> bool:
        if self._reactor is None:
            return False
        self._reactor.watch(self._fileno, readable)
        return True

    def unwatch(self) -> None:
        # The kernel may have given a closed socket's descriptor to another socket.
        if self._reactor is not None and self._socket.fileno() >= 0:
            self._reactor.unwatch(self._fileno)

    async def send_all(self, data: Buffer) -> None:
        remaining = memoryview(data)
        while remaining:
            with suppress(BlockingIOError):
                remaining = remaining[self.send_now(remaining) :]
            if remaining:
                await self._wait_writable()

    async def _wait_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self._fileno)
        except trio.ClosedResourceError as error:
            raise OSError("closed") from error

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self.unwatch()
            trio.lowlevel.notify_closing(self._fileno)
            self._socket.close()


class StreamTransport:
    """Any trio stream (memory streams of the simulation, TLS); every send has to wait."""

    def __init__(
        self, stream: trio.abc.Stream, *, remote: Address = ("memory", 0), local: Address = ("memory", 0)
    ):
        self._stream = stream
        self.remote = remote
        self.local = local

    async def receive(self, max_bytes: int) -> bytes:
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError(str(error)) from error

    def watch(self, readable: Callable[[], None]) -> bool:
        return False

    def unwatch(self) -> None:
        """Nothing is watched here."""

    def receive_now(self, max_bytes: int) -> bytes:
        raise BlockingIOError

    def send_now(self, data: Buffer) -> int:
        raise BlockingIOError

    async def send_all(self, data: Buffer) -> None:
        try:
            await self._stream.send_all(bytes(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        trio.lowlevel.spawn_system_task(trio.aclose_forcefully, self._stream)


async def connect(host: str, port: int, reactor: Reactor | None = None) -> SocketTransport:
    """Open a TCP connection, which ``reactor`` can watch.

    Raises ConnectionRefusedError if nobody listens there, and another OSError for other failures.
    """
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        # trio raises an OSError whose cause has those of all addresses of the host.
        attempts = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else ()
        if attempts and all(isinstance(attempt, ConnectionRefusedError) for attempt in attempts):
            raise ConnectionRefusedError(str(error)) from error
        raise
    except ValueError as error:  # UnicodeError: the name comes from a peer, and is not a host name.
        raise OSError(f"{quoted(host)!r} is not a host name: {error}") from error
    fileno = stream.socket.fileno()
    sock = socket.fromfd(fileno, stream.socket.family, stream.socket.type)
    stream.socket.close()
    return SocketTransport(sock, reactor)
