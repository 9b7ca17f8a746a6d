"""Brokers under controllers in a simulated cluster, with connections that can be cut."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from trio.testing import memory_stream_pair

from codec.command import Command
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.assembly.controlled_role import NO_ROLE, ControllerMode, undecided
from gateway.broker.assembly.registration import Registrar
from gateway.broker.assembly.role_control import RoleLinks
from gateway.broker.assembly.service import BrokerService
from gateway.broker.replication.parts import PeerLinks
from gateway.config.controller import ControllerConfig
from gateway.controller.controller import Controller
from gateway.controller.notifications import Notifications
from gateway.controller.processors import handlers as controller_handlers
from gateway.controller.store import ControllerMember, Store
from gateway.controller.tests.memory_store import MemoryStore
from gateway.tests.cluster import PORT, SMALL, Address, Cluster, Node, inline, settle
from gateway.tests.configs import broker_config
from remoting.connection import Connection
from remoting.errors import RemotingClosed, RequestError
from remoting.handler_table import GuardedHandlers
from remoting.limits import ConnectionLimits
from remoting.requests.controller import ControllerGetReplicaInfo, ControllerGetReplicaInfoReply
from remoting.server import RemotingServer, ServerLimits
from remoting.transport import StreamTransport
from storage.files import MemoryFiles

CONTROLLER: Address = ("10.0.0.9", 9878)
NAME = "broker-a"


class ControllerNodeService:
    """One controller over memory streams. ``hangs`` makes it read requests and answer none."""

    def __init__(self, cluster: "ControlledCluster", store: Store, address: Address) -> None:
        self.hangs = False
        self.controller = Controller(
            ControllerConfig(),
            store,
            ControllerMember(f"n-{address[0]}", f"{address[0]}:{address[1]}"),
            "",
            cluster.base.clock,
            Notifications(None, cluster.deliver),
        )
        bound = controller_handlers.bind(self.controller)
        self.handlers = GuardedHandlers(bound, (self._guard,)).by_code
        self.server = RemotingServer(self.handlers, ConnectionLimits(), ServerLimits())
        self.asked: list[int] = []

    def _guard(self, code: int, handler: Callable[..., Any]) -> Callable[..., Any]:
        def handle(connection: Connection, command: Command) -> bytes | None:
            self.asked.append(code)
            return None if self.hangs else handler(connection, command)

        return handle

    async def run(self, listeners: list[Any]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.controller.run)
            await self.server.serve(listeners)
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        self.controller.leadership.resign()
        await self.server.drain()

    def close(self) -> None:
        """There is nothing to close."""


class ControlledNode(Node):
    """A broker under controllers, with the files of its store."""

    def __init__(
        self,
        service: BrokerService,
        host: str,
        registrar: Registrar,
        mode: ControllerMode,
        role_links: RoleLinks,
        files: MemoryFiles,
    ) -> None:
        super().__init__(service, (host, PORT), registrar)
        self.beside = partial(mode.run, service, role_links)
        self.mode = mode
        self.files = files


class ControlledCluster:
    """A cluster with a namesrv, one controller or more, and brokers under them."""

    def __init__(self, cluster: Cluster) -> None:
        self.base = cluster
        self.store = MemoryStore()
        self.controllers: list[ControllerNodeService] = []
        self.cut: set[tuple[str, str]] = set()
        """Pairs of hosts between which no new connection can be made; `cut_off` also closes the present ones."""
        self._open: list[tuple[str, str, Connection]] = []

    @property
    def controller(self) -> ControllerNodeService:
        return self.controllers[0]

    async def add_controller(self, address: Address = CONTROLLER) -> Node:
        service = ControllerNodeService(self, self.store.of(f"n-{address[0]}"), address)
        self.controllers.append(service)
        node = Node(service, address)
        return await self.base._start(node)

    async def deliver(self, address: str, command: Command) -> None:
        host, _, port = address.rpartition(":")
        async with self.base.client(host, int(port)) as connection:
            await connection.ask_command(command, 3)

    async def add_broker(
        self,
        host: str,
        files: MemoryFiles | None = None,
        sign: Callable[[Command], None] | None = None,
        **settings: Any,
    ) -> ControlledNode:
        cluster = self.base
        files = files if files is not None else MemoryFiles()
        addresses = ";".join(f"{node[0]}:{node[1]}" for node in self._controller_addresses)
        config = broker_config(
            broker_name=NAME,
            store_path_root_dir=f"/{NAME}",
            broker_ip=host,
            listen_port=PORT,
            namesrv_addr="10.0.0.1:9876",
            enable_controller_mode=True,
            **{**SMALL, "controller_addr": addresses, "all_ack_in_sync_state_set": True, **settings},
        )
        links = PeerLinks(partial(self._open_ha, host), partial(self._dial, host))
        builder = BrokerBuilder(False, cluster.clock, inline, lambda: PORT, files, links=links)
        config = undecided(config)
        mode = ControllerMode(config, cluster.clock, files, builder.store_config(config).root)
        role_links = RoleLinks(partial(self._dial, host), sign, hints=mode.hints, hand_overs=mode.hand_overs)
        service = BrokerService(
            builder.build(config),
            ConnectionLimits(),
            ServerLimits(),
            inline,
            builder=builder,
            role_links=role_links,
            lease=mode.lease,
        )
        registrar = Registrar(
            service.broker, PORT, None, cluster.client, on_name_taken=service.note_other_master
        )
        service.add_user(registrar)
        await service.wait_for_role(NO_ROLE)
        node = ControlledNode(service, host, registrar, mode, role_links, files)
        await cluster._start(node)
        return node

    @property
    def _controller_addresses(self) -> list[Address]:
        return [
            address
            for address, node in self.base.nodes.items()
            if isinstance(node.service, ControllerNodeService)
        ] or [CONTROLLER]

    @asynccontextmanager
    async def _dial(self, own_host: str, host: str, port: int) -> AsyncIterator[Connection]:
        await trio.lowlevel.checkpoint()
        if (own_host, host) in self.cut:
            raise OSError("no route to host")
        connection = self.base.dial((host, port), host=own_host)
        entry = (own_host, host, connection)
        self._open.append(entry)
        try:
            yield connection
        finally:
            self._open.remove(entry)
            connection.close("done")

    def cut_off(self, own_host: str, host: str) -> None:
        """Close the connections of a host to another one, and allow no new ones."""
        self.cut.add((own_host, host))
        for source, target, connection in list(self._open):
            if (source, target) == (own_host, host):
                connection.close("cut off")

    async def _open_ha(self, own_host: str, host: str, port: int) -> StreamTransport:
        await trio.lowlevel.checkpoint()
        node = self.base.nodes.get((host, PORT))
        if node is None or node.ended.is_set() or (own_host, host) in self.cut:
            raise ConnectionRefusedError("nobody there")
        here, there = memory_stream_pair()
        self.base.nursery.start_soon(self._serve_ha, node, StreamTransport(there, remote=(own_host, port)))
        return StreamTransport(here)

    async def _serve_ha(self, node: Node, transport: StreamTransport) -> None:
        """Serve a slave until its master ends or takes another role."""
        assert isinstance(node.service, BrokerService)
        broker = node.broker
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_with, node, broker, nursery.cancel_scope)
            nursery.start_soon(broker.replication.server._send_unannounced)
            await broker.replication.server.serve(transport)
            nursery.cancel_scope.cancel()

    async def _end_with(self, node: Node, broker: object, scope: trio.CancelScope) -> None:
        while not node.ended.is_set() and node.broker is broker:
            await trio.sleep(0.01)
        scope.cancel()

    async def term(self) -> ControllerGetReplicaInfoReply:
        """Return what the leading controller says about the master."""
        for service in self.controllers:
            if service.controller.leadership.term is not None and not service.hangs:
                address = service.controller.leadership._member.address
                host, _, port = address.rpartition(":")
                try:
                    return await self.base.dial((host, int(port))).ask(
                        ControllerGetReplicaInfo(broker_name=NAME)
                    )
                except (OSError, RemotingClosed):
                    continue
        raise LookupError("no controller leads")


async def controlled(
    cluster: Cluster, brokers: int = 3, **settings: Any
) -> tuple[ControlledCluster, list[ControlledNode]]:
    """Start a namesrv, a controller and brokers, and wait until all are in sync."""
    random.seed(11)
    await cluster.namesrv()
    group = ControlledCluster(cluster)
    await group.add_controller()
    nodes = [await group.add_broker(f"10.0.1.{number + 1}", **settings) for number in range(brokers)]
    for _ in range(400):
        await trio.sleep(0.1)
        with_set = await _sync_set(group)
        if len(with_set) == brokers:
            break
    await settle()
    return group, nodes


async def _sync_set(group: ControlledCluster) -> list[int]:
    try:
        reply = await group.term()
    except RequestError:
        return []
    return [] if reply.data is None else reply.data.sync_state_set
