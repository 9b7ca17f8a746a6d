"""The brokers that run in this process: started, registered, stopped together."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import trio

from gateway.auth.request_needs import NeedContext
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.assembly.controlled_role import NO_ROLE, ControllerMode, undecided
from gateway.broker.assembly.metrics import broker_metrics, fence_metric, native_metrics
from gateway.broker.assembly.registration import OpenConnection, Registrar
from gateway.broker.assembly.role_control import RoleLinks
from gateway.broker.assembly.saved_role import SavedRole
from gateway.broker.assembly.service import BrokerService
from gateway.broker.messages.stored_messages import find_topic
from gateway.broker.replication.ha_access import HaAccess
from gateway.broker.replication.parts import PeerLinks
from gateway.config.process import AUTO, BrokerConfig, ServeConfig
from gateway.namesrv.route_table import RouteTable
from gateway.process.parts import ProcessParts, connection_metrics, format_address
from gateway.runtime.metrics import Distribution, Metric
from gateway.runtime.server_tls import build_opener
from gateway.runtime.supervise import TaskSupervisor
from remoting.client import open_client
from remoting.transport import connect


class LocalBrokers:
    """Any number of brokers on the event loop of this process.

    They register in ``routes``, the table of this process's namesrv, or over the connection that ``open_supervisor``
    opens, and with the namesrvs of their configuration.
    """

    def __init__(
        self,
        config: ServeConfig,
        parts: ProcessParts,
        routes: RouteTable | None,
        open_supervisor: OpenConnection | None = None,
    ) -> None:
        self._config = config
        self._parts = parts
        self._routes = routes
        self._open_supervisor = open_supervisor
        self._dial_namesrv = partial(open_client, opener=build_opener(config.tls, connect))
        self.services: list[BrokerService] = []
        self._registrars: list[Registrar] = []
        self._controlled: list[tuple[ControllerMode, BrokerService]] = []

    async def start(self, nursery: trio.Nursery) -> dict[str, str]:
        """Open the ports and the stores, and return the address of each broker. Raises OSError, StoreError."""
        return {
            broker.broker_name: await self._start_broker(nursery, broker) for broker in self._config.brokers
        }

    async def _start_broker(self, nursery: trio.Nursery, config: BrokerConfig) -> str:
        parts = self._parts
        accounts = parts.access.accounts_of_broker(config)
        listeners = parts.listen(config.listen_port, "listenPort")
        port = listeners[0].getsockname()[1]
        listeners += parts.listen_vip(port)
        with ExitStack() as opened:
            for listener in listeners:
                opened.enter_context(listener)
            ha_listeners = parts.listen_ha(config)
            for listener in ha_listeners:
                opened.enter_context(listener)
            # The ports may be configured as 0 for a free one.
            config = replace(config, listen_port=port, ha_listen_port=ha_listeners[0].getsockname()[1])
            builder = BrokerBuilder(
                self._config.memory,
                parts.clock,
                parts.run_blocking,
                lambda: port,
                parts.files,
                parts.process_values,
                parts.reactor,
                accounts,
                PeerLinks(
                    dial=self._dial_namesrv,
                    sign=parts.access.sign,
                    open_secure=build_opener(self._config.tls, connect),
                ),
                HaAccess(
                    config.replication.ha_allowed_addresses,
                    has_access_control=accounts is not None,
                    acceptor=parts.acceptor,
                ),
            )
            saved_role: SavedRole | None = None
            if config.replication.enable_controller_mode:
                config = undecided(config)
            else:
                saved_role = SavedRole(builder.files, builder.store_config(config).config_path, config)
                config = saved_role.apply(config)
            broker = builder.build(config)
            opened.pop_all()
        mode: ControllerMode | None = None
        if config.controlled is not None:
            mode = ControllerMode(config, parts.clock, builder.files, builder.store_config(config).root)
        role_links = RoleLinks(
            self._dial_namesrv,
            parts.access.sign,
            saved_role,
            None if mode is None else mode.hints,
            None if mode is None else mode.hand_overs,
        )
        # The parts of a broker may be replaced, so each check asks for the present ones.
        context = NeedContext(
            config.broker_cluster_name,
            lambda offset: find_topic(service.broker.store, offset),
            lambda name: service.broker.groups.get(name) is not None,
            parts.limits.max_json_values,
            lambda writer, batch: (
                [] if (staged := service.broker.staged_batches) is None else staged.topics_of(writer, batch)
            ),
        )
        service = BrokerService(
            broker,
            parts.limits,
            parts.server_limits,
            parts.run_blocking,
            parts.reactor,
            parts.accept_transport,
            parts.access.guard(
                config.broker_name,
                accounts,
                context,
                lambda group, connection: service.broker.clients.is_member(group, connection),
            ),
            parts.connection_type,
            builder,
            ha_listeners,
            role_links,
            None if mode is None else mode.lease,
        )
        registrar = Registrar(
            broker,
            port,
            self._routes,
            self._dial_namesrv,
            self._open_supervisor,
            parts.access.sign,
            on_name_taken=service.note_other_master,
        )
        service.add_user(registrar)
        if mode is None:
            await registrar.look_for_other_master()
            registrar.register_locally()
        else:
            await service.wait_for_role(NO_ROLE)
            nursery.start_soon(mode.run, service, role_links)
            self._controlled.append((mode, service))
        nursery.start_soon(service.run, listeners)
        nursery.start_soon(service.tasks.keep_running, "registration", registrar.run)
        self.services.append(service)
        self._registrars.append(registrar)
        return format_address(listeners[0])

    async def unregister(self) -> None:
        """Take all brokers out of the routes of their namesrvs."""
        async with trio.open_nursery() as nursery:
            for registrar in self._registrars:
                nursery.start_soon(registrar.unregister_all)

    async def stop(self) -> None:
        """Unregister all brokers first, so that clients still learn of it from the namesrv, then end them.

        Masters under controllers hand over before.
        """
        async with trio.open_nursery() as nursery:
            for mode, controlled in self._controlled:
                nursery.start_soon(mode.step_down, controlled, self._config.limits.drain_s)
        await self.unregister()
        async with trio.open_nursery() as nursery:
            for service in self.services:
                nursery.start_soon(service.stop)

    def advertised_host(self) -> str:
        """Return the host that the first broker advertises to clients; "auto" without brokers."""
        running = (service.broker.config for service in self.services)
        configs = [*running, *self._config.brokers]
        return configs[0].broker_ip if configs else AUTO

    def supervisors(self) -> Iterator[TaskSupervisor]:
        """Yield the background tasks of each broker."""
        for service in self.services:
            yield service.tasks

    def metrics(self) -> Iterator[Metric | Distribution | None]:
        """Yield the metrics of each broker; None wherever other tasks may run in between."""
        for service in self.services:
            yield from connection_metrics(service.tasks.part, service.server)
            yield from native_metrics(service.tasks.part, service.native_sends, service.broker.stats)
            yield fence_metric(service.tasks.part, service.role_trouble)
            if service.is_open:
                yield from _while_open(service)

    async def remote_metrics(self) -> list[Metric | Distribution]:
        """Return nothing: all brokers are in this process."""
        return []

    async def find_troubles(self, excluded: str = "") -> list[str]:
        """Return nothing: failing background tasks are all that can be wrong."""
        return []


def _while_open(service: BrokerService) -> Iterator[Metric | Distribution | None]:
    """Yield the metrics of a broker's parts; none after these are replaced, which other tasks may do in between."""
    broker = service.broker
    for sample in broker_metrics(service.tasks.part, broker):
        yield sample
        if not service.is_open or service.broker is not broker:
            return
