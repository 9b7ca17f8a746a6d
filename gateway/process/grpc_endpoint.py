"""The gRPC front of 5.x clients, in front of the brokers of this process.

It has a port of its own (``grpcServerPort``), and serves the remoting ports as well (`grpc_door.py`).

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
    from gateway.grpc_front.broker_link import ServedHandlers
    from gateway.grpc_front.served_brokers import LocalBroker

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
        self._services: list[BrokerService] = []
        self._service: GrpcService = GrpcService(
            parts.limits,
            parts.server_limits,
            parts.clock,
            max_streams=config.limits.grpc_streams,
            reactor=parts.reactor,
            accept_transport=parts.accept_transport,
        )

    def start(
        self,
        nursery: trio.Nursery,
        services: "Iterable[BrokerService]",
        namesrv: NamesrvService | None,
        adapt: AdaptHandlers = lambda handlers: handlers,
    ) -> str:
        """Open the port, and return its address. Raises ListenError."""
        listeners = self._parts.listen(self._port, GRPC_PORT_SETTING)
        nursery.start_soon(self._service.run, listeners, *self._served(services, namesrv, adapt))
        return format_address(listeners[0])

    async def start_without_port(
        self, nursery: trio.Nursery, services: "Iterable[BrokerService]", namesrv: NamesrvService | None
    ) -> None:
        """Serve connections that come through `serve_transport` alone."""
        await nursery.start(
            self._service.run, [], *self._served(services, namesrv, lambda handlers: handlers)
        )

    async def serve_transport(self, transport: Transport, received: bytes) -> None:
        """Serve a connection of another port, of which the first bytes have been read, until it ends."""
        await self._service.server.serve_transport(transport, received)

    def _served(
        self, services: "Iterable[BrokerService]", namesrv: NamesrvService | None, adapt: AdaptHandlers
    ) -> "tuple[list[LocalBroker], ServedHandlers | None]":
        from gateway.grpc_front.broker_link import ServedHandlers

        self._services = list(services)
        served = None
        if namesrv is not None:
            served = ServedHandlers(namesrv.handlers, self._parts.access.accounts_of_namesrv())
        return [_local_broker(service, adapt) for service in self._services], served

    @property
    def server(self) -> RemotingServer:
        """The server of the port's connections."""
        return self._service.server

    async def stop(self) -> None:
        """Send clients away, and let RPCs end."""
        await self._service.stop(self._answer_waiting)

    def _answer_waiting(self) -> None:
        for service in self._services:
            service.broker.long_polls.answer_all()


def build_grpc_endpoint(config: ServeConfig, parts: ProcessParts) -> GrpcEndpoint | None:
    """Return the endpoint; None when ``grpcServerPort`` is -1."""
    return None if config.process.grpc_port == NO_PORT else GrpcEndpoint(config, parts)


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
