"""The composition root: opens ports, builds namesrv and brokers from a `ServeConfig`, runs them until a signal.

The brokers run in this process (`local_brokers.py`) or in processes of their own (`supervision/`), which run the
same `Server` with one broker and a link to their supervisor.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from codec.hosts import format_host
from codec.native import native_absence
from gateway.auth.request_needs import NeedContext
from gateway.config.auth import AuthConfig
from gateway.config.process import BrokerConfig, ControllerConfig, ServeConfig
from gateway.config.tls import TlsConfig
from gateway.namesrv.service import NamesrvService, namesrv_metrics
from gateway.process.access import SAVE_INTERVAL_S
from gateway.process.address_server import AddressServer
from gateway.process.cores import suggest_brokers, usable_cores
from gateway.process.grpc_door import GrpcDoor
from gateway.process.grpc_endpoint import (
    GrpcEndpoint,
    build_grpc_endpoint,
    local_cluster,
    process_cluster,
    proxy_cluster,
)
from gateway.process.http_endpoint import METRIC_PREFIX, Readiness, build_http_endpoint, failing_tasks
from gateway.process.metrics_export import build_metrics_push
from gateway.process.parts import ProcessParts, connection_metrics, format_address
from gateway.process.supervision.supervisor_link import SupervisorLink
from gateway.runtime.allocator import TRIM_INTERVAL_S, HeapTrimmer
from gateway.runtime.loop_watchdog import LoopWatchdog
from gateway.runtime.metrics import Distribution, Metric, MetricRegistry
from gateway.runtime.process import announce_ready, run_process, tune_garbage_collector
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.supervise import TaskSupervisor
from remoting.frame_connection import FrameConnection
from remoting.server import ConnectionType
from remoting.tls_acceptor import RELOAD_INTERVAL_S

if TYPE_CHECKING:
    from gateway.controller.service import ControllerService
    from gateway.grpc_front.service import BuildCluster

log = logging.getLogger(__name__)

MORE_CORES: Final = (
    "--brokers {brokers} --processes uses {brokers} of them; two processes on two cores took 1.85 to 1.98 times the "
    "messages of one (docs/how-to/capacity.md)"
)


def run(config: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status of the process."""
    return run_process(lambda: Server(config))


async def run_in_thread(work: Callable[[], object]) -> object:
    """Run blocking work in a worker thread."""
    return await trio.to_thread.run_sync(work)


class Brokers(Protocol):
    """All brokers of the server, in whichever processes they run."""

    async def start(self, nursery: trio.Nursery) -> dict[str, str]:
        """Start them and return their addresses by name when all can be reached."""

    async def stop(self) -> None:
        """Stop them cleanly."""

    def advertised_host(self) -> str:
        """Return the host that the first broker advertises to clients at present (brokerIP1)."""

    def supervisors(self) -> Iterator[TaskSupervisor]:
        """Yield the background tasks in this process."""

    def metrics(self) -> Iterator[Metric | Distribution | None]:
        """Yield the metrics of brokers in this process; None wherever other tasks may run in between."""

    async def remote_metrics(self) -> list[Metric | Distribution]:
        """Return the metrics of brokers in other processes."""

    async def find_troubles(self, excluded: str = "") -> list[str]:
        """Return what is wrong with brokers in other processes, but for a task of a name."""


