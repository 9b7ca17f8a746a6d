"""The controllers of a group with their etcd, and the faults that come over them."""

import random
from typing import Final, Protocol

import trio

from gateway.config.controller import ControllerConfig
from gateway.controller.tests.simulation.controllers import SimController
from gateway.controller.tests.simulation.etcd import MEMBERS, SimEtcd
from gateway.controller.tests.simulation.laws import LawBroken, Laws
from gateway.controller.tests.simulation.machines import Network
from remoting.requests.ha import NotifyBrokerRoleChanged

MAX_OUTAGE_S: Final = 14.0


class SimProcess(Protocol):
    """A controller or a broker, through all its processes."""

    is_up: bool

    async def run_process(self) -> None: ...


class ControllerGroup:
    """Two or three controllers and three members of etcd: the `World` of its controllers.

    ``laws`` judges what is stored. The nursery of all processes is set before the first one starts.
    """

    nursery: trio.Nursery

    def __init__(self, randomness: random.Random, config: ControllerConfig, laws: Laws) -> None:
        self.randomness = randomness
        self.config = config
        self.laws = laws
        self.network = Network(randomness)
        self.etcd = SimEtcd(self.network, randomness, self._note_write)
        self.controllers: list[SimController] = []
        self.controllers += [
            self.create_controller(f"c{number}") for number in range(randomness.choice([2, 3, 3]))
        ]
        self._starting: set[SimProcess] = set()

    def create_controller(self, name: str) -> SimController:
        return SimController(name, self)

    def trace(self, event: str) -> None:
        """Show an event."""
        raise NotImplementedError

    async def notify(self, address: str, request: NotifyBrokerRoleChanged) -> None:
        """Tell the broker at an address its role."""
        raise NotImplementedError

    def _note_write(self, key: str, value: bytes | None) -> None:
        self.laws.note_write(key, value)
        newest = self.laws.newest
        if newest is not None and value is not None:
            self.trace(
                f"stored: master {newest.master_id} in epoch {newest.master_epoch}, in sync {sorted(newest.sync_set)} "
                f"in epoch {newest.sync_set_epoch}" if "/broker-sets/" in key else f"leader {value.decode()}"
            )  # fmt: skip

    # -- processes ----------------------------------------------------------------------------------------------------

    def start_process(self, process: SimProcess) -> None:
        """Start a process, unless it runs."""
        if process.is_up or process in self._starting:
            return
        self._starting.add(process)

        async def run() -> None:
            self._starting.discard(process)
            await process.run_process()

        self.nursery.start_soon(run)

    @property
    def leader(self) -> SimController | None:
        """The leading controller; None while there is none."""
        return next((item for item in self.controllers if item.leads), None)

    def check_leaders(self) -> None:
        """Judge who leads now."""
        leaders = [item.name for item in self.controllers if item.leads]
        if len(leaders) > 1 and not self.laws.clocks_stop:
            raise LawBroken(f"{leaders} lead at the same time")

    def heal(self) -> None:
        """End all faults of controllers and etcd."""
        self.network.heal_all()
        self.etcd.loss = 0.0
        for member in MEMBERS:
            self.etcd.recover(member)
        for controller in self.controllers:
            self.start_process(controller)

    # -- faults -------------------------------------------------------------------------------------------------------

    def outage_s(self) -> float:
        """Return for how long a fault lasts."""
        return self.randomness.random() * self.randomness.choice([0.5, 4.0, MAX_OUTAGE_S])

    async def end_controller(self, controller: SimController | None = None, stops: float = 0.3) -> None:
        """End a controller's process, cleanly with the chance ``stops``."""
        controller = controller or self.randomness.choice(self.controllers)
        if not controller.is_up:
            return
        if self.randomness.random() < stops:
            self.trace(f"{controller.name} stops")
            await controller.stop()
        else:
            self.trace(f"{controller.name} is killed")
            controller.kill()
        await trio.sleep(self.outage_s() + 0.01)
        self.start_process(controller)

    async def fail_etcd(self) -> None:
        """Let members of etcd fail."""
        members = self.randomness.sample(MEMBERS, self.randomness.choice([1, 1, 2, 3]))
        is_hung = self.randomness.random() < 0.5
        self.trace(f"{members} of etcd are {'hung' if is_hung else 'down'}")
        for member in members:
            self.etcd.fail(member, is_hung=is_hung)
        await trio.sleep(self.outage_s())
        for member in members:
            self.etcd.recover(member)
