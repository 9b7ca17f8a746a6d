"""The composition root of a shadow gateway: builds its parts from a `ShadowConfig` and runs them until a signal."""

import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from codec.hosts import format_host
from gateway.runtime.allocator import TRIM_INTERVAL_S, HeapTrimmer
from gateway.runtime.file_limit import within_file_limit
from gateway.runtime.listener_tls import listener_acceptor
from gateway.runtime.loop_watchdog import LoopWatchdog
from gateway.runtime.metrics import Metric, MetricRegistry
from gateway.runtime.process import announce_ready, run_process, tune_garbage_collector
from gateway.runtime.server_tls import APPLICATION_PROTOCOLS
from gateway.runtime.state_file import absolute_path
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.capture.writer import build_capture
from gateway.shadow.clusters.cluster import Cluster, Sign
from gateway.shadow.clusters.embedded_target import EmbeddedTarget
from gateway.shadow.clusters.endpoints import (
    PrimarySettings,
    TargetSettings,
    make_cluster,
    make_signer,
    make_upstream_dialer,
)
from gateway.shadow.clusters.loop_guard import LoopGuard
from gateway.shadow.clusters.target_check import TargetCheck
from gateway.shadow.compare.service import ComparisonService, build_comparison
from gateway.shadow.config import ShadowConfig
from gateway.shadow.cutover.assembly import Cutover
from gateway.shadow.grpc_listener import GrpcListener
from gateway.shadow.mirror.service import MirrorRoutes, MirrorService
from gateway.shadow.proxy.broker_check import BrokerCheck
from gateway.shadow.proxy.forwarder import Forwarder
from gateway.shadow.proxy.listener_context import TargetMasters
from gateway.shadow.proxy.session_driver import describe_session_frame
from gateway.shadow.proxy.settings import NO_PORT, ListenSettings
from gateway.shadow.replication.service import ReplicationService
from gateway.shadow.report.service import ReportService, mirror_problems, queue_problems, task_problems
from gateway.shadow.traffic.exchange import Hub, Side
from remoting.connection import Handler
from remoting.reactor import Reactor
from remoting.tls_acceptor import TlsAcceptor
from storage.clock import SystemClock
from toolkit.private_files import make_private_directories
from toolkit.settings import SettingsError

if TYPE_CHECKING:
    from gateway.shadow.grpc_forwarding.service import GrpcForwarder

log = logging.getLogger(__name__)

_PROBE_PREFIX: Final = ".rmq-gateway-probe-"
_HOLD_MESSAGES: Final = frozenset({"capture.directory", "mirroring.spill_dir"})


def run(config: ShadowConfig, ready_file: str = "") -> int:
    """Run a gateway until SIGTERM or SIGINT; return the exit status of the process."""

    def build() -> ShadowServer:
        check_writable_paths(config, ready_file)
        return ShadowServer(config, ready_file)

    return run_process(build)


