"""The primary's broker addresses, and the listener port that stands for each.

Theory of operation. Addresses are found by looking up the primary's brokers regularly, and in answers on their way to
clients: a client must not learn of a broker before there is a port for it. But route data names whatever registered
itself, so a port is first only reserved:

1. A new address gets a port, and its sockets listen. The client's answer names the port at once, whatever the address
   is like, so one slow broker delays no answer about the others. Connections wait in the kernel.
2. The address is checked in the background (`broker_check.py`): in an allowed network, and answers as a broker. All
   addresses are checked side by side.
3. If the check succeeds, connections are accepted. Clients that came early notice no more than a slow connect.
4. If it fails, the sockets are closed, which refuses connections as a dead broker does, and the check is repeated with
   back-off for as long as the primary names the address. An address that the policy refuses loses its port, and clients
   see it as the primary sent it.

The number of addresses is bounded (`broker_addresses`). Addresses that were never a broker make room for new ones, so
made-up registrations cannot keep a real broker out for long. An address that the primary no longer names is forgotten
after `forget_s`, once its sessions have ended. A port stands for the same address for as long as it is known, and if it
comes back later, also after a restart if `ports_file` is set (`listener_ports.py`).
"""

import logging
import math
import random
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

import trio

from codec.hosts import format_host, parse_host
from gateway.runtime.metrics import Metric
from gateway.runtime.process import ListenError
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.clusters.address_policy import AddressRefused, Endpoint
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, MAX_PORT, Cluster
from gateway.shadow.proxy.address_book import MAX_ADDRESS_CHARS, AddressBook, pack_address
from gateway.shadow.proxy.listener_context import UpstreamAddress
from gateway.shadow.proxy.listener_ports import ListenerPorts
from gateway.shadow.proxy.settings import ListenSettings
from remoting.server import open_listeners
from storage.files import DiskFiles

log = logging.getLogger(__name__)

PORT_STEP: Final = 10
"""Distance between two brokers' ports: each also has a VIP port below and an HA port above."""
VIP_PORT_OFFSET: Final = 2
"""A broker's VIP port, which some clients use, is this much below its port.

Its clients are connected to the broker's main port, which was checked: an official broker answers the same there.
"""
MIN_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 30.0
REFUSED_S: Final = 300.0
"""Time for which a refused address is not looked at again."""
MAX_REFUSED_ADDRESSES: Final = 4096


class RunningListener(Protocol):
    """A listener that accepts clients for one address."""

    @property
    def session_count(self) -> int:
        """Number of connected clients."""

    def stop_accepting(self) -> None:
        """Accept no more clients; the sessions continue."""


class CheckedAddresses(Protocol):
    """The part of `BrokerCheck` that decides whether an address is served."""

    async def check(self, address: str) -> None:
        """Raise OSError if an address is not a broker."""

    def endpoint_of(self, address: str) -> Endpoint | None:
        """Return the numeric address of a broker that was checked."""


StartListener = Callable[[UpstreamAddress, list[socket.socket]], RunningListener]
"""Starts to serve an upstream on listening sockets."""
Listen = Callable[[str, int], list[socket.socket]]


class PortState(Enum):
    """The states of an address."""

    CHECKING = "checking"
    """Its sockets listen; connections wait for the check."""
    SERVING = "serving"
    CLOSED = "closed"
    """The check failed and will be repeated; nothing listens on the port."""


@dataclass(slots=True)
class _BrokerPort:
    upstream: UpstreamAddress
    port: int
    sockets: list[socket.socket]
    seen_s: float
    state: PortState = PortState.CHECKING
    is_being_checked: bool = False
    failures: int = 0
    check_at_s: float = -math.inf
    listeners: list[RunningListener] = field(default_factory=list)

    @property
    def session_count(self) -> int:
        return sum(listener.session_count for listener in self.listeners)

    def needs_check(self, now_s: float) -> bool:
        """Tell whether the check that decides about serving is due."""
        return self.state is not PortState.SERVING and not self.is_being_checked and self.check_at_s <= now_s


