"""Runs one seed of whole brokers under controllers, and judges it."""

import random
from dataclasses import dataclass
from typing import Any, Final

import trio

from gateway.broker.replication.tests.controlled_simulation.brokers import ControlledBroker
from gateway.broker.replication.tests.controlled_simulation.controllers import BrokerControllers
from gateway.broker.replication.tests.controlled_simulation.group import ControlledGroup, Route
from gateway.broker.replication.tests.controlled_simulation.laws import ControlledHistory, ElectionLaws
from gateway.broker.replication.tests.controlled_simulation.modes import Mode, mode_settings
from gateway.broker.replication.tests.simulation.clients import Administrator, Consumer, Popper, Producer
from gateway.broker.replication.tests.simulation.history import LawBroken
from gateway.broker.replication.tests.simulation.story import (
    CHECK_INTERVAL_S,
    PRODUCERS,
    GroupStory,
    Outcome,
    is_prefix,
    run_story,
)
from gateway.config.controller import ControllerConfig
from gateway.config.replication import Role
from gateway.controller.tests.simulation.controllers import PORT as CONTROLLER_PORT
from gateway.tests.seeds import Show

FAULTS_UNTIL_S: Final = 30.0
TABLES_INTERVAL_S: Final = 1.0
"""Time between two copies of tables: a master that leads for a moment has given its tables on."""
UNCLEAN_EVERY: Final = 12
"""Number of stories of which one allows elections of replicas that are not in sync."""
EPOCHS_S: Final = 10.0
"""Longest time until each replica has all epochs."""
OUTDATED_ROUTES: Final = 0.1
"""Chance that a producer sends to a broker that may not be the master any more."""


@dataclass(frozen=True, slots=True)
class ControlledOutcome:
    """Figures of one seed, of which a replay has the same."""

    of_brokers: Outcome
    elections: int
    lost_masters: int
    terms: int
    losses: int
    """Acknowledged messages that new masters lacked, where the mode allows that."""
    longest_lag_s: float


