"""Timer files that are missing, empty or garbage: rebuilt with one line in the log, or refused by name."""

import logging

import pytest

from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.errors import CorruptionError
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config
from storage.timer_store import TimerStore, TimerStoreConfig

WHEEL_SLOTS = 2048
FILES = ("/s/timerwheel", "/s/timerlog/" + "0" * 20, "/s/config/timercheck")


def opened(files: CrashFiles) -> TimerStore:
    store = MessageStore.open(small_config(), files, FakeClock())
    config = TimerStoreConfig("/s", "/s/config", log_file_bytes=52 * 20, wheel_slots=WHEEL_SLOTS)
    return TimerStore(config, store, "timers")


def filled() -> CrashFiles:
    """Return the files of a store with 10 waiting timer messages, closed in order."""
    files = CrashFiles()
    timers = opened(files)
    now_ms = timers._store.clock.now_ms()
    for number in range(10):
        _, physical_offset, size, _ = timers._store.append(NewMessage("timers", 0, b"x", b""))
        due_ms = timers.slot_start_ms(now_ms) + 5000 + number * 1000
        timers.chain_message(
            due_ms,
            magic=1,
            write_ms=now_ms,
            physical_offset=physical_offset,
            size=size,
            topic_hash=0,
            due_ms=due_ms,
        )
        timers.queue_offset += 1
    timers.save_progress()
    position = timers.take_unflushed_position()
    assert position is not None
    timers.flush(position)
    timers._store.close()
    return files


@pytest.mark.parametrize("damage", ["missing", "zeros", "garbage"])
def test_a_lost_wheel_is_built_from_the_log(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    files = filled()
    wheel = files.mapped[FILES[0]]
    if damage == "missing":
        files.delete(FILES[0])
    else:
        wheel.buffer[:] = bytes(wheel.size_bytes) if damage == "zeros" else b"\x01" * wheel.size_bytes
    assert opened(files).waiting_messages == 10
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["timer wheel is missing or damaged, rebuilding it from the timer log"]


@pytest.mark.parametrize("damage", ["missing", "zeros"])
def test_a_lost_log_is_refused_with_what_to_do(damage: str) -> None:
    files = filled()
    log = files.mapped[FILES[1]]
    files.delete(FILES[1])
    if damage == "zeros":
        files.open_mapped(FILES[1], log.size_bytes)
    with pytest.raises(
        CorruptionError, match=r"/s/timerlog/0{20} .*Restore it, or delete /s/timerlog, /s/timerwheel"
    ):
        opened(files)
    for path in FILES:
        files.delete(path)
    assert opened(files).queue_offset == 0, "all timer messages are read again"


@pytest.mark.parametrize("damage", ["missing", "zeros"])
def test_a_lost_checkpoint_is_told(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    files = filled()
    if damage == "missing":
        files.delete(FILES[2])
    else:
        files.mapped[FILES[2]].buffer[:] = bytes(4096)
    timers = opened(files)
    assert (timers.waiting_messages, timers.queue_offset) == (10, 10)
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["timer checkpoint is missing or empty, timer messages may be delivered twice"]