class ShadowServer:
    """One gateway process: the forwarder, and the parts that observe or direct its traffic."""

    def __init__(self, config: ShadowConfig, ready_file: str = "") -> None:
        self._config = config
        self._ready_file = ready_file
        self._signals = StopSignals()
        self._watchdog = LoopWatchdog((describe_session_frame,))
        self._heap_trimmer = HeapTrimmer()
        self._process_tasks = TaskSupervisor("process")
        self._target_tasks = TaskSupervisor("target")
        self._reactor = Reactor() if Reactor.is_available() else None
        self._guard = LoopGuard()
        self.hub = Hub()
        if config.target.namesrv:
            self.hub.ignore_exchanges(self._guard.is_own_request)
        self.metrics = MetricRegistry()
        self.metrics.register(self._watchdog.metrics)
        self.report = ReportService(config.console, config.report, config, self.hub, self.metrics)
        # Each session uses one file for the client, one for the primary and perhaps one for the target.
        max_connections = within_file_limit(config.listen.connections, share=4)
        listen, primary = replace(config.listen, connections=max_connections), config.primary
        dialer = make_upstream_dialer(primary, "primary", self._reactor)
        sign = make_signer(primary.credentials, "primary.credentials")
        self.primary = Cluster(primary.namesrv, opener=dialer.opener, sign=sign)
        self.target = (
            make_cluster(config.target, "target", reactor=self._reactor) if config.target.namesrv else None
        )
        # One for all ports, as in the other servers: clients of the others negotiate no protocol.
        acceptor = listener_acceptor(
            listen.tls, application_protocols=() if listen.grpc_port == NO_PORT else APPLICATION_PROTOCOLS
        )
        self.forwarder = Forwarder(
            listen,
            self.primary,
            self.hub,
            SystemClock(),
            dialer=dialer,
            sign=sign,
            acceptor=acceptor,
            target_masters=self._build_target_masters(),
        )
        self.metrics.register(self.forwarder.metrics)
        self.metrics.register(self.hub.metrics)
        self.capture = build_capture(config.capture, has_mirror=bool(config.target.namesrv))
        if self.capture is not None:
            self.hub.add_observer(self.capture)
            self.metrics.register(self.capture.collect_metrics)
        self._grpc = self._build_grpc_port(listen, sign, acceptor)
        self._grpc_port = NO_PORT
        if self._grpc is not None:
            self.metrics.register(self._grpc.metrics)
        self.target_check = self._build_target_check(self.target) if self.target is not None else None
        self.mirror = self._build_mirror() if config.target.namesrv else None
        self.cutover = self._build_cutover(self.mirror) if self.mirror else None
        self.comparison = (
            self._build_comparison(self.mirror) if self.mirror and config.compare.enabled else None
        )
        self._collect_problems()
        self.report.add_section("tasks", self._task_rows)
        self.metrics.register(self._task_metrics)

    def _build_grpc_port(
        self, listen: ListenSettings, sign: Sign | None, acceptor: TlsAcceptor | None
    ) -> "GrpcListener | GrpcForwarder | None":
        """Return the port for 5.x clients: in front of this gateway's other ports, or of the primary's Proxy."""
        if listen.grpc_port == NO_PORT:
            return None
        if not listen.grpc_forward_to:
            return GrpcListener(
                listen,
                SystemClock(),
                is_own_port=self.forwarder.is_own_port,
                sign=sign,
                acceptor=acceptor,
                reactor=self._reactor,
            )
        from gateway.shadow.grpc_forwarding.captured_calls import CallCapture
        from gateway.shadow.grpc_forwarding.service import GrpcForwarder

        capture = None
        if self.capture is not None:
            observe = partial(self.hub.publish_to, self.capture)
            capture = CallCapture(
                self.capture.codes, observe, SystemClock(), listen.grpc_forward_to, listen.frame_bytes
            )
        return GrpcForwarder(
            listen,
            self._config.primary.tls,
            is_own_port=self.forwarder.is_own_port,
            capture=capture,
            acceptor=acceptor,
            reactor=self._reactor,
        )

    def _make_cluster(
        self,
        settings: PrimarySettings | TargetSettings,
        table: str,
        handlers: dict[int, Handler] | None = None,
    ) -> Cluster:
        """Return a cluster for requests of the gateway's parts; those to the target pass the loop guard."""
        guard = self._guard if table == "target" else None
        return make_cluster(settings, table, handlers, reactor=self._reactor, guard=guard)

    def _build_target_check(self, target: Cluster) -> TargetCheck:
        return TargetCheck(
            self.primary,
            target,
            self._guard,
            self.forwarder.is_own_address,
            preserves_offsets=self._config.target.kind == "ours",
        )

    def _build_target_masters(self) -> TargetMasters | None:
        """Return the masters that clients' requests may be directed to; None without a target."""
        if self.target is None:
            return None
        settings = self._config.target
        dialer = make_upstream_dialer(settings, "target", self._reactor)
        check = BrokerCheck(
            dialer.opener,
            dialer.policy,
            timeout_s=self._config.listen.connect_s,
            sign=make_signer(settings.credentials, "target.credentials"),
            is_own=lambda endpoint: self.forwarder.is_own_endpoint(endpoint),
        )
        return TargetMasters(self.target, settings.brokers, check.dial)

    def _build_mirror(self) -> MirrorService:
        """Build the mirror, which has connections of its own to both clusters."""
        config = self._config
        make_replication = partial(ReplicationService, config.replication, config.target.brokers)
        service = MirrorService(
            config.mirror,
            config.mirroring,
            config.target.brokers,
            partial(self._make_cluster, config.primary, "primary"),
            partial(self._make_cluster, config.target, "target"),
            make_replication if config.target.kind == "ours" else None,
            f"{config.target.kind} {' '.join(sorted(config.target.namesrv))}",
        )
        service.attach_to(self.hub)
        self.metrics.register(service.mirror.metrics)
        if service.replication is not None:
            self.metrics.register(service.replication.collect_metrics)
            self.report.add_section("replication", service.replication.status)
        if self.capture is not None:
            service.mirror.add_outcome_listener(self.capture.observe_outcome)
        self.report.show_mirror(service.mirror)
        return service

    def _build_cutover(self, mirror: MirrorService) -> Cutover:
        """Build the cut-over and resume its moves."""
        target = self._config.target
        check = self.target_check
        cutover = Cutover(
            self._config.cutover,
            self.hub,
            mirror,
            target.brokers,
            target.kind,
            lambda: check.problem if check is not None else "",
            replicates_dead_letters=self._config.replication.dead_letters,
        )
        cutover.register_metrics(self.metrics)
        self.report.show_moves(cutover.console_routes.moves_status)
        if cutover.parity is not None:
            self.report.show_parity(cutover.parity.last_result)
        cutover.console_routes.register_routes(self.report.console)
        MirrorRoutes(mirror.mirror, cutover.mode_switch.switch_mode).register(self.report.console)
        cutover.resume_moves()
        return cutover

    def _build_comparison(self, mirror: MirrorService) -> ComparisonService:
        """Build the comparison of both clusters, which has connections of its own to both."""
        offsets = mirror.factory.directions[Side.PRIMARY].state.offsets
        comparison = build_comparison(
            self._config,
            lambda broker, topic, queue_id, at: offsets.translate((broker, topic, queue_id), at),
            self._make_cluster,
        )
        self.hub.add_observer(comparison.observer)
        mirror.mirror.add_outcome_listener(comparison.observer.observe_outcome)
        self.metrics.register(comparison.collect_metrics)
        self.report.show_comparison(comparison)
        comparison.register_routes(self.report.console)
        return comparison

    def _collect_problems(self) -> None:
        """Let each part say what an operator has to look at; the causes come before their consequences."""
        problems, check, mirror = self.report.problems, self.target_check, self.mirror
        listeners = self.forwarder.broker_listeners
        problems.add_source("primary", lambda: [listeners.problem] if listeners.problem else [])
        if check is not None and mirror is not None:
            problems.add_source("target", lambda: [check.problem] if check.problem else [])
            # While the target cannot be used at all, streams and queues only repeat that.
            problems.add_source("mirror", lambda: mirror_problems(mirror.mirror) if not check.problem else [])
            if mirror.replication is not None:
                failing = mirror.replication.failing_queues
                problems.add_source("mirror", lambda: queue_problems(failing()) if not check.problem else [])
        if self.cutover is not None:
            problems.add_source("moves", self.cutover.bypass.problems)
        problems.add_source("tasks", lambda: task_problems(self._supervisors()))

    def _supervisors(self) -> Iterator[TaskSupervisor]:
        yield from (self._process_tasks, self.forwarder.tasks, self.report.tasks, self._target_tasks)
        if self.capture is not None:
            yield self.capture.tasks
        if self.mirror is not None:
            yield from self.mirror.supervisors()
        if self.cutover is not None:
            yield self.cutover.bypass.tasks
        if self.comparison is not None:
            yield self.comparison.tasks

    def _task_rows(self) -> list[dict[str, Any]]:
        return [row for tasks in self._supervisors() for row in tasks.status()]

    def _task_metrics(self) -> Iterator[Metric]:
        return (metric for tasks in self._supervisors() for metric in tasks.metrics())

    async def run(self) -> None:
        """Start all parts, report that the gateway is ready, and forward traffic until a signal."""
        self._signals.install()
        async with trio.open_nursery() as nursery:
            if self._reactor is not None:
                nursery.start_soon(self._reactor.run)
            nursery.start_soon(self._watchdog.run)
            nursery.start_soon(
                self._process_tasks.repeat,
                "give free memory back",
                TRIM_INTERVAL_S,
                self._heap_trimmer.trim,
            )
            # Before everything that connects to it.
            if self._config.target.embedded.store:
                await nursery.start(EmbeddedTarget(self._config.target.embedded).run)
            await self.forwarder.refuse_own_primary()
            await nursery.start(self.primary.run)
            if self.capture is not None:
                await nursery.start(self.capture.run)
            if self.target is not None:
                await nursery.start(self.target.run)
            if self.target_check is not None:
                # Raises if the target is the primary. Nothing was mirrored yet.
                await self.target_check.check_at_start()
                nursery.start_soon(self._target_tasks.keep_running, "check the target", self.target_check.run)
            if self.mirror is not None:
                await nursery.start(self.mirror.run)
            if self.cutover is not None:
                nursery.start_soon(self.cutover.bypass.run)
            if self.comparison is not None:
                await nursery.start(self.comparison.run)
            # Last of the parts: from here on clients are served, and every observer has to be ready.
            await nursery.start(self.forwarder.run)
            if isinstance(self._grpc, GrpcListener):
                self._grpc_port = self._grpc.start(nursery, self.forwarder.namesrv_ports)
            elif self._grpc is not None:
                self._grpc_port = await self._grpc.start(nursery)
            if self.mirror is not None:
                # Clients are served already, but readiness must not be reported before backlogs on disk are known.
                await self.mirror.mirror.wait_until_opened()
            console = await nursery.start(self.report.run)
            tune_garbage_collector()
            announce_ready(self._ready_facts(console), self._ready_file)
            await self._signals.first.wait()
            log.info("stopping", extra={"signal": self._signals.names[0]})
            await self._signals.run_until_second_signal(self._finish_traffic)
            nursery.cancel_scope.cancel()
        log.info("stopped")

    def _ready_facts(self, console: tuple[str, int] | None) -> dict[str, Any]:
        host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(
            self._config.listen.host, self._config.listen.host
        )
        listeners = self.forwarder.broker_listeners
        brokers = {
            name: format_host((host, listeners.ports[address]))
            for name, addresses in sorted(self.primary.brokers.items())
            for _, address in sorted(addresses.items(), reverse=True)
            if address in listeners.ports
        }
        namesrv = format_host((host, self.forwarder.namesrv_ports[0]))
        facts = {"namesrv": namesrv, "brokers": brokers, "console": console and format_host(console)}
        return facts if self._grpc is None else {**facts, "grpc": format_host((host, self._grpc_port))}

    async def _finish_traffic(self) -> None:
        """Let answers arrive, drain the mirror, and write the report."""
        # First, so that nothing more is added to what the mirror has to bring to the target.
        if self._grpc is not None:
            await self._grpc.stop()
        await self.forwarder.stop()
        if self.mirror is not None:
            await self.mirror.drain()
        await self.report.write_files()


