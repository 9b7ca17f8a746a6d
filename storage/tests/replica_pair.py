"""A master and its slave as two stores, driven step by step: for stories of copying, crashes and changes of role."""

import random
from dataclasses import replace

from storage.crash_files import CrashFiles
from storage.cut import cut_store
from storage.layout import QUEUE_HOLE_SIZES
from storage.replica_log import COMPARED_BYTES, Diverged, ReplicaLog
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config
from storage.tests.test_replica_log import append_any, dispatch_all, log_bytes

CONFIG = replace(small_config(), commit_log_file_bytes=4096, max_message_bytes=2000)
TOPICS = ("a", "b")


class Replica:
    """One of the two brokers: its files and its open store."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.files = CrashFiles()
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(CONFIG, self.files, self.clock)
        self.log = ReplicaLog(self.store)

    def crash(self, randomness: random.Random, *, lose_power: bool) -> None:
        self.files = self.files.crash(randomness, lose_unflushed=lose_power)
        self.clock.advance(5000)  # a start takes longer than the clocks of two machines differ
        self.open()

    def cut(self, end: int) -> None:
        self.store.close()
        cut_store(CONFIG, self.files, end)
        self.open()


class ReplicaPair:
    """A master and a slave that gets its bytes while they are connected."""

    def __init__(self, seed: int) -> None:
        self.randomness = random.Random(seed)
        self.clock = FakeClock()
        self.master, self.slave = Replica(self.clock), Replica(self.clock)
        self.is_connected = False
        self.sent = 0

    # -- what happens --

    def append(self) -> None:
        for _ in range(self.randomness.randint(1, 12)):
            append_any(self.master.store, self.randomness, self.sent)
            self.sent += 1
        self.clock.advance(self.randomness.choice([0, 1, 700]))

    def delete_topic(self) -> None:
        self.clock.advance(5000)
        self.master.store.delete_topic(self.randomness.choice(TOPICS))
        self.clock.advance(5000)

    def copy(self) -> None:
        """Let some bytes of the master come, cut anywhere."""
        self.connect()
        slave, store = self.slave.log, self.master.store
        for _ in range(self.randomness.randint(1, 4)):
            size = min(self.randomness.choice([1, 50, 700, 9000]), store.max_physical_offset - slave.end)
            if size:
                view, base, end = store.commit_log.file_containing(slave.end)
                start = slave.end - base
                slave.receive(slave.end, view[start : min(start + size, end - base)])

    def dispatch(self) -> None:
        self.slave.log.dispatch(self.randomness.choice([1, 3, 40]))

    def copy_notes(self) -> None:
        if not self.is_connected:
            return
        for topic, (log_end, time_ms) in self.master.store.deletion_notes.items():
            list(self.slave.store.note_deletions({topic: (log_end, time_ms)}))

    def work_at_one(self) -> None:
        replica = self.randomness.choice([self.master, self.slave])
        work = self.randomness.choice(["flush", "checkpoint", "index", "write back", "reopen"])
        if work == "flush":
            replica.store.flush()
        elif work == "checkpoint":
            replica.store.write_checkpoint()
        elif work == "index":
            replica.store.build_index(self.randomness.randint(1, 30))
        elif work == "write back":
            replica.files.write_back(self.randomness)
        else:
            self.is_connected = False
            replica.store.close()
            replica.open()

    def expire(self) -> None:
        commit_log = self.master.store.commit_log
        if commit_log.first_base < commit_log.base:
            self.master.store.write_checkpoint()  # what expires is on the disk since long
            commit_log.delete_first()
            if self.slave.log.end < commit_log.first_base:
                self.is_connected = (
                    False  # the master closes the connection of a slave that is too far behind
                )

    def crash(self) -> None:
        self.is_connected = False
        replica = self.randomness.choice([self.master, self.slave])
        # A note that loses its place in the log to a power cut cannot be told from one of the common part of the log.
        has_own_notes = any(
            note not in self.master.store.deletion_notes.items()
            for note in self.slave.store.deletion_notes.items()
        )
        lose_power = self.randomness.random() < 0.6 and not (replica is self.slave and has_own_notes)
        replica.crash(self.randomness, lose_power=lose_power)

    def change_roles(self) -> None:
        """Let the slave take over with what it has; the old master comes back as its slave, perhaps ahead of it.

        The notes of deletions must have come: without them the new master would bring topics back.
        """
        if self.is_connected:
            self.copy_notes()
        if self.master.store.deletion_notes != self.slave.store.deletion_notes:
            return
        self.is_connected = False
        self.slave.log.drop_tail()
        dispatch_all(self.slave.log)
        self.slave.store.close()
        self.slave.open()
        self.slave.store.begin_empty_queues_at(self.master.store.queue_ends())
        self.clock.advance(5000)
        self.master, self.slave = self.slave, self.master

    # -- connecting --

    def connect(self) -> None:
        """Compare the end of the slave's log with the master's, and cut what differs."""
        if self.is_connected:
            return
        self.slave.log.drop_tail()
        compared_bytes = self.randomness.choice([1, 300, COMPARED_BYTES])
        while (diverged := self.compare(compared_bytes)) is not None:
            start, physical_offset = diverged
            if physical_offset > start or start <= self.slave.store.min_physical_offset:
                self.slave.cut(physical_offset)
            else:
                compared_bytes *= 4
        store = self.slave.store
        if not store.min_physical_offset <= self.master.store.max_physical_offset:
            self.slave.cut(store.min_physical_offset)
        if self.slave.store.max_physical_offset < self.master.store.min_physical_offset:
            self.slave.cut(self.slave.store.min_physical_offset)
        store = self.slave.store
        if store.max_physical_offset == store.min_physical_offset != self.master.store.min_physical_offset:
            self.slave.log.begin_at(self.master.store.min_physical_offset)
        self.is_connected = True

    def compare(self, max_bytes: int) -> tuple[int, int] | None:
        """Return the start of the comparison and the first message that differs; None if none does."""
        comparison = self.slave.log.comparison(max_bytes)
        master = self.master.store
        if comparison.done or comparison.start < master.min_physical_offset:
            return None if comparison.done else self.compare_from_the_masters_start()
        if comparison.start > master.max_physical_offset:
            return comparison.start, comparison.start
        try:
            offset = comparison.start
            while not comparison.done and offset < master.max_physical_offset:
                view, base, end = master.commit_log.file_containing(offset)
                size = self.randomness.choice([1, 90, 5000])
                comparison.compare(offset, view[offset - base : min(offset - base + size, end - base)])
                offset = comparison.position
            comparison.master_ended()
        except Diverged as diverged:
            return comparison.start, diverged.physical_offset
        return None

    def compare_from_the_masters_start(self) -> tuple[int, int] | None:
        """The master has expired the beginning of what was to be compared: the slave begins anew."""
        first = self.slave.store.min_physical_offset
        return first, first

    # -- what must be true --

    def check_prefix(self) -> None:
        if self.is_connected:
            first = max(self.master.store.min_physical_offset, self.slave.store.min_physical_offset)
            own = log_bytes(self.slave.store)[first - self.slave.store.min_physical_offset :]
            whole = log_bytes(self.master.store)[first - self.master.store.min_physical_offset :]
            assert whole.startswith(own)

    def check_equal(self) -> None:
        """Copy all that is missing; then log, queues and index are the same."""
        self.connect()
        while self.slave.log.end < self.master.store.max_physical_offset:
            self.copy()
        self.copy_notes()
        dispatch_all(self.slave.log)
        while self.slave.store.min_physical_offset < self.master.store.min_physical_offset:
            self.slave.store.commit_log.delete_first()
        if self.slave.store.min_physical_offset == self.master.store.min_physical_offset:
            slave, master = self.slave.store, self.master.store
            assert log_bytes(slave) == log_bytes(master)
            assert messages_of(slave) == messages_of(master)
            for topic, queue_id in {queue for queue, _ in messages_of(master)}:
                assert slave.max_offset(topic, queue_id) == master.max_offset(topic, queue_id)
            for key in ("k1", "k20"):
                assert found(slave, key) == found(master, key)


def messages_of(store: MessageStore) -> dict[tuple[tuple[str, int], int], tuple[int, int, int]]:
    """Return the entries of all queues that stand for messages, by queue and offset.

    What stands in their place before and between them, a hole or a blank entry, depends on how a queue came to its end.
    """
    entries = {}
    for queue in store._queue_set.queues():
        for offset in range(store.min_offset(queue.topic, queue.queue_id), queue.next_offset):
            entry = queue.read_entry(offset)
            if entry[1] not in QUEUE_HOLE_SIZES:
                entries[(queue.topic, queue.queue_id), offset] = entry
    return entries


def found(store: MessageStore, key: str) -> list[int]:
    return store.query_by_key("a", key, 64, 0, 1 << 60)
