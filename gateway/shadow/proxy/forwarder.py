"""All listeners of a gateway: one for each namesrv and each broker address of the primary."""

import logging
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import trio

from codec.hosts import parse_host
from gateway.runtime.metrics import Metric
from gateway.runtime.process import ListenError
from gateway.runtime.running_time import within_running_time
from gateway.runtime.state_file import absolute_path
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.clusters.address_policy import AddressPolicy, AddressRefused, Endpoint
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster, Sign
from gateway.shadow.clusters.endpoints import UpstreamDialer
from gateway.shadow.proxy.broker_check import BrokerCheck, is_local_host, unmap_host
from gateway.shadow.proxy.broker_listeners import BrokerListeners
from gateway.shadow.proxy.client_listener import ClientListener, ConnectionCount, DialUpstream
from gateway.shadow.proxy.listener_context import (
    ListenerContext,
    ListenerCounters,
    TargetDialer,
    TargetMasters,
    UpstreamAddress,
)
from gateway.shadow.proxy.listener_ports import ListenerPorts
from gateway.shadow.proxy.memory_guard import MemoryGuard
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.traffic.exchange import Hub
from remoting.reactor import Reactor
from remoting.server import open_listeners
from remoting.tls_acceptor import RELOAD_INTERVAL_S, TlsAcceptor
from remoting.transport import SocketTransport, Transport, connect
from storage.clock import Clock
from storage.files import DiskFiles
from toolkit.settings import SettingsError

log = logging.getLogger(__name__)

MEMORY_CHECK_INTERVAL_S: Final = 1.0
WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})