class Server:
    """One process: at most one namesrv, and the brokers, unless they have processes of their own.

    With a ``link`` this is a broker process, which is announced to its supervisor, and stopped by it.
    """

    def __init__(
        self,
        config: ServeConfig,
        run_blocking: RunBlocking = run_in_thread,
        link: SupervisorLink | None = None,
    ):
        self._config = config
        self._link = link
        self._parts = ProcessParts.build(config, run_blocking, connection_type=self._connection_type())
        self._tasks = TaskSupervisor("process")
        self._namesrv = self._build_namesrv()
        self._namesrv_port: int | None = None
        self._controller: ControllerService | None = None
        self._brokers = self._build_brokers()
        self._grpc = build_grpc_endpoint(config, self._parts)
        self._started = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._signals = StopSignals(counts_signals=link is None)
        self._watchdog = LoopWatchdog()
        self._metrics = MetricRegistry()
        self._metrics.register(self._watchdog.metrics)
        self._metrics.register(self._part_metrics)
        self._metrics.register_remote(self._brokers.remote_metrics)
        self._readiness = Readiness(self._supervisors, self._brokers.find_troubles)
        namesrvs = AddressServer(config, lambda: self._namesrv_port, self._brokers.advertised_host)
        self._http = build_http_endpoint(config.process, config.tls, self._metrics, self._readiness, namesrvs)
        self._push = build_metrics_push(config.process.metrics_export, self._metrics, METRIC_PREFIX)
        if self._push is not None:
            self._metrics.register(self._push.metrics)

    def _connection_type(self) -> ConnectionType:
        """Return the type of connections on the remoting ports: with gRPC where brokers run in this process."""
        process = self._config.process
        if (
            process.processes
            or self._link is not None
            or not self._config.brokers
            or not process.grpc_on_remoting_ports
        ):
            return FrameConnection
        return GrpcDoor(self._open_grpc).watching(FrameConnection)

    def _build_namesrv(self) -> NamesrvService | None:
        if self._config.namesrv is None:
            return None
        access = self._parts.access
        return NamesrvService(
            self._config.namesrv,
            self._parts.clock,
            self._parts.limits,
            self._parts.server_limits,
            memory=self._config.memory,
            run_blocking=self._parts.run_blocking,
            reactor=self._parts.reactor,
            accept_transport=self._parts.accept_transport,
            process_values=self._parts.process_values,
            connection_type=self._parts.connection_type,
            guard=access.guard(
                "namesrv",
                access.accounts_of_namesrv(),
                self._need_context(),
            ),
        )

    def _need_context(self) -> NeedContext:
        """Return what access control has to know of the namesrv's and the controller's cluster."""
        cluster = (self._config.brokers or (BrokerConfig(),))[0].broker_cluster_name
        return NeedContext(cluster, max_json_values=self._parts.limits.max_json_values)

    def _build_brokers(self) -> Brokers:
        # Either import is of no use to the other kind of process: a supervisor without the modules of the broker
        # starts 0.14 s sooner and is 4 MiB smaller.
        if self._config.process.processes:
            from gateway.process.supervision.broker_processes import BrokerProcesses

            return BrokerProcesses(self._config, self._namesrv, self._parts.reactor)
        from gateway.process.local_brokers import LocalBrokers

        routes = self._namesrv.routes if self._namesrv is not None else None
        link = self._link
        open_supervisor = link.open_namesrv if link is not None and link.has_namesrv else None
        return LocalBrokers(self._config, self._parts, routes, open_supervisor)

    async def run(self) -> None:
        """Open everything, announce that it is ready, and serve until a signal."""
        self._signals.install()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._parts.reactor is not None:
                    nursery.start_soon(self._parts.reactor.run)
                nursery.start_soon(self._watchdog.run)
                trim = HeapTrimmer(run_blocking=self._parts.run_blocking).trim
                nursery.start_soon(self._tasks.repeat, "give memory back", TRIM_INTERVAL_S, trim)
                if self._parts.acceptor is not None:
                    reload = self._parts.acceptor.reload_if_changed
                    nursery.start_soon(self._tasks.repeat, "reload certificates", RELOAD_INTERVAL_S, reload)
                if self._parts.access.is_enabled:
                    keep = self._parts.access.keep_current
                    nursery.start_soon(self._tasks.repeat, "keep accounts current", SAVE_INTERVAL_S, keep)
                await self._start_unless_stopped(nursery)
                await self._signals.first.wait()
                self._readiness.is_stopping = True
                log.info("stopping", extra={"signal": self._signals.names[0]})
                await self._signals.run_until_second_signal(self._stop)
                nursery.cancel_scope.cancel()
        finally:
            self._parts.access.persist()
        log.info("stopped")

    async def _start_unless_stopped(self, nursery: trio.Nursery) -> None:
        """Start everything in ``nursery``, but do not wait for the rest when a signal comes meanwhile."""
        async with trio.open_nursery() as starting:
            starting.start_soon(self._start, nursery, starting.cancel_scope)
            await self._signals.first.wait()
            starting.cancel_scope.cancel()

    async def _start(self, nursery: trio.Nursery, starting: trio.CancelScope) -> None:
        if self._link is not None:
            await nursery.start(self._link.run, self._signals, self._metrics, self._failing_tasks)
        facts: dict[str, Any] = {"namesrv": self._start_namesrv(nursery)}
        if self._config.controller is not None:
            facts["controller"] = self._start_controller(nursery, self._config.controller)
        addresses = facts["brokers"] = await self._brokers.start(nursery)
        if self._grpc is not None:
            build_cluster = self._grpc_cluster(facts["namesrv"], addresses)
            facts["grpc"] = self._grpc.start(nursery, build_cluster)
        if self._http is not None:
            facts["http"] = format_host(await nursery.start(self._http.run))
        if self._push is not None:
            nursery.start_soon(self._push.run, self._tasks)
        tune_garbage_collector()
        self._started.set()
        if self._link is None:
            announce_ready(facts, self._config.process.ready_file)
            log_start(
                self._config,
                facts["namesrv"],
                addresses,
                facts.get("http"),
                facts.get("grpc"),
                facts.get("controller"),
            )
        else:
            for address in addresses.values():
                await self._link.report_ready(address)
        starting.cancel()

    def _start_namesrv(self, nursery: trio.Nursery) -> str | None:
        if self._namesrv is None:
            return None
        listeners = self._parts.listen(self._namesrv.namesrv.config.listen_port, "namesrv.listenPort")
        self._namesrv_port = listeners[0].getsockname()[1]
        nursery.start_soon(self._namesrv.run, listeners)
        return format_address(listeners[0])

    def _start_controller(self, nursery: trio.Nursery, config: ControllerConfig) -> str:
        peer = config.own_peer()
        assert peer is not None  # the configuration was checked
        from gateway.controller.service import ControllerService  # few processes have one

        listeners = self._parts.listen(peer.port, "controllerDLegerPeers")
        access = self._parts.access
        self._controller = ControllerService(
            config,
            listeners[0].getsockname()[1],
            self._parts.clock,
            self._parts.limits,
            self._parts.server_limits,
            memory=self._config.memory,
            run_blocking=self._parts.run_blocking,
            reactor=self._parts.reactor,
            accept_transport=self._parts.accept_transport,
            connection_type=self._parts.connection_type,
            guard=access.guard("controller", access.accounts_of_controller(), self._need_context()),
            sign=access.sign,
        )
        nursery.start_soon(self._controller.run, listeners)
        return format_address(listeners[0])

    def _grpc_cluster(self, namesrv: str | None, addresses: Mapping[str, str]) -> "BuildCluster":
        """Return what builds the cluster that the gRPC port serves."""
        if self._config.proxy is not None:
            return proxy_cluster(self._config, self._config.proxy, self._parts, self._tasks)
        if self._config.process.processes:
            return process_cluster(self._config, self._parts, self._tasks, namesrv, addresses)
        from gateway.process.local_brokers import LocalBrokers

        assert isinstance(self._brokers, LocalBrokers)
        return local_cluster(self._parts, self._brokers.services, self._namesrv)

    async def _open_grpc(self) -> GrpcEndpoint:
        """Return the gRPC front; without a port of its own it is loaded when the first client comes."""
        await self._started.wait()
        if self._grpc is None:
            assert self._nursery is not None
            # In a thread: the import takes 0.1 s.
            endpoint = await self._parts.run_blocking(lambda: GrpcEndpoint(self._config, self._parts))
            await endpoint.start_without_port(self._nursery, self._grpc_cluster(None, {}))
            self._grpc = endpoint
        return self._grpc

    def _supervisors(self) -> Iterator[TaskSupervisor]:
        yield self._tasks
        if self._namesrv is not None:
            yield self._namesrv.tasks
        if self._controller is not None:
            yield self._controller.tasks
        yield from self._brokers.supervisors()

    def _failing_tasks(self, excluded: str) -> list[str]:
        return failing_tasks(self._supervisors(), excluded)

    def _part_metrics(self) -> Iterator[Metric | Distribution | None]:
        for tasks in self._supervisors():
            yield from tasks.metrics()
        if self._namesrv is not None:
            yield from connection_metrics("namesrv", self._namesrv.server)
            yield from namesrv_metrics(self._namesrv.routes)
        if self._controller is not None:
            yield from connection_metrics("controller", self._controller.server)
            yield from self._controller.controller.metrics()
        if self._grpc is not None:
            yield from self._grpc.metrics()
        yield from self._brokers.metrics()

    async def _stop(self) -> None:
        """End gRPC and the brokers first, so that clients still learn of it from the namesrv."""
        if self._grpc is not None:
            await self._grpc.stop()
        await self._brokers.stop()
        if self._controller is not None:
            await self._controller.stop()
        if self._namesrv is not None:
            await self._namesrv.stop()


