"""A broker finds the leading controller again, whether the former one hangs, is cut off, or has ended."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import MockClock, memory_stream_pair

from codec.command import Command
from gateway.broker.replication.controller_links import ControllerLink, ControllerLinks
from gateway.broker.replication.master_lookup import Address
from gateway.config.replication import ReplicationSettings
from remoting.client import open_client_over
from remoting.connection import Connection, Handler
from remoting.handler_table import encode_reply
from remoting.requests.controller import ControllerGetMetadataInfo, ControllerGetMetadataInfoReply
from remoting.requests.namesrv import BrokerHeartbeat
from remoting.transport import StreamTransport

FIRST: Address = ("10.0.0.1", 9878)
SECOND: Address = ("10.0.0.2", 9878)


class FakeController:
    """A controller that answers heartbeats, and who leads.

    ``hangs``: it answers nothing. ``is_gone``: nobody listens at its address, after ``last_connections`` that are taken
    and closed, as the kernel does while it ends a process.
    """

    def __init__(self, address: Address, leader: "FakeController | None" = None) -> None:
        self.address, self.leader = address, leader or self
        self.hangs = self.is_gone = False
        self.last_connections = 0
        self.connections: list[Connection] = []

    @property
    def handlers(self) -> dict[int, Handler]:
        return {BrokerHeartbeat.code: self._handle, ControllerGetMetadataInfo.code: self._handle}

    def _handle(self, _connection: Connection, command: Command) -> bytes | None:
        if self.hangs:
            return None
        host, port = self.leader.address
        reply = ControllerGetMetadataInfoReply(
            controller_leader_address=f"{host}:{port}", is_leader=self.leader is self
        )
        return encode_reply(command, reply)

    def end(self) -> None:
        self.is_gone = True
        for connection in self.connections:
            connection.close("the process ends")


class Broker:
    """The user of the links, which sends heartbeats and notes what became of the leader."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def heartbeat_over(self, connection: Connection) -> BrokerHeartbeat:
        return BrokerHeartbeat(cluster_name="C", broker_name="a", broker_addr="h:1", broker_id=1)

    async def heartbeat_answered(self, link: ControllerLink) -> None:
        pass

    def leader_lost(self) -> None:
        self.notes.append("lost")

    def leader_gone(self) -> None:
        self.notes.append("gone")


Story = Callable[[ControllerLinks, Broker, FakeController, FakeController], Awaitable[None]]


def play(story: Story) -> None:
    """Run a story of two controllers, of which the first one leads."""
    first = FakeController(FIRST)
    second = FakeController(SECOND, first)
    controllers = {FIRST: first, SECOND: second}

    async def run() -> None:
        @asynccontextmanager
        async def dial(host: str, port: int) -> AsyncIterator[Connection]:
            controller = controllers[host, port]
            await trio.lowlevel.checkpoint()
            is_ending = controller.last_connections > 0
            if controller.is_gone and not is_ending:
                raise ConnectionRefusedError("nobody listens")
            here, there = memory_stream_pair()
            own, remote = StreamTransport(here, remote=(host, port)), StreamTransport(there)
            async with (
                open_client_over(remote, controller.handlers) as served,
                open_client_over(own) as connection,
            ):
                controller.connections.append(served)
                if controller.is_gone:
                    controller.last_connections -= 1
                    served.close("the process ends")
                yield connection

        addresses = ";".join(f"{host}:{port}" for host, port in controllers)
        settings = ReplicationSettings(controller_addr=addresses)
        links, broker = ControllerLinks(settings, dial, trio.current_time), Broker()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(links.run, broker)
            assert (await links.wait_for_leader()).address == FIRST
            await story(links, broker, first, second)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def wait_for_second(links: ControllerLinks) -> float:
    """Wait until the second controller is taken for the leader; return how long that took."""
    begun_s = trio.current_time()
    while links.leader is None or links.leader.address != SECOND:
        await trio.sleep(0.05)
    return trio.current_time() - begun_s


def test_the_successor_of_a_hung_leader_is_found_while_its_connection_is_open() -> None:
    async def story(links: ControllerLinks, broker: Broker, first: Any, second: Any) -> None:
        first.hangs = True
        await trio.sleep(5)
        second.leader = second
        # Within about a second: a master's lease of nine seconds would end before the connection of ten is given up.
        assert await wait_for_second(links) < 1.5
        assert broker.notes == []
        first.hangs, first.leader = False, second
        await trio.sleep(30)
        assert links.leader is not None
        assert links.leader.address == SECOND

    play(story)


def test_a_leader_that_ends_is_known_to_be_gone() -> None:
    async def story(links: ControllerLinks, broker: Broker, first: Any, second: Any) -> None:
        first.end()
        await trio.sleep(0.3)
        assert broker.notes == ["lost", "gone"]
        second.leader = second
        assert await wait_for_second(links) < 1.5

    play(story)


def test_a_leader_that_took_a_connection_while_it_ended_is_gone() -> None:
    async def story(links: ControllerLinks, broker: Broker, first: Any, second: Any) -> None:
        first.last_connections = 1
        first.end()
        await trio.sleep(0.4)
        assert (broker.notes[0], broker.notes[-1]) == ("lost", "gone")

    play(story)
