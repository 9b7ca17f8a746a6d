"""The timer's files together, with the process or the machine ending at any moment."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.store import MessageStore
from storage.timer_checkpoint import POSITION_FIELDS, TimerCheckpoint, TimerPosition, TimerProgress
from storage.timer_store import TimerStore, TimerStoreConfig

NOW = 1_700_000_000_000
TOPIC = "wheel"


class Clock:
    ms = NOW

    def now_ms(self):
        return self.ms

    def monotonic(self):
        return self.ms / 1000


class World:
    """A message store and its timers; every message of the topic is chained into the slot its body names."""

    def __init__(self, files=None):
        self.files = files or CrashFiles()
        config = StoreConfig(root="/store", commit_log_file_bytes=1 << 16, consume_queue_file_entries=500)
        self.store = MessageStore.open(config, self.files, Clock())
        small = TimerStoreConfig("/store", "/store/config", log_file_bytes=4096, wheel_slots=4000)
        self.timers = TimerStore(small, self.store, TOPIC)

    def send(self, slot):
        self.store.append(TOPIC, 0, str(slot).encode())

    def read(self):
        """Chain all messages not read yet, as the broker's reader does."""
        timers, store = self.timers, self.store
        while timers.queue_offset < store.max_offset(TOPIC, 0):
            (view,) = store.read(TOPIC, 0, timers.queue_offset, 1).chunks
            place = store.physical_offset_at(TOPIC, 0, timers.queue_offset)
            if place in timers.already_chained:
                timers.already_chained.discard(place)
            else:
                self.add(place, len(view), timers.queue_offset)
            timers.queue_offset += 1
            timers.save_progress()

    def add(self, place, size, number):
        slot = max(NOW + 1000 * (number % 5), self.timers.read_ms)
        self.timers.chain_message(
            slot, magic=1, write_ms=NOW, physical_offset=place, size=size, topic_hash=0, due_ms=slot + 1
        )

    def deliver(self):
        """Return the messages of the first slot, and finish it."""
        slot = self.timers.next_slot_ms()
        found = [record.physical_offset for record in self.timers.pending_records(slot)]
        self.timers.finish_slot(slot)
        self.timers.save_progress()
        return found

    def deliver_all(self):
        found = []
        while self.timers.next_slot_ms() is not None:
            found += self.deliver()
        return found

    def flush(self):
        position = self.timers.take_unflushed_position()
        if position is not None:
            self.timers.flush(position)

    def crash(self, seed=0, lose_unflushed=False):
        return World(self.files.crash(random.Random(seed), lose_unflushed=lose_unflushed))


def test_the_checkpoint_has_the_official_layout():
    files = CrashFiles()
    checkpoint = TimerCheckpoint(files, "/timercheck")
    checkpoint.write_position(TimerPosition(1, 2, 3, 4, 5, 6, 7))
    assert files.size("/timercheck") == 4096
    assert POSITION_FIELDS.unpack(bytes(files.mapped["/timercheck"].view[:56])) == (1, 2, 3, 4, 5, 6, 7)


def test_progress_counts_until_somebody_else_wrote():
    files = CrashFiles()
    checkpoint = TimerCheckpoint(files, "/timercheck")
    checkpoint.write_position(TimerPosition(1))
    noted = TimerProgress(1, 2, 3, 4, 5, 6)
    checkpoint.save_progress(*noted)
    assert TimerCheckpoint(files, "/timercheck").load_progress() == noted
    files.mapped["/timercheck"].buffer[7] = 9
    assert TimerCheckpoint(files, "/timercheck").load_progress() is None


@pytest.mark.parametrize("flushed", [True, False])
def test_the_end_of_the_process_loses_and_repeats_nothing(flushed):
    world = World()
    for number in range(20):
        world.send(number)
    world.read()
    first = world.deliver()
    if flushed:
        world.flush()
    world.send(20)
    world = world.crash()
    world.read()
    places = [world.store.physical_offset_at(TOPIC, 0, number) for number in range(21)]
    assert sorted(first + world.deliver_all()) == places


def test_without_our_progress_the_log_tells_what_was_put_into_slots_already():
    world = World()
    for number in range(5):
        world.send(number)
    world.read()
    world.flush()
    for number in range(5):
        world.send(number)
    world.read()
    world.files.mapped["/store/config/timercheck"].buffer[56:64] = bytes(8)
    world = world.crash()
    assert world.timers.queue_offset == 5
    world.read()
    assert len(world.deliver_all()) == 10


def test_a_rewritten_slot_counts_when_it_is_whole():
    world = World()
    for number in range(11):
        world.send(number)
    world.read()
    left = sorted(world.timers.pending_records(NOW))[1:]
    world.timers.rewrite_slot(NOW, left)
    again = world.crash()
    assert [record.physical_offset for record in again.timers.pending_records(NOW)] == [
        record.physical_offset for record in reversed(left)
    ]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["send", "send", "read", "flush", "sync", "deliver"]), max_size=60),
    seed=st.integers(0, 1 << 30),
)
def test_the_end_of_the_machine_loses_nothing_that_was_durable(steps, seed):
    world = World()
    sent, durable, delivered = 0, 0, set()
    for step in steps:
        if step == "send":
            world.send(sent)
            sent += 1
        elif step == "read":
            world.read()
        elif step == "flush":
            world.flush()
        elif step == "sync":
            world.store.write_checkpoint()
            durable = sent
        elif world.timers.next_slot_ms() is not None:
            delivered |= set(world.deliver())
    places = [world.store.physical_offset_at(TOPIC, 0, number) for number in range(durable)]
    world = world.crash(seed, lose_unflushed=True)
    world.read()
    found = set(world.deliver_all())
    assert set(places) <= found | delivered


def test_a_record_of_a_lost_message_does_not_stand_for_the_next_one():
    """Power fails when the record is on the disk and its message is not; another message gets its place."""
    world = World()
    world.send(1)
    world.read()
    world.flush()
    world.send(2)
    world.read()
    for path, file in world.files.mapped.items():
        if "/timer" in path:
            world.files.flush(path)
        elif file.durable is not None:
            file.buffer[:] = file.durable
    world = world.crash(lose_unflushed=True)
    assert world.store.max_offset(TOPIC, 0) == 1
    world.send(300)
    world.read()
    place = world.store.physical_offset_at(TOPIC, 0, 1)
    (record,) = [each for each in world.timers.pending_records(NOW + 1000) if each.physical_offset == place]
    assert record.size == len(world.store.message_at(place))


@pytest.mark.parametrize("lost", [0, 20, 40])
def test_records_behind_lost_ones_never_come_back(lost):
    """A sector of the timer log is lost; the records behind it are not taken for new ones when the log reaches them."""
    world = World()
    for number in range(60):
        world.send(number)
    world.read()
    world.store.write_checkpoint()
    log_file = world.files.mapped["/store/timerlog/00000000000000000000"]
    log_file.buffer[lost * 52 : lost * 52 + 104] = bytes(104)
    world.files.settle()
    world = World(world.files)
    assert world.timers._log.end == lost * 52
    assert not any(world.files.mapped["/store/timerlog/00000000000000000000"].on_disk()[lost * 52 :])
