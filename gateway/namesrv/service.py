"""Runs one namesrv: its connections, the scan for silent brokers, and its shutdown.

`gateway.process.server` opens ports; `gateway.namesrv.processors` answers requests.
"""

import logging
import socket
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

import trio

from gateway.config.process import NamesrvConfig
from gateway.namesrv.context import build_namesrv, ignore_outcome, remove_departed, scan_silent_brokers
from gateway.namesrv.processors import handlers as namesrv_handlers
from gateway.namesrv.route_table import RouteTable
from gateway.runtime.metrics import Metric
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import TaskSupervisor
from remoting.connection import Handler
from remoting.frame_connection import FrameConnection
from remoting.handler_table import NO_GUARD, Guard, GuardedHandlers
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.requests.namesrv import RegisterBroker
from remoting.server import AcceptTransport, ConnectionType, RemotingServer, ServerLimits
from storage.clock import Clock

log = logging.getLogger(__name__)


class NamesrvService:
    """A running namesrv. With ``memory`` its KV configuration is not stored in a file."""

    def __init__(
        self,
        config: NamesrvConfig,
        clock: Clock,
        limits: ConnectionLimits,
        server_limits: ServerLimits,
        *,
        memory: bool = False,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        reactor: Reactor | None = None,
        process_values: Mapping[str, str] = MappingProxyType({}),
        accept_transport: AcceptTransport | None = None,
        guard: Guard = NO_GUARD,
        connection_type: ConnectionType = FrameConnection,
    ) -> None:
        # A broker registers twice a minute, so not every registration is observed: the handler chooses the ones that
        # change something.
        observed = dict(guard.observed)
        self.namesrv = build_namesrv(
            config,
            clock,
            memory=memory,
            run_blocking=run_blocking,
            process_values=process_values,
            observe_registration=observed.pop(RegisterBroker.code, ignore_outcome),
        )
        self.tasks = TaskSupervisor("namesrv")
        guarded_handlers = GuardedHandlers(namesrv_handlers.bind(self.namesrv, observed), (guard.protect,))
        self.handlers: dict[int, Handler] = guarded_handlers.by_code
        self.server = RemotingServer(
            self.handlers,
            limits,
            server_limits,
            reactor=reactor,
            accept_transport=accept_transport,
            connection_type=connection_type,
        )

    @property
    def routes(self) -> RouteTable:
        """The route table, in which brokers of the same process register directly."""
        return self.namesrv.routes

    async def run(self, listeners: list[socket.socket]) -> None:
        """Serve until `stop` or cancelled."""
        scan_s = self.namesrv.config.scan_not_active_broker_interval_ms / 1000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tasks.repeat, "scan for silent brokers", scan_s, self._scan)
            nursery.start_soon(
                self.tasks.keep_running, "remove departed brokers", partial(remove_departed, self.namesrv)
            )
            for file in self.namesrv.files:
                nursery.start_soon(self.tasks.keep_running, f"write {file.name}", file.run)
            await self.server.serve(listeners)
            nursery.cancel_scope.cancel()

    async def _scan(self) -> None:
        await scan_silent_brokers(self.namesrv)

    async def stop(self) -> None:
        """End `run` after requests in progress are answered."""
        await self.server.drain()


def namesrv_metrics(routes: RouteTable) -> Iterator[Metric]:
    """Yield the number of registered brokers and of topics with a route."""
    names = routes.cluster_info(local_host="").broker_addr_table.values()
    brokers = sum(len(broker_data.broker_addrs) for broker_data in names)
    yield Metric("namesrv_brokers", brokers, "registered brokers, replicas included", "gauge")
    yield Metric("namesrv_topics", len(routes.topic_list().topic_list), "topics with a route", "gauge")
