"""A group of brokers under controllers: the route to its newest master, and the faults that come over it."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from codec.constants import ResponseCode
from gateway.broker.replication.tests.controlled_simulation.brokers import ControlledBroker
from gateway.broker.replication.tests.controlled_simulation.controllers import BrokerControllers
from gateway.broker.replication.tests.controlled_simulation.laws import ElectionLaws
from gateway.broker.replication.tests.controlled_simulation.modes import Mode
from gateway.broker.replication.tests.simulation.brokers import HA_PORT, SimBroker
from gateway.broker.replication.tests.simulation.group import BrokerGroup
from gateway.broker.replication.tests.simulation.history import History, LawBroken
from gateway.broker.replication.tests.simulation.network import Network
from gateway.config.replication import Role
from gateway.controller.tests.simulation.etcd import MEMBERS
from gateway.tests.seeds import Fault, start_faults
from remoting.errors import RequestError
from remoting.requests.roles import HandOverBroker

MAX_OUTAGE_S: Final = 8.0
MAX_CUT_S: Final = 12.0
APART_S: Final = 10.0
"""Time between two faults after which the second one is a fault by itself: the group is whole again."""
STEP_DOWN_S: Final = 8.0
HAND_OVER_S: Final = 20.0
"""Longest time that a hand-over takes, until the new master serves."""
START_S: Final = 60.0

Way = tuple[str, str]


class Route:
    """The route as a client sees it that has not asked for a while: it may name any broker."""

    def __init__(self, group: BrokerGroup, randomness: random.Random, outdated: float) -> None:
        self._group = group
        self._randomness = randomness
        self._outdated = outdated

    def master(self) -> SimBroker:
        is_outdated = self._randomness.random() < self._outdated
        return self._group.any_broker() if is_outdated else self._group.master()

    def any_broker(self) -> SimBroker:
        return self._group.any_broker()


class ControlledGroup(BrokerGroup):
    """The brokers of one name, whose masters the controllers elect. ``replicas`` are all brokers in a fixed order."""

    def __init__(
        self,
        network: Network,
        history: History,
        randomness: random.Random,
        clients: list[str],
        replicas: Sequence[ControlledBroker],
        controllers: BrokerControllers,
        laws: ElectionLaws,
        mode: Mode,
        *,
        moves_clocks: bool,
        trace: Callable[[str], None],
    ) -> None:
        super().__init__(network, history, randomness, clients, trace)
        self.replicas = replicas
        self.controllers = controllers
        self._laws = laws
        self._mode = mode
        self._moves_clocks = moves_clocks
        self._master_epoch = 0
        self._present_faults = 0
        self._last_fault_s = 0.0
        self._handled: set[str] = set()
        self._is_planned = False
        """True while a master hands over and nothing else happens: its successor has all tables."""
        self._is_too_busy = False

    # -- the route ------------------------------------------------------------------------------------------------

    def note_role(self, broker: SimBroker) -> None:
        """Take the master of a newer epoch into the route, as the namesrv does with its registration."""
        if not isinstance(broker, ControlledBroker) or broker.role is not Role.MASTER:
            return
        if broker.epoch < self._master_epoch:
            return
        self._master_epoch = broker.epoch
        history, former = self._history, self.master()
        history.changes += 1
        if self._is_planned and broker is not former:
            self._trace(f"{former.name} has handed over to {broker.name}")
            self._is_planned = False
        elif broker is not former or broker.tables_until_s < 0:
            history.break_tables_after(broker.tables_until_s)
        for peer in self.replicas:
            peer.seen_names.clear()
            if peer is not broker:
                peer.forget_master()
        self.brokers.remove(broker)
        self.brokers.insert(0, broker)

    def may_lose(self, broker: ControlledBroker) -> bool:
        """Tell whether a master whose power was cut may lack what was acknowledged: there was another fault as well."""
        lost_power_s = broker.lost_power_s
        return lost_power_s is None or self._last_fault_s > lost_power_s - APART_S

    # -- starting -------------------------------------------------------------------------------------------------

    async def start(self, nursery: trio.Nursery) -> None:
        """Start all processes, and wait for a master."""
        self._nursery = self.controllers.nursery = self.controllers.etcd.nursery = nursery
        for controller in self.controllers.controllers:
            self.controllers.start_process(controller)
        for broker in self.replicas:
            self._start_process(broker, None)
        with trio.fail_after(START_S):
            while not (self.master().is_serving and self.master().role is Role.MASTER):
                await trio.sleep(0.1)

    async def replace_unable(self) -> None:
        """Replace nobody: no broker deletes messages that another one lacks."""
        await trio.sleep_forever()

    async def settle(self) -> None:
        """Heal everything."""
        self._trace("everything heals")
        await super().settle()
        self.controllers.heal()
        for broker in self.replicas:
            if broker.service is None and broker.name not in self._handled:
                self._start_process(broker, None)

    # -- faults ---------------------------------------------------------------------------------------------------

    async def run(self, until_s: float) -> None:
        """Let faults happen one after another, some at the same time."""
        controllers = self.controllers
        faults: dict[Fault, int] = {
            self._kill_broker: 6,
            self._cut_power: 3,
            self._stop_broker: 2,
            self._hand_over: 3,
            self._cut_link: 5,
            self._cut_off: 5,
            self._cut_ha_port: 3,
            self._reset_links: 3,
            self._hide_master: 3,
            self._silence_master: 4,
            self._cut_client: 1,
            self._slow_disk: 2,
            self._move_clock: 2 if self._moves_clocks else 0,
            controllers.end_controller: 3,
            self._end_leaders: 3,
            controllers.fail_etcd: 3,
            self._lose_answers: 3,
            self._kill_ahead: 0 if self._mode.all_ack else 12,
        }
        pause_s = self._randomness.choice([0.7, 1.5, 3.0])
        async with trio.open_nursery() as nursery:
            await start_faults(nursery, self._randomness, faults, until_s, pause_s)

    @contextmanager
    def _fault(self) -> Iterator[None]:
        """Note a fault that concerns brokers, from its beginning to its end."""
        self._present_faults += 1
        self._last_fault_s = float("inf")
        try:
            yield
        finally:
            self._present_faults -= 1
            if not self._present_faults:
                self._last_fault_s = trio.current_time()

    def _outage_s(self) -> float:
        return self._randomness.random() * self._randomness.choice([0.2, 3.0, MAX_OUTAGE_S])

    def _cut_s(self) -> float:
        """Return for how long a link is cut: sometimes as long as another master is elected and the first one waits."""
        return self._randomness.uniform(0.1, self._randomness.choice([3.0, MAX_CUT_S]))

    def _choose_broker(self) -> SimBroker:
        return self.master() if self._randomness.random() < 0.6 else self.any_broker()

    # Of processes

    @contextmanager
    def _handling(self, broker: SimBroker) -> Iterator[bool]:
        """Let one fault at a time end a process; the value is False for a further one."""
        is_free = broker.is_up and broker.name not in self._handled
        if not is_free:
            yield False
            return
        self._handled.add(broker.name)
        try:
            yield True
        finally:
            self._handled.discard(broker.name)

    async def _start_later(self, broker: SimBroker) -> None:
        await trio.sleep(self._outage_s() + 0.01)
        self._start_process(broker, None)
        await trio.sleep(0.01)

    async def _kill_broker(self, broker: SimBroker | None = None) -> None:
        await trio.lowlevel.checkpoint()
        broker = broker or self._choose_broker()
        with self._fault(), self._handling(broker) as is_free:
            if is_free:
                await self._wait_for(lambda: broker.has_held_answers)
                await self._end(broker, lose_power=False)
                self._history.changes += 1
                await self._start_later(broker)

    async def _kill_ahead(self) -> None:
        """Kill the master while some replicas, or all, do not get its messages."""
        master = self.master()
        peers = [broker.name for broker in self.replicas if broker is not master]
        lagging = self._randomness.sample(peers, self._randomness.randint(1, len(peers)))
        self._trace(f"{lagging} get nothing from {master.name}")
        for name in lagging:
            self._network.cut(master.name, name, HA_PORT)
        # Sometimes so long that the controllers must have removed them from the set.
        await trio.sleep(self._randomness.choice([0.3, 1.0, 9.0]) * self._randomness.uniform(1, 1.5))
        with self._fault(), self._handling(master) as is_free:
            if is_free:
                await self._end(master, lose_power=False)
                self._history.changes += 1
                # So long that another one is elected.
                await trio.sleep(self._randomness.uniform(0.5, 4))
            for name in lagging:
                self._network.heal(master.name, name, HA_PORT)
            if is_free:
                await self._start_later(master)

    async def _cut_power(self) -> None:
        """Cut the power of one broker; that of another one at the same time would lose what was acknowledged."""
        await trio.lowlevel.checkpoint()
        broker = self._choose_broker()
        assert isinstance(broker, ControlledBroker)
        if any(peer.lost_power_s is not None for peer in self.replicas):
            return
        with self._handling(broker) as is_free:
            if is_free:
                await self._wait_for(lambda: broker.has_held_answers)
                await self._end(broker, lose_power=True)
                self._history.changes += 1
                await self._start_later(broker)

    async def _stop_broker(self) -> None:
        broker = self._choose_broker()
        assert isinstance(broker, ControlledBroker)
        with self._fault(), self._handling(broker) as is_free:
            if is_free:
                self._trace(f"{broker.name} is stopped")
                await broker.step_down(STEP_DOWN_S)
                self._history.changes += 1
                await self._start_later(broker)

    async def _hand_over(self) -> None:
        """Have the master hand over to the best replica, or to any."""
        await trio.lowlevel.checkpoint()
        chosen = self._randomness.choice(self.replicas)
        self._order_hand_over(self._randomness.choice(["", chosen.address]))

    def _order_hand_over(self, address: str) -> None:
        master, losses = self.master(), self._laws.losses
        number = len(losses)
        self._trace(f"{master.name} is to hand over to {address or 'the best replica'}")

        def answer(outcome: Any) -> None:
            self._trace(f"{master.name} answers {outcome}"[:120])
            self._is_too_busy = isinstance(outcome, RequestError) and outcome.code == ResponseCode.SYSTEM_BUSY
            if not isinstance(outcome, Exception) and any(losses[number : number + 1]):
                self._laws.violations.append(f"{master.name} has handed over, and messages are lost")

        request = HandOverBroker(slave_address=address, timeout_millis=5000)
        master.start_request("operator", request, answer)

    async def hand_over_in_peace(self) -> None:
        """Have the master hand over while there are no faults: it succeeds, and no table is lost.

        A disk that was slow until a moment ago may still do what a request waits for, which the master says: then the
        operator orders it once more.
        """
        former = self.master()
        self._is_planned = True
        for _ in range(2):
            self._is_too_busy = False
            self._order_hand_over("")
            with trio.move_on_after(HAND_OVER_S):
                while self._is_planned and not self._is_too_busy:
                    await trio.sleep(0.1)
            if not self._is_planned:
                return
        raise LawBroken(f"{former.name} does not hand over although all replicas are in sync")

    # Of links

    async def _cut(self, ways: list[Way], duration_s: float) -> None:
        with self._fault():
            self.controllers.cut(ways)
            await trio.sleep(duration_s)
            self.controllers.mend(ways)

    @property
    def _machines(self) -> list[str]:
        names = [broker.name for broker in self.replicas]
        return [*names, *(item.name for item in self.controllers.controllers), *MEMBERS]

    async def _cut_link(self) -> None:
        """Cut the link between two machines, sometimes in one direction only."""
        one, other = self._randomness.sample(self._machines, 2)
        if self._randomness.random() < 0.4:
            one, other = self._names()
        ways = [(one, other), (other, one)][: self._randomness.choice([1, 2])]
        self._trace(f"{ways} are cut")
        await self._cut(ways, self._cut_s())

    async def _cut_off(self) -> None:
        """Divide all machines into two parts, or cut the master off from all of them."""
        machines = self._machines
        part = self._randomness.sample(machines, self._randomness.choice([1, 2, 3, 4]))
        if self._randomness.random() < 0.4:
            part = [self.master().name]
        self._trace(f"{part} are cut off")
        pairs = [(inner, outer) for inner in part for outer in machines if outer not in part]
        await self._cut([way for pair in pairs for way in (pair, pair[::-1])], self._cut_s())

    async def _silence_master(self) -> None:
        """Cut the master off from all controllers, perhaps in one direction only, but not from brokers and clients."""
        master = self.master().name
        self._trace(f"{master} is cut off from all controllers")
        ways: list[Way] = []
        for controller in self.controllers.controllers:
            ways += [(master, controller.name), (controller.name, master)]
        open_direction = self._randomness.choice([0, 1, None, None])
        await self._cut(
            [way for number, way in enumerate(ways) if number % 2 != open_direction], self._cut_s() + 2
        )

    async def _cut_ha_port(self) -> None:
        names = self._names()
        self._trace(f"the HA ports between {names} are cut off")
        with self._fault():
            self._network.cut(*names, HA_PORT)
            await trio.sleep(self._cut_s())
            self._network.heal(*names, HA_PORT)

    async def _reset_links(self) -> None:
        """Reset the connections of a broker with a controller or with another broker."""
        with self._fault():
            if self._randomness.random() < 0.5:
                await self._reset_replication()
                return
            await trio.lowlevel.checkpoint()
            broker = self._choose_broker().name
            controller = self._randomness.choice(self.controllers.controllers).name
            self._trace(f"the connections between {broker} and {controller} are reset")
            self._network.reset_connections(broker, controller)

    async def _hide_master(self) -> None:
        """Let the master reach the leading controller only, and have another one lead later."""
        leader, master = self.controllers.leader, self.master()
        if leader is None:
            return
        self._trace(f"{master.name} reaches {leader.name} only")
        peers = [item.name for item in self.controllers.controllers if item is not leader]
        ways = [way for name in peers for way in ((master.name, name), (name, master.name))]
        with self._fault():
            self.controllers.cut(ways)
            await trio.sleep(3 + self._randomness.uniform(0.5, 3))
            if self._randomness.random() < 0.5:
                await self.controllers.end_controller(leader, 0.5)
            else:
                self._trace(f"{leader.name} does not reach etcd")
                members = [(leader.name, member) for member in MEMBERS]
                await self._cut(members, self.controllers.config.lease_s + self._randomness.uniform(1, 4))
            self.controllers.mend(ways)

    # Of controllers

    async def _end_leaders(self) -> None:
        """Kill the leading controller and the master, both at once or one soon after the other."""
        async with trio.open_nursery() as nursery:
            if self.controllers.leader is not None:
                nursery.start_soon(self.controllers.end_controller, self.controllers.leader)
            await trio.sleep(self._randomness.choice([0, 1, 4]) * self._randomness.random())
            nursery.start_soon(self._kill_broker, self.master())

    async def _lose_answers(self) -> None:
        """Lose answers of etcd, or let them be late, while a broker dies: so something is to be written."""
        etcd = self.controllers.etcd
        etcd.loss = self._randomness.choice([0.1, 0.5])
        self._trace("answers of etcd are lost or late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._kill_broker)
            await trio.sleep(self._outage_s() + self._randomness.uniform(0, 3))
            etcd.loss = 0.0
