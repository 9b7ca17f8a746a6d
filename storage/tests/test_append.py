"""Stored bytes have the official layout, and a refused message leaves no trace."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.batch import encode_batch
from codec.hashing import tags_code
from codec.message import decode_message
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.errors import MessageIllegal, PropertiesTooLong, StoreFull
from storage.store import MessageStore
from storage.tags import tags_code_of
from storage.tests.support import FakeClock, small_config

V4 = bytes((10, 0, 0, 7)) + (4321).to_bytes(4, "big")
V6 = bytes(15) + b"\x01" + (4321).to_bytes(4, "big")


@pytest.fixture
def store():
    return MessageStore.open(small_config(), CrashFiles(), FakeClock())


@pytest.mark.parametrize("born_host", [V4, V6])
@pytest.mark.parametrize("store_host", [V4, V6])
@pytest.mark.parametrize("topic", ["t", "x" * 127, "y" * 128])
def test_append_writes_what_codec_reads(store, topic, born_host, store_host):
    appended = store.append(NewMessage(
        topic, 3, b"hello", b"TAGS\x01a\x02", flag=-5, sys_flag=0, born_timestamp=12, born_host=born_host,
        store_host=store_host, reconsume_times=2, prepared_transaction_offset=9,
    ))  # fmt: skip
    queue_offset, physical_offset, size, stored = appended
    message = decode_message(bytes(store.message_at(physical_offset)), 0)
    assert (message.topic, message.body, message.queue_id, message.flag) == (topic, b"hello", 3, -5)
    assert (message.queue_offset, message.physical_offset, message.size) == (
        queue_offset,
        physical_offset,
        size,
    )
    assert (message.born_timestamp, message.store_timestamp) == (12, stored)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (2, 9)
    assert message.born_host[1] == message.store_host[1] == 4321
    assert message.properties == {"TAGS": "a"}


@pytest.mark.parametrize("born_host", [V4, V6])
def test_batch_equals_single_appends(born_host):
    entries = [(n, b"b%d" % n, b"TAGS\x01t%d\x02" % n) for n in range(5)]
    single = MessageStore.open(small_config(), CrashFiles(), FakeClock())
    many = MessageStore.open(small_config(), CrashFiles(), FakeClock())
    for flag, body, properties in entries:
        message = NewMessage("t", 1, body, properties, flag=flag, born_timestamp=7, born_host=born_host)
        single.append(message.with_changes(store_host=single.store_host))
    first, places, _ = many.append_batch("t", 1, encode_batch(entries), born_timestamp=7, born_host=born_host)
    end = single.max_physical_offset
    assert first == 0
    assert many.max_physical_offset == end
    assert b"".join(many.read("t", 1, 0, 32).chunks) == b"".join(single.read("t", 1, 0, 32).chunks)
    assert places == [single.physical_offset_at("t", 1, n) for n in range(5)]
    expected_code = tags_code("t4")
    assert many.read("t", 1, 0, 32, predicate=expected_code.__eq__).count == 1


def test_batch_suffix_goes_behind_own_properties(store):
    store.append_batch("t", 0, encode_batch([(0, b"x", b"A\x01b")]), properties_suffix=b"C\x01d\x02")
    message = decode_message(b"".join(store.read("t", 0, 0, 1).chunks), 0)
    assert message.properties == {"A": "b", "C": "d"}


@pytest.mark.parametrize("cut", [1, 10, 21, 24])
def test_torn_batch_stores_nothing(store, cut):
    batch = encode_batch([(0, b"abc", b""), (0, b"def", b"")])
    with pytest.raises(MessageIllegal):
        store.append_batch("t", 0, batch[:-cut])
    assert store.max_offset("t", 0) == 0
    assert store.max_physical_offset == 0


def test_limits(store):
    with pytest.raises(MessageIllegal):
        store.append(NewMessage("t", 0, bytes(store.config.max_message_bytes + 1), b""))
    with pytest.raises(PropertiesTooLong):
        store.append(NewMessage("t", 0, b"", bytes(32_768)))
    for topic in ("", "a/b", "..", "x" * 256):
        with pytest.raises(MessageIllegal):
            store.append(NewMessage(topic, 0, b"", b""))
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_hidden_messages_take_no_queue_offset(store, sys_flag):
    assert store.append(NewMessage("t", 0, b"half", b"", sys_flag=sys_flag))[0] == 0
    assert store.append(NewMessage("t", 0, b"whole", b"", sys_flag=8))[0] == 0
    assert store.max_offset("t", 0) == 1


def test_full_disk_is_an_error_and_loses_nothing():
    store = MessageStore.open(small_config(), CrashFiles(capacity_bytes=20_000), FakeClock())
    stored = 0
    with suppress(StoreFull):
        while stored < 1000:
            store.append(NewMessage("t", 0, b"x" * 500, b""))
            stored += 1
    assert 5 < stored < 1000
    assert store.max_offset("t", 0) == stored
    with pytest.raises(StoreFull):
        store.append_batch("t", 0, encode_batch([(0, b"y" * 1500, b"")] * 2))
    assert store.max_offset("t", 0) == stored
    assert store.read("t", 0, stored - 1, 1).count == 1


@given(st.lists(st.sampled_from([b"TAGS\x01a", b"XTAGS\x01no", b"K\x01TAGS", b"KEYS\x01v", b"TAGS\x01"])))
def test_tags_code_is_that_of_the_tags_property(parts):
    properties = b"".join(part + b"\x02" for part in parts)
    tags = [part[5:].decode() for part in parts if part.startswith(b"TAGS\x01")]
    assert tags_code_of(properties) == (tags_code(tags[-1]) if tags else 0)
