"""The controllers of a simulation: whole ones, and the connections of brokers to them."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import trio

from codec.command import Command
from codec.constants import ResponseCode
from gateway.config.controller import ControllerConfig
from gateway.controller.controller import Controller
from gateway.controller.etcd_store import EtcdStore
from gateway.controller.notifications import Notifications
from gateway.controller.processors import handlers as controller_handlers
from gateway.controller.store import ControllerMember
from gateway.controller.tests.simulation.etcd import SimEtcd, SimEtcdClient
from gateway.controller.tests.simulation.machines import Network
from remoting.connection import Handler
from remoting.declare import Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.limits import ConnectionLimits
from remoting.local_connection import LocalConnection
from remoting.requests.ha import NotifyBrokerRoleChanged

PORT: Final = 9878
REQUEST_TIMEOUT_S: Final = 1.5
STOP_S: Final = 0.5
LIMITS: Final = ConnectionLimits()
GROUP: Final = "controllers"


class Unanswered(Exception):
    """No answer came: the request may have been carried out, or may still be."""


class World(Protocol):
    """The parts of the world that controllers and brokers share."""

    network: Network
    etcd: SimEtcd
    nursery: trio.Nursery
    config: ControllerConfig
    controllers: "list[SimController]"

    def trace(self, event: str) -> None: ...

    async def notify(self, address: str, request: NotifyBrokerRoleChanged) -> None:
        """Tell the broker at an address its role."""


class ControllerConnection:
    """A broker's connection to a controller. ``on_end`` is called once when the broker learns of its end."""

    def __init__(
        self,
        world: World,
        broker: str,
        controller: "SimController",
        local: LocalConnection,
        on_end: Callable[["ControllerConnection"], None],
    ) -> None:
        self._world = world
        self.broker = broker
        self.controller = controller
        self._local = local
        self._on_end = on_end
        self.is_open = True
        local.on_close(self._note_closed)

    async def ask(self, request: Request[Any], timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Return the reply. Raises RequestError, and Unanswered if none comes in time."""
        if not self.is_open:
            raise Unanswered
        outcomes: list[Any] = []
        is_answered = trio.Event()
        network, name = self._world.network, self.controller.name

        async def travel() -> None:
            await network.deliver(self.broker, name)
            if not self.is_open:
                return  # lost with the connection
            try:
                outcome = await self._local.call(request, timeout_s=60)
            except RequestError as refusal:
                outcome = refusal
            except (RemotingClosed, RemotingTimeout):
                return
            await network.deliver(name, self.broker)
            outcomes.append(outcome)
            is_answered.set()

        self._world.nursery.start_soon(travel)
        with trio.move_on_after(timeout_s):
            await is_answered.wait()
        if not outcomes or not self.is_open:
            raise Unanswered
        if isinstance(outcomes[0], RequestError):
            raise outcomes[0]
        return outcomes[0]

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._on_end(self)

    def close(self) -> None:
        """Close the connection at the broker; the controller learns of it later."""

        async def close_far() -> None:
            await self._world.network.deliver(self.broker, self.controller.name)
            self._local.close("closed by the broker")

        self._end()
        self._world.nursery.start_soon(close_far)

    def reset(self) -> None:
        """End the connection at both ends."""
        self._end()
        self._local.close("reset")

    def _note_closed(self, _: object) -> None:
        async def close_near() -> None:
            await self._world.network.deliver(self.controller.name, self.broker)
            self._end()

        if self.is_open:
            self._world.nursery.start_soon(close_near)


class SimController:
    """One controller, through all its processes."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self._world = world
        self.clock = world.network.new_clock()
        self.is_up = False
        self.controller: Controller | None = None
        self.terms = 0
        self._client: SimEtcdClient | None = None
        self.handlers: dict[int, Handler] = {}
        self._nursery: trio.Nursery | None = None
        self._connections: list[tuple[ControllerConnection, LocalConnection]] = []

    @property
    def leads(self) -> bool:
        """True while the controller takes itself for the leading one."""
        return self.is_up and self.controller is not None and self.controller.leadership.term is not None

    async def run_process(self) -> None:
        """Run one process until it is killed or stopped."""
        world = self._world
        self._client = SimEtcdClient(world.etcd, world.network, self.name)
        store = EtcdStore(self._client, GROUP, world.config.lease_s, self.clock.monotonic)
        peers = "".join(f"{peer.name}:{peer.name}:{PORT};" for peer in world.controllers)
        self.controller = Controller(
            world.config, store, ControllerMember(self.name, f"{self.name}:{PORT}"), peers, self.clock,
            Notifications(None, self._deliver),
        )  # fmt: skip
        self.handlers = controller_handlers.bind(self.controller)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.is_up = True
            self._begin_serving(nursery)
            await self.controller.run()
        self.terms += self.controller.leadership.terms

    def _begin_serving(self, nursery: trio.Nursery) -> None:
        """Do what is to be done as soon as the controller can answer: here nothing, as brokers call `connect`."""

    async def _deliver(self, address: str, command: Command) -> None:
        await self._world.network.deliver(self.name, address.partition(":")[0])
        request = NotifyBrokerRoleChanged.from_command(command)
        await self._world.notify(address, request)
        await self._world.network.deliver(address.partition(":")[0], self.name)

    def kill(self) -> None:
        """End the process at once."""
        assert self._client is not None
        self._client.die()
        self._end()

    async def stop(self) -> None:
        """End the process after another controller may lead."""
        assert self.controller is not None
        nursery = self._nursery
        self.controller.leadership.resign()
        await trio.sleep(STOP_S)
        if self.is_up and self._nursery is nursery:
            self._end()

    def _end(self) -> None:
        self.is_up = False
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        for _, local in self._connections:
            local.close("the process ended")
        self._connections.clear()

    async def connect(
        self, broker: str, on_end: Callable[[ControllerConnection], None]
    ) -> ControllerConnection | None:
        """Open a connection of a broker; return None if it is refused."""
        await self._world.network.deliver(broker, self.name)
        if not self.is_up or self._nursery is None:
            return None
        local = LocalConnection(self.handlers, (broker, 1), (self.name, PORT), self._nursery, LIMITS)
        connection = ControllerConnection(self._world, broker, self, local, on_end)
        self._connections.append((connection, local))
        await self._world.network.deliver(self.name, broker)
        return connection

    def reset_connections(self, broker: str) -> None:
        """Reset the connections of a broker."""
        for connection, _ in [*self._connections]:
            if connection.broker == broker:
                connection.reset()


def is_not_leader(refusal: RequestError) -> bool:
    """Tell whether a controller refused a request because another one leads, or it cannot store the change."""
    return refusal.code in (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_ERROR)