class Forwarder:
    """Opens listeners as the primary's brokers become known, and runs them.

    ``dialer`` opens connections to the primary, by default without TLS; ``sign`` signs the questions to its brokers.
    ``acceptor`` chooses between TLS and plain connections of clients, by default plain ones only. Without
    ``target_masters`` all requests go to the primary.
    """

    def __init__(
        self,
        settings: ListenSettings,
        primary: Cluster,
        hub: Hub,
        clock: Clock,
        reactor: Reactor | None = None,
        *,
        dialer: UpstreamDialer | None = None,
        sign: Sign | None = None,
        acceptor: TlsAcceptor | None = None,
        target_masters: TargetMasters | None = None,
        tasks: TaskSupervisor | None = None,
    ) -> None:
        self._settings = settings
        self._primary = primary
        self._hub = hub
        self._clock = clock
        if dialer is None:
            policy = AddressPolicy(primary.namesrvs)
            dialer = UpstreamDialer(policy, policy.guard_opener(partial(connect, reactor=reactor)))
        self._opener = dialer.opener
        self._reactor = reactor
        self._acceptor = acceptor
        self._target_masters = target_masters
        self.tasks = tasks or TaskSupervisor("forwarder")
        self._nursery: trio.Nursery | None = None
        self._connections = ConnectionCount(settings.connections, settings.connections_per_address)
        self._memory = MemoryGuard(settings.buffered_total_bytes, settings.unfinished_total_bytes)
        self.listeners: list[ClientListener] = []
        self._broker_check = BrokerCheck(
            dialer.opener, dialer.policy, timeout_s=settings.connect_s, sign=sign, is_own=self.is_own_endpoint
        )
        self.broker_listeners = BrokerListeners(
            primary,
            settings,
            self._start_broker_listener,
            self._broker_check,
            saved_ports=ListenerPorts(DiskFiles(), absolute_path(settings.ports_file), settings.broker_port),
            tasks=self.tasks,
        )
        self.namesrv_ports: list[int] = []

    async def _admit(self, sock: socket.socket) -> Transport:
        """Turn an accepted socket into a transport, plain or with TLS as the acceptor allows."""
        transport = SocketTransport(sock, self._reactor)
        return transport if self._acceptor is None else await self._acceptor.accept(transport)

    def is_own_port(self, port: int) -> bool:
        """Tell whether one of this gateway's listeners for namesrvs and brokers has a port."""
        return port in self.namesrv_ports or self.broker_listeners.is_own_port(port)

    def is_own_endpoint(self, endpoint: Endpoint) -> bool:
        """Tell whether one of this gateway's own listeners has an address."""
        host, port = endpoint
        # Only then bind a socket to find out: the port rules out nearly every address.
        return self.is_own_port(port) and is_local_host(host)

    async def is_own_address(self, address: str) -> bool:
        """Tell whether "host:port" leads to one of this gateway's ports, also to those that are not open yet."""
        host, port = parse_host(address)
        first = self._settings.namesrv_port
        planned = range(first, first + len(self._primary.namesrvs)) if first else ()
        if port not in planned and not self.is_own_port(port):
            return False
        try:
            with trio.fail_after(self._settings.connect_s):
                hosts = await _resolve_host(host, port)
                own_host = self._settings.host
                # `listen.host` may be a name such as "localhost".
                own_hosts = (
                    WILDCARD_HOSTS if own_host in WILDCARD_HOSTS else await _resolve_host(own_host, port)
                )
        except (OSError, UnicodeError, trio.TooSlowError):
            return False
        # A connection to 0.0.0.0 or :: reaches the loopback address.
        return any(
            is_local_host(host) and (bool(own_hosts & WILDCARD_HOSTS) or host in own_hosts | WILDCARD_HOSTS)
            for host in hosts
        )

    async def refuse_own_primary(self) -> None:
        """Raise SettingsError if a namesrv of the primary is a port of this gateway.

        Each connection to such a port would open the next one, until no file descriptor is left.
        """
        for address in self._primary.namesrvs:
            if await self.is_own_address(address):
                raise SettingsError(
                    f"primary.namesrv: {_own_port(address)}. Set the namesrv of the primary cluster"
                )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled.

        Reports started once the namesrv listeners are open and the primary's brokers were looked up. Raises OSError
        if a namesrv's port is taken.
        """
        async with trio.open_nursery() as self._nursery:
            self._open_namesrv_listeners()
            # Before the start is reported: a client may ask for routes at once, and needs the ports in them.
            await self.broker_listeners.refresh_brokers()
            self._nursery.start_soon(
                self.tasks.repeat,
                "limit memory of clients",
                MEMORY_CHECK_INTERVAL_S,
                self._limit_memory,
            )
            if self._acceptor is not None:
                self._nursery.start_soon(
                    self.tasks.repeat,
                    "reload certificates",
                    RELOAD_INTERVAL_S,
                    self._acceptor.reload_if_changed,
                )
            if self._target_masters is not None:
                self._nursery.start_soon(
                    self.tasks.repeat,
                    "follow masters of the target",
                    self._settings.refresh_s,
                    partial(self._follow_target, self._target_masters),
                )
            task_status.started()
            await self.broker_listeners.run()

    def _open_namesrv_listeners(self) -> None:
        first = self._settings.namesrv_port
        namesrvs = self._primary.namesrvs
        for index, address in enumerate(namesrvs):
            port = first + index if first else 0
            try:
                sockets = open_listeners(self._settings.host, port)
            except (OSError, OverflowError) as error:
                raise ListenError(self._settings.host, port, "listen.namesrv_port", error) from error
            self.namesrv_ports.append(sockets[0].getsockname()[1])
            # Like a client, try the other namesrvs if this one does not answer.
            self._start_listener(
                UpstreamAddress(address),
                sockets,
                [*namesrvs[index:], *namesrvs[:index]],
                self._dial_namesrv,
                None,
            )

    async def _dial_namesrv(self, address: str) -> Transport:
        """Connect to a namesrv, whose address comes from the configuration. Raises OSError.

        Its name may lead to this gateway only after the start, when DNS has changed.
        """
        if await self.is_own_address(address):
            raise AddressRefused(_own_port(address))
        host, port = parse_host(address)
        try:
            return await within_running_time(
                self._settings.connect_s,
                lambda: self._opener(host, port),
                lambda transport: transport.close(),
            )
        except trio.TooSlowError:
            raise OSError("no answer in time") from None

    def _start_broker_listener(
        self, upstream: UpstreamAddress, sockets: list[socket.socket]
    ) -> ClientListener:
        dial_target = None if self._target_masters is None else self._target_masters.dial
        return self._start_listener(
            upstream, sockets, [upstream.address], self._broker_check.dial, dial_target
        )

    def _start_listener(
        self,
        upstream: UpstreamAddress,
        sockets: list[socket.socket],
        addresses: Sequence[str],
        dial: DialUpstream,
        dial_target: TargetDialer | None,
    ) -> ClientListener:
        assert self._nursery is not None
        context = ListenerContext(
            upstream,
            self._hub,
            self.broker_listeners.book,
            self._settings,
            ListenerCounters(),
            self._clock,
            dial_target,
            self._memory,
        )
        listener = ClientListener(context, addresses, dial, self._admit, self._connections)
        self.listeners.append(listener)
        self._nursery.start_soon(self._run_listener, listener, sockets)
        return listener

    async def _run_listener(self, listener: ClientListener, sockets: list[socket.socket]) -> None:
        try:
            await self.tasks.attempt("listener", partial(listener.run, sockets))
        finally:
            # A listener whose broker is gone must not be swept and measured for ever.
            self.listeners.remove(listener)

    async def _follow_target(self, masters: TargetMasters) -> None:
        """Close the sessions' connections to brokers of the target that are not masters any more."""
        try:
            await masters.refresh()
        except CLUSTER_ERRORS as problem:
            log.debug("brokers of the target cannot be looked up", extra={"reason": str(problem)})
            return
        for listener in list(self.listeners):
            address = masters.address_of(listener.context.upstream.broker)
            # Without a master, requests wait for an answer where they are: it may come back.
            if address is not None:
                await listener.leave_former_targets(address)

    async def _limit_memory(self) -> None:
        await self._memory.sweep(self.listeners)

    def metrics(self) -> Iterator[Metric]:
        """Yield counters, open connections and buffered bytes by upstream; the bytes are as of the last sweep."""
        yield from self._memory.metrics()
        yield from self.broker_listeners.metrics()
        yield Metric(
            "forward_refused_connections_total",
            self._connections.refused_total,
            "Client connections closed because there were too many.",
        )
        listeners_by_upstream: dict[str, list[ClientListener]] = {}
        for listener in self.listeners:
            # A broker has a listener for its VIP port as well: they count together.
            listeners_by_upstream.setdefault(listener.addresses[0], []).append(listener)
        for address, listeners in listeners_by_upstream.items():
            yield from _upstream_metrics(address, listeners)

    async def stop(self) -> None:
        """Stop accepting clients, let answers arrive, and end all sessions."""
        async with trio.open_nursery() as nursery:
            for listener in list(self.listeners):
                nursery.start_soon(listener.stop)


def _upstream_metrics(address: str, listeners: Sequence[ClientListener]) -> Iterator[Metric]:
    labels = {"broker": listeners[0].context.upstream.broker or "namesrv", "upstream": address}
    counters = ListenerCounters.sum_of(listener.context.counters for listener in listeners)
    yield from counters.metrics(labels)
    for name, value, meaning in (
        ("connections", sum(listener.session_count for listener in listeners), "Clients connected."),
        (
            "buffered_bytes",
            sum(listener.buffered_bytes for listener in listeners),
            "Bytes buffered for them.",
        ),
        (
            "unfinished_bytes",
            sum(listener.unfinished_bytes for listener in listeners),
            "Bytes of unfinished frames among them.",
        ),
    ):
        yield Metric(f"forward_{name}", value, meaning, "gauge", labels)


async def _resolve_host(host: str, port: int) -> frozenset[str]:
    """Return the numeric addresses of a host. Raises OSError or UnicodeError."""
    entries = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(unmap_host(str(endpoint[0])) for *_, endpoint in entries)


def _own_port(address: str) -> str:
    return f"{address} is a port of this gateway, which would connect to itself without end"
