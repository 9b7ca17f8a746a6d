"""Runs one seed of the simulation and judges it."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from unittest.mock import patch

import trio

from gateway.broker.assembly import build
from gateway.broker.replication import table_sync
from gateway.broker.replication.tests.simulation.brokers import SimBroker, read_queue
from gateway.broker.replication.tests.simulation.clients import (
    DELAYED,
    ENDED,
    GROUP,
    PASSING,
    POPPED,
    QUEUES,
    Administrator,
    Consumer,
    Popper,
    Producer,
)
from gateway.broker.replication.tests.simulation.group import BrokerGroup
from gateway.broker.replication.tests.simulation.history import History, LawBroken, Queue
from gateway.broker.replication.tests.simulation.network import Network
from gateway.broker.replication.tests.simulation.operator import Operator
from gateway.config.replication import ASYNC_MASTER, SYNC_MASTER, Role
from gateway.tests.seeds import Show, run_seeded
from storage.store import MessageStore
from storage.timer_store import TimerStoreConfig

Result = TypeVar("Result")
FAULTS_UNTIL_S: Final = 18.0
SETTLE_S: Final = 90.0
"""Longest time, after the last fault, until the slaves have caught up, and until nothing waits any more."""
CHECK_INTERVAL_S: Final = 0.5
PRODUCERS: Final = ("p0", "p1", "p2")
TABLES_INTERVAL_S: Final = 3.0
"""Time between two copies of tables, shorter than usual, so that more happens in the time of a story."""
WHEEL_SLOTS: Final = 8192
"""Slots of the timer wheel, which is 38 MB large otherwise: 2.3 hours, more than clocks jump."""
ALL_QUEUES: Final[tuple[Queue, ...]] = (
    *QUEUES,
    POPPED,
    DELAYED,
    ENDED,
    *((topic, 0) for topic in PASSING),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one seed, of which a replay has the same."""

    seed: int
    statuses: dict[int, int]
    reads: int
    log_end: int
    cuts: int
    changes: int
    waiting: int
    twice: int
    redeliveries: int
    events: int


