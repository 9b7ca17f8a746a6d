"""A store whose messages are readable once they are confirmed: alone, through crashes, and beside a plain store."""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from codec.batch import encode_batch
from storage.append import NewMessage
from storage.checkpoint import CONFIRM_OFFSET_AT
from storage.confirmed_store import ConfirmedStore
from storage.consume_queue import ConsumeQueue
from storage.crash_files import CrashFiles, ProcessKilled
from storage.errors import MessageIllegal, StoreFull
from storage.layout import LONG, QUEUE_HOLE_SIZES
from storage.log_scan import ScannedMessage, scan_log
from storage.queue_read import ReadStatus
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config
from storage.tests.test_replica_log import append_any, queues_of

CONFIG = replace(small_config(), commit_log_file_bytes=4096, max_message_bytes=2000, awaits_confirmation=True)


def opened(files: CrashFiles | None = None, clock: FakeClock | None = None, **changes: Any) -> ConfirmedStore:
    return ConfirmedStore.open(replace(CONFIG, **changes), files or CrashFiles(), clock or FakeClock())


def message(body: bytes = b"x" * 100, topic: str = "a", **fields: Any) -> NewMessage[bytes]:
    return NewMessage(topic, 0, body, b"KEYS\x01k\x02", **fields)


def bodies_of(store: MessageStore, topic: str = "a") -> list[int]:
    """Return the sizes of the readable messages of a queue."""
    result = store.read(topic, 0, store.min_offset(topic, 0), 100)
    return [len(chunk) for chunk in result.chunks]


# -- appending and confirming ---------------------------------------------------------------------------------------


def test_a_message_is_readable_once_it_is_confirmed() -> None:
    store = opened()
    first_end = sum(store.append(message())[1:3])
    offset, physical_offset, size, _ = store.append(message())
    assert (offset, store.next_queue_offset("a", 0)) == (1, 2)
    assert (store.max_offset("a", 0), store.readable_until) == (0, 0)
    assert store.read("a", 0, 0, 10).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert store.query_by_key("a", "k", 10, 0, 1 << 60) == []
    assert store.dispatch(10, first_end - 1) == []
    assert store.dispatch(10, first_end + size - 1) == [("a", 0)]  # within the second message
    assert (store.max_offset("a", 0), store.readable_until) == (1, first_end)
    assert store.query_by_key("a", "k", 10, 0, 1 << 60) == [0]
    assert store.dispatch(10, physical_offset + size) == [("a", 0)]
    assert (store.max_offset("a", 0), store.undispatched_bytes) == (2, 0)
    assert store.dispatch(10) == []
    assert store.query_by_key("a", "k", 10, 0, 1 << 60) == [physical_offset, 0]


def test_at_most_a_number_of_messages_is_made_readable_at_a_time() -> None:
    store = opened()
    for _ in range(5):
        store.append(message())
    store.dispatch(2)
    assert store.max_offset("a", 0) == 2
    store.dispatch(2)
    assert store.max_offset("a", 0) == 4


def test_a_master_that_is_alone_confirms_at_once() -> None:
    store = opened()
    store.confirms_at_once = True
    store.append(message())
    store.append(message())
    assert store.max_offset("a", 0) == store.next_queue_offset("a", 0) == 2
    store.append_batch("a", 0, encode_batch([(0, b"1", b""), (0, b"2", b"")]))
    assert store.max_offset("a", 0) == 4
    store.confirms_at_once = False
    assert store.append(message())[0] == 4
    assert store.max_offset("a", 0) == 4


def test_an_append_leaves_earlier_messages_to_dispatch() -> None:
    store = opened()
    store.append(message())
    store.confirms_at_once = True
    store.append(message())
    store.append_batch("a", 0, encode_batch([(0, b"1", b""), (0, b"2", b"")]))
    assert (store.max_offset("a", 0), store.next_queue_offset("a", 0)) == (0, 4)
    store.dispatch(10)
    assert store.max_offset("a", 0) == 4
    store.append(message())
    assert store.max_offset("a", 0) == 5


