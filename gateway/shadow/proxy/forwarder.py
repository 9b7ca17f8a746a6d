"""All listeners of a gateway: one for each namesrv and each broker address of the primary.

Not responsible for what is made of the traffic (the hub's observers are).
"""

import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Final

import trio

from gateway.runtime.metrics import Figure
from gateway.runtime.state_file import full_path
from gateway.shadow.clusters.cluster import Cluster, Opener, split_address
from gateway.shadow.proxy.addresses import joined
from gateway.shadow.proxy.context import Context, Dial, Upstream
from gateway.shadow.proxy.counters import Counts
from gateway.shadow.proxy.gate import Admit, Gate
from gateway.shadow.proxy.port_book import KeptPorts
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.proxy.topology import Topology
from gateway.shadow.traffic.exchange import Hub
from remoting import tls
from remoting.reactor import Reactor
from remoting.server import open_listeners
from remoting.tls import TlsMode
from remoting.transport import SocketTransport, Transport, connect
from storage.clock import Clock
from storage.files import DiskFiles

log = logging.getLogger(__name__)

SHED_TURN_S: Final = 1.0


def admit_with(
    reactor: Reactor | None, mode: TlsMode = TlsMode.DISABLED, context: ssl.SSLContext | None = None
) -> Admit:
    """Plain connections and those with TLS, as ``mode`` allows."""

    async def admit(sock: socket.socket) -> Transport:
        return await tls.accept(SocketTransport(sock, reactor), mode, context)

    return admit


class Forwarder:
    """Opens listeners as the primary's brokers become known, and runs them."""

    def __init__(
        self,
        settings: ListenSettings,
        primary: Cluster,
        hub: Hub,
        clock: Clock,
        reactor: Reactor | None = None,
        *,
        opener: Opener | None = None,
        admit: Admit | None = None,
        dial_target: Dial | None = None,
    ) -> None:
        self._settings = settings
        self._primary = primary
        self._hub = hub
        self._clock = clock
        self._opener = opener or partial(connect, reactor=reactor)
        self._admit = admit or admit_with(reactor)
        self._dial_target = dial_target
        self._nursery: trio.Nursery | None = None
        self.gates: list[Gate] = []
        kept = KeptPorts(DiskFiles(), full_path(settings.ports_file), settings.broker_port)
        self.topology = Topology(primary, settings, self._open_gate, kept=kept)
        self.namesrv_ports: list[int] = []

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the namesrv listeners are open and the primary's brokers were asked for once.

        Raises OSError when a namesrv's port is taken.
        """
        async with trio.open_nursery() as self._nursery:
            self._open_namesrvs()
            await self.topology.refresh()
            self._nursery.start_soon(self._shed)
            task_status.started()
            await self.topology.run()

    def _open_namesrvs(self) -> None:
        first = self._settings.namesrv_port
        namesrvs = self._primary.namesrvs
        for index, address in enumerate(namesrvs):
            listeners = open_listeners(self._settings.host, first + index if first else 0)
            self.namesrv_ports.append(listeners[0].getsockname()[1])
            # As a client would: another one when this one does not answer.
            self._open(Upstream(address), listeners, [*namesrvs[index:], *namesrvs[:index]], None)

    def _open_gate(self, upstream: Upstream, listeners: list[socket.socket], port_more: int) -> None:
        host, port = split_address(upstream.address)
        addresses = [joined(host, port + port_more)]
        if port_more:
            addresses.append(upstream.address)
        self._open(upstream, listeners, addresses, self._dial_target)

    def _open(
        self,
        upstream: Upstream,
        listeners: list[socket.socket],
        addresses: Sequence[str],
        dial_target: Dial | None,
    ) -> None:
        assert self._nursery is not None
        counts = Counts()
        context = Context(
            upstream, self._hub, self.topology.book, self._settings, counts, self._clock, dial_target
        )
        gate = Gate(context, addresses, self._opener, self._admit)
        self.gates.append(gate)
        self._nursery.start_soon(gate.run, listeners)

    async def _shed(self) -> None:
        while True:
            await trio.sleep(SHED_TURN_S)
            self.shed()

    def shed(self) -> None:
        """Closes the clients for whom most is held while all together hold more than the limit."""
        held = [each for gate in self.gates for each in gate.kept_by_link()]
        left = total = sum(kept for kept, _ in held)
        limit = self._settings.kept_total_bytes
        if total <= limit:
            return
        closed = 0
        for kept, link in sorted(held, key=itemgetter(0), reverse=True):
            if left <= limit:
                break
            left -= kept
            closed += 1
            link.cut()
        extra = {"bytes": total, "limit": limit, "closed": closed}
        log.warning("connections closed: all clients together over the limit", extra=extra)

    def ports(self) -> dict[str, int]:
        """Our port for each of the primary's broker addresses."""
        return dict(self.topology.ports)

    def figures(self) -> Iterator[Figure]:
        """What passed, by listener; open connections and bytes held for them."""
        for gate in self.gates:
            upstream = gate.context.upstream
            labels = {"broker": upstream.broker or "namesrv", "upstream": gate.addresses[0]}
            yield from gate.context.counts.figures(labels)
            yield Figure("forward_connections", gate.links, "Clients connected.", "gauge", labels)
            yield Figure("forward_kept_bytes", gate.kept_bytes, "Bytes held for them.", "gauge", labels)

    async def stop(self) -> None:
        """Accepts nobody more, lets answers arrive, and ends all links."""
        async with trio.open_nursery() as nursery:
            for gate in self.gates:
                nursery.start_soon(gate.stop)
