"""The gRPC front of 5.x clients, in front of the brokers of this process or of those that a namesrv knows.

It has a port of its own (``grpcServerPort``), and serves the remoting ports as well where brokers are in this process
(`grpc_door.py`).

The modules of `gateway.grpc_front` and their libraries are imported only when they are needed: without them a start is
0.1 s faster and 4 MiB smaller.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from gateway.config.process import ProxyConfig, ServeConfig
from gateway.namesrv.service import NamesrvService
from gateway.process.parts import ProcessParts, connection_metrics, format_address
from gateway.runtime.metrics import Distribution, Metric
from gateway.runtime.server_tls import build_opener
from gateway.runtime.supervise import TaskSupervisor
from remoting.connection import Handler
from remoting.transport import Address, Opener, Transport, connect
from toolkit.settings import SettingsError

if TYPE_CHECKING:
    from gateway.broker.assembly.service import BrokerService
    from gateway.grpc_front.served_brokers import LocalBroker
    from gateway.grpc_front.service import BuildCluster

NO_PORT = -1
GRPC_PORT_SETTING = "grpcServerPort"
NAMESRV_TASK: Final = "ask the namesrvs for the masters"
"""The name under which `/readyz` and `/metrics` show that a front knows the brokers."""
AdaptHandlers = Callable[[Mapping[int, Handler]], Mapping[int, Handler]]
"""Wraps the handlers of a broker for gRPC clients."""


class GrpcEndpoint:
    """The gRPC server of a process, once its brokers run."""

    def __init__(self, config: ServeConfig, parts: ProcessParts) -> None:
        from gateway.grpc_front.service import GrpcService

        self._port = config.process.grpc_port
        # The official Proxy in the process of a broker is in local mode.
        self._mode = "local" if config.proxy is None else "cluster"
        self._parts = parts
        self._service: GrpcService = GrpcService(
            parts.limits,
            parts.server_limits,
            max_streams=config.limits.grpc_streams,
            reactor=parts.reactor,
            accept_transport=parts.accept_transport,
        )

    def start(self, nursery: trio.Nursery, build_cluster: "BuildCluster") -> str:
        """Open the port in front of a cluster, and return its address. Raises ListenError."""
        listeners = self._parts.listen(self._port, GRPC_PORT_SETTING)
        nursery.start_soon(self._service.run, listeners, build_cluster)
        return format_address(listeners[0])

    async def start_without_port(self, nursery: trio.Nursery, build_cluster: "BuildCluster") -> None:
        """Serve connections that come through `serve_transport` alone."""
        await nursery.start(self._service.run, [], build_cluster)

    async def serve_transport(self, transport: Transport, received: bytes) -> None:
        """Serve a connection of another port, of which the first bytes have been read, until it ends."""
        await self._service.server.serve_transport(transport, received)

    def metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of the connections, and of the RPCs by method."""
        labels = {"node_type": "proxy", "proxy_mode": self._mode}
        yield Metric("rocketmq_proxy_up", 1, "1 while 5.x clients are served", "gauge", labels)
        yield from connection_metrics("grpc", self._service.server)
        yield from self._service.metrics()

    async def stop(self) -> None:
        """Send clients away, and let RPCs end."""
        await self._service.stop()


def build_grpc_endpoint(config: ServeConfig, parts: ProcessParts) -> GrpcEndpoint | None:
    """Return the endpoint; None when ``grpcServerPort`` is -1."""
    return None if config.process.grpc_port == NO_PORT else GrpcEndpoint(config, parts)


def local_cluster(
    parts: ProcessParts,
    services: "Iterable[BrokerService]",
    namesrv: NamesrvService | None,
    adapt: AdaptHandlers = lambda handlers: handlers,
) -> "BuildCluster":
    """Return what builds the cluster of the brokers of this process, and of its namesrv if it has one."""
    from gateway.grpc_front.broker_link import ServedHandlers
    from gateway.grpc_front.cluster import ServedCluster
    from gateway.grpc_front.served_brokers import LocalCluster

    services = list(services)
    served = None
    if namesrv is not None:
        served = ServedHandlers(namesrv.handlers, parts.access.accounts_of_namesrv())

    def answer_waiting() -> None:
        for service in services:
            service.broker.long_polls.answer_all()

    def build(nursery: trio.Nursery) -> ServedCluster:
        brokers = [_local_broker(service, adapt) for service in services]
        return LocalCluster(brokers, served, parts.clock, nursery, answer_waiting)

    return build


def proxy_cluster(
    config: ServeConfig, proxy: ProxyConfig, parts: ProcessParts, tasks: TaskSupervisor
) -> "BuildCluster":
    """Return what builds the cluster that a proxy's namesrvs know. Raises SettingsError, and errors of accounts."""
    namesrvs = _split_addresses(proxy.namesrv_addr)
    open_plain = _guarded_opener(config, namesrvs, partial(connect, reactor=parts.reactor))
    return _remote_cluster(
        namesrvs,
        build_opener(config.tls, open_plain),
        parts,
        tasks,
        asks_for_users=config.auth.authentication_enabled,
        max_message_bytes=proxy.max_message_bytes,
    )


