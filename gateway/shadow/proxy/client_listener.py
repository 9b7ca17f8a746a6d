"""One listener: accepts clients, dials the upstream for each, and runs the session between the two."""

import itertools
import logging
import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from gateway.shadow.proxy.listener_context import ListenerContext
from gateway.shadow.proxy.memory_guard import SESSIONS_PER_TURN
from gateway.shadow.proxy.session_driver import SessionDriver
from remoting.server import accept_connections
from remoting.transport import SocketTransport, Transport

log = logging.getLogger(__name__)

AdmitSocket = Callable[[socket.socket], Awaitable[Transport]]
"""Makes a transport of an accepted socket, perhaps after a TLS handshake. Raises OSError."""
DialUpstream = Callable[[str], Awaitable[Transport]]
"""Connects to an address of the primary. Raises OSError."""
SWEEPS_PER_REMEMBERED_TIME: Final = 8
"""Searches for overdue requests during the time for which a request is remembered (`remembered_s`)."""
MAX_CONCURRENT_DIALS: Final = 64
"""Clients of a listener that are connected to its upstream at a time. When thousands come at once, the upstream and all
other clients notice less of them."""
MAX_DIAL_WAITS: Final = 4
"""Time that a client may wait for its turn and its connection, in units of `connect_s`."""
FAILED_S: Final = 30.0
"""Time for which an address that could not be dialled is tried after the others."""
QUIET_S: Final = 0.1
"""Time without an answer after which a stopping listener expects no more of them."""
connection_numbers = itertools.count(1)
"""The numbers of clients' connections in exchanges, those of the gRPC port included."""


class ConnectionCount:
    """Counts the client connections of all listeners together, and those of each address; 0 stands for no limit."""

    def __init__(self, most: int, most_per_address: int = 0) -> None:
        self.open = 0
        self.refused_total = 0
        self._most = most
        self._most_per_address = most_per_address
        self._open_by_address: Counter[str] = Counter()

    @contextmanager
    def occupy_place(self, address: str) -> Iterator[None]:
        """Count a connection from an address while the block runs. Raises OSError if there are too many."""
        if self.open >= self._most:
            raise self._refuse(address, "connections", self._most)
        if 0 < self._most_per_address <= self._open_by_address[address]:
            raise self._refuse(address, "connections_per_address", self._most_per_address)
        self.open += 1
        self._open_by_address[address] += 1
        try:
            yield
        finally:
            self.open -= 1
            self._open_by_address[address] -= 1
            if not self._open_by_address[address]:
                del self._open_by_address[address]

    def _refuse(self, address: str, setting: str, limit: int) -> OSError:
        self.refused_total += 1
        extra = {"setting": f"listen.{setting}", "limit": limit, "remote": address}
        log.warning("connection refused: too many clients", extra=extra)
        return OSError("too many connections")