class ControlledStory(GroupStory):
    """One seed: brokers, their controllers with etcd, and their clients."""

    faults_until_s = FAULTS_UNTIL_S

    def __init__(self, seed: int, show: Show | None = None) -> None:
        history = ControlledHistory()
        super().__init__(seed, show, history)
        chance, choice = self.randomness.random, self.randomness.choice
        self.laws = ElectionLaws(may_be_unclean=seed % UNCLEAN_EVERY == UNCLEAN_EVERY - 1, clocks_stop=False)
        moves_clocks = chance() < 0.2
        config = ControllerConfig(
            lease_s=choice([2, 5]),
            enable_elect_unclean_master=self.laws.may_be_unclean,
            notify_broker_role_changed=chance() < 0.7,
            scan_not_active_broker_interval_ms=1000,
            scan_inactive_master_interval_ms=choice([500, 5000]),
        )
        replicas: list[ControlledBroker] = []
        self.controllers = BrokerControllers(
            random.Random(seed), config, self.laws, self.network, replicas, self.trace
        )
        settings = {
            "controller_addr": ";".join(
                f"{controller.name}:{CONTROLLER_PORT}" for controller in self.controllers.controllers
            ),
            "min_in_sync_replicas": choice([1, 1, 2]),
            "ha_transfer_batch_bytes": choice([1024, 32 * 1024]),
            "flush_disk_type": choice(["SYNC_FLUSH", "ASYNC_FLUSH", "ASYNC_FLUSH"]),
        }
        numbers = range(1, 1 + choice([2, 3, 3]))
        settings |= mode_settings(seed, len(numbers))
        mode = Mode.of(settings, len(numbers))
        self.laws.min_in_sync_replicas = mode.min_in_sync_replicas
        names = [*PRODUCERS, "consumer", "popper", "administrator"]
        self.group = self.operator = group = ControlledGroup(
            self.network, history, self.randomness, names, replicas, self.controllers,
            self.laws, mode, moves_clocks=moves_clocks, trace=self.trace,
        )  # fmt: skip
        replicas += [
            ControlledBroker(
                number, self.network, self.randomness, settings, mode=mode, history=history, laws=self.laws,
                peers=replicas, note_role=group.note_role, may_lose=group.may_lose, trace=self.trace,
            )
            for number in numbers
        ]  # fmt: skip
        group.brokers += replicas
        route = Route(group, self.randomness, OUTDATED_ROUTES)
        client: tuple[Any, ...] = history, self.randomness
        self.producers = [Producer(name, self.network, route, *client) for name in PRODUCERS]
        self.consumer = Consumer("consumer", self.network, group, *client)
        self.popper = Popper("popper", self.network, group, *client)
        self.administrator = Administrator(
            "administrator", self.network, group, *client, deletes_topics=not moves_clocks
        )
        self.trace(f"{settings} brokers={len(replicas)} {config}")

    async def run_controlled(self) -> ControlledOutcome:
        """Run the story to its end."""
        outcome = await self.run()
        laws = self.laws
        terms = sum(controller.terms for controller in self.controllers.controllers)
        return ControlledOutcome(
            outcome, laws.elections, laws.lost_masters, terms, sum(laws.losses), laws.longest_lag_s
        )

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_prefixes(self) -> None:
        """Judge who stored messages, who leads, and the logs of all slaves that copy."""
        if self.laws.violations:
            raise LawBroken(self.laws.violations[0])
        self.controllers.check_leaders()
        for slave in self.group.replicas:
            master = self._copied_master(slave)
            if master is not None and not is_prefix(slave.open_store, master.open_store):
                raise LawBroken(f"the log of {slave.name} is not a prefix of that of {master.name}")

    def _copied_master(self, slave: ControlledBroker) -> ControlledBroker | None:
        """Return the master whose log a slave copies, after comparing it with that of the master's present parts."""
        follower = slave.follower
        if slave.store is None or follower is None or not follower.is_copying:
            return None
        source, connected_s = follower.lookup.master, follower.connected_since
        for master in self.group.replicas:
            if source is None or connected_s is None or source.ha_address[0] != master.name:
                continue
            if master.store is not None and master.role is Role.MASTER and connected_s > master.parts_since_s:
                return master
        return None

    async def _wait_in_sync(self) -> None:
        """All faults are over: the replicas are in sync, also after the master has handed over."""
        await super()._wait_in_sync()
        # A leader whose last renewals were lost in a fault leads until its lease ends; then, for a moment, none does.
        await trio.sleep(self.controllers.config.lease_s)
        await super()._wait_in_sync()
        await self._wait_for_epochs()
        await self.group.hand_over_in_peace()
        await super()._wait_in_sync()

    async def _wait_for_epochs(self) -> None:
        """Every epoch reaches every replica, before a change of the master has them compared anew."""
        with trio.move_on_after(EPOCHS_S):
            while self._differing_epochs():
                await trio.sleep(CHECK_INTERVAL_S)
            return
        raise LawBroken(self._differing_epochs())

    def _differing_epochs(self) -> str:
        """Return whose epochs are not its master's; "" if nobody's."""
        expected = epochs_of(self.group.master())
        for broker in self.group.replicas:
            if epochs_of(broker) != expected:
                return f"the epochs of {broker.name} are {epochs_of(broker)}, those of its master {expected}"
        return ""

    def _is_in_sync(self) -> bool:
        ids = {broker.controller_id for broker in self.group.replicas}
        return super()._is_in_sync() and ids == self.laws.ids_in_sync() == self.controllers.ids_in_sync()

    def _judge(self) -> None:
        super()._judge()
        if difference := self._differing_epochs():
            raise LawBroken(difference)
        ids = [broker.controller_id for broker in self.group.replicas]
        if len(set(ids)) != len(ids):
            raise LawBroken(f"two brokers have the same id: {ids}")
        self.controllers.etcd.is_over = True


def epochs_of(broker: Any) -> list[tuple[int, int]]:
    """Return the epochs of a broker's log, and where each begins."""
    epochs = broker.broker.replication.epochs
    return [] if epochs is None else [(entry.epoch, entry.start) for entry in epochs.entries]


def run_seed(seed: int, show: Show | None = None) -> ControlledOutcome:
    """Run one seed. Raises LawBroken, inside of an exception group, or whatever a defect raises."""
    return run_story(seed, ControlledStory(seed, show).run_controlled, TABLES_INTERVAL_S)
