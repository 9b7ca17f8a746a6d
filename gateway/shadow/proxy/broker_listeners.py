"""The primary's broker addresses, and the listener port that stands for each.

Addresses are found by looking up the primary's brokers regularly, and in answers on their way to clients: a client
must not learn of a broker before its listener is open. A port stands for the same address until the process ends,
whichever broker uses that address later, and also after a restart if `ports_file` is set (`listener_ports.py`).
"""

import logging
import socket
from collections.abc import Callable
from typing import Final

import trio

from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster, split_address
from gateway.shadow.proxy.address_book import AddressBook, format_address, pack_address
from gateway.shadow.proxy.listener_context import UpstreamAddress
from gateway.shadow.proxy.listener_ports import ListenerPorts
from gateway.shadow.proxy.settings import ListenSettings
from remoting.server import open_listeners
from storage.files import DiskFiles

log = logging.getLogger(__name__)

PORT_STEP: Final = 10
"""Distance between two brokers' ports: each also has a VIP port below and an HA port above."""
VIP_PORT_OFFSET: Final = 2
"""A broker's VIP port, which some clients use, is this much below its port."""

StartListener = Callable[[UpstreamAddress, list[socket.socket], int], None]
"""Starts to serve an upstream on listening sockets. The number is added to the upstream's port when dialing it."""
Listen = Callable[[str, int], list[socket.socket]]


class BrokerListeners:
    """One listener per broker address of ``cluster``."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ListenSettings,
        start_listener: StartListener,
        listen: Listen = open_listeners,
        saved_ports: ListenerPorts | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._start_listener = start_listener
        self._listen = listen
        self._saved_ports = saved_ports or ListenerPorts(DiskFiles(), "", settings.broker_port)
        self._next_port = settings.broker_port
        self._resolved: set[str] = set()
        self._lookup_failed = False
        self._unknown_address_seen = trio.Event()
        self.ports: dict[str, int] = {}
        self.upstreams: dict[str, UpstreamAddress] = {}
        self.book = AddressBook(settings.advertise, self.port_for)

    async def run(self) -> None:
        """Look up the primary's brokers until cancelled: regularly, and at once after an unknown address was seen."""
        while True:
            with trio.move_on_after(self._settings.refresh_s):
                await self._unknown_address_seen.wait()
            self._unknown_address_seen = trio.Event()
            await self.refresh_brokers()

    async def refresh_brokers(self) -> bool:
        """Look up the brokers once and save the ports of new addresses; return False if no namesrv answered."""
        answered = await self._look_up_brokers()
        await self._saved_ports.save()
        return answered

    async def _look_up_brokers(self) -> bool:
        try:
            await self._cluster.refresh()
        except CLUSTER_ERRORS as error:
            if not self._lookup_failed:
                log.warning("cannot look up the primary's brokers", extra={"reason": str(error)})
            self._lookup_failed = True
            return False
        self._lookup_failed = False
        for name, addresses in sorted(self._cluster.brokers.items()):
            for _, address in sorted(addresses.items()):
                if self.book.is_ignored(address):
                    continue
                self._upstream_for(address).broker = name
                self.port_for(address)
        for address in self.ports.keys() - self._resolved:
            await self._resolve_name(address)
        return True

    def _upstream_for(self, address: str) -> UpstreamAddress:
        return self.upstreams.setdefault(address, UpstreamAddress(address))

    def port_for(self, address: str) -> int:
        """Return the port that stands for an address, opening a listener if there is none; 0 if that fails."""
        known = self.ports.get(address)
        return self._open_listener(address) if known is None else known

    def _open_listener(self, address: str) -> int:
        try:
            split_address(address)
            listeners = self._listen_for(address)
        except (OSError, OverflowError, ValueError) as error:
            log.error(
                "cannot open a listener for a broker", extra={"upstream": address, "reason": str(error)}
            )
            return 0
        port: int = listeners[0].getsockname()[1]
        self.ports[address] = port
        if address not in self._settings.ports:
            self._saved_ports.assign_port(address, port)
        self.book.add_listener(address, port)
        upstream = self._upstream_for(address)
        extra = {"broker": upstream.broker, "upstream": address, "port": port}
        log.info("listening for a broker", extra=extra)
        self._start_listener(upstream, listeners, 0)
        if self._settings.vip:
            self._open_vip_port(upstream, port)
        self._unknown_address_seen.set()
        return port

    def _listen_for(self, address: str) -> list[socket.socket]:
        """Listen on the configured port of an address, else on its saved port, else on the next free one."""
        host, configured = self._settings.host, self._settings.ports.get(address)
        if configured is not None:
            return self._listen(host, configured)
        saved = self._saved_ports.find_port(address)
        if saved is not None and saved not in self._settings.ports.values():
            try:
                return self._listen(host, saved)
            except OSError as error:
                extra = {"upstream": address, "port": saved, "reason": str(error)}
                log.error(
                    "saved port of a broker is in use: its clients have to learn another port", extra=extra
                )
        return (
            self._listen(host, 0) if not self._settings.broker_port else self._listen_on_next_free_port(host)
        )

    def _listen_on_next_free_port(self, host: str) -> list[socket.socket]:
        while True:
            port, self._next_port = self._next_port, self._next_port + PORT_STEP
            if port in self._settings.ports.values() or port in self._saved_ports.assigned_ports():
                continue
            try:
                return self._listen(host, port)
            except OSError as error:
                log.warning("port is in use", extra={"port": port, "reason": str(error)})

    def _open_vip_port(self, upstream: UpstreamAddress, port: int) -> None:
        """Open the VIP port; if that fails, the broker still serves all other clients."""
        try:
            self._start_listener(
                upstream, self._listen(self._settings.host, port - VIP_PORT_OFFSET), -VIP_PORT_OFFSET
            )
        except (OSError, OverflowError) as error:
            log.warning(
                "cannot open a VIP port", extra={"port": port - VIP_PORT_OFFSET, "reason": str(error)}
            )

    async def _resolve_name(self, address: str) -> None:
        """Resolve the host of a broker that registered a name, because message ids contain the numeric address."""
        host, port = split_address(address)
        if pack_address(address) is None:
            try:
                found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                log.debug("cannot resolve a broker's name", extra={"upstream": address, "reason": str(error)})
                return
            self.book.add_store_host(address, format_address(str(found[0][4][0]), port))
        self._resolved.add(address)