def test_queues_that_appends_make_readable_are_told_once() -> None:
    store = opened()
    store.confirms_at_once = True
    store.append(message())
    store.append_batch("b", 0, encode_batch([(0, b"1", b""), (0, b"2", b"")]))
    assert sorted(store.take_grown()) == [("a", 0), ("b", 0)]
    assert store.take_grown() == []
    store.append(message())
    assert store.dispatch(10) == [("a", 0)]
    assert store.dispatch(10) == []


def test_queues_are_told_although_a_later_entry_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    store.append(message())
    store.append(message(topic="b"))
    append_entry = store._dispatch._append_entry

    def fail(scanned: ScannedMessage) -> object:
        if scanned.topic == b"b":
            raise StoreFull("full")
        return append_entry(scanned)

    with monkeypatch.context() as patch:
        patch.setattr(store._dispatch, "_append_entry", fail)
        with pytest.raises(StoreFull):
            store.dispatch(10)
    assert store.max_offset("a", 0) == 1
    assert sorted(store.dispatch(10)) == [("a", 0), ("b", 0)]


def test_a_batch_gets_its_offsets_after_messages_without_entries() -> None:
    store = opened()
    store.append(message())
    first, physical_offsets, _ = store.append_batch("a", 0, encode_batch([(0, b"1", b""), (0, b"2", b"")]))
    assert (first, len(physical_offsets)) == (1, 2)
    assert store.append(message())[0] == 3
    store.dispatch(10)
    assert store.max_offset("a", 0) == 4


def test_a_half_message_takes_no_offset() -> None:
    store = opened()
    store.append(message(sys_flag=4))
    assert store.append(message())[0] == 0
    store.dispatch(10)
    assert store.max_offset("a", 0) == 1


def test_messages_beyond_the_end_of_a_file_become_readable() -> None:
    store = opened()
    for _ in range(20):
        store.append(message(b"x" * 900))
    store.dispatch(100)
    assert (store.max_offset("a", 0), store.undispatched_bytes) == (20, 0)


def test_offset_preserving_appends_are_refused() -> None:
    store = opened()
    with pytest.raises(MessageIllegal):
        store.append_preserving_offsets("a", 0, 0, memoryview(b""))
    assert store.max_physical_offset == 0


def test_files_whose_messages_are_not_readable_yet_stay() -> None:
    store = opened(retained_bytes=4096)
    for _ in range(20):
        store.append(message(b"x" * 900))
    assert store.min_physical_offset == 0
    store.dispatch(100)
    store.append(message(b"x" * 900))
    store.delete_expired(manual=True)
    assert store.min_physical_offset > 0


def test_the_index_does_not_cover_the_time_of_messages_without_entries() -> None:
    clock = FakeClock()
    store = opened(clock=clock)
    store.append(message())
    store.dispatch(10)
    clock.advance(1000)
    stored_ms = clock.now_ms()
    store.append(message())
    clock.advance(1000)
    store.build_index(10)
    assert store.index.indexed_until_ms == stored_ms - 1
    store.dispatch(10)
    store.build_index(10)
    assert store.index.indexed_until_ms == clock.now_ms() - 1


# -- deleted topics -------------------------------------------------------------------------------------------------


def test_messages_of_a_deleted_topic_never_become_readable() -> None:
    store = opened()
    store.append(message())
    store.dispatch(10)
    store.append(message())
    store.append(message(topic="b"))
    store.delete_topic("a")
    assert store.append(message(b"anew"))[0] == 0
    store.dispatch(10)
    assert (store.max_offset("a", 0), store.max_offset("b", 0)) == (1, 1)
    assert store.read("a", 0, 0, 10).count == 1


def test_a_topic_of_which_nothing_was_readable_is_deleted() -> None:
    store = opened()
    store.append(message())
    store.delete_topic("a")
    store.dispatch(10)
    assert not store.has_queue("a", 0)
    assert store.undispatched_bytes == 0


def test_a_deletion_that_fails_changes_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    store.append(message())

    def fail(*arguments: object) -> None:
        raise StoreFull("full")

    monkeypatch.setattr(store._deleted_topics, "add", fail)
    with pytest.raises(StoreFull):
        store.delete_topic("a")
    assert store.append(message())[0] == 1
    store.dispatch(10)
    assert store.max_offset("a", 0) == 2


