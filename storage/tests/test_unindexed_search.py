"""Queries before the index has caught up: complete, newest first, in bounded slices."""

import random

import pytest

from codec.properties import encode_properties
from storage import unindexed_search
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.layout import START
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

ALWAYS = (0, 1 << 60)
ROLLED_BACK, PREPARED = 12, 4


def open_store(**changes) -> MessageStore:
    return MessageStore.open(small_config(**changes), CrashFiles(), FakeClock())


def put(store, body=b"x", topic="t", **options) -> int:
    properties = {name.upper(): value for name, value in options.items() if isinstance(value, str)}
    numbers = {name: value for name, value in options.items() if not isinstance(value, str)}
    return store.append(NewMessage(topic, 0, body, encode_properties(properties), **numbers))[1]


def search(store, key, limit=64, times=ALWAYS, key_type="", topic="t"):
    return list(store.query_in_slices(topic, key, limit, *times, key_type))


def found(store, key, **options):
    return [offset for offset in search(store, key, **options) if offset is not None]


def test_messages_are_found_before_they_are_indexed():
    store = open_store()
    first = put(store, keys="red round", uniq_key="U1", tags="A")
    second = put(store, keys="red", uniq_key="U2", tags="B")
    put(store, topic="other", keys="red", uniq_key="U3")
    put(store, b"red U1 A", keys="blue", uniq_key="redder")
    assert store.index.next_offset == 0
    assert found(store, "red") == [second, first]
    assert found(store, "red", limit=1) == [second]
    assert found(store, "round") == [first]
    assert found(store, "U1") == [first]
    assert found(store, "A", key_type="T") == [first]
    assert found(store, "ed") == found(store, "A") == found(store, "") == []


@pytest.mark.parametrize("indexed", range(0, 41, 5))
def test_the_answer_is_the_same_wherever_the_index_ends(indexed):
    store = open_store(commit_log_file_bytes=4096)
    places = [put(store, keys=f"all k{number % 7}", tags=f"g{number % 3}") for number in range(40)]
    store.build_index(indexed)
    assert (
        store.index.unindexed_bytes
        == store.max_physical_offset - ([*places, store.max_physical_offset][indexed])
    )
    assert found(store, "all") == places[::-1]
    assert found(store, "k3") == places[3::7][::-1]
    assert found(store, "g1", key_type="T") == places[1::3][::-1]
    assert found(store, "all", limit=9) == places[:-10:-1]


def test_the_index_may_grow_while_a_search_waits():
    store = open_store()
    places = [put(store, keys="all") for _ in range(10)]
    waiting = store.query_in_slices("t", "all", 64, *ALWAYS)
    first = next(offset for offset in waiting if offset is not None)
    while store.build_index(100):
        pass
    places.append(put(store, keys="all"))
    assert [first, *(offset for offset in waiting if offset is not None)] == places[-2::-1]


def test_files_may_be_deleted_while_a_search_waits():
    store = open_store(commit_log_file_bytes=4096)
    places = [put(store, keys="all") for _ in range(100)]
    waiting = store.query_in_slices("t", "all", 64, *ALWAYS)
    assert next(offset for offset in waiting if offset is not None) == places[-1]
    while store.commit_log.first_base < store.commit_log.base:
        store.commit_log.delete_first()
    assert all(offset is None or offset >= store.min_physical_offset for offset in waiting)


def test_only_messages_that_the_index_would_hold_are_found():
    store = open_store(max_keys_per_message=2)
    put(store, keys="k", sys_flag=ROLLED_BACK)
    half = put(store, keys="k", sys_flag=PREPARED)
    put(store, keys="a b k")
    assert found(store, "k") == [half]


@pytest.mark.parametrize(
    "properties",
    [b"KEYS\x01k ka", b"KEYS\x01ak k\x02", b"UNIQ_KEY\x01k\x02KEYS\x01kk", b"A\x01k\x02KEYS\x01k"],
)
def test_a_key_is_found_wherever_it_stands_in_the_properties(properties):
    store = open_store()
    places = [store.append(NewMessage("t", 0, b"\x01k\x02", properties))[1] for _ in range(3)]
    store.append(NewMessage("t", 0, b"\x01k\x02", b"A\x01k\x02"))
    assert found(store, "k") == places[::-1]


