"""One listener: accepts clients, dials the upstream for each, and runs a link between the two.

Not responsible for which listeners there are (topology is).
"""

import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from gateway.shadow.clusters.cluster import Opener, split_address
from gateway.shadow.proxy.context import Context
from gateway.shadow.proxy.link import Link
from remoting.server import accept
from remoting.transport import Transport

log = logging.getLogger(__name__)

Admit = Callable[[socket.socket], Awaitable[Transport]]
"""Makes a transport of an accepted socket, e.g. with a TLS handshake. Raises OSError."""
SWEEPS_PER_TIME: Final = 8
QUIET_S: Final = 0.1
_numbers = itertools.count(1)


class Gate:
    """Every client of a listener gets a connection of its own to the upstream.

    ``addresses`` are tried in this order, as clients do with several namesrvs.
    """

    def __init__(self, context: Context, addresses: Sequence[str], opener: Opener, admit: Admit) -> None:
        self.context = context
        self.addresses = tuple(addresses)
        self._opener = opener
        self._admit = admit
        self._links: set[Link] = set()
        self._sockets = 0
        self._accepting = trio.CancelScope()
        self._reachable = True

    @property
    def links(self) -> int:
        """How many clients are connected."""
        return len(self._links)

    @property
    def kept_bytes(self) -> int:
        """Bytes held for all of them."""
        return sum(link.kept_bytes for link in self._links)

    def kept_by_link(self) -> list[tuple[int, Link]]:
        """Bytes held for each of them."""
        return [(link.kept_bytes, link) for link in self._links]

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Serves until cancelled, or until `stop` has ended everything."""
        async with trio.open_nursery() as nursery:
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(self._sweep)
                    for listener in listeners:
                        accepting.start_soon(accept, listener, self._accepted, nursery)

    def _accepted(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._serve_socket, sock)

    async def _serve_socket(self, sock: socket.socket) -> None:
        self._sockets += 1
        try:
            if self._sockets > self.context.settings.connections:
                raise OSError("too many connections")
            transport = await self._admit(sock)
        except OSError as error:  # The peer has left already, or does not speak what it should.
            log.debug("connection refused", extra={"reason": str(error)})
            sock.close()
        else:
            await self.serve(transport)
        finally:
            self._sockets -= 1

    async def serve(self, client: Transport) -> None:
        """Runs the link of one client until it ends; a client whose upstream is not there is closed."""
        self.context.counts.connections += 1
        upstream = await self._dial()
        if upstream is None:
            client.close()
            return
        async with trio.open_nursery() as nursery:
            link = Link(next(_numbers), client, upstream, self.context, nursery)
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)
                nursery.cancel_scope.cancel()

    async def _dial(self) -> Transport | None:
        problem = "no address"
        for address in self.addresses:
            try:
                with trio.fail_after(self.context.settings.connect_s):
                    transport = await self._opener(*split_address(address))
            except (OSError, trio.TooSlowError) as error:
                problem = str(error) or "no answer in time"
            else:
                self._tell_reachable(True)
                return transport
        self.context.counts.unreachable += 1
        self._tell_reachable(False, problem)
        return None

    def _tell_reachable(self, reachable: bool, reason: str = "") -> None:
        """Says it once, each time it changes."""
        if reachable == self._reachable:
            return
        self._reachable = reachable
        extra = {"upstream": self.context.upstream.address, "broker": self.context.upstream.broker}
        if reachable:
            log.info("upstream is back", extra=extra)
        else:
            log.warning(
                "upstream cannot be reached: its clients are closed", extra={**extra, "reason": reason}
            )

    async def _sweep(self) -> None:
        remembered_s = self.context.settings.remembered_s
        while True:
            await trio.sleep(remembered_s / SWEEPS_PER_TIME)
            before_s = self.context.clock.monotonic() - remembered_s
            for link in list(self._links):
                link.give_up_older_than(before_s)

    async def stop(self) -> None:
        """Accepts nobody more, lets answers arrive until it is quiet, and ends the links."""
        self._accepting.cancel()
        with trio.move_on_after(self.context.settings.drain_s):
            await self._until_quiet()
        for link in list(self._links):
            link.end()
        while self._links:  # noqa: ASYNC110 - each ends within its linger time
            await trio.sleep(QUIET_S / 10)

    async def _until_quiet(self) -> None:
        """Nobody knows how many answers are outstanding; a pull may well wait for longer than this."""
        counts, seen = self.context.counts, -1
        while self._links and counts.answers != seen:
            seen = counts.answers
            await trio.sleep(QUIET_S)
