"""A checkpoint in another thread, at every instruction of an append, and the other way round.

Threads may take turns at any instruction. A trace function stands for the other thread: it does the other thread's work
in the middle of one instruction after another, or starts a thread that does it where the two may wait for each other.
"""

import itertools
import random
from collections.abc import Callable
from functools import partial

import pytest

from codec.batch import encode_batch
from storage.append import NewMessage
from storage.crash_files import CrashFiles, ProcessKilled
from storage.store import MessageStore
from storage.tests.support import (
    FakeClock,
    hand_over_locks,
    kill_process,
    run_beside,
    run_interrupted,
    small_config,
)

TOPICS = ("a", "b")
Work = Callable[[MessageStore], object]


def append_one(store: MessageStore) -> None:
    store.append(NewMessage("a", 0, b"one", b""))


def append_long(store: MessageStore) -> None:
    store.append(NewMessage("a", 0, bytes(700), b""))


def append_batch(store: MessageStore) -> None:
    store.append_batch("a", 0, encode_batch([(0, b"%d" % number, b"") for number in range(3)]))


def create_queue(store: MessageStore) -> None:
    store.append(NewMessage("b", 0, b"one", b""))


def recreate_topic(store: MessageStore) -> None:
    store.delete_topic("a")
    store.append(NewMessage("a", 0, b"new", b""))


CHANGES = [append_one, append_long, append_batch, create_queue, recreate_topic]
CONFIG = {"commit_log_file_bytes": 1200, "max_message_bytes": 800, "message_index_enable": False}


def prepare(messages: int) -> tuple[CrashFiles, FakeClock, MessageStore]:
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(small_config(**CONFIG), files, clock)
    for number in range(messages):
        store.append(NewMessage("a", 0, b"%d" % number, b""))
    return files, clock, store


def contents(store: MessageStore) -> dict[str, list[bytes]]:
    stored: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    for topic, bodies in stored.items():
        for offset in range(store.min_offset(topic, 0), store.max_offset(topic, 0)):
            bodies += map(bytes, store.read(topic, 0, offset, 1).chunks)
    return stored


def is_prefix(stored: dict[str, list[bytes]], expected: dict[str, list[bytes]]) -> bool:
    return all(stored[topic] == expected[topic][: len(stored[topic])] for topic in TOPICS)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("messages", [1, 4, 6], ids=["first", "next file", "later"])
@pytest.mark.parametrize("outer", ["change", "checkpoint"])
def test_a_checkpoint_and_a_change_at_the_same_time(change: Work, messages: int, outer: str) -> None:
    """Then the process is killed, or power fails, before and after another flush."""
    for step in itertools.count(0, 3):
        files, clock, store = prepare(messages)

        def do_change(store: MessageStore = store) -> None:
            change(store)

        works = [do_change, store.write_checkpoint]
        if outer == "checkpoint":
            works.reverse()
        if not run_beside(store, works[0], step, works[1]):
            break
        expected, durable = contents(store), store.durable_offset
        again = MessageStore.open(
            small_config(**CONFIG), files.crash(random.Random(step), lose_unflushed=False), clock
        )
        assert contents(again) == expected
        again = MessageStore.open(small_config(**CONFIG), files.crash(random.Random(step)), clock)
        assert again.max_physical_offset >= durable
        if change is not recreate_topic:
            assert is_prefix(contents(again), expected)
        for make_durable in (store.flush, store.write_checkpoint):
            make_durable()
            again = MessageStore.open(small_config(**CONFIG), files.crash(random.Random(step)), clock)
            assert contents(again) == expected
    assert step > 100


@pytest.mark.parametrize("change", [append_one, append_long, append_batch, create_queue])
def test_a_process_killed_in_the_middle_of_an_append(change: Work, caplog: pytest.LogCaptureFixture) -> None:
    """The message is there or not; nothing looks torn, although the log's next bytes may be written already."""
    for step in itertools.count():
        files, clock, store = prepare(6)
        before = contents(store)
        try:
            if not run_interrupted(partial(change, store), step, kill_process):
                break
        except ProcessKilled:
            pass
        again = MessageStore.open(
            small_config(**CONFIG), files.crash(random.Random(0), lose_unflushed=False), clock
        )
        if contents(again) != before:
            change(store_of_six := prepare(6)[2])
            assert [[body[40:] for body in bodies] for bodies in contents(again).values()] == [
                [body[40:] for body in bodies] for bodies in contents(store_of_six).values()
            ]
    assert "torn" not in caplog.text
    assert "damaged" not in caplog.text
    assert step > 100


KEYS_CONFIG = CONFIG | {"message_index_enable": True, "index_entries": 4}