class BrokerListeners:
    """One listener per broker address of ``cluster`` that passes ``checks``."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ListenSettings,
        start_listener: StartListener,
        checks: CheckedAddresses,
        listen: Listen = open_listeners,
        saved_ports: ListenerPorts | None = None,
        tasks: TaskSupervisor | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._start_listener = start_listener
        self._checks = checks
        self._listen = listen
        self._saved_ports = saved_ports or ListenerPorts(DiskFiles(), "", settings.broker_port)
        self.tasks = tasks or TaskSupervisor("forwarder")
        self._broker_ports: dict[str, _BrokerPort] = {}
        self._closed: set[str] = set()
        """Addresses in state CLOSED."""
        self._refused: OrderedDict[str, float] = OrderedDict()
        self._taken_ports: set[int] = set()
        self._failed_lookups = 0
        self.problem = ""
        """Why the primary's brokers are not known at the moment; "" while they are."""
        self._unknown_address_seen = trio.Event()
        self._check_due = trio.Event()
        self.refused_total = 0
        self.turned_away_total = 0
        self.book = AddressBook(settings.advertise, self.port_for, self._note_seen)

    @property
    def ports(self) -> dict[str, int]:
        """The ports by address, of addresses that are not served at the moment as well."""
        return {address: broker_port.port for address, broker_port in self._broker_ports.items()}

    @property
    def refused_count(self) -> int:
        """Number of refused addresses that are remembered."""
        return len(self._refused)

    def state_of(self, address: str) -> PortState | None:
        """Return the state of an address, None if it has no port."""
        broker_port = self._broker_ports.get(address)
        return None if broker_port is None else broker_port.state

    def upstream_of(self, address: str) -> UpstreamAddress:
        """Return the upstream that stands for an address with a port."""
        return self._broker_ports[address].upstream

    # -- looking up brokers ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look up and check the primary's brokers until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.tasks.keep_running, "look up brokers", self._look_up_repeatedly)
                nursery.start_soon(self.tasks.keep_running, "check brokers", self._check_when_due)
        finally:
            for broker_port in self._broker_ports.values():
                _close_sockets(broker_port.sockets)

    async def _look_up_repeatedly(self) -> None:
        """Look up the brokers regularly, and at once after an unknown address was seen."""
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
            self._note_failed_lookup(str(error) or type(error).__name__)
            return False
        if self._failed_lookups:
            log.info("primary answers again", extra={"failed_attempts": self._failed_lookups})
        self._failed_lookups, self.problem = 0, ""
        names = {
            address: name
            for name, addresses in sorted(self._cluster.brokers.items())
            for _, address in sorted(addresses.items())
            if not self.book.is_ignored(address)
        }
        now_s = trio.current_time()
        # A broker may have been renamed, and metrics show the name.
        for address in names.keys() & self._broker_ports.keys():
            self._broker_ports[address].seen_s = now_s
            self._broker_ports[address].upstream.broker = names[address]
        # New addresses get their ports in the order of broker names and ids, so that ports are the same at each start.
        for address in self._choose_new(names.keys() - self._broker_ports.keys(), names):
            self.port_for(address, names[address])
        self._forget_vanished(now_s)
        return True

    def _note_failed_lookup(self, reason: str) -> None:
        """Log the 1st, 2nd, 4th, 8th… failure in a row: a primary may be gone for hours."""
        self._failed_lookups += 1
        self.problem = f"the primary does not answer at {', '.join(self._cluster.namesrvs)}: {reason}"
        if self._failed_lookups.bit_count() == 1:
            extra = {
                "namesrv": ",".join(self._cluster.namesrvs),
                "reason": reason,
                "attempts": self._failed_lookups,
                "next_attempt_in_s": self._settings.refresh_s,
            }
            log.warning("primary does not answer: check primary.namesrv", extra=extra)

    def _choose_new(self, new: set[str], names: dict[str, str]) -> list[str]:
        """Return new addresses in the order in which they get ports; a random choice if there are too many.

        With a fixed order the first ones would get all the room, time and again.
        """
        if len(new) <= self._settings.broker_addresses - len(self._broker_ports):
            return [address for address in names if address in new]
        return random.sample(sorted(new), min(len(new), self._settings.broker_addresses))

    def _forget_vanished(self, now_s: float) -> None:
        for address, broker_port in list(self._broker_ports.items()):
            if now_s - broker_port.seen_s > self._settings.forget_s and not broker_port.session_count:
                log.info(
                    "broker is gone: its listener is closed",
                    extra={"upstream": address, "port": broker_port.port},
                )
                self._forget(address)

    # -- ports of addresses ---------------------------------------------------------------------------------------

    def port_for(self, address: str, broker: str = "") -> int:
        """Return the port that stands for an address, reserving one if there is none; 0 if it gets none."""
        broker_port = self._broker_ports.get(address)
        if broker_port is not None:
            broker_port.seen_s = trio.current_time()
            return broker_port.port
        if len(address) > MAX_ADDRESS_CHARS or trio.current_time() < self._refused.get(address, -math.inf):
            return 0
        return self._add_address(address, broker) if self._make_room(address) else 0

    def _note_seen(self, address: str) -> None:
        broker_port = self._broker_ports.get(address)
        if broker_port is not None:
            broker_port.seen_s = trio.current_time()

    def _make_room(self, address: str) -> bool:
        """Forget an address that never was a broker if there are too many; return whether there is room."""
        if len(self._broker_ports) < self._settings.broker_addresses:
            return True
        # The address that failed most often goes first. Addresses that are served, or wait for their first check, stay.
        if self._closed:
            self._forget(max(self._closed, key=lambda name: self._broker_ports[name].failures))
            return True
        self.turned_away_total += 1
        self._log_address("too many broker addresses: raise listen.broker_addresses", address)
        return False

    def _add_address(self, address: str, broker: str) -> int:
        try:
            parse_host(address)
            sockets = self._listen_for(address)
        except (OSError, OverflowError, ValueError) as error:
            self._refuse(address, f"clients reach it past the gateway: {error}", MAX_BACKOFF_S)
            return 0
        port: int = sockets[0].getsockname()[1]
        # A port is in use by one address at a time. If the kernel hands it out again, the old address has lost it.
        self._release_port(port)
        self._broker_ports[address] = _BrokerPort(
            UpstreamAddress(address, broker), port, sockets, trio.current_time()
        )
        self.book.add_listener(address, port)
        if not broker:
            # It was seen in an answer: the next look-up tells the broker's name, and saves the port.
            self._unknown_address_seen.set()
        self._check_due.set()
        return port

    def _release_port(self, port: int) -> None:
        """Take a port away from an address that nothing listens for: the kernel gave it to another one."""
        for address in [name for name, broker_port in self._broker_ports.items() if broker_port.port == port]:
            self._forget(address)

    def _forget(self, address: str) -> None:
        broker_port = self._broker_ports.pop(address)
        self._closed.discard(address)
        for listener in broker_port.listeners:
            # The sessions of its clients go on until they end by themselves.
            listener.stop_accepting()
        _close_sockets(broker_port.sockets)
        self.book.remove_listener(address)

    def _refuse(self, address: str, reason: str, for_s: float = REFUSED_S) -> None:
        self.refused_total += 1
        self._refused.pop(address, None)
        self._refused[address] = trio.current_time() + for_s
        if len(self._refused) > MAX_REFUSED_ADDRESSES:
            self._refused.popitem(last=False)
        self._log_address("broker address is refused", address, reason)

    def _log_address(self, text: str, address: str, reason: str = "") -> None:
        log.warning(text, extra={"upstream": address, "reason": reason})

    # -- opening sockets ------------------------------------------------------------------------------------------

    def _listen_for(self, address: str) -> list[socket.socket]:
        """Listen on the configured port of an address, else on its saved port, else on the next free one."""
        host, configured = self._settings.host, self._settings.ports.get(address)
        if configured is not None:
            try:
                return self._listen(host, configured)
            except (OSError, OverflowError) as error:
                raise ListenError(host, configured, "listen.ports", error) from error
        saved = self._saved_ports.find_port(address)
        # A configured port wins over a saved one of another address.
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

    def _assigned_ports(self) -> set[int]:
        """Return the ports that stand for addresses, or are reserved for them."""
        return {
            *self._settings.ports.values(),
            *self._saved_ports.assigned_ports(),
            *(broker_port.port for broker_port in self._broker_ports.values()),
        }

    def _listen_on_next_free_port(self, host: str) -> list[socket.socket]:
        assigned = self._assigned_ports() | self._taken_ports
        for port in range(self._settings.broker_port, MAX_PORT + 1, PORT_STEP):
            if port in assigned:
                continue
            try:
                return self._listen(host, port)
            except OSError as error:
                # Ports of other programs: not tried again for each new broker, until no free one is left.
                self._taken_ports.add(port)
                extra = {"port": port, "setting": "listen.broker_port", "reason": str(error)}
                log.warning("port is in use: trying the next one", extra=extra)
        self._taken_ports.clear()
        raise OSError("no free port from listen.broker_port on")

    # -- checking -------------------------------------------------------------------------------------------------

    async def _check_when_due(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                self._check_due = trio.Event()
                now_s = trio.current_time()
                for address, broker_port in self._broker_ports.items():
                    if broker_port.needs_check(now_s):
                        broker_port.is_being_checked = True
                        nursery.start_soon(self.check_address, address)
                next_checks_s = (
                    broker_port.check_at_s
                    for broker_port in self._broker_ports.values()
                    if broker_port.needs_check(math.inf)
                )
                with trio.move_on_at(min(next_checks_s, default=math.inf)):
                    await self._check_due.wait()

    async def check_address(self, address: str) -> None:
        """Check a reserved address, and then serve it, or close its port until the next check."""
        broker_port = self._broker_ports.get(address)
        if broker_port is None:
            return
        try:
            await self._checks.check(address)
        # Not in an allowed network. The address loses its port, and clients see it as the primary sent it.
        except AddressRefused as error:
            if self._broker_ports.get(address) is broker_port:
                self._forget(address)
            self._refuse(address, str(error))
        except OSError as error:
            self._close_until_next_check(address, broker_port, error)
        except Exception:
            log.exception("broker address cannot be checked", extra={"upstream": address})
            self._close_until_next_check(address, broker_port, OSError("defect in the gateway"))
        else:
            # Saved first: clients that connect may keep the port for longer than this process lives.
            if address not in self._settings.ports:
                self._saved_ports.assign_port(address, broker_port.port)
                await self._saved_ports.save()
            if self._broker_ports.get(address) is broker_port:
                self._serve(address, broker_port)
        finally:
            broker_port.is_being_checked = False
            self._check_due.set()

    def _close_until_next_check(self, address: str, broker_port: _BrokerPort, error: OSError) -> None:
        _close_sockets(broker_port.sockets)
        broker_port.state = PortState.CLOSED
        if self._broker_ports.get(address) is broker_port:
            self._closed.add(address)
        broker_port.failures += 1
        # The exponent is bounded as well: 2 to the power of a few thousand failures is an enormous number.
        backoff_s = min(MIN_BACKOFF_S * 2 ** min(broker_port.failures - 1, 10), MAX_BACKOFF_S)
        broker_port.check_at_s = trio.current_time() + backoff_s
        # Once per outage: the check is repeated for as long as the primary names the address.
        if broker_port.failures == 1:
            self._log_address(
                "broker address is not served: it does not answer as a broker", address, str(error)
            )

    def _serve(self, address: str, broker_port: _BrokerPort) -> None:
        if broker_port.state is PortState.CLOSED and not self._reopen(address, broker_port):
            return
        broker_port.state = PortState.SERVING
        self._closed.discard(address)
        broker_port.failures = 0
        self._note_store_host(address)
        extra = {"broker": broker_port.upstream.broker, "upstream": address, "port": broker_port.port}
        log.info("listening for a broker", extra=extra)
        # From now on the listener owns the sockets, and closes them.
        sockets, broker_port.sockets = broker_port.sockets, []
        broker_port.listeners.append(self._start_listener(broker_port.upstream, sockets))
        if self._settings.vip:
            self._open_vip_port(broker_port)

    def _reopen(self, address: str, broker_port: _BrokerPort) -> bool:
        """Listen again for an address whose port was closed: on the same port, or on another if that is taken."""
        try:
            broker_port.sockets = self._listen(self._settings.host, broker_port.port)
        except OSError:
            self._forget(address)
            # Another process has the port. Clients learn the new one with their next route.
            self.port_for(address, broker_port.upstream.broker)
            return False
        return True

    def _open_vip_port(self, broker_port: _BrokerPort) -> None:
        """Open the VIP port; if that fails, the broker still serves all other clients."""
        port = broker_port.port - VIP_PORT_OFFSET
        try:
            # An address may get its port, configured or saved, after this one is served.
            if port in self._assigned_ports():
                raise OSError("it is the port of another address")
            sockets = self._listen(self._settings.host, port)
        except (OSError, OverflowError) as error:
            log.warning("cannot open a VIP port", extra={"port": port, "reason": str(error)})
        else:
            broker_port.listeners.append(self._start_listener(broker_port.upstream, sockets))

    def _note_store_host(self, address: str) -> None:
        """Note the numeric address of a broker that registered a name, because message ids contain it."""
        endpoint = self._checks.endpoint_of(address)
        if endpoint is not None and pack_address(address) is None:
            self.book.add_store_host(address, format_host(endpoint))

    # -- metrics --------------------------------------------------------------------------------------------------

    def is_own_port(self, port: int) -> bool:
        """Tell whether one of these listeners has a port."""
        return any(
            port in (broker_port.port, broker_port.port - VIP_PORT_OFFSET)
            for broker_port in self._broker_ports.values()
        )

    def metrics(self) -> Iterator[Metric]:
        """Yield the number of addresses by state, and of those without a listener."""
        states = Counter(broker_port.state for broker_port in self._broker_ports.values())
        for state in PortState:
            labels = {"state": state.value}
            meaning = "Broker addresses of the primary by state."
            yield Metric("forward_broker_addresses", states[state], meaning, "gauge", labels)
        yield Metric(
            "forward_refused_addresses_total", self.refused_total, "Broker addresses refused by the policy."
        )
        yield Metric(
            "forward_turned_away_addresses_total",
            self.turned_away_total,
            "Times a broker address got no listener because there were too many.",
        )


def _close_sockets(sockets: Iterable[socket.socket]) -> None:
    for listening_socket in sockets:
        listening_socket.close()