def test_no_offset_is_given_twice_while_a_deletion_fails_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened()
    store.append(message())
    offsets = []

    class QueuesByKey(dict[tuple[str, int], ConsumeQueue]):
        def update(self, *arguments: Any, **queues: Any) -> None:
            """Let the thread that appends have its turn as soon as the queues are back."""
            super().update(*arguments, **queues)
            offsets.append(store.append(message())[0])

    def fail(*arguments: object) -> None:
        raise StoreFull("full")

    store._queues = store._queue_set.by_key = QueuesByKey(store._queues)
    monkeypatch.setattr(store._deleted_topics, "add", fail)
    with pytest.raises(StoreFull):
        store.delete_topic("a")
    assert offsets == [1]
    assert store.append(message())[0] == 2
    store.dispatch(10)
    assert store.max_offset("a", 0) == 3


# -- after a restart ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_not_confirmed_is_not_readable_after_a_restart(crashes: bool) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = opened(files, clock)
    confirmed = sum(store.append(message())[1:3])
    store.append(message())
    store.append(message(topic="b"))
    store.dispatch(10, confirmed)
    if crashes:
        files = files.crash(random.Random(1), lose_unflushed=False)
    else:
        store.close()
    store = opened(files, clock)
    assert (store.max_offset("a", 0), store.next_queue_offset("a", 0)) == (1, 2)
    assert (store.max_offset("b", 0), store.next_queue_offset("b", 0)) == (0, 1)
    assert store.readable_until == confirmed
    assert store.query_by_key("a", "k", 10, 0, 1 << 60) == [0]
    assert store.append(message())[0] == 2
    store.dispatch(10)
    assert (store.max_offset("a", 0), store.max_offset("b", 0)) == (3, 1)


@pytest.mark.parametrize("awaits_confirmation", [False, True])
def test_a_store_without_any_entry_is_read_from_its_first_file(awaits_confirmation: bool) -> None:
    files = CrashFiles()
    store = opened(files)
    for _ in range(20):
        store.append(message(b"x" * 900))
    store.close()
    files.open_mapped(
        f"{CONFIG.consume_queue_path}/a/0/{0:020}", 100
    )  # an empty queue, as a power cut leaves
    changed = replace(CONFIG, awaits_confirmation=awaits_confirmation)
    cls = ConfirmedStore if awaits_confirmation else MessageStore
    reopened = cls.open(changed, files, FakeClock())
    assert reopened.next_queue_offset("a", 0) == 20
    if awaits_confirmation:
        assert reopened.readable_until == 0
        assert isinstance(reopened, ConfirmedStore)
        reopened.dispatch(100)
    assert reopened.max_offset("a", 0) == 20


def test_a_replica_that_was_elected_opens_its_whole_log() -> None:
    files = CrashFiles()
    store = opened(files)
    store.append(message())
    store.close()
    store = opened(files, log_is_confirmed=True)
    assert (store.max_offset("a", 0), store.undispatched_bytes) == (1, 0)
    assert store.append(message())[0] == 1
    assert store.max_offset("a", 0) == 1


def test_another_broker_reads_everything() -> None:
    files = CrashFiles()
    store = opened(files)
    store.append(message())
    store.close()
    plain = MessageStore.open(replace(CONFIG, awaits_confirmation=False), files, FakeClock())
    assert plain.max_offset("a", 0) == 1
    plain.append(message())
    assert plain.max_offset("a", 0) == 2
    plain.close()
    store = opened(files)
    assert store.max_offset("a", 0) == store.next_queue_offset("a", 0) == 2


