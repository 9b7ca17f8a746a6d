"""The composition root: opens ports, builds namesrv and brokers from a `ServeConfig`, runs them until a signal."""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import trio

from gateway.broker.assembly.build import build_broker
from gateway.broker.assembly.registration import Registrar
from gateway.broker.assembly.service import BrokerService
from gateway.config.process import BrokerConfig, ServeConfig
from gateway.http_endpoint import Readiness, build_http_endpoint
from gateway.namesrv.addresses import join_address
from gateway.namesrv.service import NamesrvService
from gateway.runtime.file_limit import within_file_limit
from gateway.runtime.loop_watchdog import LoopWatchdog
from gateway.runtime.metrics import Metric, MetricRegistry
from gateway.runtime.process import ListenError, announce_ready, run_process, tune_garbage_collector
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.server_tls import build_acceptor, build_opener
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.supervise import TaskSupervisor
from remoting.client import open_client
from remoting.reactor import Reactor
from remoting.server import AcceptTransport, RemotingServer, ServerLimits, open_listeners
from remoting.tls_acceptor import RELOAD_INTERVAL_S
from remoting.transport import connect
from storage.clock import SystemClock

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 20_000


def run(config: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status of the process."""
    return run_process(lambda: Server(config))


async def run_in_thread(work: Callable[[], object]) -> object:
    """Run blocking work in a worker thread."""
    return await trio.to_thread.run_sync(work)


class Server:
    """One process: at most one namesrv, any number of brokers."""

    def __init__(self, config: ServeConfig, run_blocking: RunBlocking = run_in_thread):
        self._config = config
        self._run_blocking = run_blocking
        self._clock = SystemClock()
        self._reactor = Reactor() if Reactor.is_available() else None
        self._limits = config.limits.of_connection()
        self._server_limits = ServerLimits(
            max_connections=within_file_limit(MAX_CONNECTIONS, share=2),
            backlog=config.limits.backlog,
            max_drain_s=float(config.limits.drain_s),
        )
        self._tasks = TaskSupervisor("process")
        self._acceptor = build_acceptor(config.tls, float(config.limits.idle_close_s))
        self._dial_namesrv = partial(open_client, opener=build_opener(config.tls, connect))
        self._namesrv: NamesrvService | None = None
        self._brokers: list[BrokerService] = []
        self._registrars: list[Registrar] = []
        self._signals = StopSignals()
        self._watchdog = LoopWatchdog()
        metrics = MetricRegistry()
        metrics.register(self._watchdog.metrics)
        metrics.register(self._part_metrics)
        self._readiness = Readiness(self._supervisors)
        self._http = build_http_endpoint(config.process, metrics, self._readiness)

    async def run(self) -> None:
        """Open everything, announce that it is ready, and serve until a signal."""
        self._signals.install()
        async with trio.open_nursery() as nursery:
            if self._reactor is not None:
                nursery.start_soon(self._reactor.run)
            nursery.start_soon(self._watchdog.run)
            if self._acceptor is not None:
                reload = self._acceptor.reload_if_changed
                nursery.start_soon(self._tasks.repeat, "reload certificates", RELOAD_INTERVAL_S, reload)
            namesrv_address = self._start_namesrv(nursery)
            addresses = {
                config.broker_name: self._start_broker(nursery, config) for config in self._config.brokers
            }
            facts: dict[str, Any] = {"namesrv": namesrv_address, "brokers": addresses}
            if self._http is not None:
                facts["http"] = join_address(*await nursery.start(self._http.run))
            tune_garbage_collector()
            announce_ready(facts, self._config.process.ready_file)
            await self._signals.first.wait()
            self._readiness.is_stopping = True
            log.info("stopping", extra={"signal": self._signals.names[0]})
            await self._signals.run_until_second_signal(self._stop)
            nursery.cancel_scope.cancel()
        log.info("stopped")

    def _supervisors(self) -> Iterator[TaskSupervisor]:
        yield self._tasks
        if self._namesrv is not None:
            yield self._namesrv.tasks
        for service in self._brokers:
            yield service.tasks

    def _part_metrics(self) -> Iterator[Metric]:
        for tasks in self._supervisors():
            yield from tasks.metrics()
        if self._namesrv is not None:
            yield from connection_metrics("namesrv", self._namesrv.server)
        for service in self._brokers:
            yield from connection_metrics(service.tasks.part, service.server)
            yield from service.broker.damaged.metrics()

    def _start_namesrv(self, nursery: trio.Nursery) -> str | None:
        if self._config.namesrv is None:
            return None
        listeners = self._listen(self._config.namesrv.listen_port, "namesrv.listenPort")
        self._namesrv = NamesrvService(
            self._config.namesrv,
            self._clock,
            self._limits,
            self._server_limits,
            memory=self._config.memory,
            run_blocking=self._run_blocking,
            reactor=self._reactor,
            accept_transport=self._accept_transport,
        )
        nursery.start_soon(self._namesrv.run, listeners)
        return format_address(listeners[0])

    def _start_broker(self, nursery: trio.Nursery, config: BrokerConfig) -> str:
        listeners = self._listen(config.listen_port, "listenPort")
        port = listeners[0].getsockname()[1]
        listeners += self._vip_listener(port)
        with ExitStack() as opened:
            for listener in listeners:
                opened.enter_context(listener)
            broker = build_broker(
                config,
                memory=self._config.memory,
                clock=self._clock,
                run_blocking=self._run_blocking,
                port=lambda: port,
                reactor=self._reactor,
            )
            opened.pop_all()
        service = BrokerService(
            broker,
            self._limits,
            self._server_limits,
            self._run_blocking,
            self._reactor,
            self._accept_transport,
        )
        local = self._namesrv.routes if self._namesrv else None
        registrar = Registrar(broker, port, local, self._dial_namesrv)
        registrar.register_locally()
        nursery.start_soon(service.run, listeners)
        nursery.start_soon(service.tasks.keep_running, "registration", registrar.run)
        self._brokers.append(service)
        self._registrars.append(registrar)
        return format_address(listeners[0])

    @property
    def _accept_transport(self) -> AcceptTransport | None:
        return None if self._acceptor is None else self._acceptor.accept

    def _listen(self, port: int, setting: str) -> list[socket.socket]:
        """Open a port. Raises ListenError, which names the setting."""
        try:
            return open_listeners(self._config.host, port, self._server_limits.backlog)
        except (OSError, OverflowError) as error:
            raise ListenError(self._config.host, port, setting, error) from error

    def _vip_listener(self, port: int) -> list[socket.socket]:
        """Open the second port that some clients use; without it the broker serves all others."""
        try:
            return open_listeners(self._config.host, port - 2, self._server_limits.backlog)
        except (OSError, OverflowError) as error:
            log.warning("cannot open the VIP port", extra={"port": port - 2, "reason": str(error)})
            return []

    async def _stop(self) -> None:
        """Unregister the brokers first, so that clients still learn of it from the namesrv."""
        async with trio.open_nursery() as nursery:
            for registrar in self._registrars:
                nursery.start_soon(registrar.unregister_all)
        async with trio.open_nursery() as nursery:
            for service in self._brokers:
                nursery.start_soon(service.stop)
        if self._namesrv is not None:
            await self._namesrv.stop()


def connection_metrics(part: str, server: RemotingServer) -> Iterator[Metric]:
    """Yield the number of connections of a listener, and the memory that they hold."""
    labels = {"part": part}
    connections = tuple(server.connections)
    yield Metric("connections", len(connections), "open connections", "gauge", labels)
    unfinished = sum(each.input_bytes for each in connections)
    yield Metric("unfinished_frame_bytes", unfinished, "received bytes of unfinished frames", "gauge", labels)
    unread = sum(each.output_bytes for each in connections)
    yield Metric("unread_answer_bytes", unread, "bytes of answers that peers have not read", "gauge", labels)


def format_address(listener: socket.socket) -> str:
    """Return the host:port of a listener for the ready line; a listener on all addresses is shown as loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
