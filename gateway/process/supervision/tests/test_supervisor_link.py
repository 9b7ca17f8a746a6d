"""A broker process's end of the control channel."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from codec.command import encode_response
from codec.constants import ResponseCode
from gateway.process.supervision.supervisor_link import SupervisorLink
from gateway.runtime.metrics import Distribution, FixedHistogram, Metric, MetricRegistry
from gateway.runtime.stop_signals import StopSignals
from remoting.client import open_client_over
from remoting.connection import Connection
from remoting.errors import RemotingClosed
from remoting.limits import ConnectionLimits
from remoting.requests.processes import BrokerProcessReady, GetBrokerProcessState, StopBrokerProcess
from remoting.transport import SocketTransport


class World:
    """A link, and the supervisor's connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.link = SupervisorLink(theirs, ConnectionLimits(), has_namesrv=True)
        self.signals = StopSignals(counts_signals=False)
        self.metrics = MetricRegistry()
        self.failing: list[str] = []
        self.addresses: list[str] = []
        self._control = SocketTransport(ours)

    def _failing_but(self, excluded: str) -> list[str]:
        return [text for text in self.failing if not excluded or excluded not in text]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        def ready(connection: Connection, command) -> bytes:
            self.addresses.append(BrokerProcessReady.from_command(command).address)
            return encode_response(command.opaque, ResponseCode.SUCCESS, None, b"", None)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.link.run, self.signals, self.metrics, self._failing_but)
                async with open_client_over(self._control, {BrokerProcessReady.code: ready}) as supervisor:
                    yield supervisor
                nursery.cancel_scope.cancel()


def test_it_reports_that_the_broker_listens() -> None:
    async def main() -> None:
        world = World()
        async with world.connected():
            await world.link.report_ready("127.0.0.1:10911")
        assert world.addresses == ["127.0.0.1:10911"]

    trio.run(main)


def test_it_registers_an_address_that_each_client_sees_as_its_own() -> None:
    async def main() -> None:
        world = World()
        async with world.connected(), world.link.open_namesrv() as connection:
            assert connection.local[0] == "auto"

    trio.run(main)


def test_it_tells_metrics_and_failing_tasks() -> None:
    async def main() -> None:
        world = World()
        world.failing.append("broker-a: flush (1 times in a row)")
        world.metrics.register(lambda: [Metric("connections", 3, "open", "gauge", {"part": "x"})])
        sizes = FixedHistogram((10, 100))
        for value in (1, 2, 1000):
            sizes.record(value)
        world.metrics.register(lambda: [Distribution("sizes", sizes, "sizes", {"part": "x"}, "bytes")])
        async with world.connected() as supervisor:
            state = (await supervisor.ask(GetBrokerProcessState())).data
            rest = (await supervisor.ask(GetBrokerProcessState(excluded="flush"))).data
        assert state.failing == world.failing
        assert rest.failing == []
        sample = state.metrics[0]
        assert (sample.name, sample.value, sample.kind, sample.labels) == (
            "connections",
            3.0,
            "gauge",
            {"part": "x"},
        )
        assert {each.name for each in state.metrics} >= {"broker_process_cpu_seconds_total"}
        (shown,) = state.histograms
        assert (shown.name, shown.bounds, shown.counts, shown.total) == (
            "sizes",
            [10.0, 100.0],
            [2, 0, 1],
            1003.0,
        )
        assert (shown.labels, shown.unit) == ({"part": "x"}, "bytes")

    trio.run(main)


def test_the_supervisor_stops_the_process_in_order_and_at_once() -> None:
    async def main() -> None:
        world = World()
        async with world.connected() as supervisor:
            await supervisor.ask(StopBrokerProcess(at_once=False))
            assert world.signals.first.is_set()
            assert not world.signals.second.is_set()
            await supervisor.ask(StopBrokerProcess(at_once=True))
            assert world.signals.second.is_set()

    trio.run(main)


def test_without_its_supervisor_the_process_stops_at_once() -> None:
    async def main() -> None:
        world = World()
        async with world.connected() as supervisor:
            supervisor.close("killed")
            await world.signals.second.wait()
            await world.link.report_ready("127.0.0.1:10911")
            with pytest.raises(RemotingClosed):
                async with world.link.open_namesrv():
                    pass

    trio.run(main)


def test_a_report_ends_with_the_supervisor_and_is_no_error() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        link = SupervisorLink(theirs, ConnectionLimits(), has_namesrv=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(link.run, StopSignals(), MetricRegistry(), list)
            nursery.start_soon(link.report_ready, "127.0.0.1:10911")
            await trio.testing.wait_all_tasks_blocked()
            ours.close()

    trio.run(main)
