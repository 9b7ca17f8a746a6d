"""The operator of a simulated group of brokers, and the faults that come over it."""

import random
from collections.abc import Callable
from typing import Any, Final

import trio

from gateway.broker.replication.tests.simulation.brokers import HA_PORT, PORT, SimBroker
from gateway.broker.replication.tests.simulation.group import MAX_OUTAGE_S, BrokerGroup
from gateway.broker.replication.tests.simulation.history import History, LawBroken
from gateway.broker.replication.tests.simulation.network import Network
from gateway.config.replication import Role
from remoting.requests.roles import ChangeBrokerRole, HandOverBroker

CHANGE_TIMEOUT_S: Final = 120.0
POWER_CUT_TABLES_S: Final = 30.0
"""Time before a power cut from which on tables need not be on the disk."""
NOTHING_EVER_S: Final = -1.0


class Operator(BrokerGroup):
    """Starts the brokers, lets faults happen, and does what an operator does about them.

    It keeps the promise of the mode. The slave with the longest log takes over, if so many slaves are up and whole that
    one of them has whatever was acknowledged. The power of a master is cut only then, or if everything acknowledged is
    on its disk.
    """

    def __init__(
        self,
        network: Network,
        history: History,
        randomness: random.Random,
        clients: list[str],
        *,
        broker_role: str,
        needed_slaves: int,
        sync_flush: bool,
        fills_disks: bool,
        moves_clocks: bool,
        trace: Callable[[str], None],
    ) -> None:
        super().__init__(network, history, randomness, clients, trace)
        self._broker_role = broker_role
        self._sync_master = broker_role == "SYNC_MASTER"
        self._needed_slaves = needed_slaves
        self._sync_flush = sync_flush
        self._fills_disks = fills_disks
        self._moves_clocks = moves_clocks

    # -- the route --

    def note_role(self, broker: SimBroker) -> None:
        """Take a broker into the route, as the namesrv does with its registration."""
        if broker.role is Role.MASTER:
            self._set_master(broker)
        else:
            broker.follow_master(self.master())

    def choose_id(self, broker: SimBroker) -> int:
        """Return an id for a slave: a hand-over gives the former master that of the new one."""
        taken = {peer.broker_id for peer in self.brokers if peer is not broker}
        return min({1, 2, 3} - taken)

    def _set_master(self, broker: SimBroker) -> None:
        self._history.changes += 1
        self.brokers.remove(broker)
        self.brokers.insert(0, broker)
        for slave in self.slaves:
            slave.is_verified = False
            slave.follow_master(broker)

    # -- starting --

    async def start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._start_process(self.master(), Role.MASTER)
        for slave in self.slaves:
            self._start_process(slave, Role.SLAVE)

    def find_heir(self) -> SimBroker | None:
        """Return the slave that may take over: it has, as the mode promises, everything that was acknowledged."""
        whole = [
            slave for slave in self.slaves if slave.is_serving and slave.is_verified and slave.is_complete
        ]
        if len(whole) < len(self.slaves) - self._needed_slaves + 1:
            return None
        return max(whole, key=lambda slave: slave.log_end)

    # -- faults --

    async def run(self, until_s: float) -> None:
        """Let faults happen one after another, some at the same time."""
        faults = {
            self._cut_replication: 5,
            self._reset_replication: 4,
            self._cut_client: 2,
            self._slow_disk: 3,
            self._move_clock: 4 if self._moves_clocks else 0,
            self._fill_disk: 3 if self._fills_disks else 0,
            self._end_slave: 4,
            self._end_master: 4,
            self._switch_over: 2,
            self._replace_unheard: 3,
        }
        in_turn = self._end_slave, self._end_master, self._switch_over, self._replace_unheard
        async with trio.open_nursery() as nursery:
            while trio.current_time() < until_s:
                await trio.sleep(self._randomness.uniform(0.1, 2.4))
                fault = self._randomness.choices(list(faults), list(faults.values()))[0]
                if fault in in_turn:
                    await fault()
                else:
                    nursery.start_soon(fault)

    async def replace_unable(self) -> None:
        """Begin anew with each slave that lacks what its master has deleted: no other way leads on."""
        while True:
            await trio.sleep(1)
            master = self.master().store
            for slave in self.slaves:
                if not slave.is_serving or slave.store is None or master is None or slave.follower is None:
                    continue
                unable = slave.follower.state == "cannot follow the master"
                if unable and slave.log_end <= master.min_physical_offset:
                    self._trace(f"{slave.name} lacks what its master has deleted, and begins anew")
                    slave.kill(lose_power=False)
                    await slave.wait_ended()
                    slave.wipe()
                    self._start_process(slave, Role.SLAVE)

    async def _end_slave(self) -> None:
        slave = self._randomness.choice(self.slaves)
        if not slave.is_up:
            return
        await self._end(slave, lose_power=self._randomness.random() < 0.5 and self.master().is_up)
        await self._restart_later(slave, Role.SLAVE)

    async def _restart_later(self, broker: SimBroker, role: Role) -> None:
        await trio.sleep(self._randomness.random() * self._randomness.choice([0.2, MAX_OUTAGE_S]))
        self._start_process(broker, role)
        await trio.sleep(0.01)

    async def _end_master(self) -> None:
        master = self.master()
        if not master.is_up:
            return
        slave = self._randomness.choice(self.slaves)
        moments: list[Callable[[], bool]] = [
            lambda: master.has_held_answers,
            lambda: master.is_flushing,
            lambda: self._network.is_carrying(master.name, slave.name),
        ]
        await self._wait_for(self._randomness.choice(moments))
        if not master.is_up:
            return
        heir = self.find_heir()
        lose_power = self._randomness.random() < 0.5 and (heir is not None or self._sync_flush)
        await self._end(master, lose_power=lose_power)
        self._history.changes += 1
        if lose_power:
            self._history.break_tables_after(trio.current_time() - POWER_CUT_TABLES_S)
        may_restart = not lose_power or self._sync_flush
        # What the slaves acknowledged in the last moments they have; what they had not, was not acknowledged.
        heir = None if heir is None else self.find_heir()
        if not may_restart and heir is None:
            # Without a promise: an asynchronous master on an asynchronous disk.
            assert not self._sync_master
        chance = 0.6 if self._sync_master else 0.3
        is_wanted = not may_restart or self._randomness.random() < chance
        if heir is not None and is_wanted and (self._sync_master or may_restart):
            await self._take_over(heir, master, may_restart=may_restart)
        else:
            master.breaks_promises = not may_restart
            await self._restart_later(master, Role.MASTER)

    async def _replace_unheard(self) -> None:
        """Replace a master of which its slaves have heard nothing over the HA port, but copied the tables.

        So the progress in their tables counts work that is not in their logs. The former master comes back at once
        and is, sometimes, master again before the other one has repeated the work that was cut off here.
        """
        master, slaves = self.master(), self.slaves
        if not master.is_serving or self.find_heir() is None:
            return
        self._trace(f"the HA port of {master.name} is cut off")
        for slave in slaves:
            self._network.cut(master.name, slave.name, HA_PORT)
        await trio.sleep(self._randomness.uniform(2, 9))
        is_replaced = master.is_serving and self.find_heir() is not None
        if is_replaced and self._randomness.random() < 0.4:
            self._trace(f"{master.name} is stopped")
            await master.stop()
        elif is_replaced:
            await self._end(master, lose_power=False)
        for slave in slaves:
            self._network.heal(master.name, slave.name, HA_PORT)
        if not is_replaced:
            return
        self._history.changes += 1
        heir = self.find_heir()
        if heir is None:
            await self._restart_later(master, Role.MASTER)
            return
        await self._take_over(heir, master, may_restart=True, at_once=True)
        if self.master() is not master and self._randomness.random() < 0.7:
            with trio.move_on_after(3):
                while not (master.is_serving and master.is_verified):
                    await trio.sleep(0.05)
            await self._switch_over(master)

    async def _take_over(
        self, heir: SimBroker, former: SimBroker, *, may_restart: bool, at_once: bool = False
    ) -> None:
        """Let a slave take over; the former master comes back as its slave later, or ``at_once``.

        With ``may_restart`` the former master has everything that it had acknowledged.
        """
        if not at_once and self._randomness.random() < 0.5:
            await trio.sleep(self._randomness.random() * 3)
        if self.find_heir() is not heir and self._sync_master:
            # The answer may be another now, because of a restart.
            former.breaks_promises = not may_restart
            self._start_process(former, Role.MASTER)
            return
        self._trace(f"{heir.name} takes over")
        heir.breaks_promises = not self._sync_master
        # What was answered before the copy of the tables began that ended last, came with it.
        times = heir.sync_times
        self._history.break_tables_after(times[0] if len(times) == 2 else NOTHING_EVER_S)
        for broker in self.brokers:
            broker.seen_names.clear()
        if self._randomness.random() < 0.5:
            await self._promote_in_place(heir)
        else:
            await heir.stop()
            self._start_process(heir, Role.MASTER)
            await trio.sleep(0.01)
        self._history.changes += 1
        if at_once:
            self._start_process(former, Role.SLAVE)
            await trio.sleep(0.01)
        else:
            await self._restart_later(former, Role.SLAVE)

    async def _promote_in_place(self, broker: SimBroker) -> None:
        """Have a broker become master without the end of its process; repeated until it is."""
        request = ChangeBrokerRole(broker_role=self._broker_role, broker_id=0, force=True)
        with trio.move_on_after(CHANGE_TIMEOUT_S):
            while not (broker.is_serving and broker.role is Role.MASTER):
                if broker.is_serving:
                    await self._ask(broker, request)
                await trio.sleep(0.1)
            return
        state = broker.service.state if broker.service is not None else "no process"
        raise LawBroken(f"{broker.name} does not become master: {state}, {broker.is_up} {broker.role}")

    async def _ask(self, broker: SimBroker, request: Any) -> None:
        """Wait for the answer to a request about a role, or for the end of the process."""
        is_over = trio.Event()
        outcomes: list[Any] = []

        def answer(outcome: Any) -> None:
            outcomes.append(outcome)
            is_over.set()

        async def watch() -> None:
            await broker.wait_ended()
            is_over.set()

        async with trio.open_nursery() as nursery:
            if broker.start_request("operator", request, answer):
                nursery.start_soon(watch)
                await is_over.wait()
            nursery.cancel_scope.cancel()
        if outcomes and isinstance(outcomes[0], Exception):
            self._trace(f"{broker.name} answers: {outcomes[0]}")

    async def _switch_over(self, chosen: SimBroker | None = None) -> None:
        """Have the master hand over to a slave; sometimes one of the two dies meanwhile."""
        old, new = self.master(), chosen or self._randomness.choice(self.slaves)
        if not (old.is_serving and new.is_serving and new.is_verified):
            return
        self._trace(f"{old.name} is to hand over to {new.name}")
        if self._randomness.random() < 0.3:
            victim = self._randomness.choice([old, new])
            victim.files.operations_left = self._randomness.randrange(40)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_up, new)
            await self._ask(old, HandOverBroker(slave_address=f"{new.name}:{PORT}", timeout_millis=5000))
            nursery.cancel_scope.cancel()
        for broker in (old, new):
            broker.spare()
        await self._settle_roles(old, new)

    async def _keep_up(self, broker: SimBroker) -> None:
        """Start a broker again that dies; it has the role that is on its disk."""
        while True:
            await broker.wait_ended()
            self._history.changes += 1
            await trio.sleep(self._randomness.random() * 3)
            self._start_process(broker, None)
            await trio.sleep(0.01)

    async def _settle_roles(self, old: SimBroker, new: SimBroker) -> None:
        """Start what died; then one of the two is the master, by what is on their disks."""
        undecided_s = trio.current_time()
        while True:
            for broker in (old, new):
                if not broker.is_up:
                    self._history.changes += 1
                    await broker.wait_ended()
                    self._start_process(broker, None)
                    await trio.sleep(0.01)
                elif broker.is_fenced:
                    # The other one was master and died, or was not reached: the operator has looked meanwhile.
                    self._trace(f"{broker.name} is fenced")
                    broker.kill(lose_power=False)
                    await broker.wait_ended()
                    self._start_process(broker, Role.SLAVE)
                    await trio.sleep(0.01)
            masters = [broker for broker in (old, new) if broker.is_serving and broker.role is Role.MASTER]
            if len(masters) == 2:
                raise LawBroken(f"{old.name} and {new.name} are masters after a hand-over")
            if old.is_serving and new.is_serving:
                if masters:
                    if masters[0] is not self.master():
                        self._set_master(masters[0])
                    return
                if trio.current_time() > undecided_s + 5:
                    # It died when it had ordered the promotion, which was not carried out: nothing was stored since.
                    await self._promote_in_place(old)
                    return
            if trio.current_time() > undecided_s + CHANGE_TIMEOUT_S:
                raise LawBroken(f"neither {old.name} nor {new.name} serves as master after a hand-over")
            await trio.sleep(0.1)
