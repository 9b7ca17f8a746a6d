"""A log that was cut has nothing at or after the cut, wherever that is and whenever the process or the power ends."""

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from codec.message import QUEUE_OFFSET_AT, Message
from storage.append import NewMessage
from storage.crash_files import CrashFiles, CrashMapping, ProcessKilled
from storage.cut import ASIDE_FILE, CUT_FILE, cut_store, delete_old_copy
from storage.errors import CorruptionError, StoreError, StoreFull
from storage.files import DiskFiles
from storage.layout import LONG
from storage.replica_log import ReplicaLog
from storage.store import MessageStore
from storage.tests.support import FakeClock, copy_of_killed, small_config
from storage.tests.test_replica_log import (
    append_any,
    assert_same,
    follow,
    log_bytes,
    message_starts,
    queues_of,
)
from storage.timer_store import TimerStore, TimerStoreConfig
from storage.tools.dump import DumpFilter, dump_messages
from storage.tools.store_reader import StoreReader

CONFIG = replace(small_config(), commit_log_file_bytes=4096, max_message_bytes=2000)
WHEEL = "wheel"
TIMERS = TimerStoreConfig("/s", "/s/config", precision_ms=1000, log_file_bytes=1024, wheel_slots=4000)
START_MS = FakeClock().now_ms()


class Filled:
    """A store that was closed, with messages, keys, timers and a deletion, and what it held."""

    def __init__(self, seed: int = 3, messages: int = 45, *, clean: bool = True) -> None:
        randomness = random.Random(seed)
        self.clock = FakeClock()
        self.files = CrashFiles()
        store = MessageStore.open(CONFIG, self.files, self.clock)
        timers = TimerStore(TIMERS, store, WHEEL)
        for number in range(messages):
            append_any(store, randomness, number)
            if number % 3 == 0:
                store.append(NewMessage(WHEEL, 0, b"%d" % randomness.randrange(40), b""))
            if number == messages // 2:
                store.append(NewMessage("gone", 0, b"x", b""))
                store.delete_topic("gone")
            if number % 5 == 0:
                store.build_index(20)
                store.write_checkpoint()
            if number % 4 == 0:
                read_timers(store, timers)
                deliver_timers(store, timers, self.clock.now_ms())
            self.clock.advance(1000)
        read_timers(store, timers)
        position = timers.take_unflushed_position()
        assert position is not None
        timers.flush(position)
        timers.close()
        self.log = log_bytes(store)
        self.queues = queues_of(store)
        self.starts = message_starts(store)
        self.first, self.end = store.min_physical_offset, store.max_physical_offset
        self.timer_ends = {
            start + len(message): LONG.unpack_from(message, QUEUE_OFFSET_AT)[0] + 1
            for start in self.starts
            if (message := store.message_at(start)) is not None and bytes(message).find(b"\x05wheel") > 0
        }
        if clean:
            store.close()


def read_timers(store: MessageStore, timers: TimerStore) -> None:
    while timers.queue_offset < store.max_offset(WHEEL, 0):
        start = store.physical_offset_at(WHEEL, 0, timers.queue_offset)
        message = store.message_at(start)
        assert message is not None
        if start in timers.already_chained:
            timers.already_chained.discard(start)
        else:
            now_ms = store.clock.now_ms()
            slot = max(
                timers.slot_start_ms(now_ms) + int(bytes(message[88:90]).strip(b"\x05w")) * 1000,
                timers.read_ms,
            )
            timers.chain_message(
                slot,
                magic=1,
                write_ms=now_ms,
                physical_offset=start,
                size=len(message),
                topic_hash=0,
                due_ms=slot + 1,
            )
        timers.queue_offset += 1
        timers.save_progress()


def deliver_timers(store: MessageStore, timers: TimerStore, now_ms: int) -> list[int]:
    delivered = []
    while (slot := timers.next_slot_ms()) is not None and slot <= now_ms:
        for record in timers.pending_records(slot):
            properties = b"TIMER_OUT_MS\x01%d\x02" % record.due_ms
            store.append(NewMessage("fired", 0, b"%d" % record.physical_offset, properties))
            delivered.append(record.physical_offset)
        timers.finish_slot(slot)
        timers.save_progress()
    return delivered


