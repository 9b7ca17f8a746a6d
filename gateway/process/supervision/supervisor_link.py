"""A broker process's end of the control channel to its supervisor."""

import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

from gateway.config.process import AUTO
from gateway.runtime.metrics import Distribution, Metric, MetricRegistry, separate_buckets
from gateway.runtime.stop_signals import StopSignals
from remoting.client import open_client_over
from remoting.connection import Connection
from remoting.errors import RemotingClosed
from remoting.handler_table import HandlerTable
from remoting.limits import ConnectionLimits
from remoting.requests.processes import (
    BrokerProcessReady,
    BrokerProcessState,
    BrokerProcessStateReply,
    GetBrokerProcessState,
    HistogramSample,
    MetricSample,
    StopBrokerProcess,
)
from remoting.transport import SocketTransport

REPORT_TIMEOUT_S: Final = 60.0
"""Longest time for the supervisor, which may be busy, to take the report that the broker listens."""


class SupervisorLink:
    """The connection to the supervisor; when it ends, so does the process, at once and cleanly.

    ``has_namesrv`` tells whether the broker can register over it.
    """

    def __init__(self, control: socket.socket, limits: ConnectionLimits, *, has_namesrv: bool) -> None:
        self.has_namesrv = has_namesrv
        self._control = control
        self._limits = limits
        self._connection: Connection | None = None

    async def run(
        self,
        signals: StopSignals,
        metrics: MetricRegistry,
        failing_tasks: Callable[[str], list[str]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer the supervisor until cancelled, or until it is gone."""
        transport = SocketTransport(self._control)
        # Registered with this host, the supervisor's namesrv names each client the address by which it came.
        transport.local = (AUTO, 0)
        transport.remote = ("supervisor", 0)
        bound_handlers = handlers.bind(_Served(signals, metrics, failing_tasks))
        closed = trio.Event()
        async with open_client_over(transport, bound_handlers, limits=self._limits) as connection:
            connection.on_close(lambda _: closed.set())
            self._connection = connection
            task_status.started()
            await closed.wait()
        signals.request_stop("supervisor is gone", at_once=True)

    @asynccontextmanager
    async def open_namesrv(self) -> AsyncIterator[Connection]:
        """Yield the connection, over which the supervisor's namesrv answers. Raises RemotingClosed."""
        if self._connection is None or self._connection.closed:
            raise RemotingClosed("the supervisor is gone")
        yield self._connection

    async def report_ready(self, address: str) -> None:
        """Report that the broker listens at host:port; without a supervisor `run` ends the process anyway.

        Raises RemotingTimeout.
        """
        with suppress(RemotingClosed):
            async with self.open_namesrv() as connection:
                await connection.ask(BrokerProcessReady(address=address), REPORT_TIMEOUT_S)


class _Served:
    """The parts of the process that the handlers use."""

    def __init__(
        self, signals: StopSignals, metrics: MetricRegistry, failing_tasks: Callable[[str], list[str]]
    ) -> None:
        self.signals = signals
        self.metrics = metrics
        self.failing_tasks = failing_tasks


handlers: HandlerTable[_Served] = HandlerTable()


@StopBrokerProcess.on(handlers)
def stop(served: _Served, request: StopBrokerProcess) -> None:
    served.signals.request_stop("stopped by the supervisor", at_once=request.at_once)


@GetBrokerProcessState.on(handlers)
async def get_state(served: _Served, request: GetBrokerProcessState) -> BrokerProcessStateReply:
    state = BrokerProcessState(failing=served.failing_tasks(request.excluded))
    for sample in (*await served.metrics.collect_in_slices(), *process_metrics()):
        if isinstance(sample, Metric):
            state.metrics.append(_metric_sample(sample))
        else:
            state.histograms.append(_histogram_sample(sample))
    return BrokerProcessStateReply(data=state)


def _metric_sample(metric: Metric) -> MetricSample:
    return MetricSample(
        name=metric.name,
        value=float(metric.value),
        meaning=metric.meaning,
        kind=metric.kind,
        labels=dict(metric.labels),
        unit=metric.unit,
    )


def _histogram_sample(shown: Distribution) -> HistogramSample:
    bounds, counts = separate_buckets(shown.histogram)
    return HistogramSample(
        name=shown.name,
        bounds=[float(bound) for bound in bounds],
        counts=counts,
        total=float(shown.histogram.total),
        meaning=shown.meaning,
        labels=dict(shown.labels),
        unit=shown.unit,
    )


def process_metrics() -> list[Metric]:
    """Return the processor time and, on Linux, the resident memory of this process."""
    meaning = "processor time of a broker process, in seconds"
    metrics = [Metric("broker_process_cpu_seconds_total", time.process_time(), meaning)]
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return metrics
    meaning = "resident memory of a broker process"
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    return [*metrics, Metric("broker_process_resident_memory_bytes", memory, meaning, "gauge")]
