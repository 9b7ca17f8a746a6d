"""The copied timer is the one of its checkpoint's moment, whatever the broker wrote afterwards."""

import random
from pathlib import Path

import pytest

from storage.append import NewMessage
from storage.errors import StoreError
from storage.files import DiskFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock
from storage.timer_log import MAGIC_DEFAULT, MAGIC_DELETE
from storage.timer_store import TimerStore, TimerStoreConfig
from storage.tools.file_copy import FileCopier
from storage.tools.store_reader import ReadOnlyFiles
from storage.tools.tests.stores import disk_config
from storage.tools.timer_copy import TimerCopy, log_end_of

TOPIC = "rmq_sys_wheel_timer"
START_MS = 1_700_000_000_000
SLOTS = [START_MS + 1000 * number for number in (5, 9, 14, 60)]


def open_timers(root: Path) -> tuple[MessageStore, TimerStore]:
    store = MessageStore.open(disk_config(root), DiskFiles(), FakeClock())
    config = TimerStoreConfig(str(root), f"{root}/config", log_file_bytes=520, wheel_slots=128)
    return store, TimerStore(config, store, TOPIC)


def chain(store: MessageStore, timers: TimerStore, numbers: range, generator: random.Random) -> None:
    """Append messages to the timer's topic and chain each into one of the slots."""
    for number in numbers:
        _, physical_offset, size, _ = store.append(NewMessage(TOPIC, 0, b"message %d" % number, b""))
        magic = MAGIC_DEFAULT | (MAGIC_DELETE if number % 10 == 9 else 0)
        timers.chain_message(
            generator.choice(SLOTS), magic=magic, write_ms=START_MS, physical_offset=physical_offset, size=size,
            topic_hash=1, due_ms=START_MS + number,
        )  # fmt: skip
        timers.queue_offset += 1
        timers.save_progress()


def state_of(timers: TimerStore) -> dict[int, tuple[list[int], int]]:
    """Return the messages of every slot, newest first, and their number."""
    return {
        slot: (
            [record.physical_offset for record in timers.pending_records(slot)],
            timers.message_count(slot),
        )
        for slot in SLOTS
    }


def copy_timer(root: Path, target: Path, checkpoint: bytes) -> None:
    copier = FileCopier(lambda copied: None)
    TimerCopy(ReadOnlyFiles(), copier, str(root), str(target), log_end_of(checkpoint)).copy()
    copier.write(f"{target}/config/timercheck", checkpoint)


@pytest.mark.parametrize("before", [0, 1, 7, 10, 11, 40])
@pytest.mark.parametrize("after", [0, 1, 25])
@pytest.mark.parametrize("flushed", [False, True])
def test_records_of_later_moments_are_left_out(
    tmp_path: Path, before: int, after: int, flushed: bool
) -> None:
    generator = random.Random(before)
    store, timers = open_timers(tmp_path / "s")
    chain(store, timers, range(before), generator)
    if flushed:
        position = timers.take_unflushed_position()
        if position is not None:
            timers.flush(position)
    expected = state_of(timers)
    checkpoint = (tmp_path / "s" / "config" / "timercheck").read_bytes()
    chain(store, timers, range(before, before + after), generator)
    store.write_checkpoint()
    copy_timer(tmp_path / "s", tmp_path / "t", checkpoint)
    assert state_of(timers) != expected or not after
    for part in ("commitlog", "consumequeue", "checkpoint"):
        if (tmp_path / "s" / part).exists():  # there is no log without messages
            (tmp_path / "s" / part).rename(tmp_path / "t" / part)
    again, copied = open_timers(tmp_path / "t")
    if before or flushed:
        assert state_of(copied) == expected
        assert copied.queue_offset == before
    copied.close()
    again.close()


def test_what_the_official_broker_flushed_counts_without_our_progress() -> None:
    checkpoint = b"".join(value.to_bytes(8) for value in (1, 520, 10, 10, 0, 1, 1))
    assert log_end_of(checkpoint.ljust(4096, b"\0")) == 520


def test_a_broker_that_stops_meanwhile_is_noticed(tmp_path: Path) -> None:
    generator = random.Random(1)
    store, timers = open_timers(tmp_path / "s")
    chain(store, timers, range(12), generator)
    checkpoint = (tmp_path / "s" / "config" / "timercheck").read_bytes()
    slot = SLOTS[0]
    records = list(timers.pending_records(slot))
    assert len(records) > 1
    timers.rewrite_slot(slot, list(reversed(records)))
    with pytest.raises(StoreError, match="make the backup again"):
        copy_timer(tmp_path / "s", tmp_path / "t", checkpoint)
    timers.close()
    store.close()