def assert_cut(files: CrashFiles, clock: FakeClock, whole: Filled, end: int) -> None:
    """Open what a cut left, compare it with what was before the cut, and let the rest follow as from a master."""
    store = MessageStore.open(CONFIG, files, clock)
    assert f"/s/{CUT_FILE}" not in files.small
    assert store.max_physical_offset == end
    assert log_bytes(store) == whole.log[: end - whole.first]
    assert queues_of(store) == {
        queue: remaining
        for queue, entries in whole.queues.items()
        if (remaining := [entry for entry in entries if entry[0] < end])
    }
    for queue, entries in whole.queues.items():
        count = sum(entry[0] < end for entry in entries)
        assert store.max_offset(*queue) == count
    assert all(log_end <= end for log_end, _ in store.deletion_notes.values())
    for file in store.index.files:
        assert file.end_offset < end
    for key in ("k1", "k7", "k20"):
        assert all(start < end for start in store.query_by_key("a", key, 64, 0, 1 << 60))
    assert_timers_complete(store, end, whole)
    source = MessageStore.open(CONFIG, copy_of_killed(whole.files), FakeClock())
    follow(ReplicaLog(store), source, 333)
    for topic, (log_end, time_ms) in source.deletion_notes.items():
        list(store.note_deletions({topic: (log_end, time_ms)}))
    assert_same(store, source)
    again = MessageStore.open(CONFIG, copy_of_killed(files), clock)
    assert_same(again, source)


def assert_timers_complete(store: MessageStore, end: int, whole: Filled) -> None:
    """Every message of the timer topic is unread, waits or was delivered, and none waits twice."""
    timers = TimerStore(TIMERS, store, WHEEL)
    waiting = Counter(
        record.physical_offset
        for slot in timers._wheel.used_slots()
        if slot.time_ms >= timers.read_ms
        for record in timers.pending_records(slot.time_ms)
    )
    everywhere = [
        record.physical_offset
        for slot in timers._wheel.used_slots()
        for record in timers.pending_records(slot.time_ms)
    ]
    assert all(start < end for start in everywhere)
    assert not waiting or max(waiting.values()) == 1
    unread = {
        store.physical_offset_at(WHEEL, 0, offset)
        for offset in range(timers.queue_offset, store.max_offset(WHEEL, 0))
    } - timers.already_chained
    fired = {
        int(bytes(message)[88:].split(b"\x05fired")[0])
        for offset in range(store.max_offset("fired", 0))
        if (message := store.message_at(store.physical_offset_at("fired", 0, offset))) is not None
    }
    sent = {store.physical_offset_at(WHEEL, 0, offset) for offset in range(store.max_offset(WHEEL, 0))}
    assert sent <= waiting.keys() | unread | fired
    assert not waiting.keys() & unread
    assert not timers.already_chained & {start for start in everywhere if start >= end}
    # Without the wheel, too, no record of a cut message comes back.
    timers.close()


def bytes_set_aside(files: CrashFiles, end: int) -> list[bytes]:
    """Return the copies of what was cut at an offset that are complete, without the zeros after the last message."""
    copies = []
    for number in range(1, 10):
        folder = f"/s/damaged/cut-{end:020d}-{number}"
        if f"{folder}/{ASIDE_FILE}" in files.small:
            paths = sorted(path for path in files.mapped if path.startswith(folder + "/"))
            first = int(paths[0].rpartition("/")[2])
            copy = b"".join(bytes(files.mapped[path].buffer) for path in paths)[end - first :]
            copies.append(copy.rstrip(b"\0"))
    return copies


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_may_be_cut_at_every_message(clean: bool) -> None:
    whole = Filled(clean=clean)
    for end in [*whole.starts, whole.end]:
        files = copy_of_killed(whole.files)
        cut_store(CONFIG, files, end, WHEEL)
        assert_cut(files, FakeClock(whole.clock.now_ms()), whole, end)


def test_a_cut_log_loses_nothing_when_the_power_fails() -> None:
    whole = Filled()
    for number, end in enumerate(whole.starts):
        files = copy_of_killed(whole.files)
        cut_store(CONFIG, files, end, WHEEL)
        assert_cut(files.crash(random.Random(number)), FakeClock(whole.clock.now_ms()), whole, end)


@pytest.mark.parametrize("lose_power", [False, True])
@pytest.mark.parametrize("part", [0, 0.3, 0.7, 0.95])
def test_a_cut_may_be_killed_at_every_file_operation(part: float, lose_power: bool) -> None:
    """It is carried out by the next opening, however often that is killed as well."""
    whole = Filled()
    end = whole.starts[int(part * len(whole.starts))]
    done = 0
    for operation in range(1000):
        files = copy_of_killed(whole.files)
        files.operations_left = operation
        with suppress(ProcessKilled):
            cut_store(CONFIG, files, end, WHEEL)
            done += 1
            MessageStore.open(CONFIG, files, FakeClock(whole.clock.now_ms()))
            done += 1
        is_begun = f"/s/{CUT_FILE}" in files.small or done > 1
        files = files.crash(random.Random(operation), lose_unflushed=lose_power)
        is_cut = is_begun or bool(done)
        cut_bytes = whole.log[end - whole.first :].rstrip(b"\0")
        assert cut_bytes in bytes_set_aside(files, end) or not is_cut
        assert_cut(files, FakeClock(whole.clock.now_ms()), whole, end if is_cut else whole.end)
        if done > 2:
            return
    raise AssertionError("more operations than expected")


