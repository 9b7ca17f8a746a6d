"""Offset-preserving appends: the stored fields, the refusals, and survival of crashes."""

import os
import random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from codec.message import decode_message, iter_messages
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.errors import MessageIllegal, OffsetGap, QueueDiverged
from storage.files import DiskFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config
from storage.time_search import Boundary

HOUR_MS = 3_600_000
V4 = bytes((10, 0, 0, 7)) + (4321).to_bytes(4, "big")
V6 = bytes(15) + b"\x01" + (4321).to_bytes(4, "big")
PRESERVED = ("topic", "queue_id", "queue_offset", "body", "properties", "flag", "born_timestamp", "born_host",
        "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_crc")  # fmt: skip


def opened(files=None, clock=None, **changes):
    return MessageStore.open(small_config(**changes), files or CrashFiles(), clock or FakeClock())


def source(count, topic="t", **fields):
    """Create another broker's store, with messages a second apart."""
    clock = FakeClock(1_600_000_000_000)
    store = opened(clock=clock)
    for number in range(count):
        properties = b"TAGS\x01t%d\x02UNIQ_KEY\x01u%d\x02DELAY\x013\x02" % (number % 2, number)
        store.append(NewMessage(topic, 0, b"body %d" % number, properties, born_timestamp=number, **fields))
        clock.advance(1000)
    return store


def raw(store, offset, count=32, topic="t"):
    """Return the stored messages from an offset on, as a pull answer carries them."""
    parts, end = [], min(offset + count, store.max_offset(topic, 0))
    while offset < end:
        result = store.read(topic, 0, offset, end - offset)
        parts += [bytes(chunk) for chunk in result.chunks]
        offset = result.next_offset
    return memoryview(b"".join(parts))


def messages(store, topic="t"):
    return list(iter_messages(bytes(raw(store, store.min_offset(topic, 0), 1 << 30, topic))))


def preserved_fields(message):
    return tuple(getattr(message, name) for name in PRESERVED)


@pytest.mark.parametrize("topic", ["t", "y" * 128])
@pytest.mark.parametrize("born_host", [V4, V6])
@pytest.mark.parametrize("store_host", [V4, V6])
def test_all_fields_but_place_and_store_host_are_preserved(topic, born_host, store_host):
    primary = source(9, topic, born_host=born_host, store_host=store_host, flag=-7, reconsume_times=3)
    for own_host in (V4, V6):
        target = opened()
        target.append(NewMessage("other", 0, b"first", b""))
        done = target.append_preserving_offsets(
            topic, 0, 0, raw(primary, 0, topic=topic), store_host=own_host
        )
        assert (done.next_offset, done.messages) == (9, 9)
        originals, copies = messages(primary, topic), messages(target, topic)
        assert [preserved_fields(each) for each in copies] == [
            preserved_fields(message) for message in originals
        ]
        assert {message.store_host for message in copies} == {
            ("10.0.0.7", 4321) if own_host == V4 else ("::1", 4321)
        }
        assert all(target.message_at(message.physical_offset) is not None for message in copies)
        tagged = target.read(topic, 0, 0, 32, predicate=lambda code: code == 3645)
        assert {decode_message(bytes(message)).tags for message in tagged.chunks} <= {"t0", "t1"}
        assert target.query_by_key(topic, "u4", 9, 0, 1 << 60) == [copies[4].physical_offset]
        assert target.append(NewMessage(topic, 0, b"own", b""))[0] == 9


def test_known_messages_are_skipped_and_gaps_are_refused():
    primary, target = source(20), opened()
    assert target.append_preserving_offsets("t", 0, 0, raw(primary, 0, 5)).next_offset == 5
    end = target.max_physical_offset
    again = target.append_preserving_offsets("t", 0, 0, raw(primary, 0, 5))
    assert (again.next_offset, again.messages, target.max_physical_offset) == (5, 0, end)
    assert target.append_preserving_offsets("t", 0, 3, raw(primary, 3, 4)).messages == 2
    with pytest.raises(OffsetGap) as gap:
        target.append_preserving_offsets("t", 0, 8, raw(primary, 8, 2))
    assert (gap.value.expected, target.max_offset("t", 0)) == (7, 7)


