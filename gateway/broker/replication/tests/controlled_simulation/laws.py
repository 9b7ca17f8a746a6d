"""Laws of whole brokers under controllers, besides those of `tests/simulation` and of the controllers."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import inf

import trio

from gateway.broker.replication.tests.simulation.history import History, LawBroken, Place, Queue
from gateway.controller.broker_set import BrokerSet
from gateway.controller.tests.simulation.laws import Acceptor, Laws

KEPT_TOPICS = ("a", "b", "o")
"""Topics that are never deleted, and to which no broker sends what it has delivered before."""


@dataclass(slots=True)
class ControlledHistory(History):
    """The history of clients whose brokers show only messages that all replicas in sync have."""

    observed: dict[Place, bytes] = field(default_factory=dict)
    """Messages that somebody has read, by queue and offset."""

    def note_read(self, reader: str, queue: Queue, offset: int, body: bytes) -> None:
        """Judge a message that was read: nobody reads another one at its offset, before or after."""
        History.note_read(self, reader, queue, offset, body)
        if queue[0] not in KEPT_TOPICS:
            return
        other = self.observed.setdefault((queue, offset), body)
        if other != body:
            raise LawBroken(
                f"{reader} read {body[:20]!r} from {queue} at {offset}, and {other[:20]!r} was read there"
            )

    def break_promises_after(self, end: int) -> None:
        """Drop also what was read: the messages after ``end`` may be gone."""
        History.break_promises_after(self, end)
        self.observed.clear()

    def lose_after(self, end: int) -> list[int]:
        """Drop what a new master lacks whose log ends at an offset; return the ends of what was acknowledged of it."""
        lost = [message_end for message_end in self.ends.values() if message_end > end]
        lost += [message_end for message_end in self.waiting.values() if message_end > end]
        History.break_promises_after(self, end)
        return lost

    def forget_reads_after(self, end_of_queue: Callable[[str, int], int]) -> None:
        """Expect only what a new master has of a queue to stay at its offset."""
        self.observed = {
            (queue, offset): body
            for (queue, offset), body in self.observed.items()
            if offset < end_of_queue(*queue)
        }


@dataclass(slots=True)
class ElectionLaws(Laws):
    """The laws of controllers, for brokers that only say when they store something.

    ``violations`` has what was broken in a task that reports no exceptions.
    """

    min_in_sync_replicas: int = 1
    newest_epoch: int = 0
    """The newest epoch in which a message was stored."""
    epoch_starts: dict[int, int] = field(default_factory=dict)
    """The end of the log of each epoch's master when it became master."""
    last_stored_s: float = 0.0
    acknowledged_s: dict[int, float] = field(default_factory=dict)
    """Times of acknowledgements, by the ends of the messages."""
    opened_by: str = ""
    """The broker that has opened its log as master last."""
    opened_epoch: int = 0
    opened_end: int = 0
    """The epoch of the last master that may have lacked something, and the end of its log when it began."""
    losses: list[int] = field(default_factory=list)
    """Numbers of acknowledged messages that each of these masters lacked."""
    longest_lag_s: float = 0.0
    """Longest time by which one of them was behind."""
    is_small_since_s: float = inf
    """Time since which fewer replicas are in sync than ``minInSyncReplicas``."""
    violations: list[str] = field(default_factory=list)

    def note_stored(self, broker: Acceptor, brokers: Sequence[Acceptor], now_s: float) -> None:
        """Judge a broker that stores a message as master."""
        if broker.epoch < self.newest_epoch:
            self.violations.append(
                f"{broker.name} stores a message in epoch {broker.epoch} after one of epoch {self.newest_epoch}"
            )
        self.newest_epoch = max(self.newest_epoch, broker.epoch)
        self.last_stored_s = now_s
        try:
            self.note_accepting(broker, brokers, now_s)
        except AssertionError as error:
            self.violations.append(str(error))

    def note_epoch(self, epoch: int, log_end: int) -> None:
        """Note that the master of an epoch has opened its store."""
        self.epoch_starts.setdefault(epoch, log_end)

    def end_of_common_log(self, epoch: int, epochs: Collection[int], log_end: int) -> int:
        """Return where the log of a master ends that it has in common with all masters before it.

        ``epochs`` are those of its log. What was stored in another epoch is lost although the log may be longer: after
        an unclean election, whose master is followed by a replica that has not heard of it.
        """
        starts = [
            start
            for earlier_epoch, start in self.epoch_starts.items()
            if earlier_epoch < epoch and earlier_epoch not in epochs
        ]
        return min([log_end, *starts])

    def note_write(self, key: str, value: bytes | None) -> None:
        """Judge a write of the store, and note since when the set is too small."""
        Laws.note_write(self, key, value)
        newest: BrokerSet | None = self.newest
        if newest is None or len(newest.sync_set) >= self.min_in_sync_replicas:
            self.is_small_since_s = inf
        else:
            self.is_small_since_s = min(self.is_small_since_s, trio.current_time())

    def is_in_set(self, broker_id: int | None) -> bool:
        """Tell whether a replica is in sync, as it is stored."""
        return broker_id in self.ids_in_sync()

    def ids_in_sync(self) -> frozenset[int]:
        """Return the replicas in sync, as they are stored."""
        newest: BrokerSet | None = self.newest
        return frozenset() if newest is None else newest.sync_set
