"""Reading, searching, expiring and recovering: one behaviour per test."""

import os
import random
import signal
import subprocess
import sys

import pytest

from storage import append
from storage.append import NewMessage
from storage.config import StoreConfig, memory_config
from storage.crash_files import CrashFiles
from storage.errors import CorruptionError, StoreInUse
from storage.files import DiskFiles, MemoryFiles
from storage.queue_read import ReadStatus
from storage.store import MessageStore
from storage.tags import tags_code_of
from storage.tests.support import FakeClock, small_config
from storage.time_search import Boundary

HOUR_MS = 3_600_000


def filled(count, files=None, clock=None, **changes):
    store = MessageStore.open(small_config(**changes), files or CrashFiles(), clock or FakeClock())
    for number in range(count):
        store.append(NewMessage("t", 0, b"%d" % number, b"TAGS\x01even\x02" if number % 2 == 0 else b""))
    return store


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, ReadStatus.FOUND, 3),
        (3, ReadStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, ReadStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_read_status(offset, status, next_offset):
    result = filled(3).read("t", 0, offset, 32)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
        status,
        next_offset,
        0,
        3,
    )


def test_read_unknown_queue():
    result = filled(1).read("t", 9, 5, 32)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_read_filters_by_tags_and_by_message():
    store = filled(5, consume_queue_file_entries=10)
    result = store.read("t", 0, 0, 32, predicate=lambda code: code != 0)
    assert (result.count, result.next_offset, len(result.chunks)) == (3, 5, 3)
    nothing = store.read("t", 0, 0, 32, message_predicate=lambda message: False)
    assert (nothing.status, nothing.next_offset, nothing.count) == (ReadStatus.NO_MATCHED_MESSAGE, 5, 0)


def test_read_limits_bytes_but_returns_at_least_one_message():
    store = filled(5, consume_queue_file_entries=10)
    assert store.read("t", 0, 0, 32, 1).count == 1
    assert store.read("t", 0, 0, 32, 250).count == 2


def test_adjacent_messages_are_one_slice_of_the_log():
    result = filled(5, consume_queue_file_entries=10).read("t", 0, 0, 32)
    assert [len(chunk) for chunk in result.chunks] == [result.size_bytes]


def test_damage_is_reported_with_place():
    files = CrashFiles()
    store = filled(5, files, consume_queue_file_entries=10)
    physical_offset = store.physical_offset_at("t", 0, 3)
    files.mapped["/s/commitlog/" + "0" * 20].buffer[physical_offset + 4] ^= 1
    with pytest.raises(CorruptionError) as caught:
        store.read("t", 0, 3, 1)
    assert (caught.value.offset, caught.value.file) == (physical_offset, "/s/commitlog/" + "0" * 20)


@pytest.mark.parametrize(
    ("time_ms", "lower", "upper"),
    [(0, 0, 0), (100, 0, 1), (150, 2, 1), (200, 2, 2), (300, 3, 3), (301, 4, 3)],
)
def test_offset_by_time(time_ms, lower, upper):
    clock = FakeClock(100)
    store = MessageStore.open(small_config(), CrashFiles(), clock)
    for at in (100, 100, 200, 300):
        clock.advance(at - clock.now_ms())
        store.append(NewMessage("t", 0, b"", b""))
    assert store.offset_by_time("t", 0, time_ms) == lower
    assert store.offset_by_time("t", 0, time_ms, Boundary.UPPER) == upper
    assert store.earliest_store_timestamp("t", 0) == 100
    assert store.store_timestamp_at("t", 0, 3) == 300
    assert store.store_timestamp_at("t", 0, 4) == -1


