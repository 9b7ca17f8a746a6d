"""After a flush that failed nothing it covered counts as durable, and the next opening goes by what the disk holds."""

import logging
import random

import pytest

from codec.message import decode_message
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.errors import FlushFailed
from storage.flush_guard import FLUSH_FAILED
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config
from storage.timer_store import TimerStore, TimerStoreConfig

CONFIG = small_config()
Acknowledged = dict[tuple[str, int, int], bytes]


def opened(files: CrashFiles) -> MessageStore:
    return MessageStore.open(CONFIG, files, FakeClock())


def fail_flushes(files: CrashFiles, part: str) -> None:
    """Let the next flush of a file fail whose path contains ``part``; later ones succeed, as on a real disk."""
    failed: list[str] = []

    def fails(path: str) -> bool:
        if part not in path or failed:
            return False
        failed.append(path)
        return True

    files.flush_fails = fails


class Run:
    """A store that is written to, and the messages that were acknowledged: those below a flush that succeeded."""

    def __init__(self, files: CrashFiles, randomness: random.Random) -> None:
        self.files = files
        self.randomness = randomness
        self.store = opened(files)
        self.acknowledged: Acknowledged = {}
        self.waiting: Acknowledged = {}

    def append(self) -> None:
        queue = f"t{self.randomness.randrange(3)}", self.randomness.randrange(2)
        body = self.randomness.randbytes(self.randomness.choice([1, 40, 900]))
        offset = self.store.append(NewMessage(*queue, body, b"KEYS\x01k\x02"))[0]
        self.waiting[*queue, offset] = body

    def flush(self) -> None:
        if self.randomness.random() < 0.3:
            self.store.build_index()
            self.store.write_checkpoint()
        else:
            self.store.flush()
        self.acknowledged |= self.waiting
        self.waiting = {}

    def write(self, steps: int) -> None:
        for _ in range(steps):
            self.append()
            if self.randomness.random() < 0.4:
                self.flush()

    def crash(self, *, power_cut: bool) -> None:
        """End the process or the machine, and open the store again. A real disk works again by then."""
        self.files = self.files.crash(self.randomness, lose_unflushed=power_cut)
        self.waiting = {}
        self.store = opened(self.files)

    def check(self) -> None:
        for (topic, queue_id, offset), body in self.acknowledged.items():
            messages = self.store.read(topic, queue_id, offset, 1).chunks
            assert messages, (topic, queue_id, offset)
            assert decode_message(messages[0]).body == body


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "checkpoint", ""])
@pytest.mark.parametrize("seed", range(40))
def test_what_was_acknowledged_is_there_after_a_failed_flush_and_any_crash(part: str, seed: int) -> None:
    run = Run(CrashFiles(), random.Random(seed))
    run.write(run.randomness.randrange(12))
    fail_flushes(run.files, part)
    with pytest.raises(FlushFailed):
        run.write(500)
    for refused in (run.append, run.store.flush, run.store.write_checkpoint):
        with pytest.raises(FlushFailed, match="failed"):
            refused()
    run.check()
    run.crash(power_cut=run.randomness.random() < 0.5)
    run.check()
    # What was read after the first crash is on the disk as well, and so is what comes next.
    run.write(run.randomness.randrange(8))
    run.crash(power_cut=True)
    run.check()
    run.append()


def test_the_opening_reads_the_disk_and_not_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    files = CrashFiles()
    store = opened(files)
    store.append(NewMessage("t", 0, b"flushed", b""))
    store.write_checkpoint()
    store.append(NewMessage("t", 0, bytes(900), b""))
    fail_flushes(files, "commitlog")
    with pytest.raises(FlushFailed):
        store.flush()
    assert files.small["/s/abort"] == FLUSH_FAILED
    messages = set()
    for seed in range(10):
        again = opened(files.crash(random.Random(seed), lose_unflushed=False))
        messages.add(again.max_offset("t", 0))
        again.flush()
        cut = opened(again.files.crash(random.Random(seed)))  # type: ignore[attr-defined]
        assert cut.max_offset("t", 0) == again.max_offset("t", 0)
    assert messages <= {1, 2}
    assert caplog.text.count("the store takes no more messages: check the disk, then restart the broker") == 1
    assert "a flush failed in the last run, reading the disk" in caplog.text


def test_closing_does_not_pretend_that_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    files = CrashFiles()
    store = opened(files)
    store.append(NewMessage("t", 0, b"x", b""))
    fail_flushes(files, "consumequeue")
    with pytest.raises(FlushFailed):
        store.write_checkpoint()
    store.close()
    assert files.small["/s/abort"] == FLUSH_FAILED
    assert caplog.records[-1].levelno == logging.ERROR
    assert "the next start recovers it" in caplog.text


def test_a_failed_flush_of_the_first_opening_after_a_crash_is_noted_too() -> None:
    files = CrashFiles()
    store = opened(files)
    store.append(NewMessage("t", 0, b"x", b""))
    killed = files.crash(random.Random(0), lose_unflushed=False)
    fail_flushes(killed, "commitlog")
    with pytest.raises(FlushFailed):
        opened(killed)
    assert killed.small["/s/abort"] == FLUSH_FAILED
    opened(killed).close()
    assert "/s/abort" not in killed.small


def test_a_failed_flush_while_queues_are_rebuilt_keeps_them_doubtful() -> None:
    files = CrashFiles()
    store = opened(files)
    for _ in range(12):
        store.append(NewMessage("t", 0, b"x", b""))
    store.close()
    files.delete_tree("/s/consumequeue")
    fail_flushes(files, "consumequeue")
    with pytest.raises(FlushFailed):
        opened(files)
    assert files.small["/s/abort"].startswith(b"rebuilding queues")
    assert files.small["/s/abort"].endswith(FLUSH_FAILED)
    assert opened(files).max_offset("t", 0) == 12


def test_a_failed_flush_of_the_timers_files_stops_the_store() -> None:
    files = CrashFiles()
    store = opened(files)
    timers = TimerStore(TimerStoreConfig("/s", "/s/config"), store, "timers")
    store.append(NewMessage("timers", 0, b"x", b""))
    timers.queue_offset = 1
    position = timers.take_unflushed_position()
    assert position is not None
    fail_flushes(files, "timercheck")
    for _ in range(2):
        with pytest.raises(FlushFailed):
            timers.flush(position)
    with pytest.raises(FlushFailed):
        store.append(NewMessage("t", 0, b"x", b""))
    assert timers.position.queue_offset == 0


class DeadFiles(CrashFiles):
    """Files on a disk that takes nothing any more."""

    is_dead = False

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        if self.is_dead:
            raise OSError("read-only file system")
        super().write_small(path, data, backup)


def test_a_disk_that_takes_no_note_either_is_said_so(caplog: pytest.LogCaptureFixture) -> None:
    files = DeadFiles()
    store = opened(files)
    store.append(NewMessage("t", 0, b"x", b""))
    files.is_dead = True
    fail_flushes(files, "")
    with pytest.raises(FlushFailed):
        store.flush()
    assert "restart the machine, not only the broker" in caplog.text
    with pytest.raises(FlushFailed):
        store.append(NewMessage("t", 0, b"x", b""))
    assert files.small["/s/abort"] != FLUSH_FAILED
    files.is_dead = False
    for _ in range(2):
        with pytest.raises(FlushFailed):
            store.flush()
    assert files.small["/s/abort"] == FLUSH_FAILED