TLS_TEXTS: Mapping[str, str] = {
    "disabled": "off",
    "permissive": "possible, not required",
    "enforcing": "required",
}


def log_start(
    config: ServeConfig,
    namesrv: str | None,
    brokers: Mapping[str, str],
    http: str | None,
    grpc: str | None = None,
    controller: str | None = None,
) -> None:
    """Log addresses, store, durability, native sends, security and the next step, for people.

    Addresses are ``host:port`` as clients on this machine reach them. Programs read the ready line on standard output.
    """
    addresses: dict[str, str] = {} if namesrv is None else {"namesrv": namesrv}
    addresses |= brokers
    if http is not None:
        addresses["http"] = http
    if grpc is not None:
        addresses["grpc"] = grpc
    if controller is not None:
        addresses["controller"] = controller
    log.info("ready", extra=addresses)
    for broker in config.brokers:
        if config.memory:
            where, durability = "memory", "lost at the end of the process"
        else:
            where, durability = broker.store.store_path_root_dir, broker.store.flush_disk_type
        log.info("store", extra={"broker": broker.replica_name, "directory": where, "durability": durability})
    for state, names in _native_states(config).items():
        log.info("native sends", extra={"brokers": ", ".join(names), "state": state})
    log.info(
        "security", extra={"tls": describe_tls(config.tls), "access_control": describe_access(config.auth)}
    )
    if config.namesrv is not None:
        _warn_of_registrations(config)
        _suggest_processes(config)
    if config.controller is not None:
        log.info(
            "next step",
            extra={"do": f"give brokers controllerAddr={_controllers_of(config.controller, controller)}"},
        )
    if namesrv is not None or config.brokers:
        log.info("next step", extra={"do": _next_step(config, namesrv, grpc)})
    if config.proxy is not None:
        log.info("serving", extra={"cluster": config.proxy.namesrv_addr})
        log.info("next step", extra={"do": f"give gRPC clients (5.x) the endpoint {grpc}"})