def test_another_message_at_the_same_offset_is_refused():
    primary, target = source(5), opened()
    target.append(NewMessage("t", 0, b"sent here", b""))
    with pytest.raises(QueueDiverged):
        target.append_preserving_offsets("t", 0, 0, raw(primary, 0))
    assert target.max_offset("t", 0) == 1


def test_an_unused_queue_may_begin_at_any_offset():
    primary, target = source(20), opened()
    assert target.append_preserving_offsets("t", 0, 7, raw(primary, 7, 2), reset=True).next_offset == 9
    assert (target.min_offset("t", 0), target.max_offset("t", 0)) == (7, 9)
    target.append_preserving_offsets("t", 0, 9, raw(primary, 9))
    assert [message.queue_offset for message in messages(target)] == list(range(7, 20))


def test_a_reset_begins_the_queue_anew_and_that_survives_the_loss_of_its_files():
    primary, files = source(30), CrashFiles()
    target = opened(files)
    target.append_preserving_offsets("t", 0, 0, raw(primary, 0, 8))
    target.append_preserving_offsets("t", 0, 17, raw(primary, 17, 3), reset=True)
    assert (target.min_offset("t", 0), target.max_offset("t", 0)) == (17, 20)
    target.close()
    again = opened(files)
    assert [message.queue_offset for message in messages(again)] == [17, 18, 19]
    again.close()
    files.delete_tree("/s/consumequeue")
    rebuilt = opened(files)
    assert (rebuilt.min_offset("t", 0), rebuilt.max_offset("t", 0)) == (17, 20)
    assert rebuilt.append_preserving_offsets("t", 0, 20, raw(primary, 20)).next_offset == 30


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b[:95] + b"\xff" + b[96:], lambda b: b + b"\0" * 99]
)
def test_damaged_messages_are_refused_whole(spoil):
    primary, target = source(3), opened()
    with pytest.raises(MessageIllegal):
        target.append_preserving_offsets("t", 0, 0, memoryview(spoil(bytes(raw(primary, 0)))))
    assert target.max_offset("t", 0) == 0


def test_messages_of_another_queue_are_refused():
    primary, target = source(3), opened()
    for topic, queue_id, offset in [("x", 0, 0), ("t", 1, 0), ("t", 0, 1)]:
        with pytest.raises(MessageIllegal):
            target.append_preserving_offsets(topic, queue_id, offset, raw(primary, 0))


def test_a_search_by_time_finds_what_it_finds_at_the_source():
    primary, target = source(20), opened()
    target.append_preserving_offsets("t", 0, 0, raw(primary, 0))
    for seconds in range(-1, 22):
        for boundary in Boundary:
            expected = 1_600_000_000_000 + seconds * 1000 - 1
            offset = target.offset_by_time("t", 0, expected, boundary)
            assert offset == primary.offset_by_time("t", 0, expected, boundary)


def test_store_times_only_rise_where_the_clock_of_the_source_was_set_back():
    primary = source(3)
    primary._now_ms = lambda: 1_599_999_000_000
    primary.append(NewMessage("t", 0, b"late", b""))
    target = opened()
    target.append_preserving_offsets("t", 0, 0, raw(primary, 0))
    times = [message.store_timestamp for message in messages(target)]
    assert times == sorted(times)
    assert times[-1] == times[-2]


def test_keys_are_found_though_times_go_back():
    primary, clock = source(40), FakeClock()
    target = opened(clock=clock)
    places = []
    for number in range(40):
        target.append_preserving_offsets("t", 0, number, raw(primary, number, 1))
        places.append(target.append(NewMessage("live", 0, b"", b"KEYS\x01k%d\x02" % number))[1])
        clock.advance(1000)
    hour_ago = clock.now_ms() - HOUR_MS
    for number in range(40):
        assert target.query_by_key("live", f"k{number}", 9, hour_ago, 1 << 60) == [places[number]]
        assert len(target.query_by_key("t", f"u{number}", 9, 0, 1 << 60)) == 1


