"""Controllers that brokers reach over the network of bytes; they reach etcd over that of messages."""

import random
from collections.abc import Callable, Iterable

import trio

from gateway.broker.replication.tests.controlled_simulation.brokers import ControlledBroker
from gateway.broker.replication.tests.simulation.network import Network
from gateway.config.controller import ControllerConfig
from gateway.controller.rules import replicas_of
from gateway.controller.tests.simulation.controllers import LIMITS, PORT, SimController
from gateway.controller.tests.simulation.group import ControllerGroup
from gateway.controller.tests.simulation.laws import Laws
from remoting.requests.ha import NotifyBrokerRoleChanged
from remoting.server import RemotingServer, ServerLimits


class ListeningController(SimController):
    """One controller, through all its processes, with its port in the network of bytes."""

    def __init__(self, name: str, world: ControllerGroup, links: Network) -> None:
        super().__init__(name, world)
        self._links = links

    def _begin_serving(self, nursery: trio.Nursery) -> None:
        server = RemotingServer(self.handlers, LIMITS, ServerLimits())
        self._links.listen(
            (self.name, PORT), lambda transport: nursery.start_soon(server.serve_transport, transport)
        )

    def _end(self) -> None:
        super()._end()
        self._links.stop_listening(self.name)
        # A machine that loses power does not reset its connections.
        self._links.end_connections(self.name, silently=self._links.randomness.random() < 0.2)


class BrokerControllers(ControllerGroup):
    """The controllers of the brokers, which ``links`` connect."""

    def __init__(
        self,
        randomness: random.Random,
        config: ControllerConfig,
        laws: Laws,
        links: Network,
        brokers: Iterable[ControlledBroker],
        trace: Callable[[str], None],
    ) -> None:
        self._links = links
        self._brokers = brokers
        self._trace = trace
        super().__init__(randomness, config, laws)

    def create_controller(self, name: str) -> SimController:
        return ListeningController(name, self, self._links)

    def trace(self, event: str) -> None:
        self._trace(event)

    async def notify(self, address: str, request: NotifyBrokerRoleChanged) -> None:
        """Tell the broker at an address that there may be another master."""
        await trio.lowlevel.checkpoint()
        for broker in self._brokers:
            if broker.address == address:
                broker.start_request("controller", request, lambda outcome: None)

    def ids_in_sync(self) -> set[int | None]:
        """Return the replicas that the leading controller answers are alive and in sync.

        It hears some moments after the store has a change that it is stored.
        """
        leader = self.leader
        if leader is None or leader.controller is None:
            return set()
        controller = leader.controller
        sets = {broker_set.name: broker_set for broker_set in controller.broker_sets()}
        answers = replicas_of(sets, controller.liveness).replicas_info_table.values()
        replicas = (replica for answer in answers for replica in answer.in_sync_replicas)
        return {replica.broker_id for replica in replicas if replica.alive}

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let nothing through from one machine to another one, on both networks."""
        for way in ways:
            self.network.cut(*way)
            self._links.cut_way(*way)

    def mend(self, ways: Iterable[tuple[str, str]]) -> None:
        """Undo `cut`."""
        for way in ways:
            self.network.heal(*way)
            self._links.heal_way(*way)