def test_expired_files_are_deleted_and_offsets_continue():
    clock = FakeClock()
    files = CrashFiles()
    store = filled(0, files, clock)
    for number in range(60):
        store.append(NewMessage("t", 0, b"x" * 400, b""))
        store.append(NewMessage("t", 1, b"idle", b"")) if number == 0 else None
        clock.advance(HOUR_MS // 2)
    clock.advance(50 * HOUR_MS)
    store.write_checkpoint()
    deleted = store.delete_expired(manual=True)
    assert deleted > 0
    assert store.min_physical_offset == deleted * 8192
    first = store.min_offset("t", 0)
    assert 0 < first < 60
    assert store.physical_offset_at("t", 0, first) >= store.min_physical_offset > 0
    assert store.read("t", 0, 0, 32).next_offset == first
    assert store.min_offset("t", 1) == store.max_offset("t", 1) == 1
    store.close()
    again = MessageStore.open(small_config(), files, clock)
    assert (again.min_offset("t", 0), again.max_offset("t", 0)) == (first, 60)
    assert (again.min_offset("t", 1), again.max_offset("t", 1)) == (1, 1)
    assert again.append(NewMessage("t", 1, b"", b""))[0] == 1


def test_queues_are_rebuilt_from_the_log_after_retention():
    clock = FakeClock()
    files = CrashFiles()
    store = filled(300, files, clock, retained_bytes=4096)
    first, end = store.min_offset("t", 0), store.max_offset("t", 0)
    assert first > 0
    store.close()
    files.delete_tree("/s/consumequeue")
    again = MessageStore.open(small_config(), files, clock)
    assert (again.min_offset("t", 0), again.max_offset("t", 0)) == (first, end)
    assert again.read("t", 0, first, 1).count == 1


def test_memory_store_stays_within_its_limit():
    store = MessageStore.open(memory_config(1 << 20, file_bytes=1 << 17), MemoryFiles(), FakeClock())
    for number in range(4000):
        store.append(NewMessage("t", number % 3, bytes(1000), b""))
    assert store.max_physical_offset - store.min_physical_offset <= (1 << 20) + (1 << 17)
    assert store.read("t", 0, store.min_offset("t", 0), 1).count == 1
    store.close()


def test_query_finds_keys_newest_first_after_reopening():
    files = CrashFiles()
    clock = FakeClock()
    store = filled(0, files, clock)
    places = []
    for number in range(40):
        places.append(
            store.append(NewMessage("t", 0, b"", b"KEYS\x01a k%d\x02UNIQ_KEY\x01u%d\x02" % (number, number)))[
                1
            ]
        )
        clock.advance(1)
    assert store.query_by_key("t", "k7", 10, 0, 1 << 60) == [places[7]]
    assert store.query_by_key("t", "u8", 10, 0, 1 << 60) == [places[8]]
    assert store.query_by_key("t", "a", 3, 0, 1 << 60) == places[:-4:-1]
    assert store.query_by_key("other", "a", 3, 0, 1 << 60) == []
    store.close()
    again = MessageStore.open(small_config(), files, clock)
    assert again.index.unindexed_bytes == 0
    assert again.query_by_key("t", "a", 64, 0, 1 << 60) == places[::-1]


def test_deleted_topic_starts_at_zero_and_stays_deleted():
    files = CrashFiles()
    store = filled(7, files)
    store.append(NewMessage("kept", 0, b"", b""))
    assert store.delete_topic("t") == 1
    assert store.max_offset("t", 0) == 0
    assert store.topics() == {"kept"}
    store.append(NewMessage("t", 0, b"new", b""))
    store.close()
    again = MessageStore.open(small_config(), files, FakeClock())
    assert (again.max_offset("t", 0), again.topics()) == (1, {"kept", "t"})


def test_a_damaged_log_is_not_cut_after_an_orderly_end():
    files = CrashFiles()
    store = filled(0, files)
    store.append(NewMessage("t", 0, b"seen", b""))
    store.append(NewMessage("t", 0, b"hidden", b"", sys_flag=4))
    end = store.max_physical_offset
    store.close()
    files.mapped["/s/commitlog/" + "0" * 20].buffer[end - 5] ^= 1
    again = MessageStore.open(small_config(), files, FakeClock())
    assert again.max_physical_offset == end
    assert files.list("/s/damaged")


def test_an_entry_that_points_out_of_its_file_is_damage():
    """Entries are sliced together when the first and the last look right, whatever lies between."""
    files = CrashFiles()
    filled(3, files).close()
    store = MessageStore.open(small_config(), files, FakeClock())
    entries = files.mapped["/s/consumequeue/t/0/" + "0" * 20].buffer
    entries[20:32] = (1 << 40).to_bytes(8) + (1).to_bytes(4)
    with pytest.raises(CorruptionError, match="no message can start here"):
        store.read("t", 0, 0, 3)


def test_a_store_is_open_once(tmp_path):
    config = StoreConfig(root=str(tmp_path), commit_log_file_bytes=1 << 20)
    store = MessageStore.open(config)
    code = (
        "import sys; from storage.store import MessageStore; from storage.config import StoreConfig\n"
        "MessageStore.open(StoreConfig(root=sys.argv[1], commit_log_file_bytes=1 << 20))"
    )
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    assert StoreInUse.__name__.encode() in child.stderr
    store.close()
    MessageStore.open(config).close()


CHILD = """
import sys
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.store import MessageStore
store = MessageStore.open(StoreConfig(root=sys.argv[1], commit_log_file_bytes=1 << 16,
consume_queue_file_entries=100))
number = 0
while True:
    store.append(NewMessage("t", number % 3, b"%d" % number, b"KEYS\\x01k\\x02"))
    number += 1
    if number % 7 == 0:
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
    if number % 500 == 0:
        store.write_checkpoint()
"""


def test_sigkill_loses_nothing_acknowledged(tmp_path):
    config = StoreConfig(root=str(tmp_path), commit_log_file_bytes=1 << 16, consume_queue_file_entries=100)
    acknowledged = 0
    for lines in (300, 41):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as child:
            for _ in range(lines):
                acknowledged = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split("\n")
        acknowledged = int(rest[-2]) if len(rest) > 1 else acknowledged
        store = MessageStore.open(config)
        total = sum(store.max_offset("t", queue_id) for queue_id in range(3))
        assert total >= acknowledged
        for queue_id in range(3):
            offset = 0
            while offset < store.max_offset("t", queue_id):
                result = store.read("t", queue_id, offset, 32)
                assert result.count > 0
                offset = result.next_offset
        store.delete_topic("t")
        store.close()
    assert os.listdir(tmp_path / "commitlog")


def test_disk_files_are_the_official_names(tmp_path):
    config = StoreConfig(root=str(tmp_path), commit_log_file_bytes=1 << 16, index_slots=8, index_entries=16)
    store = MessageStore.open(config)
    store.append(NewMessage("t", 2, b"x", b"UNIQ_KEY\x01u\x02"))
    assert (tmp_path / "abort").exists()
    store.close()
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "commitlog" / ("0" * 20)).stat().st_size == 1 << 16
    assert (tmp_path / "consumequeue" / "t" / "2" / ("0" * 20)).stat().st_size == 6_000_000
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    (index,) = (tmp_path / "index").iterdir()
    assert len(index.name) == 17
    assert index.stat().st_size == 40 + 8 * 4 + 16 * 20


