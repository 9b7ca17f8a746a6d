"""The key index after a crash, a full disk, and the loss of its newest file."""

import itertools
import random
from functools import partial

import pytest

from storage import index
from storage.append import NewMessage
from storage.crash_files import CrashFiles, ProcessKilled
from storage.errors import StoreFull
from storage.store import MessageStore
from storage.tests.support import FakeClock, run_interrupted, small_config


def open_store(files: CrashFiles, clock: FakeClock, **changes: object) -> MessageStore:
    return MessageStore.open(small_config(commit_log_file_bytes=1 << 16, **changes), files, clock)


def append_keys(store: MessageStore, count: int, keys: bytes = b"k", **options: int) -> list[int]:
    return [
        store.append(NewMessage("t", 0, b"", b"KEYS\x01" + keys + b"\x02", **options))[1]
        for _ in range(count)
    ]


def find(store: MessageStore, key: str = "k") -> list[int]:
    return store.query_by_key("t", key, 64, 0, 1 << 60)


@pytest.mark.parametrize("entries", [8, 100])
@pytest.mark.parametrize("headers", [0, 1])
@pytest.mark.parametrize("lose_unflushed", [True, False])
def test_a_process_killed_while_it_indexes(entries, headers, lose_unflushed, monkeypatch):
    """Slots may then lead to entries that the header of the file does not count."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=entries)
    places = append_keys(store, 5)
    store.build_index()
    places += append_keys(store, 6)
    store.write_checkpoint()
    written = []
    original = index.IndexFile.write_header

    def write_header(self):
        if len(written) == headers:
            raise ProcessKilled
        written.append(self)
        original(self)

    monkeypatch.setattr(index.IndexFile, "write_header", write_header)
    if entries == 8 or headers == 0:  # otherwise one header is all that is written
        with pytest.raises(ProcessKilled):
            store.build_index()
    monkeypatch.undo()
    store = open_store(files.crash(random.Random(1), lose_unflushed), clock, index_entries=entries)
    assert find(store) == places[::-1]


@pytest.mark.parametrize("entries", [8, 100])
def test_a_process_killed_at_any_instruction_of_indexing(entries):
    """The kill is a copy of the files at that instant, because no `finally` of a killed process runs."""
    for step in itertools.count(0, 11):
        files, clock = CrashFiles(), FakeClock()
        store = open_store(files, clock, index_entries=entries)
        places = append_keys(store, 5)
        store.build_index(3)
        store.write_checkpoint()
        places += append_keys(store, 6)
        store.flush()
        copies = []

        def take_copy(files=files, step=step, copies=copies):
            copies.extend(files.crash(random.Random(step), lose) for lose in (False, True))

        if not run_interrupted(partial(store.build_index, 10), step, take_copy):
            break
        for copy in copies:
            assert find(open_store(copy, clock, index_entries=entries)) == places[::-1], f"step {step}"
    assert step > 100


@pytest.mark.parametrize("seed", range(10))
def test_power_lost_after_indexing_messages_of_the_checkpoint_s_time(seed):
    """The file's end time does not tell then that entries were added after the checkpoint."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=200)
    places = append_keys(store, 50)
    store.build_index(20)
    store.write_checkpoint()
    store.build_index()
    store = open_store(files.crash(random.Random(seed)), clock, index_entries=200)
    assert find(store) == places[::-1]


@pytest.mark.parametrize("seed", range(10))
def test_power_lost_after_filling_several_files(seed):
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=8)
    places = []
    for _ in range(40):
        places += append_keys(store, 1)
        clock.advance(1000)
    store.build_index()
    store.write_checkpoint()
    store = open_store(files.crash(random.Random(seed)), clock, index_entries=8)
    assert find(store) == places[::-1]


@pytest.mark.parametrize("seed", range(10))
def test_power_lost_after_announcing_the_end_of_files_that_were_not_flushed(seed):
    """The checkpoint's page may reach the disk before the files do."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=8)
    places = append_keys(store, 2)
    store.build_index()
    store.write_checkpoint()
    for _ in range(40):
        clock.advance(1000)
        places += append_keys(store, 1)
    store.build_index()
    store.flush()
    files.flush("/s/checkpoint")
    store = open_store(files.crash(random.Random(seed)), clock, index_entries=8)
    assert find(store) == places[::-1]


def append_minutes(store: MessageStore, clock: FakeClock, count: int) -> list[int]:
    """Append messages with the key k, a minute apart."""
    places = []
    for _ in range(count):
        places += append_keys(store, 1)
        clock.advance(60_000)
    return places


SECTORS = 60
"""Entries of an index file that takes three disk sectors, which a power cut may leave in different states."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("checkpoints", [1, 2])
def test_power_lost_after_keys_were_added_while_the_index_was_flushed(checkpoints, when):
    """The other thread fills the file that is being flushed, and begins another one."""
    for seed in range(24):
        files, clock = CrashFiles(), FakeClock()
        store = open_store(files, clock, index_entries=SECTORS, max_query_messages=200)
        places = append_minutes(store, clock, 100)
        store.build_index(40)
        flush = files.flush
        pending = [store.build_index]

        def flush_beside_the_other_thread(path, pending=pending, flush=flush):
            if when == "before" and "/index/" in path and pending:
                pending.pop()(1000)
            flush(path)
            if when == "after" and "/index/" in path and pending:
                pending.pop()(1000)

        files.flush = flush_beside_the_other_thread
        for _ in range(checkpoints):
            store.write_checkpoint()
        assert not pending
        assert len(store.index.files) == 2
        files.flush = flush
        again = open_store(
            files.crash(random.Random(seed)), clock, index_entries=SECTORS, max_query_messages=200
        )
        assert again.query_by_key("t", "k", 200, 0, 1 << 60) == places[::-1], f"seed {seed}"