def _suggest_processes(config: ServeConfig) -> None:
    """Say how to use more than one core, where there are enough and nothing was chosen."""
    cores = usable_cores()
    brokers = suggest_brokers(cores)
    # A store in memory is for tests, which have no use for more.
    if brokers == 1 or len(config.brokers) > 1 or config.process.processes or config.memory:
        return
    log.info("cores", extra={"usable": cores, "used": 1, "do": MORE_CORES.format(brokers=brokers)})


def _native_states(config: ServeConfig) -> dict[str, list[str]]:
    """Return in words whether the C extension serves plain sends, with the names of the brokers of which it is true."""
    states: dict[str, list[str]] = {}
    for broker in config.brokers:
        states.setdefault(describe_native(broker, config.auth), []).append(broker.replica_name)
    return states


def describe_native(broker: BrokerConfig, auth: AuthConfig) -> str:
    """Return in words whether the C extension serves a broker's plain sends.

    `FlowControl.limits_on_plain_sends` decides, and may decide otherwise later; the metric `native_sends_on` says so.
    """
    flow = broker.flow
    if flow.native_sends == "off":
        reason = "nativeSends=off"
    elif absence := native_absence():
        reason = absence
    elif auth.acl_enable or auth.authentication_enabled:
        reason = "access control looks at each"
    elif flow.send_quota_messages or flow.send_quota_bytes:
        reason = "quotas look at each"
    else:
        return "on"
    return f"off, {reason}; Python serves them"


def describe_tls(tls: TlsConfig) -> str:
    """Return in words which connections the ports accept."""
    kind = TLS_TEXTS[tls.mode]
    if tls.mode == "disabled":
        return kind
    return f"{kind}; " + ("own certificate" if tls.certificate else "self-signed certificate")


def describe_access(auth: AuthConfig) -> str:
    """Return in words who may send requests."""
    if auth.acl_enable:
        return "ACL 1.0"
    if not auth.authentication_enabled:
        return "off: whoever reaches the ports may do everything"
    return "ACL 2.0: users and policies" if auth.authorization_enabled else "ACL 2.0: users, no policies"


def _warn_of_registrations(config: ServeConfig) -> None:
    """Warn of brokers that also register elsewhere: clients of those namesrvs are sent here."""
    for broker in config.brokers:
        if namesrvs := broker.namesrv_addr or broker.address_server:
            log.warning(
                "registers with namesrvs elsewhere, whose clients are sent here",
                extra={"broker": broker.broker_name, "namesrvs": namesrvs},
            )


def _controllers_of(config: ControllerConfig, own_address: str | None) -> str:
    """Return the addresses of all controllers of the group; the own port may have been any free one."""
    addresses = []
    for peer in config.all_peers():
        is_free_port = peer.member_id == config.self_id and peer.port == 0
        addresses.append(str(own_address) if is_free_port else format_host((peer.host, peer.port)))
    return ";".join(addresses)


def _next_step(config: ServeConfig, namesrv: str | None, grpc: str | None) -> str:
    step = _next_step_of_remoting(config, namesrv)
    return step if grpc is None else f"{step}, and gRPC clients (5.x) the endpoint {grpc}"


def _next_step_of_remoting(config: ServeConfig, namesrv: str | None) -> str:
    if namesrv is not None:
        return f"give clients the namesrv address {namesrv}"
    registers = ", ".join(sorted({broker.namesrv_addr for broker in config.brokers if broker.namesrv_addr}))
    if registers:
        return f"give clients the namesrv address {registers}"
    if servers := ", ".join(sorted({broker.address_server for broker in config.brokers} - {""})):
        return f"give clients a namesrv address that {servers} lists"
    return "set namesrvAddr: without it no client finds this broker"
