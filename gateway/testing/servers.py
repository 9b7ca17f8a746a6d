"""Namesrv and brokers in memory on one event loop: started, reset, and single brokers stopped and started again.

Everything here runs on the event loop of the servers; `double.py` offers it to other threads.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

import trio

from gateway.broker.assembly.service import BrokerService
from gateway.broker.broker import Broker
from gateway.config.process import BrokerConfig, ServeConfig
from gateway.namesrv.service import NamesrvService
from gateway.process.local_brokers import LocalBrokers
from gateway.process.parts import ProcessParts, format_address
from gateway.testing.clock import AdvancingClock
from gateway.testing.connection import FaultyConnection
from gateway.testing.faults import FaultTable
from storage.files import MemoryFiles

if TYPE_CHECKING:
    from gateway.testing.grpc_port import RunningGrpc


class UnknownBroker(LookupError):
    """No broker has this name, or it is stopped; the text says which ones there are."""


async def run_inline(work: Callable[[], Any]) -> Any:
    """Run blocking work on the event loop: with files in memory nothing blocks."""
    await trio.lowlevel.checkpoint()
    return work()


class RunningNamesrv:
    """A namesrv and its port until `stop`."""

    def __init__(self, config: ServeConfig, parts: ProcessParts) -> None:
        assert config.namesrv is not None
        self.listeners = parts.listen(config.namesrv.listen_port, "namesrv.listenPort")
        self.address = format_address(self.listeners[0])
        self.port: int = self.listeners[0].getsockname()[1]
        self.service = NamesrvService(
            config.namesrv,
            parts.clock,
            parts.limits,
            parts.server_limits,
            memory=True,
            run_blocking=run_inline,
            reactor=parts.reactor,
            accept_transport=parts.accept_transport,
            process_values=parts.process_values,
            connection_type=parts.connection_type,
        )
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Serve until `stop`."""
        with self._scope:
            await self.service.run(self.listeners)
        self._ended.set()

    async def stop(self) -> None:
        """Close the port and all connections at once."""
        self._scope.cancel()
        await self._ended.wait()


class RunningBroker:
    """A broker, registered with the namesrv of its process, until `stop`."""

    def __init__(self, config: ServeConfig, parts: ProcessParts, namesrv: RunningNamesrv) -> None:
        self._local = LocalBrokers(config, parts, namesrv.service.routes)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.address = ""

    @property
    def service(self) -> BrokerService:
        return self._local.services[0]

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Serve until `stop`; report when the port is open."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                (self.address,) = (await self._local.start(nursery)).values()
                task_status.started()
                await trio.sleep_forever()
        self._ended.set()

    async def stop(self, *, keep_route: bool) -> None:
        """Close the port and all connections at once, and write the tables; with ``keep_route`` the route stays."""
        if not keep_route:
            await self._local.unregister()
        self._scope.cancel()
        await self._ended.wait()