class GroupStory:
    """The run of one seed, and its checks, whoever decides about the roles of the brokers.

    A subclass adds the group of brokers and their clients when it is constructed.
    """

    faults_until_s: float = FAULTS_UNTIL_S
    operator: BrokerGroup
    producers: list[Producer]
    consumer: Consumer
    popper: Popper
    administrator: Administrator

    def __init__(self, seed: int, show: Show | None, history: History) -> None:
        self.randomness = random.Random(seed)
        self.seed = seed
        self.history = history
        self.network = Network(self.randomness)
        self.events = 0
        self._show = show
        self._extra_copies = 0

    def trace(self, event: str) -> None:
        self.events += 1
        if self._show is not None:
            now_s = trio.current_time() if trio.lowlevel.in_trio_run() else 0.0
            self._show(f"{now_s:8.3f} {event}")

    async def run(self) -> Outcome:
        async with trio.open_nursery() as nursery:
            await self.operator.start(nursery)
            await self.administrator.create_first()
            async with trio.open_nursery() as clients:
                for client in (*self.producers, self.consumer, self.popper, self.administrator):
                    clients.start_soon(client.run)
                clients.start_soon(self._keep_checking)
                clients.start_soon(self.operator.replace_unable)
                await self.operator.run(trio.current_time() + self.faults_until_s)
                await self.operator.settle()
                await self._wait_in_sync()
                clients.cancel_scope.cancel()
            async with trio.open_nursery() as clients:
                self.popper.acks_all = True
                clients.start_soon(self.popper.run)
                clients.start_soon(self._keep_checking)
                for producer in self.producers:
                    clients.start_soon(producer.answer_questions)
                await self._wait_ended()
                clients.cancel_scope.cancel()
            await self._wait_equal()
            self._judge()
            log_end = self.operator.master().log_end
            nursery.cancel_scope.cancel()
        return Outcome(
            self.seed,
            dict(sorted(self.history.statuses.items())),
            self.history.reads,
            log_end,
            sum(broker.cuts for broker in self.operator.brokers),
            self.history.changes,
            len(self.history.waiting),
            self._extra_copies,
            self.history.redeliveries,
            self.events,
        )

    # -- checks --

    async def _keep_checking(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            self._check_prefixes()
            for broker in self.operator.brokers:
                if broker.store is not None and broker.is_serving:
                    self._check_tables(broker)

    def _check_prefixes(self) -> None:
        master = self.operator.master()
        for broker in self.operator.brokers:
            if broker.store is not None:
                broker.expired_end = max(broker.expired_end, broker.store.min_physical_offset)
        if master.store is None or master.role is not Role.MASTER:
            return
        for slave in self.operator.slaves:
            if slave.store is None or not slave.is_verified:
                continue
            if slave.follower is None or not slave.follower.is_copying:
                continue
            if not is_prefix(slave.store, master.store):
                raise LawBroken(f"the log of {slave.name} is not a prefix of its master's")

    def _check_tables(self, broker: SimBroker) -> None:
        """No name vanishes, and no offset goes back, except to the end of its queue."""
        present = names_of(broker)
        expected = set(self.history.names)
        if vanished := (broker.seen_names & expected) - present:
            raise LawBroken(f"{sorted(vanished)} vanished at {broker.name}")
        broker.seen_names = present & expected
        # A new master that lacks the group has its slaves forget it.
        may_go_back = self.history.is_group_lost
        for queue in QUEUES:
            offset, before = broker.committed(GROUP, *queue), broker.seen_offsets.get(queue, -1)
            end = broker.open_store.max_offset(*queue)
            if offset < min(before, end) and not may_go_back:
                raise LawBroken(f"the offset of {queue} at {broker.name} went back from {before} to {offset}")
            # What is beyond the end of a master's queue was read at a former master, see `Consumer`.
            visible_offset = min(offset, end) if broker.role is Role.MASTER else offset
            broker.seen_offsets[queue] = -1 if may_go_back else visible_offset
        if broker is self.operator.master() and broker.role is Role.MASTER:
            self._check_master_tables(broker, present)

    def _check_master_tables(self, master: SimBroker, present: set[str]) -> None:
        """The master has all tables that were answered, whichever broker answered."""
        history = self.history
        if missing := set(history.names) - present:
            raise LawBroken(
                f"{sorted(missing)} were created, and the master {master.name} does not have them"
            )
        for queue in QUEUES:
            committed = max((offset for _, offset in history.commits.get((GROUP, queue), [])), default=-1)
            offset, end = master.committed(GROUP, *queue), master.open_store.max_offset(*queue)
            if offset < min(committed, end):
                raise LawBroken(
                    f"{committed} was committed for {queue}, and the master {master.name} has {offset}"
                )
        for topic in history.deletions:
            if topic in present or master.open_store.max_offset(topic, 0):
                raise LawBroken(f"{topic} was deleted, and the master {master.name} has it again")

    async def _wait_in_sync(self) -> None:
        """All faults are over: the slaves catch up and sends succeed."""
        with trio.move_on_after(SETTLE_S):
            while not self._is_in_sync():
                await trio.sleep(CHECK_INTERVAL_S)
            return
        states = [
            f"{slave.name}: {slave.follower.state} {slave.follower.reason}"
            for slave in self.operator.slaves
            if slave.follower is not None
        ]
        raise LawBroken(f"the slaves do not catch up within {SETTLE_S:g} s: {states}")

    def _is_in_sync(self) -> bool:
        master = self.operator.master()
        if not master.is_serving or not all(producer.is_stored for producer in self.producers):
            return False
        return all(
            slave.is_serving and slave.is_verified and slave.log_end >= master.log_end - 20_000
            for slave in self.operator.slaves
        )

    async def _wait_ended(self) -> None:
        """Whatever waits comes, and whatever was popped comes again until it is acked."""
        with trio.move_on_after(SETTLE_S):
            while self._missing() or self._unpopped():
                await trio.sleep(CHECK_INTERVAL_S)
            return
        waiting = [body[:24] for body in self._missing()[:5]]
        unpopped = [body[:24] for body in self._unpopped()[:5]]
        raise LawBroken(f"within {SETTLE_S:g} s these messages did not come: {waiting}, or pop: {unpopped}")

    @property
    def _expired_end(self) -> int:
        return max(broker.expired_end for broker in self.operator.brokers)

    def _missing(self) -> list[bytes]:
        store = self.operator.master().open_store
        bodies = {body for queue in (DELAYED, ENDED) for _, body in messages_of(store, queue)}
        return self.history.missing(bodies, self._expired_end)

    def _unpopped(self) -> list[bytes]:
        return self.history.unpopped(self._expired_end)

    async def _wait_equal(self) -> None:
        """The clients have stopped: the slaves become equal to their master."""
        with trio.move_on_after(SETTLE_S):
            while difference := self._difference():
                await trio.sleep(CHECK_INTERVAL_S)
            return
        raise LawBroken(f"the slaves do not become equal to their master: {difference}")

    def _difference(self) -> str:
        """Return what differs between the master and its slaves, "" if nothing does."""
        master = self.operator.master()
        names = names_of(master)
        for slave in self.operator.slaves:
            store = slave.open_store
            if slave.log_end != master.log_end or store.readable_until != slave.log_end:
                return f"{slave.name} has the log up to {slave.log_end} of {master.log_end}"
            if names_of(slave) != names:
                return f"the names at {slave.name} are not the master's: {names_of(slave) ^ names}"
            for queue in QUEUES:
                # A former master may have offsets that the present one never got: it keeps them, and is not behind.
                if slave.committed(GROUP, *queue) < master.committed(GROUP, *queue):
                    return f"the offset of {queue} at {slave.name} is behind the master's"
            for topic in set(PASSING) - self.history.half_deleted:
                if store.max_offset(topic, 0) != master.open_store.max_offset(topic, 0):
                    return f"{topic} at {slave.name} ends at {store.max_offset(topic, 0)}"
        return ""

    def _judge(self) -> None:
        self._check_prefixes()
        master = self.operator.master()
        for broker in self.operator.brokers:
            queues = {queue: messages_of(broker.open_store, queue) for queue in ALL_QUEUES}
            self.history.check_store(broker.name, broker.open_store, queues)
            self._check_tables(broker)
            for topic in self.history.deletions:
                if topic in names_of(broker) or broker.open_store.max_offset(topic, 0):
                    raise LawBroken(f"{topic} was deleted, and {broker.name} has it")
            if broker is master:
                for queue in (DELAYED, ENDED):
                    self._extra_copies += len(queues[queue]) - len({body for _, body in queues[queue]})
                continue
            for queue, messages in queues.items():
                first = max(broker.open_store.min_offset(*queue), master.open_store.min_offset(*queue))
                in_both = [
                    [message for message in copy if message[0] >= first]
                    for copy in (messages, messages_of(master.open_store, queue))
                ]
                if in_both[0] != in_both[1] and queue[0] not in self.history.half_deleted:
                    raise LawBroken(f"{queue} at {broker.name} is not its master's at the end")


class Story(GroupStory):
    """One seed: a master, one or two slaves, their clients and their operator."""

    def __init__(self, seed: int, show: Show | None = None) -> None:
        super().__init__(seed, show, History())
        sync_master, self.sync_flush = self.randomness.random() < 0.8, self.randomness.random() < 0.35
        self.role = SYNC_MASTER if sync_master else ASYNC_MASTER
        slaves = self.randomness.choice([1, 2])
        needed_slaves = self.randomness.choice([1, slaves]) if sync_master else slaves
        fills_disks = self.randomness.random() < 0.25
        moves_clocks = self.randomness.random() < 0.4
        names = "ABC"[: 1 + slaves]
        clients = [*PRODUCERS, "consumer", "popper", "administrator"]
        self.operator = operator = Operator(
            self.network, self.history, self.randomness, clients, broker_role=self.role,
            needed_slaves=needed_slaves, sync_flush=self.sync_flush, fills_disks=fills_disks,
            moves_clocks=moves_clocks, trace=self.trace,
        )  # fmt: skip
        settings = {
            "broker_role": self.role,
            "in_sync_replicas": 1 + needed_slaves if needed_slaves > 1 and sync_master else 0,
            "ha_transfer_batch_bytes": self.randomness.choice([1024, 32 * 1024]),
            "flush_disk_type": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
        }
        operator.brokers += [
            SimBroker(
                name, 1 + number, self.network, self.randomness, settings, history=self.history,
                note_role=operator.note_role, choose_id=operator.choose_id, trace=self.trace,
            )
            for number, name in enumerate(names)
        ]  # fmt: skip
        client: tuple[Any, ...] = self.network, operator, self.history, self.randomness
        self.producers = [Producer(name, *client) for name in PRODUCERS]
        self.consumer = Consumer("consumer", *client)
        self.popper = Popper("popper", *client)
        # By the time of a deletion a store tells the topic's messages from later ones: with clocks that agree.
        self.administrator = Administrator("administrator", *client, deletes_topics=not moves_clocks)
        self.trace(f"{settings} slaves={slaves} needed={needed_slaves}")


def names_of(broker: SimBroker) -> set[str]:
    """Return the topics and, with an @, the groups of a broker."""
    topics = {name for name in broker.broker.topics.table if name[0] in "abdoxnz"}
    return topics | {f"@{name}" for name in broker.broker.groups.table}


def messages_of(store: MessageStore, queue: Queue) -> list[tuple[int, bytes]]:
    """Return all messages of a queue, with their offsets."""
    messages: list[tuple[int, bytes]] = []
    offset, end = store.min_offset(*queue), store.max_offset(*queue)
    while offset < end:
        part = read_queue(store, *queue, offset)
        if not part:
            raise LawBroken(f"{queue} cannot be read at {offset}")
        messages += part
        offset = part[-1][0] + 1
    return messages


def is_prefix(slave: MessageStore, master: MessageStore) -> bool:
    """Tell whether a log is a part of the master's, as far as both still have it."""
    end = slave.max_physical_offset
    if end > master.max_physical_offset:
        return False
    offset = max(slave.min_physical_offset, master.min_physical_offset)
    while offset < end:
        (view, base, limit), (other, other_base, _) = (
            store.commit_log.file_containing(offset) for store in (slave, master)
        )
        stop = min(end, limit)
        if view[offset - base : stop - base] != other[offset - other_base : stop - other_base]:
            return False
        offset = stop
    return True


def run_seed(seed: int, show: Show | None = None) -> Outcome:
    """Run one seed. Raises LawBroken, inside of an exception group, or whatever a defect raises."""
    return run_story(seed, Story(seed, show).run)


def run_story(
    seed: int, run: Callable[[], Awaitable[Result]], tables_interval_s: float = TABLES_INTERVAL_S
) -> Result:
    """Run a story of whole brokers with a small timer wheel, and with tables that are copied often."""
    small_wheel = partial(TimerStoreConfig, wheel_slots=WHEEL_SLOTS)
    with (
        patch.object(build, "TimerStoreConfig", small_wheel),
        patch.multiple(
            table_sync,
            TABLES_INTERVAL_S=tables_interval_s,
            TIMER_INTERVAL_S=tables_interval_s / 2,
            MAX_INTERVAL_S=2 * tables_interval_s,
        ),
    ):
        return run_seeded(seed, run)