def test_a_checkpoint_does_not_vouch_for_what_is_not_readable() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = opened(files, clock)
    confirmed = sum(store.append(message())[1:3])
    first_ms = clock.now_ms()
    clock.advance(10_000)
    store.append(message())
    store.dispatch(10, confirmed)
    clock.advance(10_000)
    store.build_index()
    store.write_checkpoint()
    assert store._checkpoint.confirm_offset == confirmed
    assert store._checkpoint.log_timestamp == first_ms
    store = opened(files.crash(random.Random(1), lose_unflushed=True), clock)
    store.build_index()
    store.write_checkpoint()
    assert store._checkpoint.confirm_offset == confirmed
    assert store._checkpoint.log_timestamp < first_ms + 10_000
    assert (store.max_offset("a", 0), store.next_queue_offset("a", 0)) == (1, 2)


# -- a store of an official broker ----------------------------------------------------------------------------------


def killed_official_store(entries: int, confirmed: int, appended: int, abort: bytes = b"4242") -> CrashFiles:
    """Return what an official AutoSwitch broker leaves when it is killed: its checkpoint is ahead of its entries."""
    files, clock = CrashFiles(), FakeClock()
    store = opened(files, clock)
    ends = [sum(store.append(message())[1:3]) for _ in range(appended)]
    store.dispatch(entries)
    store.write_checkpoint()
    buffer = store._checkpoint._file.buffer
    buffer[CONFIRM_OFFSET_AT : CONFIRM_OFFSET_AT + 8] = LONG.pack(ends[confirmed - 1])
    files = files.crash(random.Random(1), lose_unflushed=False)
    files.write_small(CONFIG.abort_path, abort)
    return files


@pytest.mark.parametrize("abort", [b"", b"4242"])  # of 4.x, and the number of the process
@pytest.mark.parametrize(("entries", "confirmed"), [(0, 3), (2, 3), (2, 5), (3, 3), (5, 5)])
def test_a_checkpoint_of_a_killed_official_broker_may_be_ahead_of_its_entries(
    entries: int, confirmed: int, abort: bytes
) -> None:
    plain = replace(CONFIG, awaits_confirmation=False)
    store = MessageStore.open(plain, killed_official_store(entries, confirmed, 5, abort), FakeClock())
    assert store.max_offset("a", 0) == 5
    assert [store.physical_offset_at("a", 0, offset) for offset in range(5)] == sorted(
        {store.physical_offset_at("a", 0, offset) for offset in range(5)}
    )
    store = opened(killed_official_store(entries, confirmed, 5, abort))
    assert store.max_offset("a", 0) == confirmed
    assert store.append(message())[0] == 5


def test_an_official_confirm_offset_after_the_log_is_not_damage() -> None:
    files = killed_official_store(2, 5, 5)
    store = MessageStore.open(replace(CONFIG, awaits_confirmation=False), files, FakeClock())
    end = store.max_physical_offset
    store.close()
    mapped = files.open_mapped(CONFIG.checkpoint_path, 4096)
    mapped.buffer[CONFIRM_OFFSET_AT : CONFIRM_OFFSET_AT + 8] = LONG.pack(end + 100_000)
    files.write_small(CONFIG.abort_path, b"")
    store = MessageStore.open(replace(CONFIG, awaits_confirmation=False), files, FakeClock())
    assert (store.max_physical_offset, store.max_offset("a", 0)) == (end, 5)


# -- stories --------------------------------------------------------------------------------------------------------