def test_each_cut_has_a_copy_of_its_own() -> None:
    whole = Filled()
    end = whole.starts[20]
    for seed in (5, 6):
        cut_store(CONFIG, whole.files, end, WHEEL)
        store = MessageStore.open(CONFIG, whole.files, whole.clock)
        store.append(NewMessage("a", 0, b"other bytes %d" % seed, b""))
        store.close()
    cut_store(CONFIG, whole.files, end, WHEEL)
    copies = bytes_set_aside(whole.files, end)
    assert copies[0] == whole.log[end - whole.first :].rstrip(b"\0")
    assert [b"other bytes %d" % seed in copy for seed, copy in zip((5, 6), copies[1:], strict=True)] == [
        True
    ] * 2


def test_a_copy_that_was_not_finished_makes_way() -> None:
    whole = Filled()
    end = whole.starts[20]
    path = f"/s/damaged/cut-{end:020d}-1/commitlog/{0:020d}"
    whole.files.open_mapped(path, 99)
    cut_store(CONFIG, whole.files, end, WHEEL)
    assert path not in whole.files.mapped or whole.files.mapped[path].size_bytes == 4096
    assert bytes_set_aside(whole.files, end) == [whole.log[end - whole.first :].rstrip(b"\0")]


def test_old_copies_are_deleted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Filled()
    for now_s, end in ((1000, whole.starts[20]), (2000, whole.starts[10]), (3000, whole.starts[5])):
        monkeypatch.setattr("storage.cut.time.time", lambda now_s=now_s: now_s)
        cut_store(CONFIG, whole.files, end, WHEEL)
        MessageStore.open(CONFIG, whole.files, FakeClock(whole.clock.now_ms())).close()
    whole.files.write_small("/s/damaged/cut-00000000000000000001-1/cut.json", b'{"physicalOffset": 1}')

    def copies() -> set[int]:
        folders = {
            path.split("/")[3] for path in (*whole.files.mapped, *whole.files.small) if "/cut-" in path
        }
        return {int(folder.split("-")[1]) for folder in folders}

    ends = [whole.starts[20], whole.starts[10], whole.starts[5], 1]
    assert copies() == set(ends)
    assert not delete_old_copy(CONFIG, whole.files, 1_000_000)
    assert delete_old_copy(CONFIG, whole.files, 2_500_000)
    assert len(copies()) == 3
    assert delete_old_copy(CONFIG, whole.files, 2_500_000)
    assert not delete_old_copy(CONFIG, whole.files, 2_500_000)
    assert copies() == set(ends[2:])


def test_nothing_is_cut_without_room_for_the_copy() -> None:
    whole = Filled()
    end = whole.starts[20]
    files = copy_of_killed(whole.files)
    files.capacity_bytes = 100
    with pytest.raises(StoreFull):
        cut_store(CONFIG, files, end, WHEEL)
    assert not any("damaged" in path for path in (*files.mapped, *files.small))
    assert f"/s/{CUT_FILE}" not in files.small
    files.capacity_bytes = 1 << 62
    store = MessageStore.open(CONFIG, files, FakeClock(whole.clock.now_ms()))
    assert log_bytes(store) == whole.log


def test_no_file_is_made_for_a_copy_that_there_is_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Filled()
    opened = []
    open_mapped = CrashFiles.open_mapped

    def open_noted(files: CrashFiles, path: str, size_bytes: int) -> CrashMapping:
        opened.append(path)
        return open_mapped(files, path, size_bytes)

    monkeypatch.setattr(CrashFiles, "open_mapped", open_noted)
    monkeypatch.setattr(CrashFiles, "free_bytes", lambda files, path: whole.end - whole.starts[20] - 1)
    with pytest.raises(StoreFull, match=r"no room for \d+ bytes in /s/damaged.*, \d+ are free"):
        cut_store(CONFIG, whole.files, whole.starts[20], WHEEL)
    assert not any("damaged" in path for path in opened)


