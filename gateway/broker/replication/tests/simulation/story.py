"""Runs one seed of the simulation and judges it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import trio
import trio.testing
from trio._core import _run as trio_scheduler

from gateway.broker.replication.tests.simulation.brokers import SimBroker, read_queue
from gateway.broker.replication.tests.simulation.clients import QUEUES, Consumer, Producer
from gateway.broker.replication.tests.simulation.history import History, LawBroken, Queue
from gateway.broker.replication.tests.simulation.network import Network
from gateway.broker.replication.tests.simulation.operator import Operator
from gateway.config.replication import ASYNC_MASTER, SYNC_MASTER, ReplicationSettings, Role
from storage.store import MessageStore

FAULTS_UNTIL_S: Final = 30.0
SETTLE_S: Final = 90.0
"""Longest time, after the last fault, until the slave has caught up."""
CHECK_INTERVAL_S: Final = 0.5
PRODUCERS: Final = ("p0", "p1", "p2")
CONSUMERS: Final = ("c0",)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one seed, of which a replay has the same."""

    seed: int
    statuses: dict[int, int]
    reads: int
    log_end: int
    cuts: int
    events: int


class Story:
    """One seed: a pair of brokers, their clients and their operator."""

    def __init__(self, seed: int, show: Callable[[str], None] | None = None) -> None:
        self.randomness = random.Random(seed)
        self.seed = seed
        self.history = History()
        self.network = Network(self.randomness)
        self.events = 0
        self._show = show
        self.sync_master = self.randomness.random() < 0.8
        self.sync_flush = self.randomness.random() < 0.35
        settings = ReplicationSettings(
            broker_role=SYNC_MASTER if self.sync_master else ASYNC_MASTER,
            ha_transfer_batch_bytes=self.randomness.choice([1024, 32 * 1024]),
        )
        first, second = (
            SimBroker(
                name,
                Role.SLAVE,
                self.network,
                self.randomness,
                settings,
                sync_flush=self.sync_flush,
                history=self.history,
                trace=self.trace,
            )
            for name in ("A", "B")
        )
        first.peer, second.peer = second, first
        self.brokers = first, second
        self.operator = Operator(
            (first, second), self.network, self.randomness, [*PRODUCERS, *CONSUMERS],
            sync_master=self.sync_master, sync_flush=self.sync_flush, trace=self.trace,
        )  # fmt: skip
        client: tuple[Any, ...] = self.network, self.operator, self.history, self.randomness
        self.producers = [Producer(name, *client) for name in PRODUCERS]
        self.consumers = [Consumer(name, *client) for name in CONSUMERS]

    def trace(self, event: str) -> None:
        self.events += 1
        if self._show is not None:
            self._show(f"{trio.current_time():8.3f} {event}")

    async def run(self) -> Outcome:
        self.trace(f"sync_master={self.sync_master} sync_flush={self.sync_flush}")
        async with trio.open_nursery() as nursery:
            self.operator.start(nursery)
            async with trio.open_nursery() as clients:
                for producer in self.producers:
                    clients.start_soon(producer.run)
                for consumer in self.consumers:
                    clients.start_soon(consumer.run)
                clients.start_soon(self._keep_checking)
                await self.operator.run(trio.current_time() + FAULTS_UNTIL_S)
                await self.operator.settle()
                await self._wait_in_sync()
                clients.cancel_scope.cancel()
            await self._wait_equal()
            self._judge()
            nursery.cancel_scope.cancel()
        return Outcome(
            self.seed,
            dict(sorted(self.history.statuses.items())),
            self.history.reads,
            self.operator.master_broker.open_store.max_physical_offset,
            sum(broker.cuts for broker in self.brokers),
            self.events,
        )

    # -- checks --

    async def _keep_checking(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            self._check_prefix()

    def _check_prefix(self) -> None:
        master, slave = self.operator.master_broker, self.operator.slave_broker
        if master.is_up and slave.is_up and slave.is_verified and master.store and slave.store:
            if slave.follower is None or not slave.follower.is_copying:
                return
            if not log_bytes(master.store).startswith(log_bytes(slave.store)):
                raise LawBroken(f"the log of {slave.name} is not a prefix of its master's")

    async def _wait_in_sync(self) -> None:
        """All faults are over: the slave catches up and sends succeed."""
        with trio.move_on_after(SETTLE_S):
            while not self._is_in_sync():
                await trio.sleep(CHECK_INTERVAL_S)
            return
        slave = self.operator.slave_broker
        state = "" if slave.follower is None else f"{slave.follower.state} {slave.follower.reason}"
        raise LawBroken(f"{slave.name} does not catch up within {SETTLE_S:g} s: {state}")

    def _is_in_sync(self) -> bool:
        slave, master = self.operator.slave_broker, self.operator.master_broker
        if not (slave.is_up and slave.is_verified and master.is_up and slave.store and master.store):
            return False
        if any(producer.last_code != 0 for producer in self.producers):
            return False
        return slave.store.max_physical_offset >= master.store.max_physical_offset - 20_000

    async def _wait_equal(self) -> None:
        """The clients have stopped: the slave becomes equal to its master."""
        master, slave = self.operator.master_broker, self.operator.slave_broker
        with trio.move_on_after(SETTLE_S):
            while (
                slave.open_store.max_physical_offset != master.open_store.max_physical_offset
                or slave.open_store.commit_log.queued_until != slave.open_store.max_physical_offset
            ):
                await trio.sleep(CHECK_INTERVAL_S)
            return
        raise LawBroken(f"{slave.name} does not become equal to its master")

    def _judge(self) -> None:
        self._check_prefix()
        queues = [queues_of(broker.open_store) for broker in self.brokers]
        for broker, content in zip(self.brokers, queues, strict=True):
            self.history.check_store(broker.name, broker.open_store, content)
        if log_bytes(self.brokers[0].open_store) != log_bytes(self.brokers[1].open_store):
            raise LawBroken("the logs differ at the end")
        if queues[0] != queues[1]:
            raise LawBroken("the queues differ at the end")


def queues_of(store: MessageStore) -> dict[Queue, list[tuple[int, bytes]]]:
    """Return all messages of all queues, with their offsets."""
    queues: dict[Queue, list[tuple[int, bytes]]] = {}
    for queue in QUEUES:
        messages: list[tuple[int, bytes]] = []
        while len(messages) < store.max_offset(*queue):
            part = read_queue(store, *queue, len(messages))
            if not part:
                raise LawBroken(f"{queue} cannot be read at {len(messages)}")
            messages += part
        queues[queue] = messages
    return queues


def log_bytes(store: MessageStore) -> bytes:
    """Return all bytes of the log."""
    parts, offset = [], store.min_physical_offset
    while offset < store.max_physical_offset:
        view, base, end = store.commit_log.file_containing(offset)
        parts.append(bytes(view[offset - base : end - base]))
        offset = end
    return b"".join(parts)


def run_seed(seed: int, show: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed. Raises LawBroken, inside of an exception group, or whatever a defect raises."""
    # trio mixes the order of tasks by chance, to find code that relies on it: here by the seed's chance.
    scheduler: Any = trio_scheduler
    before, state = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    try:
        story = Story(seed, show)
        return trio.run(story.run, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
        scheduler._r.setstate(state)
