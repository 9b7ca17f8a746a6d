"""Runs one seed of the simulation of controllers, and judges it."""

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from gateway.config.controller import ControllerConfig
from gateway.controller.tests.simulation.controllers import SimController, Unanswered
from gateway.controller.tests.simulation.etcd import MEMBERS
from gateway.controller.tests.simulation.group import MAX_OUTAGE_S, ControllerGroup
from gateway.controller.tests.simulation.laws import LawBroken, Laws
from gateway.controller.tests.simulation.replicas import (
    CLUSTER,
    LEASE_S,
    NAME,
    TIMEOUT_S,
    Refused,
    SimReplica,
)
from gateway.tests.seeds import Fault, Show, run_seeded, start_faults
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.controller import CleanBrokerData, ControllerElectMaster
from remoting.requests.ha import NotifyBrokerRoleChanged

FAULTS_UNTIL_S: Final = 50.0
SETTLE_S: Final = 90.0
CHECK_INTERVAL_S: Final = 0.25
CLIENT: Final = "client"
OPERATOR: Final = "operator"
WALL_JUMPS_MS: Final = (-3_600_000, -5_000, 5_000, 3_600_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one seed, of which a replay has the same."""

    seed: int
    elections: int
    lost_masters: int
    unclean_elections: int
    terms: int
    accepted_sets: int
    acknowledgements: int
    events: int


class Story(ControllerGroup):
    """One seed: controllers, replicas, a client and faults."""

    def __init__(self, seed: int, show: Show | None) -> None:
        randomness = random.Random(seed)
        chance = randomness.random
        laws = Laws(may_be_unclean=chance() < 0.15, clocks_stop=chance() < 0.3)
        config = ControllerConfig(
            lease_s=randomness.choice([2, 5]),
            enable_elect_unclean_master=laws.may_be_unclean,
            notify_broker_role_changed=chance() < 0.8,
            scan_not_active_broker_interval_ms=1000,
            scan_inactive_master_interval_ms=randomness.choice([500, 5000]),
        )
        self.seed = seed
        self.events = 0
        self._show = show
        super().__init__(randomness, config, laws)
        self.replicas: list[SimReplica] = []
        self.replicas += [
            SimReplica(f"b{number}", self) for number in range(self.randomness.choice([2, 3, 3, 4]))
        ]
        self._messages = 0
        self._last_success_s = -1.0
        self.trace(f"{self.config} {self.laws.clocks_stop=}")

    def trace(self, event: str) -> None:
        self.events += 1
        if self._show is not None:
            now_s = trio.current_time() if trio.lowlevel.in_trio_run() else 0.0
            self._show(f"{now_s:8.3f} {event}")

    async def notify(self, address: str, request: NotifyBrokerRoleChanged) -> None:
        """Tell the broker at an address its role."""
        await trio.lowlevel.checkpoint()
        for replica in self.replicas:
            if replica.address == address:
                members = request.data.sync_state_set if request.data is not None else ()
                replica.note_role(
                    request.master_broker_id, request.master_address, request.master_epoch or 0, members,
                    request.sync_state_set_epoch or 0,
                )  # fmt: skip

    async def run(self) -> Outcome:
        async with trio.open_nursery() as self.nursery:
            self.etcd.nursery = self.nursery
            for process in (*self.controllers, *self.replicas):
                self.start_process(process)
            self.nursery.start_soon(self._keep_sending, 0.3)
            self.nursery.start_soon(self._keep_checking)
            await self._let_faults_happen()
            self.trace("everything heals")
            self._heal()
            await self._wait_whole()
            self._judge()
            terms = sum(item.terms for item in self.controllers)
            self.etcd.is_over = True
            self.nursery.cancel_scope.cancel()
        laws = self.laws
        return Outcome(
            self.seed, laws.elections, laws.lost_masters, laws.unclean_elections, terms, laws.accepted_sets,
            laws.acknowledgements, self.events,
        )  # fmt: skip

    # -- clients and checks -------------------------------------------------------------------------------------------

    async def _keep_sending(self, pause_s: float) -> None:
        """Send messages to whichever broker accepts them."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self.randomness.random() * pause_s)
                self._messages += 1
                nursery.start_soon(self._send, self.randomness.choice(self.replicas), b"%d" % self._messages)

    async def _send(self, replica: SimReplica, body: bytes) -> None:
        with trio.move_on_after(5):
            await self.network.deliver(CLIENT, replica.name)
            with suppress(Refused):
                await replica.send(body)
                self._last_success_s = trio.current_time()

    async def _keep_checking(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            self.check_leaders()

    async def _wait_whole(self) -> None:
        healed_s = trio.current_time()
        with trio.move_on_after(SETTLE_S):
            while not self._is_whole(healed_s):
                await trio.sleep(CHECK_INTERVAL_S)
            return
        raise LawBroken(f"within {SETTLE_S:g} s after the faults there is no whole group: {self.laws.newest}")

    def _is_whole(self, healed_s: float) -> bool:
        """A master accepts, and all replicas are in sync."""
        newest = self.laws.newest
        if newest is None or self._last_success_s < healed_s:
            return False
        ids = {replica.disk.broker_id for replica in self.replicas}
        masters = [replica for replica in self.replicas if replica.is_writable]
        return len(masters) == 1 and newest.master_id == masters[0].broker_id and newest.sync_set == ids

    def _judge(self) -> None:
        (master,) = [replica for replica in self.replicas if replica.is_writable]
        self.laws.check_log(master)

    # -- faults -------------------------------------------------------------------------------------------------------

    async def _let_faults_happen(self) -> None:
        faults: dict[Fault, int] = {
            self._kill_replica: 4,
            self._pause_machine: 4,
            self.end_controller: 3,
            self._end_leaders: 2,
            self.fail_etcd: 4,
            self._lose_answers: 4,
            self._cut_link: 5,
            self._cut_off: 4,
            self._reset_connections: 3,
            self._move_wall_clock: 1,
            self._elect_by_hand: 2,
            self._remove_replica: 2,
            self._end_listener: 5,
        }
        pause_s = self.randomness.choice([2.0, 4.0, 8.0])
        async with trio.open_nursery() as nursery:
            await start_faults(nursery, self.randomness, faults, FAULTS_UNTIL_S, pause_s)
            nursery.cancel_scope.deadline = FAULTS_UNTIL_S + MAX_OUTAGE_S

    def _choose_server(self) -> SimController | SimReplica:
        servers: list[SimController | SimReplica] = [*self.controllers, *self.replicas]
        return self.randomness.choice(servers)

    def _heal(self) -> None:
        self.heal()
        for replica in self.replicas:
            self.start_process(replica)

    async def _kill_replica(self, replica: SimReplica | None = None) -> None:
        replica = replica or self.randomness.choice(self.replicas)
        if not replica.is_up:
            return
        self.trace(f"{replica.name} is killed")
        replica.kill()
        await trio.sleep(self.outage_s() + 0.01)
        self.start_process(replica)

    async def _pause_machine(self) -> None:
        machine = self._choose_server()
        duration_s = self.outage_s()
        self.network.pause(machine.name, duration_s)
        is_suspended = self.laws.clocks_stop and self.randomness.random() < 0.6
        if is_suspended:
            machine.clock.freeze(duration_s)
        self.trace(f"{machine.name} is {'suspended' if is_suspended else 'stopped'} for {duration_s:.1f} s")
        await trio.lowlevel.checkpoint()

    async def _end_leaders(self) -> None:
        """Kill the leading controller and the master, both at once or one soon after the other."""
        async with trio.open_nursery() as nursery:
            for controller in self.controllers:
                if controller.leads:
                    nursery.start_soon(self.end_controller, controller)
            await trio.sleep(self.randomness.choice([0, 1, 6]) * self.randomness.random())
            for replica in self.replicas:
                if replica.is_up and replica.is_master:
                    nursery.start_soon(self._kill_replica, replica)

    async def _lose_answers(self) -> None:
        """Lose answers of etcd, or let them be late, while a replica dies: so something is to be written."""
        self.etcd.loss = self.randomness.choice([0.1, 0.5])
        self.trace("answers of etcd are lost or late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._kill_replica)
            await trio.sleep(self.outage_s() + self.randomness.uniform(0, 4))
            self.etcd.loss = 0.0

    def _machines(self) -> list[str]:
        return [*(item.name for item in self.controllers), *(item.name for item in self.replicas), *MEMBERS]

    async def _cut(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            self.network.cut(*way)
        await trio.sleep(self.outage_s())
        for way in ways:
            self.network.heal(*way)

    async def _cut_link(self) -> None:
        """Cut the way between two machines, sometimes in one direction only."""
        one, other = self.randomness.sample(self._machines(), 2)
        ways = [(one, other), (other, one)][: self.randomness.choice([1, 2])]
        self.trace(f"{ways} are cut")
        await self._cut(ways)

    async def _cut_off(self) -> None:
        """Divide all machines into two parts."""
        machines = self._machines()
        part = self.randomness.sample(machines, self.randomness.choice([1, 1, 2, 3, 4]))
        self.trace(f"{part} are cut off")
        pairs = [(inner, outer) for inner in part for outer in machines if outer not in part]
        await self._cut([way for pair in pairs for way in (pair, pair[::-1])])

    async def _reset_connections(self) -> None:
        controller, replica = self.randomness.choice(self.controllers), self.randomness.choice(self.replicas)
        self.trace(f"the connections between {replica.name} and {controller.name} are reset")
        controller.reset_connections(replica.name)
        await trio.lowlevel.checkpoint()

    async def _move_wall_clock(self) -> None:
        machine = self._choose_server()
        machine.clock.wall_offset_ms += self.randomness.choice(WALL_JUMPS_MS)
        await trio.lowlevel.checkpoint()

    # -- the operator -------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request[None]) -> bool:
        """Ask the leading controller; return True if it carried the request out."""
        leader = self.leader
        if leader is None:
            return False
        with trio.move_on_after(5):
            connection = await leader.connect(OPERATOR, lambda _: None)
            if connection is not None:
                with suppress(RequestError, Unanswered):
                    await connection.ask(request)
                    return True
                connection.close()
        return False

    async def _elect_by_hand(self) -> None:
        """Have a replica in sync elected, although the master may be alive and accept for a while yet."""
        newest = self.laws.newest
        if newest is None or not newest.sync_set:
            return
        broker_id = self.randomness.choice(sorted(newest.sync_set))
        self.trace(f"{broker_id} is to be elected")
        self.laws.planned_until_s = trio.current_time() + 60
        request = ControllerElectMaster(
            cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id, designate_elect=True
        )
        await self._ask(request)
        self.laws.planned_until_s = trio.current_time() + LEASE_S + 1

    async def _remove_replica(self) -> None:
        """Remove a replica that is dead and not needed, and give its machine an empty disk."""
        replica = self.randomness.choice(self.replicas)
        if not replica.is_up or replica.is_master:
            return
        self.trace(f"{replica.name} is killed for good")
        replica.kill()
        await trio.sleep(TIMEOUT_S + 2 + self.outage_s())
        broker_id, newest = replica.disk.broker_id, self.laws.newest
        if broker_id is None or newest is None or replica.is_up or replica in self._starting:
            return
        # The set may name a replica that lost its disk, where no controller could be asked to remove it.
        peer_ids = {peer.disk.broker_id for peer in self.replicas if peer is not replica}
        if broker_id != newest.master_id and newest.sync_set & peer_ids:
            self.trace(f"{replica.name} gets an empty disk")
            replica.wipe()
            request = CleanBrokerData(
                cluster_name=CLUSTER, broker_name=NAME, broker_controller_ids_to_clean=str(broker_id)
            )
            await self._ask(request)
            await trio.sleep(self.outage_s() + 0.01)
        self.start_process(replica)

    async def _end_listener(self) -> None:
        """Cut the master off from all controllers but the leading one, and have another one lead later."""
        masters = [replica for replica in self.replicas if replica.is_writable]
        leaders = [item for item in self.controllers if item.leads]
        if not masters or not leaders:
            return
        master, leader = masters[0], leaders[0]
        self.trace(f"{master.name} reaches {leader.name} only")
        ways = [(master.name, item.name) for item in self.controllers if item is not leader]
        for way in ways:
            self.network.cut(*way)
        await trio.sleep(TIMEOUT_S + self.randomness.uniform(0.5, 3))
        if self.randomness.random() < 0.3:
            await self.end_controller(leader, 0.8)
        else:
            self.trace(f"{leader.name} does not reach etcd")
            members = [(leader.name, member) for member in MEMBERS]
            for way in members:
                self.network.cut(*way)
            await trio.sleep(self.config.lease_s + self.randomness.uniform(1, TIMEOUT_S))
            for way in members:
                self.network.heal(*way)
        for way in ways:
            self.network.heal(*way)


def run_seed(seed: int, show: Show | None = None) -> Outcome:
    """Run one seed. Raises LawBroken, inside of an exception group, or whatever a defect raises."""
    return run_seeded(seed, lambda: Story(seed, show).run())
