"""The cost of indexing and of searching the index, counted in entries."""

import pytest

from codec.properties import encode_properties
from storage import index
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.index import EXAMINED_PER_SLICE
from storage.store import MessageStore

ALWAYS = (0, 1 << 60)


class Clock:
    ms = 1_700_000_000_000

    def now_ms(self):
        return self.ms

    def monotonic(self):
        return self.ms / 1000


def open_store(files=None, clock=None):
    config = StoreConfig(
        root="/s",
        commit_log_file_bytes=1 << 22,
        consume_queue_file_entries=1000,
        reserve_commit_log_bytes=1 << 16,
        index_slots=1000,
        index_entries=100_000,
        max_keys_per_message=256,
    )
    return MessageStore.open(config, files or CrashFiles(), clock or Clock())


def properties(keys, unique="u"):
    return encode_properties({"UNIQ_KEY": unique, "KEYS": " ".join(keys)})


def test_messages_with_many_keys_are_indexed_in_small_slices():
    store = open_store()
    for number in range(50):
        store.append(NewMessage("t", 0, b"x", properties([f"{number}.{key}" for key in range(4000)])))
    added = []
    while True:
        before = sum(file.next_entry - 1 for file in store.index.files)
        if not store.build_index(100):
            break
        added.append(sum(file.next_entry - 1 for file in store.index.files) - before)
    assert sum(added) == 50 * 257
    assert max(added) <= 3 * 257
    assert store.query_by_key("t", "49.255", 9, *ALWAYS)
    assert not store.query_by_key("t", "49.256", 9, *ALWAYS)


def test_usual_messages_are_indexed_as_many_at_a_time_as_asked():
    store = open_store()
    for number in range(250):
        store.append(NewMessage("t", 0, b"x", properties([f"k{number}"])))
    assert [store.build_index(100) for _ in range(4)] == [100, 100, 50, 0]


def test_a_key_of_all_messages_is_searched_in_slices_and_not_for_ever(monkeypatch):
    clock = Clock()
    store = open_store(clock=clock)
    for _ in range(5 * EXAMINED_PER_SLICE):
        store.append(NewMessage("t", 0, b"x", properties(["same"])))
    clock.ms += 10_000
    last = store.append(NewMessage("t", 0, b"x", properties(["same"])))[1]
    while store.build_index(1000):
        pass
    none = list(store.query_in_slices("t", "same", 64, 0, clock.ms - 10_001 - 1_000_000))
    assert none == [], "no file has messages of that time"
    late = list(store.query_in_slices("t", "same", 1, clock.ms - 500, clock.ms))
    assert late == [last]
    slices = list(store.query_in_slices("t", "same", 64, clock.ms - 9_000, clock.ms - 8_000))
    assert slices == [None] * len(slices)
    assert len(slices) >= 4
    monkeypatch.setattr(index, "MAX_EXAMINED_ENTRIES", 2 * EXAMINED_PER_SLICE)
    assert len(list(store.query_in_slices("t", "same", 64, clock.ms - 9_000, clock.ms - 8_000))) == 1


@pytest.mark.parametrize("most", [2**31 - 1, 64, 1, 0, -1])
def test_no_more_messages_are_found_than_asked_and_than_the_limit(most):
    store = open_store()
    for _ in range(200):
        store.append(NewMessage("t", 0, b"x", properties(["same"])))
    offsets = store.query_by_key("t", "same", most, *ALWAYS)
    assert len(offsets) == max(0, min(most, 64))


def test_files_may_be_deleted_while_a_search_waits():
    store = open_store()
    for _ in range(3 * EXAMINED_PER_SLICE):
        store.append(NewMessage("t", 0, b"x", properties(["same"])))
    while store.build_index(1000):
        pass
    search = store.query_in_slices("t", "same", 64, 1, 2_000_000_000_000)
    slow = store.index.files[0].find_offsets(0, 0, 0)
    assert next(search) is not None
    for file in store.index.files:
        file.close()
    assert list(slow) == []
    assert [offset for offset in search if offset is not None] == []