def test_messages_outside_the_time_range_are_left_out():
    clock = FakeClock()
    store = MessageStore.open(small_config(), CrashFiles(), clock)
    early = put(store, keys="k")
    clock.advance(10_000)
    middle = clock.now_ms()
    late = put(store, keys="k")
    assert found(store, "k", times=(0, middle - 1)) == [early]
    assert found(store, "k", times=(middle, 1 << 60)) == [late]


def test_any_bytes_in_bodies_and_properties_are_searched_through():
    store = open_store(commit_log_file_bytes=1 << 16)
    random_bytes = random.Random(1)
    places = []
    for number in range(300):
        body = random_bytes.randbytes(random_bytes.randrange(1, 600)) + b"needle"
        store.append(NewMessage("t", 0, body, b"KEYS\x01\xff\xfe\x02"))
        if number % 10 == 0:
            places.append(put(store, body, keys="needle"))
    assert found(store, "needle") == places[::-1]


def test_a_search_parses_only_messages_that_contain_the_key(monkeypatch):
    store = open_store(commit_log_file_bytes=1 << 20)
    for number in range(3000):
        put(store, b"k29", keys=f"k{number}")
    parsed = counting(monkeypatch, "check_message_at")
    assert len(found(store, "k29")) == 1
    assert parsed == [1]


def test_every_slice_of_a_search_is_short(monkeypatch):
    """Counted: bytes walked or searched, and messages parsed, between two turns of others."""
    store = open_store(commit_log_file_bytes=1 << 20)
    for number in range(6000):
        put(store, keys=f"k{number}", other="k")
    parsed = counting(monkeypatch, "check_message_at")
    walked = counting(monkeypatch, "START", START.unpack_from)
    costs = []
    for offset in store.query_in_slices("t", "k", 64, *ALWAYS):  # every message contains it, none has it
        assert offset is None
        costs.append((parsed[0], walked[0]))
        parsed[0] = walked[0] = 0
    bytes_each = store.max_physical_offset // 6000
    chunk_messages = unindexed_search.CHUNK_BYTES // bytes_each + 2
    assert max(cost for cost, _ in costs) <= unindexed_search.PARSED_PER_SLICE
    assert max(cost for _, cost in costs) <= 2 * chunk_messages
    assert sum(cost for cost, _ in costs) > 5900


def counting(monkeypatch, name, function=None):
    """Count the calls of a function that `unindexed_search` uses."""
    count = [0]
    original = function or getattr(unindexed_search, name)

    def counted(*arguments, **options):
        count[0] += 1
        return original(*arguments, **options)

    if function is None:
        monkeypatch.setattr(unindexed_search, name, counted)
    else:
        monkeypatch.setattr(
            unindexed_search, name, type("Counted", (), {"unpack_from": staticmethod(counted)})
        )
    return count


@pytest.mark.parametrize("host", [bytes(8), bytes(20)])
def test_a_body_full_of_the_key_costs_one_look(host, monkeypatch):
    """A body of 4 MB took 0.5 s in one slice: each of its bytes was looked at."""
    monkeypatch.setattr(unindexed_search, "MISSES_PER_SLICE", 1)
    store = open_store(commit_log_file_bytes=1 << 20, max_message_bytes=1 << 19)
    wanted = put(store, b"x" * 300_000, keys="x", born_host=host, store_host=host)
    put(store, b"x" * 300_000, keys="y", born_host=host, store_host=host)
    assert found(store, "x") == [wanted]
    assert found(store, "xx") == []
    assert len(search(store, "xx")) < 50
    put(store, b"", keys="x" * 30_000)
    assert search(store, "xx").count(None) > 29_000, "others have their turn between misses in the keys"
