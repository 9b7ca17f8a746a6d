"""Which brokers the primary has, and which of our ports stands for each of their addresses.

Not responsible for what passes through a listener (gate is), nor for addresses in answers (addresses is).
"""

import logging
import socket
from collections.abc import Callable
from typing import Final

import trio

from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster, split_address
from gateway.shadow.proxy.addresses import AddressBook, joined, packed
from gateway.shadow.proxy.context import Upstream
from gateway.shadow.proxy.port_book import KeptPorts
from gateway.shadow.proxy.settings import ListenSettings
from remoting.server import open_listeners
from storage.files import DiskFiles

log = logging.getLogger(__name__)

STEP: Final = 10
"""Between the ports of two brokers, as there is the VIP port below and the HA port above each."""
VIP_BELOW: Final = 2
"""How far the second port some clients use is below a broker's."""

OpenGate = Callable[[Upstream, list[socket.socket], int], None]
"""Serves an upstream on listeners; the number is what to add to the upstream's port when dialling."""
Listen = Callable[[str, int], list[socket.socket]]


class Topology:
    """One port for each address, whoever the broker there is later: as long as the process lives, and longer where
    ``kept`` has a file.

    Addresses are found by looking regularly, and in answers on their way to clients, so that no client learns of a
    broker before its listener is open.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ListenSettings,
        open_gate: OpenGate,
        listen: Listen = open_listeners,
        kept: KeptPorts | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._open_gate = open_gate
        self._listen = listen
        self._kept = kept or KeptPorts(DiskFiles(), "", settings.broker_port)
        self._next_port = settings.broker_port
        self._numeric: set[str] = set()
        self._failed = False
        self._look = trio.Event()
        self.ports: dict[str, int] = {}
        self.upstreams: dict[str, Upstream] = {}
        self.book = AddressBook(settings.advertise, self.port_of)

    async def run(self) -> None:
        """Looks at the primary's brokers until cancelled; at once after an address nobody knew."""
        while True:
            with trio.move_on_after(self._settings.refresh_s):
                await self._look.wait()
            self._look = trio.Event()
            await self.refresh()

    async def refresh(self) -> bool:
        """Looks once, and writes down the ports of addresses that are new; False when no namesrv answered."""
        answered = await self._refreshed()
        await self._kept.save()
        return answered

    async def _refreshed(self) -> bool:
        try:
            await self._cluster.refresh()
        except ASKING_FAILED as error:
            if not self._failed:
                log.warning("the primary's brokers are not known", extra={"reason": str(error)})
            self._failed = True
            return False
        self._failed = False
        for name, addresses in sorted(self._cluster.brokers.items()):
            for _, address in sorted(addresses.items()):
                if self.book.leaves_alone(address):
                    continue
                self._upstream(address).broker = name
                self.port_of(address)
        for address in self.ports.keys() - self._numeric:
            await self._resolve(address)
        return True

    def _upstream(self, address: str) -> Upstream:
        return self.upstreams.setdefault(address, Upstream(address))

    def port_of(self, address: str) -> int:
        """The port that stands for an address; opened when there is none yet, 0 when that is not possible."""
        known = self.ports.get(address)
        return self._open(address) if known is None else known

    def _open(self, address: str) -> int:
        try:
            split_address(address)
            listeners = self._listen_for(address)
        except (OSError, OverflowError, ValueError) as error:
            log.error("no listener for a broker", extra={"upstream": address, "reason": str(error)})
            return 0
        port: int = listeners[0].getsockname()[1]
        self.ports[address] = port
        if address not in self._settings.ports:
            self._kept.put(address, port)
        self.book.add(address, port)
        upstream = self._upstream(address)
        extra = {"broker": upstream.broker, "upstream": address, "port": port}
        log.info("listening for a broker", extra=extra)
        self._open_gate(upstream, listeners, 0)
        if self._settings.vip:
            self._open_vip(upstream, port)
        self._look.set()
        return port

    def _listen_for(self, address: str) -> list[socket.socket]:
        """On the port that was set for it, the one it had, or the next one of a row that is free."""
        host, given = self._settings.host, self._settings.ports.get(address)
        if given is not None:
            return self._listen(host, given)
        had = self._kept.get(address)
        if had is not None and had not in self._settings.ports.values():
            try:
                return self._listen(host, had)
            except OSError as error:
                extra = {"upstream": address, "port": had, "reason": str(error)}
                log.error(
                    "the port that a broker had is taken: clients have to learn another one", extra=extra
                )
        return self._listen(host, 0) if not self._settings.broker_port else self._next_free(host)

    def _next_free(self, host: str) -> list[socket.socket]:
        while True:
            port, self._next_port = self._next_port, self._next_port + STEP
            if port in self._settings.ports.values() or port in self._kept.taken():
                continue
            try:
                return self._listen(host, port)
            except OSError as error:
                log.warning("a port is taken", extra={"port": port, "reason": str(error)})

    def _open_vip(self, upstream: Upstream, port: int) -> None:
        """A broker without it serves all other clients."""
        try:
            self._open_gate(upstream, self._listen(self._settings.host, port - VIP_BELOW), -VIP_BELOW)
        except (OSError, OverflowError) as error:
            log.warning("no VIP channel", extra={"port": port - VIP_BELOW, "reason": str(error)})

    async def _resolve(self, address: str) -> None:
        """Message ids have numbers where a broker registered a name."""
        host, port = split_address(address)
        if packed(address) is None:
            try:
                found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                log.debug("a broker's name is not known", extra={"upstream": address, "reason": str(error)})
                return
            self.book.add_store_host(address, joined(str(found[0][4][0]), port))
        self._numeric.add(address)
