"""One broker under its supervisor, on virtual time, with fake processes that speak over memory streams."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import trio
import trio.lowlevel
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from codec.command import Command, encode_response
from codec.constants import ResponseCode
from gateway.config.process import BrokerConfig, NamesrvConfig
from gateway.namesrv.context import build_namesrv
from gateway.namesrv.registration import Registration
from gateway.process.supervision.restart_policy import BrokerStartError, ProcessEnd
from gateway.process.supervision.supervised_broker import MAX_CLOSE_S, STATE_TIMEOUT_S, SupervisedBroker
from remoting.client import open_client_over
from remoting.connection import Connection
from remoting.limits import ConnectionLimits
from remoting.requests.processes import (
    BrokerProcessReady,
    BrokerProcessState,
    GetBrokerProcessState,
    StopBrokerProcess,
)
from remoting.tests.virtual import virtual
from remoting.transport import StreamTransport
from storage.clock import SystemClock

DRAIN_S = 5.0


class FakeProcess:
    """A broker process that does what a test says; ``stops`` tells whether it obeys its supervisor."""

    def __init__(self, config: BrokerConfig, number: int, *, stops: bool) -> None:
        self.config = config
        self.pid = number
        self.ended = trio.Event()
        self.end: ProcessEnd | None = None
        self.was_killed = False
        self.stop_requests: list[bool] = []
        self.failing: list[str] = []
        self.connection: Connection | None = None
        self.connected = trio.Event()
        self._stops = stops
        ours, theirs = memory_stream_pair()
        self.control = StreamTransport(ours)
        self._theirs = theirs

    async def run(self, write_log: Callable[[str], object]) -> None:
        with trio.CancelScope(shield=True):
            served = {StopBrokerProcess.code: self._stop, GetBrokerProcessState.code: self._tell_state}
            async with open_client_over(StreamTransport(self._theirs), served) as connection:
                self.connection = connection
                connection.on_close(lambda _: self._obey(0))
                self.connected.set()
                await self.ended.wait()

    def _stop(self, connection: Connection, command: object) -> None:
        self.stop_requests.append(StopBrokerProcess.from_command(command).at_once)
        self._obey(0)

    def _tell_state(self, connection: Connection, command: Command) -> bytes:
        excluded = GetBrokerProcessState.from_command(command).excluded
        state = BrokerProcessState(failing=[task for task in self.failing if task != excluded])
        return encode_response(command.opaque, ResponseCode.SUCCESS, None, state.to_json(), None)

    def _obey(self, status: int) -> None:
        if self._stops:
            self.finish(ProcessEnd(status))

    def finish(self, end: ProcessEnd) -> None:
        """End, unless it has ended already."""
        if self.end is None:
            self.end = end
            self.ended.set()

    def kill(self) -> None:
        self.was_killed = True
        self.finish(ProcessEnd(-9))

    async def report_ready(self, address: str = "127.0.0.1:10911") -> None:
        await self.connected.wait()
        assert self.connection is not None
        await self.connection.ask(BrokerProcessReady(address=address))


class Supervision:
    """A `SupervisedBroker` and its fake processes, started in order."""

    def __init__(self, *, stops: bool = True, start_error: OSError | None = None) -> None:
        self.processes: list[FakeProcess] = []
        self.started_at_s: list[float] = []
        self.start_error = start_error
        self._stops = stops
        namesrv = build_namesrv(NamesrvConfig(), SystemClock(), memory=True)
        self.child = namesrv.child_brokers.add("broker-a", 0)
        self.broker = SupervisedBroker(
            replace(BrokerConfig(), listen_port=0),
            self._start,
            lambda text: None,
            {},
            self.child,
            ConnectionLimits(),
            DRAIN_S,
        )

    def _start(self, config: BrokerConfig) -> FakeProcess:
        if self.start_error is not None:
            raise self.start_error
        self.started_at_s.append(trio.current_time())
        self.processes.append(FakeProcess(config, len(self.processes), stops=self._stops))
        return self.processes[-1]

    async def next_ready(self, number: int = 0) -> FakeProcess:
        """Wait until this process, counted from 0, is started; make it ready."""
        while len(self.processes) <= number:
            await trio.sleep(0.125)
        await self.processes[number].connected.wait()
        await wait_all_tasks_blocked()
        self.register()
        await self.processes[number].report_ready()
        return self.processes[number]

    def register(self) -> None:
        """Register the broker, as its process does over the control channel."""
        self.child.register(Registration("C", "broker-a", 0, "auto:10911"))


@virtual
async def test_a_process_that_dies_is_started_again_with_back_off(caplog: pytest.LogCaptureFixture) -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        for number in range(4):
            process = await world.next_ready(number)
            process.finish(ProcessEnd(-9))
        await world.next_ready(4)
        nursery.cancel_scope.cancel()
    starts = world.started_at_s
    delays = [round(later - earlier) for earlier, later in pairwise(starts)]
    assert delays == [1, 2, 4, 8]
    assert world.broker.restarts == 4
    (first, *_) = [each for each in caplog.records if "will be started again" in each.message]
    assert (first.broker, first.end, first.delay_s) == ("broker-a", "SIGKILL", 1.0)  # type: ignore[attr-defined]


@virtual
async def test_a_broker_is_ready_when_clients_find_it_at_the_namesrv() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        await wait_all_tasks_blocked()
        nursery.start_soon(world.processes[0].report_ready)
        await trio.sleep(1)
        assert not world.broker.ready.is_set()
        world.register()
        await world.broker.ready.wait()
        assert world.broker.address == "127.0.0.1:10911"
        nursery.cancel_scope.cancel()


@virtual
async def test_the_next_process_gets_the_port_of_the_first() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        (await world.next_ready()).finish(ProcessEnd(1))
        again = await world.next_ready(1)
        assert world.processes[0].config.listen_port == 0
        assert again.config.listen_port == 10911
        nursery.cancel_scope.cancel()


@virtual
async def test_a_broker_is_in_trouble_until_its_next_process_listens() -> None:
    world = Supervision()
    assert await world.broker.find_troubles() == ["broker-a: starting"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        process = await world.next_ready()
        process.finish(ProcessEnd(1, ("no space",)))
        await trio.sleep(0.1)
        assert await world.broker.find_troubles() == ["broker-a: ended with exit status 1: no space"]
        shown = {each.name: each.value for each in await world.broker.collect_metrics()}
        assert shown == {"broker_process_ready": 0.0, "broker_process_restarts_total": 0}
        nursery.cancel_scope.cancel()


@virtual
async def test_a_task_of_a_process_may_fail() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        process = await world.next_ready()
        process.failing = ["in-sync"]
        assert await world.broker.find_troubles() == ["in-sync"]
        assert await world.broker.find_troubles("in-sync") == []
        nursery.cancel_scope.cancel()


@virtual
async def test_a_broker_that_unregisters_is_not_ready() -> None:
    """Somebody sent its process SIGTERM; it still answers what is in progress."""
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        await world.next_ready()
        world.child.unregister()
        assert await world.broker.find_troubles() == ["broker-a: not registered, because it stops"]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_process_that_does_not_tell_its_state_is_in_trouble() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        process = await world.next_ready()
        process._theirs.send_stream.send_all_hook = trio.sleep_forever  # its answers get stuck
        assert await world.broker.find_troubles() == [f"broker-a: no answer within {STATE_TIMEOUT_S:g} s"]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_process_that_was_never_ready_ends_the_server() -> None:
    world = Supervision()

    async def fail() -> None:
        while not world.processes:
            await trio.sleep(0.125)
        world.processes[0].finish(ProcessEnd(1, ("port taken",)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with pytest.raises(BrokerStartError, match="port taken"):
            await world.broker.run()
    assert len(world.processes) == 1


@virtual
async def test_a_process_that_cannot_be_created_ends_the_server_too() -> None:
    world = Supervision(start_error=OSError("no memory"))
    with pytest.raises(BrokerStartError, match="cannot start the process of broker-a: no memory"):
        await world.broker.run()


@virtual
async def test_stopping_asks_the_process_to_stop_in_order_and_waits() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        process = await world.next_ready()
        await world.broker.stop()
        assert process.stop_requests == [False]
        assert process.end == ProcessEnd(0)
    assert len(world.processes) == 1


@virtual
async def test_stopping_reaches_a_process_that_is_not_ready_yet() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        while not world.processes:
            await trio.lowlevel.checkpoint()
        await world.broker.stop()
        assert world.processes[0].stop_requests == [False]
        assert world.processes[0].end == ProcessEnd(0)


@virtual
async def test_stopping_ends_the_back_off() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        (await world.next_ready()).finish(ProcessEnd(-9))
        await trio.sleep(0.5)
        await world.broker.stop()
    assert len(world.processes) == 1


@virtual
async def test_a_process_that_does_not_stop_is_killed() -> None:
    world = Supervision(stops=False)
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        process = await world.next_ready()
        await world.broker.stop()
        assert not process.was_killed
        nursery.cancel_scope.cancel()
    assert process.was_killed
    assert trio.current_time() - started_s == pytest.approx(DRAIN_S + 2 * MAX_CLOSE_S, abs=1)


@virtual
async def test_a_cancelled_supervisor_waits_for_the_end_of_its_process() -> None:
    world = Supervision()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.broker.run)
        process = await world.next_ready()
        nursery.cancel_scope.cancel()
    assert process.end == ProcessEnd(0)
    assert not process.was_killed
