"""Listens on addresses and runs a `FrameConnection` for every peer; closes idle ones, and drains on shutdown.

It also bounds the buffers of all connections together, by closing the connections with the largest ones.
"""

import errno
import logging
import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from remoting.connection import Connection, Handler
from remoting.frame_connection import FrameConnection, FrameTaker
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.transport import SocketTransport, Transport

ConnectionType = Callable[..., FrameConnection]
"""Builds the connection of a new peer; it takes what `FrameConnection` takes."""

AcceptTransport = Callable[[SocketTransport], Awaitable[Transport]]
"""Turns an accepted socket into a transport, such as TLS over it. Raises OSError for a peer that is not served."""

log = logging.getLogger(__name__)

SWEEPS_PER_IDLE_TIME = 8
"""Searches for idle connections within the idle time: a connection is closed at most an eighth of it too late."""
SHED_INTERVAL_S = 1.0
SHEDS_PER_LIMIT = 8
"""The limits on unfinished frames and on unread answers are also checked after each growth by this fraction of them."""
ACCEPT_PAUSE_S = 0.05
MAX_ACCEPTS_PER_TURN = 64  # afterwards the other tasks get their turn
MAX_UNREAD_DRAIN_S = 2.0
DRAIN_TURN_S = 0.01
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server, for all its connections together, and the settings that the log names for two of them."""

    max_connections: int = 20_000
    max_connections_per_address: int = 0  # 0 means no limit
    backlog: int = 1024
    max_input_bytes: int = 512 * 1024 * 1024
    max_output_bytes: int = 256 * 1024 * 1024
    max_drain_s: float = 5.0
    connections_setting: str = ""
    """The setting of ``max_connections``; empty if there is none."""
    connections_per_address_setting: str = "maxConnectionsPerAddress"


def open_listeners(host: str | None, port: int, backlog: int = 1024) -> list[socket.socket]:
    """Bind and listen; a ``host`` of None, "" or "::" means all IPv6 and, where supported, IPv4 addresses.

    Port 0 takes a free one. Raises OSError when the port is taken.
    """
    if not host or host == "::":
        if socket.has_dualstack_ipv6():
            return [
                socket.create_server(
                    ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
                )
            ]
        host = host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return [socket.create_server((host, port), family=family, backlog=backlog)]


async def accept_connections(
    listener: socket.socket, accepted: Callable[[socket.socket, trio.Nursery], None], nursery: trio.Nursery
) -> None:
    """Call ``accepted`` with each connection and its nursery until cancelled; then close the listener."""
    listener.setblocking(False)
    fileno = listener.fileno()
    try:
        while True:
            await trio.lowlevel.wait_readable(fileno)
            try:
                # While many sockets are busy, the next turn comes late.
                for _ in range(MAX_ACCEPTS_PER_TURN):
                    sock, _ = listener.accept()
                    accepted(sock, nursery)
            except BlockingIOError:
                continue
            except OSError as error:
                await _accept_failed(error)
    finally:
        trio.lowlevel.notify_closing(fileno)
        listener.close()


async def _accept_failed(error: OSError) -> None:
    """Ignore a peer that disconnected at once; when out of file descriptors, wait until some are free."""
    if error.errno in _OUT_OF_RESOURCES:
        log.warning("cannot accept a connection", extra={"reason": str(error)})
        await trio.sleep(ACCEPT_PAUSE_S)


class RemotingServer:
    """Serves the remoting protocol on any number of listening sockets with one handler table.

    ``accept_transport`` may wait for the peer; connections count as open meanwhile. Without it all are plain.
    ``connection_type`` builds connections; tests pass another one than `FrameConnection` to inject faults.
    ``taker`` may handle frames in place of the handlers, where connections of that type allow it.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        limits: ConnectionLimits | None = None,
        server_limits: ServerLimits | None = None,
        on_batch: Callable[[], None] | None = None,
        on_open: Callable[[Connection], None] | None = None,
        reactor: Reactor | None = None,
        accept_transport: AcceptTransport | None = None,
        connection_type: ConnectionType = FrameConnection,
        taker: FrameTaker | None = None,
    ) -> None:
        self._connection_type = connection_type
        self._takers = () if taker is None else (taker,)
        self._handlers = handlers
        self._limits = limits or ConnectionLimits()
        self._server_limits = server_limits or ServerLimits()
        self._on_batch = on_batch
        self._on_open = on_open
        self._reactor = reactor
        self._accept_transport = accept_transport
        self._handshakes: set[trio.CancelScope] = set()
        self._accepting = trio.CancelScope()
        self._drained = trio.Event()
        self._stopped = False
        self._grown_bytes = 0
        self._grown_output_bytes = 0
        self._open_by_address: Counter[str] = Counter()
        self.connections: set[FrameConnection] = set()

    async def serve(self, listeners: list[socket.socket]) -> None:
        """Accept connections until cancelled or `drain`; return when every connection has ended."""
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as housekeeping:
                housekeeping.start_soon(self._close_idle_periodically)
                housekeeping.start_soon(self._limit_memory_periodically)
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for listener in listeners:
                            accepting.start_soon(accept_connections, listener, self._accepted, nursery)
                        await trio.sleep_forever()
                for handshake in self._handshakes:
                    handshake.cancel()
                await self._drained.wait()
                housekeeping.cancel_scope.cancel()
            for connection in list(self.connections):
                connection.close("server stopped")

    def _accepted(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        try:
            transport = SocketTransport(sock, self._reactor)
        except OSError:  # The peer has already disconnected.
            sock.close()
        else:
            nursery.start_soon(self._serve_counted, transport)

    async def _serve_counted(self, transport: SocketTransport) -> None:
        """Serve a connection, and count it among those of its address."""
        limits, address = self._server_limits, transport.remote[0]
        limit = limits.max_connections_per_address
        if 0 < limit <= self._open_by_address[address]:
            extra = {
                "remote": address,
                "limit": limit,
                "setting": limits.connections_per_address_setting,
            }
            log.warning("connection refused: too many from this address", extra=extra)
            transport.close()
            return
        self._open_by_address[address] += 1
        try:
            if self._accept_transport is None:
                await self.serve_transport(transport)
            else:
                await self._accept_and_serve(transport, self._accept_transport)
        finally:
            self._open_by_address[address] -= 1
            if not self._open_by_address[address]:
                del self._open_by_address[address]

    async def _accept_and_serve(self, socket_transport: SocketTransport, accept: AcceptTransport) -> None:
        if self._refuse_if_full(socket_transport):
            return
        transport, scope = None, trio.CancelScope()
        self._handshakes.add(scope)
        try:
            with scope:
                transport = await accept(socket_transport)
        except OSError as problem:
            extra = {"remote": socket_transport.remote, "reason": str(problem)}
            log.debug("connection not accepted", extra=extra)
        except Exception:
            log.exception("connection not accepted", extra={"remote": socket_transport.remote})
        finally:
            self._handshakes.discard(scope)
            if transport is None:
                socket_transport.close()
        if transport is not None:
            await self.serve_transport(transport)

    def _refuse_if_full(self, transport: Transport) -> bool:
        """Close a new connection and return True if the maximum number is open, or the server stops."""
        limits, count = self._server_limits, len(self.connections) + len(self._handshakes)
        if not self._stopped and count < limits.max_connections:
            return False
        extra: dict[str, Any] = {"connections": count}
        if limits.connections_setting and not self._stopped:
            extra |= {"limit": limits.max_connections, "setting": limits.connections_setting}
        log.warning("connection refused", extra=extra)
        transport.close()
        return True

    async def serve_transport(self, transport: Transport, received: bytes = b"") -> None:
        """Run one connection until it ends. ``received`` are bytes of its peer that somebody else has read.

        Never raises: a defect of one connection must not end the others.
        """
        if self._refuse_if_full(transport):
            return
        try:
            async with trio.open_nursery() as nursery:
                await self._run_connection(transport, received, nursery)
        except Exception:
            log.exception("connection ended by a defect", extra={"remote": transport.remote})

    async def _run_connection(self, transport: Transport, received: bytes, nursery: trio.Nursery) -> None:
        connection = self._connection_type(
            transport,
            self._handlers,
            nursery,
            self._limits,
            self._on_batch,
            self._count_large_input,
            self._count_large_output,
            *self._takers,
        )
        self.connections.add(connection)
        try:
            if self._on_open is not None:
                self._on_open(connection)
            connection.put_back(received)
            await connection.run()
        finally:
            connection.close("ended")
            self.connections.discard(connection)

    async def _close_idle_periodically(self) -> None:
        idle_s = self._limits.idle_close_s
        if math.isinf(idle_s) or idle_s <= 0:
            return
        while True:
            await trio.sleep(idle_s / SWEEPS_PER_IDLE_TIME)
            self.close_idle()

    async def _limit_memory_periodically(self) -> None:
        while True:
            await trio.sleep(SHED_INTERVAL_S)
            self.close_largest_inputs()
            self.close_largest_outputs()

    def close_idle(self) -> None:
        """Count one sweep without a read for every connection; close those that reach the idle time."""
        for connection in list(self.connections):
            connection.idle_ticks += 1
            if connection.idle_ticks > SWEEPS_PER_IDLE_TIME:
                connection.close("idle")

    def close_largest_inputs(self) -> None:
        """Close the connections with the largest unfinished frames while all together exceed the limit."""
        bytes_by_connection = {connection: connection.input_bytes for connection in self.connections}
        self._close_largest(bytes_by_connection, self._server_limits.max_input_bytes, "unfinished frames")

    def close_largest_outputs(self) -> None:
        """Close the peers with the most unread answers while all together exceed the limit."""
        bytes_by_connection = {connection: connection.output_bytes for connection in self.connections}
        self._close_largest(bytes_by_connection, self._server_limits.max_output_bytes, "unread answers")

    @staticmethod
    def _close_largest(bytes_by_connection: dict[FrameConnection, int], limit: int, what: str) -> None:
        remaining_bytes = total = sum(bytes_by_connection.values())
        if total <= limit:
            return
        closed = 0
        for connection in sorted(bytes_by_connection, key=bytes_by_connection.__getitem__, reverse=True):
            if remaining_bytes <= limit:
                break
            remaining_bytes -= bytes_by_connection[connection]
            closed += 1
            connection.close(f"{what} over the limit")
        extra = {"what": what, "bytes": total, "limit": limit, "closed": closed}
        log.warning("connections closed: memory limit of all connections exceeded", extra=extra)

    def _count_large_input(self, size: int) -> None:
        """Count the growth of large unfinished frames, and check their limit before they can exceed it by much."""
        self._grown_bytes += size
        if self._grown_bytes > self._server_limits.max_input_bytes // SHEDS_PER_LIMIT:
            self._grown_bytes = 0
            self.close_largest_inputs()

    def _count_large_output(self, size: int) -> None:
        """Count the growth of unread answers, and check their limit before they can exceed it by much."""
        self._grown_output_bytes += size
        if self._grown_output_bytes > self._server_limits.max_output_bytes // SHEDS_PER_LIMIT:
            self._grown_output_bytes = 0
            self.close_largest_outputs()

    def stop_accepting(self) -> None:
        """Close the listeners; connections go on until `drain`, so a successor can listen on the port meanwhile."""
        self._stopped = True
        self._accepting.cancel()

    async def drain(self) -> None:
        """Let running requests finish within ``max_drain_s``, let their answers leave, and end `serve`.

        Peers that do not read their answers delay it by at most MAX_UNREAD_DRAIN_S.
        """
        self.stop_accepting()
        with trio.move_on_after(self._server_limits.max_drain_s):
            await self._until_none(lambda connection: connection.has_running_tasks)
            await self.until_output_is_read()
        self._drained.set()

    async def until_output_is_read(self) -> None:
        """Let answers leave; peers that do not read theirs are waited for during MAX_UNREAD_DRAIN_S at most."""
        with trio.move_on_after(MAX_UNREAD_DRAIN_S):
            await self._until_none(lambda connection: connection.output_bytes > 0 or connection.is_sending)

    async def _until_none(self, is_so: Callable[[FrameConnection], bool]) -> None:
        while any(map(is_so, self.connections)):  # noqa: ASYNC110 - see below
            # Poll: an event would have to be set on the path of every answer, only for the shutdown.
            await trio.sleep(DRAIN_TURN_S)