class ClientListener:
    """Gives every client of a listener its own connection to the upstream.

    ``addresses`` of the upstream are tried in this order, as clients do with several namesrvs. `buffered_bytes` and
    `unfinished_bytes` are the sums over all sessions, as of the last sweep of the `MemoryGuard`.
    """

    def __init__(
        self,
        context: ListenerContext,
        addresses: Sequence[str],
        dial: DialUpstream,
        admit: AdmitSocket,
        connections: ConnectionCount,
    ) -> None:
        self.context = context
        self.addresses = tuple(addresses)
        self._dial = dial
        self._admit = admit
        self._connections = connections
        self._dialing = trio.CapacityLimiter(MAX_CONCURRENT_DIALS)
        self._sessions: set[SessionDriver] = set()
        self.buffered_bytes = 0
        self.unfinished_bytes = 0
        self._accepting = trio.CancelScope()
        self._is_upstream_reachable = True
        self._failed_s: dict[str, float] = {}

    @property
    def session_count(self) -> int:
        """Number of connected clients."""
        return len(self._sessions)

    @property
    def sessions(self) -> Collection[SessionDriver]:
        """The sessions of the connected clients."""
        return self._sessions

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Serve until cancelled, or until `stop` has ended everything."""
        async with trio.open_nursery() as nursery:
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(self._give_up_old_requests)
                    for listener in listeners:
                        accepting.start_soon(accept_connections, listener, self._start_serving, nursery)

    def _start_serving(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._serve_socket, sock)

    async def _serve_socket(self, sock: socket.socket) -> None:
        try:
            # Counted before the TLS handshake: clients that never finish theirs occupy a place as well.
            with self._connections.occupy_place(SocketTransport(sock).remote[0]):
                await self._serve_safely(await self._admit(sock))
        except OSError as error:  # Too many, or the peer has left already, or the TLS handshake failed.
            log.debug("connection refused", extra={"reason": str(error)})
            sock.close()
        except trio.Cancelled:
            sock.close()
            raise

    async def _serve_safely(self, client: Transport) -> None:
        """Serve a client; a defect ends its session only."""
        try:
            await self.serve_client(client)
        except Exception:
            log.exception("session ended by a defect", extra={"remote": client.remote})
            client.close()

    async def serve_client(self, client: Transport) -> None:
        """Run the session of one client until it ends. A client whose upstream cannot be reached is closed."""
        self.context.counters.connections += 1
        try:
            upstream = await self._dial_upstream()
        except trio.Cancelled:
            client.close()
            raise
        if upstream is None:
            client.close()
            return
        async with trio.open_nursery() as nursery:
            session = SessionDriver(next(connection_numbers), client, upstream, self.context, nursery)
            self._sessions.add(session)
            try:
                await session.run()
            finally:
                self._sessions.discard(session)
                # Ends the tasks of the session's connections, which may still be waiting for a peer.
                nursery.cancel_scope.cancel()

    async def _dial_upstream(self) -> Transport | None:
        problem = "too many clients wait for a connection"
        with trio.move_on_after(MAX_DIAL_WAITS * self.context.settings.connect_s):
            # The limit is for the whole sequence of addresses, not for each attempt.
            async with self._dialing:
                for address in self._addresses_in_turn():
                    try:
                        transport = await self._dial(address)
                    except OSError as error:
                        problem = str(error) or type(error).__name__
                        self._failed_s[address] = trio.current_time()
                    else:
                        self._report_upstream_reachable(True)
                        return transport
        self.context.counters.unreachable += 1
        self._report_upstream_reachable(False, problem)
        return None

    def _addresses_in_turn(self) -> list[str]:
        """Return the addresses in their order, those that failed lately last.

        A namesrv that is silent would cost each new client the whole time limit.
        """
        since_s = trio.current_time() - FAILED_S
        return sorted(self.addresses, key=lambda address: self._failed_s.get(address, -math.inf) > since_s)

    def _report_upstream_reachable(self, reachable: bool, reason: str = "") -> None:
        """Log when the upstream becomes unreachable, and when it is reachable again."""
        if reachable == self._is_upstream_reachable:
            return
        self._is_upstream_reachable = reachable
        extra = {"upstream": self.context.upstream.address, "broker": self.context.upstream.broker}
        if reachable:
            log.info("upstream is reachable again", extra=extra)
        else:
            log.warning(
                "upstream cannot be reached: its clients are closed", extra={**extra, "reason": reason}
            )

    async def _give_up_old_requests(self) -> None:
        remembered_s = self.context.settings.remembered_s
        while True:
            await trio.sleep(remembered_s / SWEEPS_PER_REMEMBERED_TIME)
            before_s = self.context.clock.monotonic() - remembered_s
            for number, session in enumerate(list(self._sessions), 1):
                session.give_up_older_than(before_s)
                if not number % SESSIONS_PER_TURN:
                    await trio.lowlevel.checkpoint()

    async def leave_former_targets(self, address: str) -> None:
        """Close connections to brokers of the target that are not the master any more, because ``address`` is."""
        for number, session in enumerate(list(self._sessions), 1):
            session.leave_former_target(address)
            if not number % SESSIONS_PER_TURN:
                await trio.lowlevel.checkpoint()

    def stop_accepting(self) -> None:
        """Accept no more clients; `run` returns when the last session has ended."""
        self._accepting.cancel()

    async def stop(self) -> None:
        """Stop accepting clients, wait until answers stop arriving, and end the sessions."""
        self.stop_accepting()
        with trio.move_on_after(self.context.settings.drain_s):
            await self._wait_until_quiet()
        for session in list(self._sessions):
            session.end()
        while self._sessions:  # noqa: ASYNC110 - each ends within its linger time
            await trio.sleep(QUIET_S / 10)

    async def _wait_until_quiet(self) -> None:
        """Wait until no answer has come for `QUIET_S`.

        The number of outstanding answers is unknown, and a long poll may take longer than this anyway.
        """
        counters, answers_before = self.context.counters, -1
        while self._sessions and counters.answers != answers_before:
            answers_before = counters.answers
            await trio.sleep(QUIET_S)