def test_old_copied_messages_do_not_expire_fresh_messages_of_the_same_file(tmp_path):
    clock = FakeClock(int(os.stat(tmp_path).st_mtime * 1000))
    target = opened(DiskFiles(), clock, root=str(tmp_path / "s"), commit_log_file_bytes=4096)
    primary = source(60)
    target.append(NewMessage("fresh", 0, b"new", b""))
    for number in range(60):
        target.append_preserving_offsets("t", 0, number, raw(primary, number, 1))
    assert target.commit_log.base > target.min_physical_offset
    target.write_checkpoint()
    assert target.delete_expired(manual=True) == 0
    for name in os.listdir(target.config.commit_log_path):
        os.utime(f"{target.config.commit_log_path}/{name}", (0, 0))
    assert target.delete_expired(manual=True) > 0
    target.close()


def test_a_new_store_for_messages_of_another_begins_as_if_its_first_file_had_expired():
    primary, files = source(20), CrashFiles()
    target = opened(files, start_at_second_file=True)
    assert target.min_physical_offset == target.max_physical_offset == 8192
    target.append_preserving_offsets("t", 0, 7, raw(primary, 7), reset=True)
    target.close()
    again = opened(files, start_at_second_file=True)
    assert (again.min_physical_offset, again.min_offset("t", 0), again.max_offset("t", 0)) == (8192, 7, 20)


SOURCE = source(200)
START = 13


class OffsetPreservingModel(RuleBasedStateMachine):
    """However puts, duplicates, sends, kills and power cuts follow each other, the queue equals the source's."""

    def __init__(self) -> None:
        super().__init__()
        self.files = CrashFiles()
        self.clock = FakeClock()
        self.start_at_second_file = True
        self.open()
        self.target.append_preserving_offsets("t", 0, START, raw(SOURCE, START, 1), reset=True)
        self.end = START + 1

    def open(self) -> None:
        self.target = opened(self.files, self.clock, start_at_second_file=self.start_at_second_file)

    @rule(back=st.integers(0, 9), count=st.integers(1, 12))
    def put(self, back: int, count: int) -> None:
        offset = max(START, self.target.max_offset("t", 0) - back)
        if offset < 180:
            done = self.target.append_preserving_offsets("t", 0, offset, raw(SOURCE, offset, count))
            self.end = max(self.end, offset + count)
            assert done.next_offset == self.end

    @rule(ahead=st.integers(1, 5))
    def gap(self, ahead: int) -> None:
        with pytest.raises(OffsetGap):
            self.target.append_preserving_offsets("t", 0, self.end + ahead, raw(SOURCE, self.end + ahead, 1))

    @rule(size=st.integers(1, 900))
    def send(self, size: int) -> None:
        self.target.append(NewMessage("own", 0, bytes(size), b""))
        self.clock.advance(700)

    @rule()
    def checkpoint(self) -> None:
        self.target.write_checkpoint()

    @rule()
    def build_index(self) -> None:
        self.target.build_index(9)

    @rule()
    def reopen(self) -> None:
        self.target.close()
        self.open()

    @rule()
    def kill(self) -> None:
        self.files = self.files.crash(random.Random(0), lose_unflushed=False)
        self.open()

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self.target.flush()
        self.files = self.files.crash(random.Random(seed))
        self.open()

    @rule()
    def lose_queues(self) -> None:
        self.target.close()
        self.files.delete_tree("/s/consumequeue")
        self.open()

    @invariant()
    def same_queue(self) -> None:
        assert (self.target.min_offset("t", 0), self.target.max_offset("t", 0)) == (START, self.end)
        expected = iter_messages(bytes(raw(SOURCE, START, self.end - START)))
        assert [preserved_fields(message) for message in messages(self.target)] == [
            preserved_fields(message) for message in expected
        ]


TestOffsetPreservingModel = OffsetPreservingModel.TestCase
TestOffsetPreservingModel.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