@pytest.mark.parametrize("seed", range(24))
def test_power_lost_after_a_killed_process_was_started_again(seed):
    """The start finds index files that are in the page cache only, and its checkpoint covers them."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=SECTORS, max_query_messages=200)
    places = append_minutes(store, clock, 100)
    store.build_index(1000)
    assert len(store.index.files) == 2
    files = files.crash(random.Random(seed), lose_unflushed=False)
    store = open_store(files, clock, index_entries=SECTORS, max_query_messages=200)
    assert store.index.unindexed_bytes == 0
    store = open_store(files.crash(random.Random(seed)), clock, index_entries=SECTORS, max_query_messages=200)
    assert store.query_by_key("t", "k", 200, 0, 1 << 60) == places[::-1]


def test_keys_of_a_message_that_recovery_cut_off_do_not_stand_for_the_next_one():
    """The log's last message is torn, though it is indexed; another one gets its physical offset."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    first = append_keys(store, 1)[0]
    torn = append_keys(store, 1, b"torn")[0]
    store.build_index()
    files.mapped["/s/commitlog/" + "0" * 20].buffer[torn + 3] ^= 1
    store = open_store(files.crash(random.Random(0), lose_unflushed=False), clock)
    assert store.max_physical_offset == torn
    assert find(store, "torn") == []
    assert append_keys(store, 1, b"next") == [torn]
    assert (find(store, "next"), find(store, "torn"), find(store)) == ([torn], [], [first])


@pytest.mark.parametrize("lost", [1, 2])
def test_keys_of_a_message_whose_file_is_lost_are_added_again(lost):
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=4)
    physical_offset = append_keys(store, 1, b"a b c d e f g h")[0]
    store.close()
    for name in files.list("/s/index")[-lost:]:
        files.delete(f"/s/index/{name}")
    store = open_store(files, clock, index_entries=4)
    assert [find(store, key) for key in "abcdefgh"] == [[physical_offset]] * 8


@pytest.mark.parametrize("reopen", [True, False])
def test_a_disk_that_is_full_amid_the_keys_of_a_message(reopen, monkeypatch):
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=4)
    physical_offset = append_keys(store, 1, b"a b c d e")[0]
    original = index.MessageIndex._add_file

    def add_file(self):
        if self.files:
            raise StoreFull("no room")
        original(self)

    monkeypatch.setattr(index.MessageIndex, "_add_file", add_file)
    with pytest.raises(StoreFull):
        store.build_index()
    if reopen:
        store.close()
    monkeypatch.undo()
    store = open_store(files, clock, index_entries=4) if reopen else store
    assert [find(store, key) for key in "abcde"] == [[physical_offset]] * 5


def test_a_killed_process_leaves_an_index_that_need_not_be_built_again():
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock, index_entries=100)
    places = append_keys(store, 9)
    store.build_index()
    places += append_keys(store, 9)
    store.build_index()
    store = open_store(files.crash(random.Random(0), lose_unflushed=False), clock, index_entries=100)
    assert store.index.unindexed_bytes == 0
    assert store.query_by_key("t", "k", 64, 0, 1 << 60, catch_up=False) == places[::-1]


@pytest.mark.parametrize("changes", [{"index_entries": 100}, {"index_slots": 16}])
@pytest.mark.parametrize("kill", [True, False])
def test_an_index_of_another_size_is_built_again(changes, kill, caplog):
    """The sizes were changed in the settings, which is not damage."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    places = append_keys(store, 40)
    store.build_index()
    if kill:
        files = files.crash(random.Random(0), lose_unflushed=False)
    else:
        store.close()
    store = open_store(files, clock, **changes)
    assert (
        caplog.text.count("another size than maxHashSlotNum and maxIndexNum say, building the index again")
        == 1
    )
    places += append_keys(store, 3)
    while store.build_index():
        pass
    assert sorted(find(store)) == places
    store.close()
    caplog.clear()
    assert sorted(find(open_store(files, clock, **changes))) == places
    assert "another size" not in caplog.text
