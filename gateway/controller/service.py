"""Runs one controller: its connections, its share in leading the group, heartbeats and elections."""

import logging
import socket
from collections.abc import Callable

import trio

from codec.hosts import format_host
from gateway.config.controller import ControllerConfig
from gateway.controller.controller import Controller
from gateway.controller.etcd_client import EtcdClient, EtcdEndpoint
from gateway.controller.etcd_store import EtcdStore
from gateway.controller.notifications import Notifications, Sign
from gateway.controller.processors import handlers as controller_handlers
from gateway.controller.sqlite_store import open_sqlite_store
from gateway.controller.store import ControllerMember, Store
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.server_tls import build_etcd_context
from gateway.runtime.supervise import TaskSupervisor
from remoting.connection import Handler
from remoting.frame_connection import FrameConnection
from remoting.handler_table import NO_GUARD, Guard, GuardedHandlers
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.server import AcceptTransport, ConnectionType, RemotingServer, ServerLimits
from storage.clock import Clock, clock_with_suspension

log = logging.getLogger(__name__)


def build_store(
    config: ControllerConfig, run_blocking: RunBlocking, monotonic: Callable[[], float], *, memory: bool
) -> Store:
    """Open the store that the settings name. Raises StateInUse, TlsError, and ValueError for an address of etcd."""
    urls = config.etcd_urls()
    if not urls:
        return open_sqlite_store("" if memory else config.store_path, run_blocking)
    client = EtcdClient(
        [EtcdEndpoint.parse(url) for url in urls],
        config.etcd_user,
        config.etcd_password,
        build_etcd_context(config),
    )
    return EtcdStore(client, config.group, config.lease_s, monotonic)


class ControllerService:
    """A running controller that serves at ``port``. ``sign`` adds credentials to what it sends brokers."""

    def __init__(
        self,
        config: ControllerConfig,
        port: int,
        clock: Clock,
        limits: ConnectionLimits,
        server_limits: ServerLimits,
        *,
        memory: bool = False,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        reactor: Reactor | None = None,
        accept_transport: AcceptTransport | None = None,
        guard: Guard = NO_GUARD,
        connection_type: ConnectionType = FrameConnection,
        sign: Sign | None = None,
    ) -> None:
        addresses = {
            peer.member_id: format_host((peer.host, port if peer.member_id == config.self_id else peer.port))
            for peer in config.all_peers()
        }
        self._store = build_store(config, run_blocking, clock_with_suspension(clock), memory=memory)
        self.controller = Controller(
            config,
            self._store,
            ControllerMember(config.self_id, addresses[config.self_id]),
            "".join(f"{member_id}:{address};" for member_id, address in addresses.items()),
            clock,
            Notifications(sign),
        )
        self.tasks = TaskSupervisor("controller")
        bound = controller_handlers.bind(self.controller, guard.observed)
        self.handlers: dict[int, Handler] = GuardedHandlers(bound, (guard.protect,)).by_code
        self.server = RemotingServer(
            self.handlers,
            limits,
            server_limits,
            reactor=reactor,
            accept_transport=accept_transport,
            connection_type=connection_type,
        )

    async def run(self, listeners: list[socket.socket]) -> None:
        """Serve until `stop` or cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.tasks.keep_running, "lead and elect", self.controller.run)
                await self.server.serve(listeners)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._store.close()

    async def stop(self) -> None:
        """End `run` after requests in progress are answered.

        The connections of brokers end one after the other: as long as this controller leads, it would take the first of
        them for a dead master.
        """
        self.controller.leadership.resign()
        await self.server.drain()
