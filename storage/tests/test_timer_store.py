"""The timer's files together, with the process or the machine ending at any moment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.crash_files import CrashFiles
from storage.tests.timer_world import CHECK, LOG, NOW, TOPIC, WHEEL, TimerWorld
from storage.timer_checkpoint import POSITION_FIELDS, TimerCheckpoint, TimerPosition, TimerProgress


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
    world = TimerWorld()
    world.send_all(number % 5 for number in range(20))
    world.read()
    world.deliver()
    if flushed:
        world.flush()
    world.send(0)
    world = world.crash()
    world.read()
    world.deliver_all()
    assert world.delivered() == dict.fromkeys(range(21), 1)


def test_without_our_progress_the_log_tells_what_was_put_into_slots_already():
    world = TimerWorld()
    world.send_all(range(5))
    world.read()
    world.flush()
    world.send_all(range(5))
    world.read()
    world.files.mapped["/store/config/timercheck"].buffer[56:64] = bytes(8)
    world = world.crash()
    assert world.timers.queue_offset == 5
    world.read()
    assert len(world.deliver_all()) == 10


def test_a_rewritten_slot_counts_when_it_is_whole():
    world = TimerWorld()
    world.send_all(number % 5 for number in range(11))
    world.read()
    remaining = sorted(world.timers.pending_records(NOW))[1:]
    world.timers.rewrite_slot(NOW, remaining)
    again = world.crash()
    assert [record.physical_offset for record in again.timers.pending_records(NOW)] == [
        record.physical_offset for record in reversed(remaining)
    ]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["send", "send", "read", "flush", "sync", "deliver"]), max_size=60),
    seed=st.integers(0, 1 << 30),
)
def test_the_end_of_the_machine_loses_nothing_that_was_durable(steps, seed):
    world = TimerWorld()
    durable = 0
    for step in steps:
        if step == "send":
            world.send(world.sent % 5)
        elif step == "read":
            world.read()
        elif step == "flush":
            world.flush()
        elif step == "sync":
            world.store.write_checkpoint()
            durable = world.sent
        elif world.timers.next_slot_ms() is not None:
            world.deliver()
    world = world.crash(seed, lose_unflushed=True)
    world.read()
    world.deliver_all()
    assert set(range(durable)) <= world.delivered().keys()


def test_a_record_of_a_lost_message_does_not_stand_for_the_next_one():
    """Power fails when the record is on the disk and its message is not; another message gets its place."""
    world = TimerWorld()
    world.send(0)
    world.read()
    world.flush()
    world.send(1)
    world.read()
    world = world.cut_power(lambda path: path.startswith((LOG, WHEEL, CHECK)))
    assert world.store.max_offset(TOPIC, 0) == 1
    world.send(1, "a longer one")
    world.read()
    physical_offset = world.store.physical_offset_at(TOPIC, 0, 1)
    (record,) = [
        candidate
        for candidate in world.timers.pending_records(NOW + 1000)
        if candidate.physical_offset == physical_offset
    ]
    assert record.size == len(world.store.message_at(physical_offset))


@pytest.mark.parametrize("lost", [0, 20, 40])
def test_records_behind_lost_ones_never_come_back(lost):
    """A sector of the timer log is lost; the records behind it are not taken for new ones when the log reaches them."""
    world = TimerWorld()
    world.send_all(number % 5 for number in range(60))
    world.read()
    world.store.write_checkpoint()
    log_file = world.files.mapped["/store/timerlog/00000000000000000000"]
    log_file.buffer[lost * 52 : lost * 52 + 104] = bytes(104)
    world.files.settle()
    world = TimerWorld(world.files)
    assert world.timers._log.end == lost * 52
    assert not any(world.files.mapped["/store/timerlog/00000000000000000000"].on_disk()[lost * 52 :])