def prepare_keys() -> tuple[CrashFiles, FakeClock, MessageStore]:
    """Return a store with messages of one key, half of them indexed."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(small_config(**KEYS_CONFIG), files, clock)
    for number in range(6):
        store.append(NewMessage("a", 0, b"%d" % number, b"KEYS\x01k\x02"))
        clock.advance(5000)
    store.build_index(3)
    return files, clock, store


@pytest.mark.parametrize("outer", ["index", "checkpoint"])
def test_a_checkpoint_while_messages_are_indexed(outer: str) -> None:
    """Then power fails, before and after another checkpoint: every key is found again."""
    for step in itertools.count(0, 5):
        files, clock, store = prepare_keys()
        works = [partial(store.build_index, 10), store.write_checkpoint]
        if outer == "checkpoint":
            works.reverse()
        if not run_interrupted(works[0], step, works[1]):
            break
        expected = [store.physical_offset_at("a", 0, offset) for offset in range(5, -1, -1)]
        for lose_unflushed in (False, True):
            again = MessageStore.open(
                small_config(**KEYS_CONFIG), files.crash(random.Random(step), lose_unflushed), clock
            )
            stored = again.query_by_key("a", "k", 64, 0, 1 << 60)
            assert stored == [offset for offset in expected if offset < again.max_physical_offset]
        store.write_checkpoint()
        again = MessageStore.open(small_config(**KEYS_CONFIG), files.crash(random.Random(step)), clock)
        assert again.query_by_key("a", "k", 64, 0, 1 << 60) == expected
    assert step > 100


def test_a_checkpoint_while_time_passes() -> None:
    """The checkpoint's time is not that of a message that was appended while the files were flushed."""
    for step in itertools.count(0, 3):
        files, clock, store = prepare(4)

        def append_later(store: MessageStore = store, clock: FakeClock = clock) -> None:
            clock.advance(10_000)
            store.append(NewMessage("a", 0, b"later", b""))
            clock.advance(10_000)

        if not run_interrupted(store.write_checkpoint, step, append_later):
            break
        later = store.store_timestamp_at("a", 0, 4)
        if store.durable_offset < store.max_physical_offset:
            assert store._checkpoint.log_timestamp < later
    assert step > 100


@pytest.mark.parametrize("outer", ["roll", "checkpoint"])
def test_a_checkpoint_while_retention_removes_files(outer: str) -> None:
    config = CONFIG | {"retained_bytes": 2400}
    for step in itertools.count(0, 3):
        files, clock = CrashFiles(), FakeClock()
        store = MessageStore.open(small_config(**config), files, clock)
        for number in range(30):
            store.append(NewMessage("a", 0, b"%d" % number, b""))
        works = [partial(append_long, store), store.write_checkpoint]
        if outer == "checkpoint":
            works.reverse()
        if not run_interrupted(works[0], step, works[1]):
            break
        store.flush()
        for lose_unflushed in (False, True):
            again = MessageStore.open(
                small_config(**config), files.crash(random.Random(step), lose_unflushed), clock
            )
            assert again.max_offset("a", 0) == 31
            assert contents(again)["a"][-6:] == contents(store)["a"][-6:]
    assert step > 100


@pytest.mark.parametrize("messages", range(1, 12))
def test_a_flush_while_a_file_ends_covers_what_came_before(messages: int) -> None:
    for step in itertools.count():
        _, _, store = prepare(messages)
        end = store.max_physical_offset
        if not run_interrupted(store.flush, step, partial(append_long, store)):
            break
        assert end <= store.durable_offset <= store.max_physical_offset


def append_and_flush(store: MessageStore) -> None:
    append_one(store)
    store.flush()


def append_and_checkpoint(store: MessageStore) -> None:
    append_batch(store)
    store.write_checkpoint()


def roll_and_flush(store: MessageStore) -> None:
    append_long(store)
    append_long(store)
    store.flush()


def index_and_checkpoint(store: MessageStore) -> None:
    append_one(store)
    store.build_index(100)
    store.write_checkpoint()


TURNS = [append_and_flush, append_and_checkpoint, roll_and_flush, recreate_topic, index_and_checkpoint]


@pytest.mark.parametrize("outer", [MessageStore.flush, MessageStore.write_checkpoint])
@pytest.mark.parametrize("change", TURNS)
@pytest.mark.parametrize("messages", [1, 4, 6], ids=["first", "next file", "later"])
def test_threads_that_take_turns_at_every_lock(messages: int, change: Work, outer: Work) -> None:
    """Two threads flush, as those of the group commit and the checkpoint do, and then the machine stops."""
    for at in itertools.count():
        files, clock = CrashFiles(), FakeClock()
        store = MessageStore.open(small_config(**KEYS_CONFIG), files, clock)
        for number in range(messages):
            store.append(NewMessage("a", 0, b"%d" % number, b"KEYS\x01k\x02"))
            clock.advance(5000)
        if not hand_over_locks(store, partial(outer, store), at, partial(change, store)):
            break
        expected, durable = contents(store), store.durable_offset
        keys = [store.physical_offset_at("a", 0, number) for number in range(messages)][::-1]
        for seed in range(6):
            again = MessageStore.open(small_config(**KEYS_CONFIG), files.crash(random.Random(seed)), clock)
            assert again.max_physical_offset >= durable
            if change is not recreate_topic:
                assert is_prefix(contents(again), expected)
                stored = again.query_by_key("a", "k", 64, 0, 1 << 60)
                assert stored == [offset for offset in keys if offset < again.max_physical_offset]
        files = files.crash(random.Random(at), lose_unflushed=False)
        assert contents(MessageStore.open(small_config(**KEYS_CONFIG), files, clock)) == expected
    assert at >= 2