# -- files and directories -------------------------------------------------------------------------------------------


def check_writable_paths(config: ShadowConfig, ready_file: str = "") -> None:
    """Create missing directories and write a probe into each. Raises SettingsError, which names all that fail.

    Checked at start: otherwise a wrong path would be noticed when the first message flows.
    """
    problems = [
        f"{setting}: cannot write to {path}: {reason}"
        for setting, path, is_directory in _configured_paths(config, ready_file)
        if path and (reason := _why_not_writable(setting, absolute_path(path), is_directory=is_directory))
    ]
    if problems:
        raise SettingsError(f"{'; '.join(problems)}. Name another path, or change its permissions")


def _configured_paths(config: ShadowConfig, ready_file: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the setting, the path, and whether it is a directory."""
    yield "capture.directory", config.capture.directory, True
    if config.mirroring.spill == "disk":
        yield "mirroring.spill_dir", config.mirroring.spill_dir, True
    yield "target.embedded.store", config.target.embedded.store, True
    yield "mirroring.state_file", config.mirroring.state_file, False
    yield "cutover.state_file", config.cutover.state_file, False
    yield "listen.ports_file", config.listen.ports_file, False
    yield "compare.noise_file", config.compare.noise_file, False
    yield "report.file", config.report.file, False
    yield "report.json_file", config.report.json_file, False
    yield "--ready-file", ready_file, False


def _why_not_writable(setting: str, path: str, *, is_directory: bool) -> str:
    """Return why files cannot be written in a directory, or a file cannot be replaced; "" if they can.

    A missing directory is created. A directory for messages is its owner's alone.
    """
    directory = path if is_directory else os.path.dirname(path)
    if not is_directory and os.path.isdir(path):
        return "it is a directory"
    try:
        if setting in _HOLD_MESSAGES:
            make_private_directories(directory)
        else:
            os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=_PROBE_PREFIX, dir=directory) as probe:
            probe.write(b"\0")
            probe.flush()
        if os.path.exists(path) and not is_directory:
            with open(path, "ab"):
                pass
    except (FileExistsError, NotADirectoryError):
        return "a part of the path is a file, not a directory"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