def test_files_of_a_copy_are_closed_before_they_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted file that is still mapped keeps its blocks."""
    whole = Filled()
    closed = []

    def fail(mapping: CrashMapping, start: int, end: int) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(CrashMapping, "reserve", fail)
    monkeypatch.setattr(CrashMapping, "close", lambda mapping: closed.append(mapping.path))
    with pytest.raises(StoreFull):
        cut_store(CONFIG, whole.files, whole.starts[20], WHEEL)
    assert any("damaged" in path for path in closed)


def test_a_cut_at_the_end_of_the_log_copies_nothing() -> None:
    whole = Filled()
    cut_store(CONFIG, whole.files, whole.end, WHEEL)
    assert not any("damaged" in path for path in (*whole.files.mapped, *whole.files.small))


def test_damage_and_what_comes_after_it_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with zeros between: only where no message was ever written reading stops."""
    monkeypatch.setattr("storage.cut._COPY_BYTES", 16)
    whole = Filled()
    end, damaged = whole.starts[20], whole.starts[25]
    base = damaged // 4096 * 4096
    log_file = whole.files.mapped[f"/s/commitlog/{base:020d}"]
    log_file.buffer[damaged - base + 4 : damaged - base + 60] = b"\x01" + bytes(55)
    expected = bytearray(whole.log[end - whole.first :])
    expected[damaged - end + 4 : damaged - end + 60] = b"\x01" + bytes(55)
    cut_store(CONFIG, whole.files, end, WHEEL)
    assert bytes_set_aside(whole.files, end) == [bytes(expected).rstrip(b"\0")]


def test_what_was_cut_can_be_dumped(tmp_path: Path) -> None:
    files = DiskFiles()
    config = replace(CONFIG, root=str(tmp_path))
    store = MessageStore.open(config, files, FakeClock())
    starts = [store.append(NewMessage("a", 0, b"body %d" % number, b""))[1] for number in range(60)]
    store.close()
    cut_store(config, files, starts[10], WHEEL)
    (folder,) = (tmp_path / "damaged").iterdir()
    reader = StoreReader(replace(CONFIG, root=str(folder)))
    bodies = [item.body for item in dump_messages(reader, DumpFilter()) if isinstance(item, Message)]
    reader.close()
    assert bodies == [b"body %d" % number for number in range(10, 60)]


def test_an_offset_without_a_message_is_refused() -> None:
    whole = Filled()
    before = copy_of_killed(whole.files)
    for end in (whole.starts[3] + 1, whole.starts[5] - 8, -1, whole.end + 4096, 1 << 40):
        with pytest.raises(StoreError):
            cut_store(CONFIG, whole.files, end, WHEEL)
        assert whole.files.equals(before)


def test_a_cut_that_cannot_be_read_keeps_the_store_closed() -> None:
    whole = Filled()
    whole.files.small[f"/s/{CUT_FILE}"] = b"{}"
    with pytest.raises(CorruptionError, match="a cut of the log cannot be read"):
        MessageStore.open(CONFIG, whole.files, whole.clock)


def test_a_store_that_was_cut_to_its_beginning_may_begin_anywhere() -> None:
    whole = Filled()
    cut_store(CONFIG, whole.files, 0, WHEEL)
    store = MessageStore.open(CONFIG, whole.files, whole.clock)
    ReplicaLog(store).begin_at(5 * 4096)
    again = MessageStore.open(CONFIG, whole.files.crash(random.Random(1)), whole.clock)
    assert again.max_physical_offset == again.min_physical_offset == 5 * 4096
    assert queues_of(again) == {}


def test_a_timer_that_fired_after_the_cut_fires_again() -> None:
    clock, files = FakeClock(), CrashFiles()
    store = MessageStore.open(CONFIG, files, clock)
    timers = TimerStore(TIMERS, store, WHEEL)
    start = store.append(NewMessage(WHEEL, 0, b"2", b""))[1]
    read_timers(store, timers)
    clock.advance(5000)
    end = store.append(NewMessage("a", 0, b"the first that is cut", b""))[1]
    assert deliver_timers(store, timers, clock.now_ms()) == [start]
    position = timers.take_unflushed_position()
    assert position is not None
    timers.flush(position)
    store.close()
    cut_store(CONFIG, files, end, WHEEL)
    store = MessageStore.open(CONFIG, files, clock)
    timers = TimerStore(TIMERS, store, WHEEL)
    assert timers.waiting_messages == 1
    assert deliver_timers(store, timers, clock.now_ms()) == [start]


def test_a_deletion_after_the_cut_is_undone() -> None:
    """The master may not have deleted the topic; if it did, its note comes again."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    for _ in range(3):
        store.append(NewMessage("a", 0, b"before", b""))
    end = store.append(NewMessage("b", 0, b"the first that is cut", b""))[1]
    store.delete_topic("a")
    store.close()
    cut_store(CONFIG, files, end, WHEEL)
    store = MessageStore.open(CONFIG, files, clock)
    assert (store.max_offset("a", 0), store.max_offset("b", 0)) == (3, 0)
    assert store.deletion_notes == {}
    # If the master is lost before it says so, a promotion deletes what the table does not have.
    assert store.announced_deletions == {"a"}
