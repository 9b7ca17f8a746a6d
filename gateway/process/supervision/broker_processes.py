"""All broker processes of one supervisor, in the place that brokers of the same process have otherwise."""

import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import trio

from gateway.config.metrics_export import MetricsExportConfig
from gateway.config.process import AUTO, BrokerConfig, ServeConfig
from gateway.namesrv.processors import handlers as namesrv_handlers
from gateway.namesrv.service import NamesrvService
from gateway.process.supervision.broker_process import BrokerJob, BrokerProcess, start_broker_process
from gateway.process.supervision.supervised_broker import SupervisedBroker
from gateway.runtime.metrics import Distribution, Metric
from gateway.runtime.supervise import TaskSupervisor
from remoting.reactor import Reactor

Fact = TypeVar("Fact")


class BrokerProcesses:
    """Starts one process for each configured broker. ``namesrv`` is the one of this process, if there is one."""

    def __init__(self, config: ServeConfig, namesrv: NamesrvService | None, reactor: Reactor | None) -> None:
        self._config = config
        self._has_namesrv = namesrv is not None
        self._reactor = reactor
        self._brokers = [self._supervise(broker, namesrv) for broker in config.brokers]

    def _supervise(self, broker: BrokerConfig, service: NamesrvService | None) -> SupervisedBroker:
        namesrv = service.namesrv if service is not None else None
        is_elected = broker.replication.enable_controller_mode
        return SupervisedBroker(
            broker,
            self._start_process,
            write_log,
            namesrv_handlers.bind(namesrv) if namesrv is not None else {},
            namesrv.child_brokers.add(broker.broker_name, broker.broker_id, is_elected=is_elected)
            if namesrv is not None
            else None,
            self._config.limits.of_connection(),
            float(self._config.limits.drain_s),
        )

    def _start_process(self, broker: BrokerConfig) -> BrokerProcess:
        process = replace(
            self._config.process,
            brokers=1,
            replicas=1,
            processes=False,
            http_port=-1,
            ready_file="",
            metrics_export=MetricsExportConfig(),  # the supervisor exports the metrics of all
        )
        config = replace(self._config, process=process, namesrv=None, brokers=(broker,), notices=())
        return start_broker_process(BrokerJob(config, os.getpid(), self._has_namesrv), self._reactor)

    async def start(self, nursery: trio.Nursery) -> dict[str, str]:
        """Start all processes at the same time and return the address of each broker when all listen."""
        for broker in self._brokers:
            nursery.start_soon(broker.run)
        for broker in self._brokers:
            await broker.ready.wait()
        return {broker.name: broker.address for broker in self._brokers}

    async def stop(self) -> None:
        """Let all processes end cleanly."""
        async with trio.open_nursery() as nursery:
            for broker in self._brokers:
                nursery.start_soon(broker.stop)

    def advertised_host(self) -> str:
        """Return the host that the first broker advertises to clients; "auto" without brokers."""
        return self._brokers[0].advertised_host if self._brokers else AUTO

    def supervisors(self) -> Iterator[TaskSupervisor]:
        """Yield nothing: the background tasks of the brokers are in their processes."""
        yield from ()

    def metrics(self) -> Iterator[Metric | None]:
        """Yield nothing: see `remote_metrics`."""
        yield from ()

    async def remote_metrics(self) -> list[Metric | Distribution]:
        """Ask all processes for their metrics; one that does not answer in time is left out."""
        return await self._ask_all(SupervisedBroker.collect_metrics)

    async def find_troubles(self, excluded: str = "") -> list[str]:
        """Return why clients should not be sent to some of the brokers; empty when all are well.

        ``excluded`` is the name of a background task that may fail.
        """
        return sorted(await self._ask_all(lambda broker: broker.find_troubles(excluded)))

    async def _ask_all(self, ask: Callable[[SupervisedBroker], Awaitable[list[Fact]]]) -> list[Fact]:
        """Return what all brokers answer, each as soon as it can."""
        facts: list[Fact] = []

        async def collect(broker: SupervisedBroker) -> None:
            facts.extend(await ask(broker))

        async with trio.open_nursery() as nursery:
            for broker in self._brokers:
                nursery.start_soon(collect, broker)
        return facts


def write_log(text: str) -> None:
    """Write lines of a broker process to standard error. If its reader is gone they are lost, as all log lines are."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