class InMemoryServers:
    """One namesrv and the brokers of a configuration. Create them with `open_servers`."""

    def __init__(self, config: ServeConfig, nursery: trio.Nursery, faults: FaultTable) -> None:
        self.clock = AdvancingClock()
        self.faults = faults
        self._config = config
        self._nursery = nursery
        self._parts = ProcessParts.build(
            config,
            run_inline,
            clock=self.clock,
            connection_type=partial(FaultyConnection, faults, self.clock),
            files=MemoryFiles(),
            opens_vip_port=False,
        )
        if self._parts.reactor is not None:
            nursery.start_soon(self._parts.reactor.run)
        self._namesrv = RunningNamesrv(config, self._parts)
        nursery.start_soon(self._namesrv.run)
        self._running: dict[str, RunningBroker] = {}
        self._addresses: dict[str, str] = {}
        self._grpc: RunningGrpc | None = None
        self._grpc_port = max(0, config.process.grpc_port)

    @property
    def namesrv_address(self) -> str:
        return self._namesrv.address

    @property
    def broker_addresses(self) -> dict[str, str]:
        """The addresses of all brokers by name, those that are stopped included."""
        return dict(self._addresses)

    @property
    def broker_services(self) -> list[BrokerService]:
        """The services of the brokers that run."""
        return [broker.service for broker in self._running.values()]

    @property
    def brokers(self) -> list[Broker]:
        """The brokers that run."""
        return [service.broker for service in self.broker_services]

    @property
    def grpc_address(self) -> str:
        """The address for gRPC clients; empty while the port is not open."""
        return "" if self._grpc is None else self._grpc.address

    async def open_grpc(self) -> str:
        """Return the address for gRPC clients; the port is opened at the first call. Raises ListenError."""
        if self._grpc is None:
            from gateway.testing.grpc_port import (
                RunningGrpc,  # most tests need no gRPC, which takes 0.1 s to import
            )

            grpc = RunningGrpc(self._config, self._parts, self._grpc_port, self.clock)
            await self._nursery.start(grpc.run, self.broker_services, self._namesrv.service)
            self._grpc = grpc
            self._grpc_port = int(grpc.address.rpartition(":")[2])
        return self._grpc.address

    @asynccontextmanager
    async def _grpc_closed(self) -> AsyncIterator[None]:
        """Close the gRPC port for the block, and open it again, if it was open."""
        grpc, self._grpc = self._grpc, None
        if grpc is not None:
            await grpc.stop()
        yield
        if grpc is not None:
            await self.open_grpc()

    async def start_brokers(self) -> None:
        """Start all brokers that do not run."""
        for config in self._config.brokers:
            if config.broker_name not in self._running:
                await self.start_broker(config.broker_name)

    async def start_broker(self, name: str | None = None) -> None:
        """Start a broker again, with its messages, on its former port. Raises UnknownBroker, OSError."""
        stopped = [broker for broker in self._config.brokers if broker.broker_name not in self._running]
        config = self._choose(stopped, name, "stopped")
        broker_config = replace(self._config, brokers=(config,))
        async with self._grpc_closed():
            running = RunningBroker(broker_config, self._parts, self._namesrv)
            await self._nursery.start(running.run)
            self._running[config.broker_name] = running
        self._addresses[config.broker_name] = running.address
        self._fix_port(config, running.service.broker.config.listen_port)

    def _fix_port(self, config: BrokerConfig, port: int) -> None:
        brokers = tuple(
            replace(broker, listen_port=port) if broker.broker_name == config.broker_name else broker
            for broker in self._config.brokers
        )
        self._config = replace(self._config, brokers=brokers)

    async def stop_broker(self, name: str | None = None, *, keep_route: bool = False) -> None:
        """Stop a broker as if its machine went away; it keeps its messages for `start_broker`.

        With ``keep_route`` the namesrv still tells clients its address. Raises UnknownBroker.
        """
        runs = [broker for broker in self._config.brokers if broker.broker_name in self._running]
        config = self._choose(runs, name, "running")
        async with self._grpc_closed():
            await self._running.pop(config.broker_name).stop(keep_route=keep_route)

    @staticmethod
    def _choose(brokers: list[BrokerConfig], name: str | None, state: str) -> BrokerConfig:
        names = [broker.broker_name for broker in brokers]
        if name is None and len(brokers) == 1:
            return brokers[0]
        if name not in names:
            raise UnknownBroker(
                f"broker {name!r}: choose one of the {state} ones: {', '.join(names) or 'none'}"
            )
        return brokers[names.index(name)]

    async def reset(self) -> None:
        """Forget everything: messages, topics, groups, offsets, faults, stopped brokers and moved time.

        The addresses stay; all connections are closed, and clients that still run connect again.
        """
        self.faults.clear()
        async with self._grpc_closed():
            for running in self._running.values():
                await running.stop(keep_route=True)
            self._running.clear()
            await self._namesrv.stop()
            self.clock.ahead_ms = 0
            self._parts = replace(self._parts, files=MemoryFiles())
            assert self._config.namesrv is not None
            settings = replace(self._config.namesrv, listen_port=self._namesrv.port)
            self._config = replace(self._config, namesrv=settings)
            self._namesrv = RunningNamesrv(self._config, self._parts)
            self._nursery.start_soon(self._namesrv.run)
            await self.start_brokers()

    async def advance(self, seconds: float) -> None:
        """Move the time of namesrv and brokers ahead, and return when everything that became due is delivered.

        Raises ValueError for a negative time.
        """
        self.clock.advance(seconds)
        for service in self.broker_services:
            await deliver_due(service)


@asynccontextmanager
async def open_servers(config: ServeConfig, faults: FaultTable) -> AsyncIterator[InMemoryServers]:
    """Run namesrv and brokers for the duration of a block. Raises OSError for a port that is taken."""
    async with trio.open_nursery() as nursery:
        servers = InMemoryServers(config, nursery, faults)
        await servers.start_brokers()
        if config.process.grpc_port >= 0:
            await servers.open_grpc()
        yield servers
        nursery.cancel_scope.cancel()


SETTLE_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.001


async def deliver_due(service: BrokerService) -> None:
    """Let a broker deliver what is due by its clock, and ask producers about open transactions once.

    That is: delayed messages and retries, timer messages, and popped messages whose invisible time is over.
    Raises TimeoutError if it does not come to an end.
    """
    broker = service.broker
    broker.delay_service.earlier.set()
    broker.pop.deadlines.earlier.set()
    if broker.timer_delivery is not None:
        broker.timer_delivery.arrived.set()
    with trio.move_on_after(SETTLE_TIMEOUT_S) as limit:
        await service.check_transactions_once()
        while _has_due(service):  # noqa: ASYNC110 - the tasks that deliver have no event for "nothing left"
            await trio.sleep(POLL_S)
    if limit.cancelled_caught:
        raise TimeoutError(f"messages that became due are not delivered within {SETTLE_TIMEOUT_S:g} s")
    broker.long_polls.answer_marked()


def _has_due(service: BrokerService) -> bool:
    broker, timers = service.broker, service.broker.timer_delivery
    times = [broker.delay_service.next_due_ms(), broker.pop.deadlines.next_due_ms()]
    if timers is not None:
        if timers.behind_messages:
            return True
        times.append(timers.next_due_ms())
    return min((inf if due_ms is None else due_ms for due_ms in times), default=inf) <= broker.clock.now_ms()