def test_a_filter_scans_a_limited_number_of_messages():
    store = filled(5000, MemoryFiles(), consume_queue_file_entries=5000, commit_log_file_bytes=1 << 20)
    scanned = []

    def refuse(code):
        scanned.append(code)
        return False

    result = store.read("t", 0, 0, 2**31 - 1, predicate=refuse)
    assert result.next_offset == len(scanned) == 4096


@pytest.mark.parametrize("seed", range(20))
def test_power_lost_after_the_clock_was_set_back(seed):
    clock, files = FakeClock(), CrashFiles()
    store = filled(3, files, clock)
    clock.advance(10_000)
    store.write_checkpoint()
    clock.advance(-HOUR_MS)
    for _ in range(3):
        store.append(NewMessage("t", 0, b"x" * 1500, b""))
    files = files.crash(random.Random(seed))
    again = MessageStore.open(small_config(), files, clock)
    assert 3 <= again.max_offset("t", 0) <= 6
    assert again.read("t", 0, 0, 32).count == again.max_offset("t", 0)


def test_a_folder_that_could_not_be_flushed_is_flushed_the_next_time(tmp_path, monkeypatch):
    files = DiskFiles()
    path = str(tmp_path / "new" / "0")
    files.open_mapped(path, 4096)
    flush_directory, flushed, failing = files._flush_directory, [], [True]

    def flush(self, directory):
        if failing:
            failing.clear()
            raise OSError(5, "no")
        flushed.append(directory)
        flush_directory(directory)

    monkeypatch.setattr(DiskFiles, "_flush_directory", flush)
    with pytest.raises(OSError, match="no"):
        files.flush(path)
    files.flush(path)
    assert sorted(flushed) == [str(tmp_path), str(tmp_path / "new")]


def test_bytes_behind_the_end_cannot_return_in_the_next_crash():
    torn = 0
    for seed in range(20):
        files = CrashFiles()
        store = MessageStore.open(small_config(), files, FakeClock())
        for number in range(6):
            store.append(NewMessage("t", 0, b"%d" % number * 300, b"KEYS\x01" + b"v" * 300))
        whole = store.max_physical_offset
        files = files.crash(random.Random(seed))
        logs = [file for path, file in files.mapped.items() if "/commitlog/" in path]
        end = MessageStore.open(small_config(), files, FakeClock()).max_physical_offset
        if logs:
            torn += end < whole
            assert logs[0].durable is not None
            assert not any(logs[0].durable[end:])
    assert torn > 10


def test_a_checkpoint_amid_an_append_does_not_cover_the_message(monkeypatch):
    """The checkpoint's thread may run between the message and its queue entry; then power fails."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(small_config(), files, clock)
    store.append(NewMessage("t", 0, b"first", b""))
    store.write_checkpoint()
    original = tags_code_of

    def interrupted(properties):
        store.write_checkpoint()
        return original(properties)

    monkeypatch.setattr(append, "tags_code_of", interrupted)
    store.append(NewMessage("t", 0, b"second", b""))
    monkeypatch.undo()
    store.flush()
    for seed in range(20):
        again = MessageStore.open(small_config(), files.crash(random.Random(seed)), clock)
        assert again.max_offset("t", 0) == 2
