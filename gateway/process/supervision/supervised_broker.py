"""One broker under its supervisor: its process is started again whenever it ends, until the supervisor stops it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Protocol

import trio

from gateway.config.process import BrokerConfig
from gateway.namesrv.child_broker import ChildBroker
from gateway.process.supervision.restart_policy import ProcessEnd, RestartPolicy
from gateway.runtime.metrics import OFFICIAL_PREFIX, CountedBuckets, Distribution, Metric, MetricKind
from remoting.client import open_client_over
from remoting.connection import Connection, Handler
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.handler_table import HandlerTable
from remoting.limits import ConnectionLimits
from remoting.requests.processes import (
    BrokerProcessReady,
    BrokerProcessState,
    GetBrokerProcessState,
    HistogramSample,
    MetricSample,
    StopBrokerProcess,
)
from remoting.transport import Transport

log = logging.getLogger(__name__)

STATE_TIMEOUT_S: Final = 2.0
"""Longest time for a broker process to tell its state; probes must be answered soon."""
REPLICA_MARK: Final = "/"
MAX_CLOSE_S: Final = 30.0
"""Longest time for a process to close its store after its requests are answered, before it is killed."""


class Process(Protocol):
    """A started process: `BrokerProcess`, or a fake of it."""

    pid: int
    ended: trio.Event
    end: ProcessEnd | None
    control: Transport

    async def run(self, write_log: Callable[[str], object], /) -> None:
        """Forward the output until the process has ended, and set ``end`` and ``ended``."""

    def kill(self) -> None: ...


StartProcess = Callable[[BrokerConfig], Process]
"""Starts a process for one broker. Raises OSError."""


class SupervisedBroker:
    """Keeps the process of one broker running.

    ``namesrv_handlers`` answer what the process asks the namesrv, if there is one; then ``child`` is its registration.
    ``drain_s`` is the longest time that requests in progress may take when it stops.
    """

    def __init__(
        self,
        config: BrokerConfig,
        start_process: StartProcess,
        write_log: Callable[[str], object],
        namesrv_handlers: dict[int, Handler],
        child: ChildBroker | None,
        limits: ConnectionLimits,
        drain_s: float,
    ) -> None:
        self.name = config.replica_name
        self.address = ""
        self.ready = trio.Event()
        """Set when clients can reach the broker for the first time; ``address`` is then its host:port."""
        self.restarts = 0
        self._config = config
        self._start_process = start_process
        self._write_log = write_log
        self._handlers = {**namesrv_handlers, **handlers.bind(self)}
        self._child = child
        self._limits = limits
        self._drain_s = drain_s
        self._policy = RestartPolicy(config.replica_name)
        self._connection: Connection | None = None
        self._is_listening = False
        self._trouble = "starting"
        self._stopping = trio.Event()
        self._stopped = trio.Event()

    @property
    def advertised_host(self) -> str:
        """The host that the broker advertises to clients: as registered last, before that as configured."""
        address = self._child.address if self._child is not None else ""
        return address.rpartition(":")[0].strip("[]") or self._config.broker_ip

    async def run(self) -> None:
        """Keep a process running until `stop`, or cancelled; in either case it has ended then.

        Raises BrokerStartError or SettingsError when the first one ends before it is ready.
        """
        try:
            while not self._stopping.is_set():
                end = await self._run_process()
                if self._stopping.is_set():
                    return
                delay_s = self._policy.delay_after(end, trio.current_time())
                self._note_end(end, delay_s)
                with trio.move_on_after(delay_s):
                    await self._stopping.wait()
                    return
                self.restarts += 1
        finally:
            self._stopped.set()

    def _note_end(self, end: ProcessEnd, delay_s: float) -> None:
        self._trouble = f"ended with {end}"
        extra = {"broker": self.name, "end": str(end), "delay_s": delay_s}
        if end.errors:
            self._trouble += f": {'; '.join(end.errors)}"
            extra["reason"] = "; ".join(end.errors)
        log.error("broker process ended and will be started again", extra=extra)

    async def _run_process(self) -> ProcessEnd:
        """Start a process and wait for its end, which a cancellation brings about."""
        try:
            process = self._start_process(self._config)
        except OSError as error:
            return ProcessEnd(1, (f"cannot start the process of {self.name}: {error}",))
        log.info("broker process started", extra={"broker": self.name, "pid": process.pid})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run, self._write_log)
            try:
                async with open_client_over(process.control, self._handlers, limits=self._limits) as control:
                    self._attach(control)
                    await process.ended.wait()
            finally:
                # The control channel is closed: the process stops at once.
                await _wait_or_kill(process, MAX_CLOSE_S)
        assert process.end is not None
        return process.end

    def _attach(self, control: Connection) -> None:
        self._connection = control
        control.on_close(self._note_closed)
        if self._child is not None:
            self._child.attach(control)
        if self._stopping.is_set():
            control.send_oneway(StopBrokerProcess(at_once=False))

    def _note_closed(self, _: Connection) -> None:
        self._connection, self._is_listening = None, False
        self._trouble = "ending"

    async def record_ready(self, address: str) -> None:
        """Note that the present process listens at host:port, as soon as it is registered with the namesrv."""
        if self._child is not None:
            await self._child.registered.wait()
        if not self._config.listen_port:
            # Clients know the port of the first process.
            self._config = replace(self._config, listen_port=int(address.rpartition(":")[2]))
        self.address = address
        self._is_listening = True
        self._policy.record_ready(trio.current_time())
        self.ready.set()

    async def stop(self) -> None:
        """Let the process end cleanly, within the time for its requests and its store, and end `run`."""
        self._stopping.set()
        if self._connection is not None:
            self._connection.send_oneway(StopBrokerProcess(at_once=False))
        with trio.move_on_after(self._drain_s + MAX_CLOSE_S):
            await self._stopped.wait()

    async def find_troubles(self, excluded: str = "") -> list[str]:
        """Return why clients should not be sent to this broker; empty when they can be.

        ``excluded`` is the name of a background task that may fail.
        """
        if not self._is_listening:
            return [f"{self.name}: {self._trouble}"]
        if self._child is not None and not self._child.registered.is_set():
            return [f"{self.name}: not registered, because it stops"]
        state = await self._state(excluded)
        return [f"{self.name}: no answer within {STATE_TIMEOUT_S:g} s"] if state is None else state.failing

    async def collect_metrics(self) -> list[Metric | Distribution]:
        """Return the metrics of the process, labelled with the broker, and those of its supervision."""
        state = await self._state() if self._is_listening else None
        return [*self._own_metrics(), *(_labelled(state, self.name) if state else ())]

    def _own_metrics(self) -> Iterator[Metric]:
        labels = {"broker": self.name}
        yield Metric(
            "broker_process_ready",
            float(self._is_listening),
            "1 while the process of a broker listens",
            "gauge",
            labels,
        )
        yield Metric(
            "broker_process_restarts_total", self.restarts, "restarts of a broker's process", labels=labels
        )

    async def _state(self, excluded: str = "") -> BrokerProcessState | None:
        connection = self._connection
        try:
            if connection is not None:
                return (await connection.ask(GetBrokerProcessState(excluded=excluded), STATE_TIMEOUT_S)).data
        except (RemotingClosed, RemotingTimeout, RequestError) as error:
            log.warning(
                "broker process did not tell its state", extra={"broker": self.name, "reason": str(error)}
            )
        return None


handlers: HandlerTable[SupervisedBroker] = HandlerTable()


@BrokerProcessReady.on(handlers)
async def note_ready(broker: SupervisedBroker, request: BrokerProcessReady) -> None:
    await broker.record_ready(request.address)


async def _wait_or_kill(process: Process, within_s: float) -> None:
    """Wait for the end of a process, also after a cancellation, and kill it when it takes too long."""
    with trio.CancelScope(shield=True):
        with trio.move_on_after(within_s) as limit:
            await process.ended.wait()
        if limit.cancelled_caught:
            log.error("broker process does not stop and is killed", extra={"pid": process.pid})
            process.kill()
            await process.ended.wait()


def _labelled(state: BrokerProcessState, broker_name: str) -> Iterator[Metric | Distribution]:
    for sample in state.metrics:
        kind: MetricKind = "gauge" if sample.kind == "gauge" else "counter"
        yield Metric(
            sample.name, sample.value, sample.meaning, kind, _labels_of(sample, broker_name), sample.unit
        )
    for shown in state.histograms:
        buckets = CountedBuckets(tuple(shown.bounds), shown.counts, shown.total)
        yield Distribution(shown.name, buckets, shown.meaning, _labels_of(shown, broker_name), shown.unit)


def _labels_of(sample: MetricSample | HistogramSample, broker_name: str) -> Mapping[str, str]:
    is_official = sample.name.startswith(OFFICIAL_PREFIX)
    # Official labels name the broker already, but are the same for all replicas of a name.
    if is_official and REPLICA_MARK not in broker_name:
        return sample.labels
    return {**sample.labels, "broker": broker_name}
