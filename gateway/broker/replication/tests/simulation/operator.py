"""The operator of a simulated pair, and the faults that come over it."""

import random
from collections.abc import Callable
from typing import Final

import trio

from gateway.broker.replication.tests.simulation.brokers import SimBroker
from gateway.broker.replication.tests.simulation.network import Network
from gateway.config.replication import Role

MAX_OUTAGE_S: Final = 12.0
CLOCK_JUMPS_MS: Final = (-3_600_000, -4000, -50, 50, 4000, 3_600_000)


class Operator:
    """Starts the brokers, lets faults happen, and does what an operator does about them.

    It keeps the promise of the mode: only a slave that has everything acknowledged takes over, and the power of one
    broker is cut only while the other one has everything acknowledged.
    """

    def __init__(
        self,
        brokers: tuple[SimBroker, SimBroker],
        network: Network,
        randomness: random.Random,
        clients: list[str],
        *,
        sync_master: bool,
        sync_flush: bool,
        trace: Callable[[str], None],
    ) -> None:
        self.master_broker, self.slave_broker = brokers
        self.is_settled = False
        self._brokers = brokers
        self._network = network
        self._randomness = randomness
        self._clients = clients
        self._sync_master = sync_master
        self._sync_flush = sync_flush
        self._trace = trace
        self._nursery: trio.Nursery | None = None

    # -- the route --

    def master(self) -> SimBroker:
        return self.master_broker

    def any_broker(self) -> SimBroker:
        return self._randomness.choice(self._brokers)

    # -- starting --

    def start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._start_process(self.master_broker, Role.MASTER)
        self._start_process(self.slave_broker, Role.SLAVE)

    def _start_process(self, broker: SimBroker, role: Role) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(broker.run_process, role)

    @property
    def slave_is_complete(self) -> bool:
        """True if the slave runs and, as the mode promises, has everything that was acknowledged."""
        slave = self.slave_broker
        return slave.is_up and slave.is_verified and slave.is_complete

    # -- faults --

    async def run(self, until_s: float) -> None:
        """Let faults happen one after another, some at the same time."""
        faults = {
            self._cut_replication: 5,
            self._reset_replication: 4,
            self._cut_client: 2,
            self._slow_disk: 3,
            self._move_clock: 2,
            self._end_slave: 4,
            self._end_master: 4,
            self._switch_over: 2,
        }
        async with trio.open_nursery() as nursery:
            while trio.current_time() < until_s:
                await trio.sleep(self._randomness.uniform(0.2, 4))
                fault = self._randomness.choices(list(faults), list(faults.values()))[0]
                if fault in (self._end_slave, self._end_master, self._switch_over):
                    await fault()
                else:
                    nursery.start_soon(fault)

    async def _wait_for(self, is_busy: Callable[[], bool]) -> None:
        """Wait, sometimes, for a moment at which a fault does more harm."""
        await trio.lowlevel.checkpoint()
        if self._randomness.random() < 0.7:
            with trio.move_on_after(2):
                while not is_busy():
                    await trio.sleep(0.001)
                await trio.sleep(self._randomness.random() * self._randomness.choice([0, 0.005, 0.05]))

    async def _cut_replication(self) -> None:
        names = [broker.name for broker in self._brokers]
        self._trace("the link between the brokers is cut")
        self._network.cut(names[0], names[1])
        await trio.sleep(self._randomness.uniform(0.1, 25))
        self._network.heal(names[0], names[1])
        self._trace("the link between the brokers heals")

    async def _reset_replication(self) -> None:
        names = [broker.name for broker in self._brokers]
        await self._wait_for(lambda: self._network.is_carrying(names[0], names[1]))
        self._trace("the connection between the brokers is reset")
        self._network.reset_connections(*(broker.name for broker in self._brokers))

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

    async def _move_clock(self) -> None:
        await trio.lowlevel.checkpoint()
        broker, jump_ms = self.any_broker(), self._randomness.choice(CLOCK_JUMPS_MS)
        self._trace(f"the clock of {broker.name} moves by {jump_ms} ms")
        broker.clock.offset_ms += jump_ms

    async def _end(self, broker: SimBroker, *, lose_power: bool) -> None:
        """End a process: at once, or in the middle of its next file operations."""
        if not lose_power and self._randomness.random() < 0.3:
            broker.files.operations_left = self._randomness.randrange(6)
            with trio.move_on_after(2):
                await broker.wait_ended()
                self._trace(f"{broker.name} died in the middle of its work")
                return
            broker.files.operations_left = None
        broker.kill(lose_power=lose_power)
        await broker.wait_ended()

    async def _end_slave(self) -> None:
        slave = self.slave_broker
        if not slave.is_up:
            return
        await self._end(slave, lose_power=self._randomness.random() < 0.5 and self.master_broker.is_up)
        await self._restart_later(slave, Role.SLAVE)

    async def _restart_later(self, broker: SimBroker, role: Role) -> None:
        await trio.sleep(self._randomness.random() * self._randomness.choice([0.2, MAX_OUTAGE_S]))
        self._start_process(broker, role)
        await trio.sleep(0.01)

    async def _end_master(self) -> None:
        master = self.master_broker
        if not master.is_up:
            return
        names = [broker.name for broker in self._brokers]
        moments: list[Callable[[], bool]] = [
            lambda: master.has_held_answers,
            lambda: master.is_flushing,
            lambda: self._network.is_carrying(names[0], names[1]),
        ]
        await self._wait_for(self._randomness.choice(moments))
        if not master.is_up:
            return
        complete = self.slave_is_complete
        lose_power = self._randomness.random() < 0.5 and (complete or self._sync_flush)
        await self._end(master, lose_power=lose_power)
        # What the slave acknowledged in the last moments it has; what it had not, was not acknowledged.
        may_restart = not lose_power or self._sync_flush
        may_promote = self._sync_master and complete and self.slave_is_complete
        if not may_restart and not may_promote:
            # Without a promise: an asynchronous master on an asynchronous disk.
            assert not self._sync_master
        chance = 0.6 if self._sync_master else 0.3
        is_wanted = not may_restart or self._randomness.random() < chance
        if (may_promote or (complete and not self._sync_master and may_restart)) and is_wanted:
            await self._promote()
        else:
            master.breaks_promises = not may_restart
            await self._restart_later(master, Role.MASTER)

    async def _promote(self) -> None:
        """Let the slave take over; the former master comes back as its slave later."""
        new, old = self.slave_broker, self.master_broker
        if self._randomness.random() < 0.5:
            await trio.sleep(self._randomness.random() * 3)
        if not self.slave_is_complete and self._sync_master:
            self._start_process(old, Role.MASTER)
            return
        self._trace(f"{new.name} is promoted")
        new.stop()
        await new.wait_ended()
        self.master_broker, self.slave_broker = new, old
        new.breaks_promises = not self._sync_master
        self._start_process(new, Role.MASTER)
        await trio.sleep(0.01)
        await self._restart_later(old, Role.SLAVE)

    async def _switch_over(self) -> None:
        """Change the roles as planned: stop accepting, let the slave catch up, hand over."""
        old, new = self.master_broker, self.slave_broker
        if not (old.is_up and self.slave_is_complete):
            return
        old.is_fenced = True
        with trio.move_on_after(5):
            while old.is_up and new.is_up and new.store is not None and old.store is not None:
                if new.is_verified and new.store.max_physical_offset == old.store.max_physical_offset:
                    break
                await trio.sleep(0.02)
            else:
                old.is_fenced = False
                return
            self._trace(f"{old.name} hands over to {new.name}")
            for broker in (old, new):
                broker.stop()
                await broker.wait_ended()
            self.master_broker, self.slave_broker = new, old
            self._start_process(new, Role.MASTER)
            self._start_process(old, Role.SLAVE)
            await trio.sleep(0.01)
            return
        old.is_fenced = False

    async def settle(self) -> None:
        """Heal everything and start what is down."""
        for one in [broker.name for broker in self._brokers] + self._clients:
            for other in [broker.name for broker in self._brokers]:
                self._network.heal(one, other)
        for broker in self._brokers:
            broker.disk_delay_s = 0.0
            broker.files.operations_left = None