def process_cluster(
    config: ServeConfig,
    parts: ProcessParts,
    tasks: TaskSupervisor,
    namesrv: str | None,
    addresses: Mapping[str, str],
) -> "BuildCluster":
    """Return what builds the cluster of the broker processes of this supervisor.

    ``addresses`` are those at which this machine reaches the brokers, by replica name; clients may be told others.
    Raises SettingsError.
    """
    from gateway.grpc_front.remote_cluster import split_address

    local: dict[Address, Address] = {}
    for broker in config.brokers:
        address = split_address(addresses[broker.replica_name])
        local[broker.broker_ip, broker.advertised_port or address[1]] = address
        # With ``brokerIP1=auto`` the namesrv names the host at which it is reached itself.
        local[address] = address
    if namesrv is not None:
        address = split_address(namesrv)
        local[address] = address
    namesrvs = _split_addresses(namesrv or config.brokers[0].namesrv_addr)
    open_plain = partial(connect, reactor=parts.reactor)
    return _remote_cluster(
        namesrvs,
        open_by_origin(config, local, open_plain, _guarded_opener(config, namesrvs, open_plain)),
        parts,
        tasks,
        max_message_bytes=min(broker.store.max_message_size_bytes for broker in config.brokers),
    )


def open_by_origin(
    config: ServeConfig, local: Mapping[Address, Address], open_plain: Opener, open_guarded: Opener
) -> Opener:
    """Return the opener of connections to servers of this supervisor, and to all others.

    ``local`` has the addresses at which this machine reaches its own, by those that clients are told. Only these are
    trusted without a look at their certificates: others, which a namesrv names, are reached as brokers reach namesrvs,
    by ``open_guarded``. Raises TlsError.
    """

    async def open_mapped(host: str, port: int) -> Transport:
        return await open_plain(*local[host, port])

    tls = config.tls
    if tls.mode == "enforcing" and not tls.use_client_tls:
        # The certificates of brokers of this machine may be for another name.
        tls = replace(tls, use_client_tls=True, verify_servers=False)
    open_local, open_other = build_opener(tls, open_mapped), build_opener(config.tls, open_guarded)

    async def open_any(host: str, port: int) -> Transport:
        return await (open_local if (host, port) in local else open_other)(host, port)

    return open_any


def _guarded_opener(config: ServeConfig, namesrvs: Sequence[Address], open_plain: Opener) -> Opener:
    """Return the opener of plain connections to namesrvs, and to brokers that they name. Raises SettingsError."""
    from gateway.broker.assembly.namesrv_lookup import resolve_host
    from gateway.grpc_front.broker_addresses import SETTING, BrokerAddresses, guarded_opener, parse_rules

    try:
        addresses = BrokerAddresses(parse_rules(config.process.grpc_broker_addresses))
    except ValueError as error:
        raise SettingsError(f"{SETTING}: {error}") from error
    return guarded_opener(addresses, namesrvs, open_plain, resolve_host)


def _split_addresses(namesrvs: str) -> list[Address]:
    from gateway.grpc_front.remote_cluster import split_address

    return [split_address(text.strip()) for text in namesrvs.split(";") if text.strip()]


def _remote_cluster(
    namesrvs: Sequence[Address],
    opener: Opener,
    parts: ProcessParts,
    tasks: TaskSupervisor,
    *,
    asks_for_users: bool = False,
    max_message_bytes: int,
) -> "BuildCluster":
    from gateway.grpc_front.cluster import ServedCluster
    from gateway.grpc_front.remote_cluster import RemoteCluster

    accounts = parts.access.accounts_of_grpc_front()

    def build(nursery: trio.Nursery) -> ServedCluster:
        return RemoteCluster(
            namesrvs,
            opener,
            parts.clock,
            nursery,
            sign=parts.access.sign,
            accounts=accounts,
            asks_for_users=asks_for_users,
            max_message_bytes=max_message_bytes,
            record_outcome=partial(tasks.record_outcome, NAMESRV_TASK),
        )

    return build


def _local_broker(service: "BrokerService", adapt: AdaptHandlers) -> "LocalBroker":
    from gateway.grpc_front.broker_link import ServedHandlers
    from gateway.grpc_front.served_brokers import LocalBroker

    return LocalBroker(
        name=service.broker.config.broker_name,
        served=ServedHandlers(
            adapt(service.handlers), service.broker.accounts, service.end_batch, service.handle_open
        ),
        find_topics=lambda: service.broker.topics,
        find_groups=lambda: service.broker.groups,
        max_message_bytes=lambda: service.broker.config.store.max_message_size_bytes,
    )