class Story:
    """A store through appends, confirmations, deletions and crashes. What must be true follows from its log alone."""

    def __init__(self, seed: int) -> None:
        self.randomness = random.Random(seed)
        self.clock = FakeClock()
        self.files = CrashFiles()
        self.confirmed = 0
        self.deletions: list[tuple[str, int]] = []
        self.sent = 0
        self.open()

    def open(self) -> None:
        self.store = opened(self.files, self.clock)

    def step(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            self.append, self.append, self.append, self.confirm, self.confirm, self.dispatch, self.dispatch,
            self.work, self.delete, self.restart,
        )  # fmt: skip
        self.randomness.choice(steps)()
        self.check()

    def append(self) -> None:
        for _ in range(self.randomness.randint(1, 12)):
            append_any(self.store, self.randomness, self.sent)
            self.sent += 1
        self.clock.advance(self.randomness.choice([0, 1, 700]))

    def confirm(self) -> None:
        self.confirmed = self.randomness.randint(self.confirmed, self.store.max_physical_offset)

    def dispatch(self) -> None:
        before = self.store.readable_until
        self.store.dispatch(self.randomness.choice([1, 3, 40]), self.confirmed)
        assert before <= self.store.readable_until <= max(before, self.confirmed)

    def work(self) -> None:
        kind = self.randomness.choice(["flush", "checkpoint", "index", "write back"])
        if kind == "flush":
            self.store.flush()
        elif kind == "checkpoint":
            self.store.write_checkpoint()
        elif kind == "index":
            self.store.build_index(self.randomness.randint(1, 30))
        else:
            self.files.write_back(self.randomness)

    def delete(self) -> None:
        if self.randomness.random() < 0.3:
            self.clock.advance(5000)
            topic = self.randomness.choice(["a", "b"])
            self.deletions.append((topic, self.store.max_physical_offset))
            self.store.delete_topic(topic)
            self.clock.advance(5000)

    def restart(self) -> None:
        readable, end, entries = (
            self.store.readable_until,
            self.store.max_physical_offset,
            queues_of(self.store),
        )
        kind = self.randomness.choice(["close", "kill", "kill in work", "power cut"])
        loses_power = kind == "power cut" and not self.deletions
        if kind == "close":
            self.store.close()
        else:
            if kind == "kill in work":
                self.kill_in_work()
            self.files = self.files.crash(self.randomness, lose_unflushed=loses_power)
        self.clock.advance(5000)
        if kind == "kill in work":
            readable = min(readable, self.confirmed)
        self.open()
        store = self.store
        if loses_power:
            self.confirmed = min(self.confirmed, store.max_physical_offset)
            assert store.readable_until <= self.confirmed
        else:
            assert store.max_physical_offset >= end
            # Half messages have no entries, so those at the end of what was confirmed are confirmed once more.
            assert store.readable_until <= max(readable, self.confirmed)
            for key, expected in entries.items():
                if kind != "kill in work":
                    assert queues_of(store).get(key) == expected

    def kill_in_work(self) -> None:
        """Kill the process within some of its work on files."""
        self.files.operations_left = self.randomness.randint(0, 20)
        try:
            for _ in range(10):
                self.append()
                self.dispatch()
                self.store.write_checkpoint()
        except ProcessKilled:
            pass
        self.files.operations_left = None

    def expected(self) -> tuple[dict[tuple[str, int], list[int]], dict[tuple[str, int], int]]:
        """Return the physical offsets of the readable messages of each queue, and the next offset of each."""
        readable: dict[tuple[str, int], list[int]] = defaultdict(list)
        ends: dict[tuple[str, int], int] = {}
        log = self.store.commit_log
        for item in scan_log(log, log.first_base, log.max_offset):
            if not isinstance(item, ScannedMessage) or not item.has_queue_entry:
                continue
            key = item.topic.decode(), item.queue_id
            if any(topic == key[0] and item.physical_offset < end for topic, end in self.deletions):
                continue
            assert item.queue_offset == ends.get(key, 0)
            ends[key] = item.queue_offset + 1
            if item.physical_offset + item.size <= self.store.readable_until:
                readable[key].append(item.physical_offset)
        return readable, ends

    def check(self) -> None:
        readable, ends = self.expected()
        own = {
            key: [entry[0] for entry in entries if entry[1] not in QUEUE_HOLE_SIZES]
            for key, entries in queues_of(self.store).items()
        }
        assert {key: offsets for key, offsets in own.items() if offsets} == readable
        for key, end in ends.items():
            assert self.store.next_queue_offset(*key) == end
        for offset in self.store.query_by_key("a", f"k{self.sent - 1}", 64, 0, 1 << 60, catch_up=False):
            assert offset < self.store.readable_until


@pytest.mark.parametrize("seed", range(60))
def test_nothing_that_is_not_confirmed_is_ever_readable(seed: int) -> None:
    story = Story(seed)
    for _ in range(40):
        story.step()
    story.confirmed = story.store.max_physical_offset
    while story.store.undispatched_bytes:
        story.store.dispatch(50, story.confirmed)
    story.check()
