"""The gRPC front of 5.x clients, in front of the brokers of this process or of those that a namesrv knows.

It has a port of its own (``grpcServerPort``), and serves the remoting ports as well where brokers are in this process
(`grpc_door.py`).

The modules of `gateway.grpc_front` and their libraries are imported only when they are needed: without them a start is
0.1 s faster and 4 MiB smaller.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from gateway.config.process import ServeConfig
from gateway.namesrv.service import NamesrvService
from gateway.process.parts import ProcessParts, format_address
from remoting.connection import Handler
from remoting.server import RemotingServer
from remoting.transport import Transport

if TYPE_CHECKING:
    from gateway.broker.assembly.service import BrokerService
    from gateway.grpc_front.served_brokers import LocalBroker
    from gateway.grpc_front.service import BuildCluster

NO_PORT = -1
GRPC_PORT_SETTING = "grpcServerPort"
AdaptHandlers = Callable[[Mapping[int, Handler]], Mapping[int, Handler]]
"""Wraps the handlers of a broker for gRPC clients."""


class GrpcEndpoint:
    """The gRPC server of a process, once its brokers run."""

    def __init__(self, config: ServeConfig, parts: ProcessParts) -> None:
        from gateway.grpc_front.service import GrpcService

        self._port = config.process.grpc_port
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

    @property
    def server(self) -> RemotingServer:
        """The server of the port's connections."""
        return self._service.server

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
    from gateway.grpc_front.cluster import Cluster
    from gateway.grpc_front.served_brokers import LocalCluster

    services = list(services)
    served = None
    if namesrv is not None:
        served = ServedHandlers(namesrv.handlers, parts.access.accounts_of_namesrv())

    def answer_waiting() -> None:
        for service in services:
            service.broker.long_polls.answer_all()

    def build(nursery: trio.Nursery) -> Cluster:
        brokers = [_local_broker(service, adapt) for service in services]
        return LocalCluster(brokers, served, parts.clock, nursery, answer_waiting)

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
