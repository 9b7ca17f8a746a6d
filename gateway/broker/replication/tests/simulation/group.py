"""A group of brokers as its clients find it, and the faults that come over it, whoever decides about roles."""

import random
from collections.abc import Callable
from typing import Final

import trio

from gateway.broker.replication.tests.simulation.brokers import SimBroker
from gateway.broker.replication.tests.simulation.history import History
from gateway.broker.replication.tests.simulation.network import Network
from gateway.config.replication import Role

MAX_OUTAGE_S: Final = 7.0
MAX_CUT_S: Final = 14.0
CLOCK_JUMPS_MS: Final = (-600_000, -4000, -50, 50, 4000, 600_000)


class BrokerGroup:
    """The brokers of one name, the master first, with the names of the clients that may be cut off from them."""

    def __init__(
        self,
        network: Network,
        history: History,
        randomness: random.Random,
        clients: list[str],
        trace: Callable[[str], None],
    ) -> None:
        self.brokers: list[SimBroker] = []
        self._network = network
        self._history = history
        self._randomness = randomness
        self._clients = clients
        self._trace = trace
        self._nursery: trio.Nursery | None = None

    # -- the route --

    def master(self) -> SimBroker:
        return self.brokers[0]

    @property
    def slaves(self) -> list[SimBroker]:
        return self.brokers[1:]

    def any_broker(self) -> SimBroker:
        return self._randomness.choice(self.brokers)

    # -- the story of a group --

    async def start(self, nursery: trio.Nursery) -> None:
        """Start all processes in a nursery, in which those that end are started again, and wait for a master."""
        raise NotImplementedError

    async def run(self, until_s: float) -> None:
        """Let faults happen one after another, some at the same time."""
        raise NotImplementedError

    async def replace_unable(self) -> None:
        """Begin anew with each slave that cannot follow its master in any other way, until cancelled."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Heal everything."""
        names = [broker.name for broker in self.brokers]
        for name in names + self._clients:
            for peer in names:
                self._network.heal(name, peer)
        latest_ms = max(0, *(broker.clock.offset_ms for broker in self.brokers))
        for broker in self.brokers:
            broker.disk_delay_s = broker.files.used_ratio = 0.0
            # The fault that lets a process die at work is over: here nobody would start the broker again.
            assert broker.files.operations_left is None
            # Whatever waits is due then, by whichever clock its time was set.
            broker.clock.offset_ms = latest_ms + 2 * max(CLOCK_JUMPS_MS)
        await trio.lowlevel.checkpoint()

    def _start_process(self, broker: SimBroker, role: Role | None) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(broker.run_process, role)

    # -- faults --

    async def _wait_for(self, is_busy: Callable[[], bool]) -> None:
        """Wait, sometimes, for a moment at which a fault does more harm."""
        await trio.lowlevel.checkpoint()
        if self._randomness.random() < 0.7:
            with trio.move_on_after(2):
                while not is_busy():
                    await trio.sleep(0.005)
                await trio.sleep(self._randomness.random() * self._randomness.choice([0, 0.005, 0.05]))

    def _names(self) -> tuple[str, str]:
        """Return the master's name, and that of a slave or, sometimes, of two slaves."""
        if len(self.slaves) > 1 and self._randomness.random() < 0.2:
            return self.slaves[0].name, self.slaves[1].name
        return self.master().name, self._randomness.choice(self.slaves).name

    async def _cut_replication(self) -> None:
        names = self._names()
        self._trace(f"the link between {names[0]} and {names[1]} is cut")
        self._network.cut(*names)
        await trio.sleep(self._randomness.uniform(0.1, MAX_CUT_S))
        self._network.heal(*names)
        self._trace(f"the link between {names[0]} and {names[1]} heals")

    async def _reset_replication(self) -> None:
        names = self._names()
        await self._wait_for(lambda: self._network.is_carrying(*names))
        self._trace(f"the connections between {names[0]} and {names[1]} are reset")
        self._network.reset_connections(*names)

    async def _cut_client(self) -> None:
        client, broker = self._randomness.choice(self._clients), self.any_broker().name
        self._network.cut(client, broker)
        await trio.sleep(self._randomness.uniform(0.1, 8))
        self._network.heal(client, broker)

    async def _slow_disk(self) -> None:
        broker = self.any_broker()
        self._trace(f"the disk of {broker.name} is slow")
        broker.disk_delay_s = self._randomness.choice([0.05, 0.5, 7.0])
        await trio.sleep(self._randomness.uniform(0.5, 10))
        broker.disk_delay_s = 0.0

    async def _fill_disk(self) -> None:
        """Let old files expire, as they do when a disk is nearly full."""
        broker = self.any_broker()
        self._trace(f"the disk of {broker.name} is nearly full")
        broker.files.used_ratio = 0.88
        await trio.sleep(self._randomness.uniform(0.5, 2))
        broker.files.used_ratio = 0.0

    async def _move_clock(self) -> None:
        await trio.lowlevel.checkpoint()
        broker, jump_ms = self.any_broker(), self._randomness.choice(CLOCK_JUMPS_MS)
        self._trace(f"the clock of {broker.name} moves by {jump_ms} ms")
        broker.clock.offset_ms += jump_ms

    async def _end(self, broker: SimBroker, *, lose_power: bool) -> None:
        """End a process: at once, or in the middle of its next file operations."""
        if not lose_power and self._randomness.random() < 0.3:
            files = broker.files
            files.operations_left = self._randomness.randrange(6)
            with trio.move_on_after(2):
                await broker.wait_ended()
                return
            files.operations_left = None
        if broker.is_up:
            broker.kill(lose_power=lose_power)
        await broker.wait_ended()
