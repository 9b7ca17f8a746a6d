"""A slave's log equals its master's, however the master's bytes are cut; what is not its next message is refused."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from codec.batch import encode_batch
from codec.constants import MAGIC_BLANK, MAGIC_V1
from codec.message import MIN_MESSAGE_BYTES, iter_messages
from codec.topics import SCHEDULE_TOPIC
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.crash_files import CrashFiles, ProcessKilled
from storage.deleted_topics import MAX_EXPIRED_DELETIONS
from storage.errors import CorruptionError, StoreError, StoreFull
from storage.layout import LONG, PHYSICAL_OFFSET_AT, START
from storage.replica_log import BadReplicaData, DamagedMessage, Diverged, ReplicaGap, ReplicaLog
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

CONFIG = replace(small_config(), commit_log_file_bytes=4096, max_message_bytes=2000)
LONG_TOPIC = "long" * 40
HOSTS_V6 = bytes(range(16)) + (10911).to_bytes(4, "big")


def opened(
    files: CrashFiles | None = None, config: StoreConfig = CONFIG, clock: FakeClock | None = None
) -> MessageStore:
    return MessageStore.open(config, files or CrashFiles(), clock or FakeClock())


def filled_master(files: CrashFiles | None = None, messages: int = 60, seed: int = 1) -> MessageStore:
    """Return a store with messages of every layout, over several log files."""
    store = opened(files)
    randomness = random.Random(seed)
    for number in range(messages):
        append_any(store, randomness, number)
    return store


def append_any(store: MessageStore, randomness: random.Random, number: int) -> None:
    topic = randomness.choice(["a", "b", LONG_TOPIC, SCHEDULE_TOPIC])
    body = randomness.randbytes(randomness.choice([0, 1, 30, 200, 900]))
    properties = b"TAGS\x01tag%d\x02KEYS\x01k%d\x02" % (number % 3, number)
    if topic == SCHEDULE_TOPIC:
        properties += b"DELAY\x013\x02"
    message = NewMessage(topic, number % 3, body, properties, born_timestamp=number)
    if topic == SCHEDULE_TOPIC:
        message.tags_code = store.clock.now_ms() + 10_000  # as the broker does
    kind = randomness.randrange(8)
    if kind == 0:
        message = message.with_changes(born_host=HOSTS_V6, store_host=HOSTS_V6)
    elif kind == 1:
        message = message.with_changes(sys_flag=randomness.choice([4, 8, 12]))
    if kind == 2:
        store.append_batch("a", 0, encode_batch([(0, body[:60], b""), (0, b"second", properties)]))
    else:
        store.append(message)


def log_pieces(
    store: MessageStore, start: int | None = None, size: int = 1 << 30
) -> Iterator[tuple[int, memoryview]]:
    """Yield the log's bytes as an official master sends them: whole files with the bytes after the blank marker."""
    offset = store.min_physical_offset if start is None else start
    commit_log = store.commit_log
    while offset < store.max_physical_offset:
        base = commit_log.base_of(offset)
        end = min(base + commit_log.file_bytes, store.max_physical_offset, offset + size)
        yield offset, commit_log.mapped_file(base).view[offset - base : end - base]
        offset = end


def log_bytes(store: MessageStore) -> bytes:
    return b"".join(bytes(piece) for _, piece in log_pieces(store))


def queues_of(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    return {
        (queue.topic, queue.queue_id): [
            queue.read_entry(offset)
            for offset in range(store.min_offset(queue.topic, queue.queue_id), queue.next_offset)
        ]
        for queue in store._queue_set.queues()
        if queue.next_offset > store.min_offset(queue.topic, queue.queue_id)
    }


def assert_same(slave: MessageStore, master: MessageStore) -> None:
    assert slave.max_physical_offset == master.max_physical_offset
    assert log_bytes(slave) == log_bytes(master)
    assert queues_of(slave) == queues_of(master)
    for topic, queue_id in queues_of(master):
        assert slave.max_offset(topic, queue_id) == master.max_offset(topic, queue_id)
        assert slave.min_offset(topic, queue_id) == master.min_offset(topic, queue_id)
    for key in ("k1", "k20"):
        assert slave.query_by_key("a", key, 64, 0, 1 << 60) == master.query_by_key("a", key, 64, 0, 1 << 60)


def count_read(store: MessageStore) -> int:
    return len(list(iter_messages(b"".join(store.read("a", 0, 0, 32).chunks))))


def receive_all(replica: ReplicaLog, offset: int, data: memoryview, size: int) -> None:
    for start in range(0, len(data), size):
        replica.receive(offset + start, data[start : start + size])


def follow(replica: ReplicaLog, master: MessageStore, size: int = 1 << 30) -> None:
    """Receive and dispatch all that the slave lacks."""
    for offset, piece in log_pieces(master, replica.end, size):
        replica.receive(offset, piece)
        dispatch_all(replica)


def dispatch_all(replica: ReplicaLog, limit: int = 7) -> list[tuple[str, int]]:
    grown = []
    while replica.undispatched_bytes:
        grown += replica.dispatch(limit)
    return grown


@pytest.mark.parametrize("size", [1, 7, 35, 36, 91, 500, 4096])
def test_a_log_sent_in_pieces_of_any_size_is_the_same(size: int) -> None:
    master = filled_master()
    slave = opened()
    replica = ReplicaLog(slave)
    for offset, piece in log_pieces(master, size=size):
        assert replica.end == offset
        acknowledged = replica.receive(offset, piece)
        assert acknowledged == slave.max_physical_offset <= offset + len(piece) == replica.end
    assert slave.max_offset("a", 0) == 0
    grown = dispatch_all(replica)
    assert set(grown) == set(queues_of(master))
    assert_same(slave, master)


def test_one_message_may_be_cut_at_every_byte() -> None:
    master = opened()
    for number in range(3):
        master.append(NewMessage("a", number, bytes(50), b"TAGS\x01x\x02"))
    data = memoryview(log_bytes(master))
    for cut in range(1, len(data)):
        slave = opened()
        replica = ReplicaLog(slave)
        replica.receive(0, data[:cut])
        assert slave.max_physical_offset == max(
            end for end in (0, *(len(data) * number // 3 for number in (1, 2, 3))) if end <= cut
        )
        replica.receive(cut, data[cut:])
        dispatch_all(replica, 1)
        assert_same(slave, master)


def test_messages_are_read_after_their_dispatch_and_at_most_so_many_at_a_time() -> None:
    master = opened()
    for _ in range(5):
        master.append(NewMessage("a", 0, b"x", b""))
    slave = opened()
    replica = ReplicaLog(slave)
    assert replica.dispatch(10) == []
    replica.receive(0, memoryview(log_bytes(master)))
    assert count_read(slave) == 0
    assert replica.dispatch(2) == [("a", 0)]
    assert count_read(slave) == 2
    assert slave.commit_log.readable_until < slave.max_physical_offset
    assert replica.dispatch(10) == [("a", 0)]
    assert replica.undispatched_bytes == 0
    assert [
        message.queue_offset for message in iter_messages(b"".join(slave.read("a", 0, 0, 32).chunks))
    ] == list(range(5))


def test_bytes_after_a_blank_marker_are_copied() -> None:
    files = CrashFiles()
    master = opened(files)
    master.append(NewMessage("a", 0, bytes(1900), b""))
    master.append(NewMessage("a", 0, bytes(1500), b""))
    blank_at = master.max_physical_offset
    master.append(NewMessage("a", 0, bytes(1900), b""))
    file = files.mapped[f"/s/commitlog/{0:020d}"]
    file.buffer[blank_at + 8 : 4096] = b"r" * (4096 - blank_at - 8)
    for size in (1, 50, 1 << 20):
        slave = opened()
        replica = ReplicaLog(slave)
        for offset, piece in log_pieces(master, size=size):
            replica.receive(offset, piece)
        dispatch_all(replica)
        assert_same(slave, master)


def test_another_offset_is_a_gap() -> None:
    master = filled_master()
    replica = ReplicaLog(opened())
    data = memoryview(log_bytes(master))
    for offset in (1, -1, 1 << 40):
        with pytest.raises(ReplicaGap) as gap:
            replica.receive(offset, data[:100])
        assert (gap.value.expected, gap.value.offset) == (0, offset)
    replica.receive(0, data[:20])
    with pytest.raises(ReplicaGap):
        replica.receive(0, data[:20])
    replica.drop_tail()
    assert replica.end == 0
    replica.receive(0, data[:20])


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, (0).to_bytes(4, "big"), "a message of 0 bytes"),
        (0, (MIN_MESSAGE_BYTES - 1).to_bytes(4, "big"), "a message of 90 bytes"),
        (0, (0x7FFFFFFF).to_bytes(4, "big"), "a message of 2147483647 bytes"),
        (0, (0xFFFFFFFF).to_bytes(4, "big"), "a message of 4294967295 bytes"),
        (0, (4096).to_bytes(4, "big"), "a message of 4096 bytes"),
        (4, bytes(4), "magic number 0x00000000"),
        (4, b"HTTP", "magic number 0x48545450"),
        (PHYSICAL_OFFSET_AT, LONG.pack(7), "belongs at physical offset 7"),
        (PHYSICAL_OFFSET_AT, LONG.pack(-1), "belongs at physical offset -1"),
        (0, START.pack(100, MAGIC_BLANK), "a blank marker of 100 bytes where"),
        (0, START.pack(0xFFFFFFFF, MAGIC_BLANK), "a blank marker of 4294967295 bytes"),
    ],
)
@pytest.mark.parametrize("size", [1, 40, 1 << 20])
def test_what_is_no_message_is_refused_and_the_messages_before_it_stay(
    at: int, value: bytes, reason: str, size: int
) -> None:
    master = opened()
    ends = [sum(master.append(NewMessage("a", 0, b"body %d" % number, b""))[1:3]) for number in range(3)]
    data = bytearray(log_bytes(master))
    data[ends[1] + at : ends[1] + at + len(value)] = value
    slave = opened()
    replica = ReplicaLog(slave)
    with pytest.raises(BadReplicaData, match=reason) as refused:
        receive_all(replica, 0, memoryview(data), size)
    assert refused.value.physical_offset == ends[1]
    assert slave.max_physical_offset == replica.end == ends[1]
    replica.receive(ends[1], memoryview(log_bytes(master))[ends[1] :])
    dispatch_all(replica)
    assert_same(slave, master)


def test_a_message_that_does_not_fit_before_the_end_of_the_file_is_refused() -> None:
    slave = opened()
    replica = ReplicaLog(slave)
    master = opened(config=replace(CONFIG, commit_log_file_bytes=8192))
    for _ in range(5):
        master.append(NewMessage("a", 0, bytes(900), b""))
    with pytest.raises(BadReplicaData, match=r"a message of 992 bytes where 128 are left"):
        replica.receive(0, memoryview(log_bytes(master)))
    assert slave.max_physical_offset == 4 * 992


def test_received_bytes_are_durable_after_a_flush_before_they_are_dispatched() -> None:
    files = CrashFiles()
    master = filled_master()
    slave = opened(files)
    replica = ReplicaLog(slave)
    for offset, piece in log_pieces(master, size=333):
        replica.receive(offset, piece)
    replica.dispatch(5)
    end = slave.max_physical_offset
    assert slave.flush() == slave.durable_offset == end
    for seed in range(20):
        again = opened(files.crash(random.Random(seed)))
        assert_same(again, master)


def test_the_checkpoint_covers_dispatched_messages_only() -> None:
    clock = FakeClock()
    master = opened(clock=clock)
    for _ in range(10):
        master.append(NewMessage("a", 0, b"x", b""))
        clock.advance(1000)
    stored_ms = clock.now_ms() - 10_000
    clock.advance(60_000)
    slave = opened(clock=clock)
    replica = ReplicaLog(slave)
    replica.receive(0, memoryview(log_bytes(master)))
    slave.write_checkpoint()
    assert slave._checkpoint.confirm_offset == 0
    replica.dispatch(4)
    slave.write_checkpoint()
    assert (
        slave._checkpoint.confirm_offset
        == slave.commit_log.readable_until
        == master.max_physical_offset // 10 * 4
    )
    assert slave._checkpoint.log_timestamp <= stored_ms + 3000
    assert slave.durable_offset == slave.max_physical_offset


def test_log_files_are_not_removed_before_their_messages_were_dispatched() -> None:
    master = filled_master()
    slave = opened(config=replace(CONFIG, retained_bytes=5000))
    replica = ReplicaLog(slave)
    for offset, piece in log_pieces(master):
        replica.receive(offset, piece)
    assert slave.min_physical_offset == 0
    dispatch_all(replica)
    slave.delete_expired()
    assert slave.min_physical_offset > 0


@pytest.mark.parametrize("number", [0, 1, 5, 1000])
def test_an_empty_log_may_begin_at_any_file(number: int) -> None:
    files = CrashFiles()
    slave = opened(files)
    slave.write_checkpoint()
    start = number * CONFIG.commit_log_file_bytes
    ReplicaLog(slave).begin_at(start)
    assert (slave.min_physical_offset, slave.max_physical_offset) == (start, start)
    for seed in range(10):
        again = opened(files.crash(random.Random(seed)))
        assert (again.min_physical_offset, again.max_physical_offset) == (start, start)
        ReplicaLog(again).begin_at(0)
        assert again.max_physical_offset == 0


def test_a_beginning_may_be_killed_at_every_file_operation() -> None:
    start = 3 * CONFIG.commit_log_file_bytes
    for operation in range(40):
        for lose in (False, True):
            files = CrashFiles()
            slave = opened(files)
            slave.write_checkpoint()
            files.operations_left = operation
            with suppress(ProcessKilled):
                ReplicaLog(slave).begin_at(start)
                return
            again = opened(files.crash(random.Random(operation), lose_unflushed=lose))
            assert again.max_physical_offset == again.min_physical_offset in (0, start)
            ReplicaLog(again).begin_at(start)
            assert again.max_physical_offset == start
    raise AssertionError("more operations than expected")


def test_a_log_that_is_not_empty_or_an_offset_inside_of_a_file_is_no_beginning() -> None:
    slave = opened()
    with pytest.raises(StoreError, match="no log file of 4096 bytes starts at 4095"):
        ReplicaLog(slave).begin_at(4095)
    slave.append(NewMessage("a", 0, b"", b""))
    with pytest.raises(StoreError, match="not empty"):
        ReplicaLog(slave).begin_at(4096)


def test_a_slave_continues_in_the_middle_of_a_masters_life() -> None:
    """Queues begin at the offset of their first message, whatever expired before."""
    master = filled_master(messages=120)
    for _ in range(2):
        master.commit_log.delete_first()
    list(master.hide_expired_entries())
    files = CrashFiles()
    slave = opened(files)
    replica = ReplicaLog(slave)
    replica.begin_at(master.min_physical_offset)
    for offset, piece in log_pieces(master, size=100):
        replica.receive(offset, piece)
        replica.dispatch(3)
    dispatch_all(replica)
    assert_same(slave, master)
    assert_same(opened(files.crash(random.Random(0), lose_unflushed=False)), master)


def test_a_topic_that_was_deleted_and_created_again_begins_anew() -> None:
    master = opened()
    for _ in range(12):
        master.append(NewMessage("a", 0, b"old", b""))
    slave = opened()
    replica = ReplicaLog(slave)
    replica.receive(0, memoryview(log_bytes(master)))
    dispatch_all(replica)
    master.delete_topic("a")
    for _ in range(3):
        master.append(NewMessage("a", 0, b"new", b""))
    data = memoryview(log_bytes(master))
    replica.receive(replica.end, data[replica.end :])
    dispatch_all(replica)
    assert_same(slave, master)


def test_a_note_of_a_deletion_removes_queues_and_keeps_those_that_began_anew() -> None:
    clock = FakeClock()
    master = opened(clock=clock)
    for topic in ("a", "b"):
        for _ in range(7):
            master.append(NewMessage(topic, 0, b"old", b""))
    clock.advance(10_000)
    for topic in ("a", "b"):
        master.delete_topic(topic)
    clock.advance(10_000)
    for _ in range(2):
        master.append(NewMessage("b", 0, b"new", b""))
    data = memoryview(log_bytes(master))
    for dispatched in range(20):
        files = CrashFiles()
        slave = opened(files)
        replica = ReplicaLog(slave)
        replica.receive(0, data)
        replica.dispatch(dispatched)
        for topic, (log_end, time_ms) in master.deletion_notes.items():
            list(slave.note_deletions({topic: (log_end, time_ms)}))
        dispatch_all(replica)
        assert queues_of(slave) == queues_of(master)
        assert slave.max_offset("a", 0) == 0
        assert slave.deletion_notes == master.deletion_notes
        slave.write_checkpoint()
        assert queues_of(opened(files.crash(random.Random(dispatched)))) == queues_of(master)


def test_a_deletion_of_messages_that_are_still_to_come_survives_restarts_of_a_slave() -> None:
    clock = FakeClock()
    master = opened(clock=clock)
    for body in (b"1", b"2", b"3"):
        master.append(NewMessage("a", 0, body, b""))
    master.delete_topic("a")
    data = memoryview(log_bytes(master))
    first_end = message_starts(master)[1]
    files, config = CrashFiles(), replace(CONFIG, follows_master=True)
    slave = opened(files, config, clock)
    ReplicaLog(slave).receive(0, data[:first_end])
    ((topic, note),) = master.deletion_notes.items()
    list(slave.note_deletions({topic: note}))
    slave.close()
    slave = opened(files, config, clock)
    assert slave.deletion_notes == master.deletion_notes
    replica = ReplicaLog(slave)
    replica.receive(replica.end, data[first_end:])
    dispatch_all(replica)
    assert slave.max_offset("a", 0) == 0


def test_a_topic_whose_messages_have_expired_at_the_slave_is_deleted_there_too() -> None:
    clock = FakeClock()
    master, slave = opened(clock=clock), opened(clock=clock)
    for topic, body in (("a", b"old"), ("b", b"stays"), ("c", bytes(1900)), ("c", bytes(1900)), ("c", b"")):
        master.append(NewMessage(topic, 0, body, b""))
    replica = ReplicaLog(slave)
    replica.receive(0, memoryview(log_bytes(master)))
    dispatch_all(replica)
    end = message_starts(master)[1]
    slave.commit_log.delete_first()
    assert slave.min_physical_offset > end
    notes = {"a": (end, clock.now_ms()), "d": (end, clock.now_ms())}
    assert slave.missing_deletions(notes) == {"a": notes["a"]}
    list(slave.note_deletions(slave.missing_deletions(notes)))
    assert [slave.max_offset(topic, 0) for topic in ("a", "b", "c")] == [0, 1, 3]
    assert not slave.missing_deletions(notes)
    # The new topic of the name is not the deleted one, also once the note is forgotten.
    slave.append(NewMessage("a", 0, b"new", b""))
    for number in range(MAX_EXPIRED_DELETIONS + 1):
        list(slave.note_deletions({f"e{number}": (slave.min_physical_offset, clock.now_ms())}))
    assert "a" not in slave.deletion_notes
    assert not slave.missing_deletions(notes)


def test_a_slave_that_copies_its_tables_late_hears_of_a_deletion_whose_messages_have_expired() -> None:
    """Meanwhile the topic was deleted once more, with messages that this slave has."""
    clock = FakeClock()
    master, slave = opened(clock=clock), opened(clock=clock)
    replica = ReplicaLog(slave)
    for body in (b"1", b"2"):
        master.append(NewMessage("a", 0, body, b""))
        master.delete_topic("a")
    for _ in range(3):
        master.append(NewMessage("b", 0, bytes(1900), b""))
    replica.receive(0, memoryview(log_bytes(master)))
    dispatch_all(replica)
    assert slave.max_offset("a", 0) > 0
    master.commit_log.delete_first()
    master.append(NewMessage("c", 0, b"", b""))
    master.delete_topic("c")
    list(slave.note_deletions(slave.missing_deletions(master.deletion_notes)))
    assert slave.max_offset("a", 0) == 0
    # An end of the name's next topic counts, although a deletion is remembered: its messages have expired as well.
    slave.commit_log.delete_first()
    slave.begin_empty_queues_at({("a", 0): 7})
    assert slave.max_offset("a", 0) == 7


def test_a_queue_of_a_deleted_topic_does_not_go_on_where_that_of_the_master_ended() -> None:
    slave = opened()
    slave.append(NewMessage("b", 0, b"1", b""))
    list(slave.note_deletions({"a": (slave.max_physical_offset, 0)}))
    slave.begin_empty_queues_at({("a", 0): 7})
    assert slave.max_offset("a", 0) == 0


def test_a_queue_without_messages_goes_with_its_deleted_topic() -> None:
    """It began where that of the master ended, whose messages had expired."""
    files, clock = CrashFiles(), FakeClock()
    slave = opened(files, clock=clock)
    slave.append(NewMessage("b", 0, b"1", b""))
    slave.begin_empty_queues_at({("a", 0): 7, ("a", 1): 3})
    list(slave.note_deletions({"a": (slave.max_physical_offset, clock.now_ms())}))
    assert [slave.max_offset("a", queue_id) for queue_id in range(2)] == [0, 0]
    files = files.crash(random.Random(0), lose_unflushed=False)
    assert opened(files, clock=clock).max_offset("a", 0) == 0


@pytest.mark.parametrize("first_offset", [0, 250_000])
def test_a_note_of_expired_messages_costs_little_at_each_copy(
    first_offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave compares it each time with the queues of the new topic, which may begin in the middle of a file."""
    store = MessageStore.open(StoreConfig("/s"), CrashFiles(), FakeClock())
    store.append(NewMessage("b", 0, b"first of the log", b""))
    store.begin_empty_queues_at({("a", 0): first_offset})
    store.append(NewMessage("a", 0, b"new", b""))
    read_entries, read_bytes = ConsumeQueue.read_entries, []

    def note_read(queue: ConsumeQueue, offset: int, count: int) -> bytes:
        entries = read_entries(queue, offset, count)
        read_bytes.append(len(entries))
        return entries

    monkeypatch.setattr(ConsumeQueue, "read_entries", note_read)
    assert not store.missing_deletions({"a": (0, 0)})
    assert sum(read_bytes) < 100_000


def test_a_queue_without_messages_stays_if_those_of_the_deleted_topic_have_expired() -> None:
    """Those of the later topic of the name, whose offsets are given out, may have expired as well."""
    files, clock = CrashFiles(), FakeClock()
    store = opened(files, clock=clock)
    for _ in range(3):
        store.append(NewMessage("b", 0, bytes(1900), b""))
    store.commit_log.delete_first()
    store.begin_empty_queues_at({("a", 0): 7})
    store._deleted_topics.add("a", 0, store.min_physical_offset, clock.now_ms())
    files = files.crash(random.Random(0), lose_unflushed=False)
    assert opened(files, clock=clock).max_offset("a", 0) == 7


def test_a_promotion_limits_deletions_to_the_log() -> None:
    files, config, clock = CrashFiles(), replace(CONFIG, follows_master=True), FakeClock()
    slave = opened(files, config, clock)
    slave.append(NewMessage("b", 0, b"1", b""))
    end = slave.max_physical_offset
    list(slave.note_deletions({"a": (2 * end, clock.now_ms())}))
    slave.close()
    assert opened(files, CONFIG, clock).deletion_notes == {"a": (end, clock.now_ms())}


def test_a_full_disk_stops_and_the_rest_is_taken_later() -> None:
    master = filled_master()
    files = CrashFiles(capacity_bytes=20_000)
    slave = opened(files)
    replica = ReplicaLog(slave)
    with pytest.raises(StoreFull):
        follow(replica, master)
    files.capacity_bytes = 1 << 40
    replica.drop_tail()
    for offset, piece in log_pieces(master, replica.end):
        replica.receive(offset, piece)
    dispatch_all(replica)
    assert_same(slave, master)


def test_a_queue_that_lost_messages_to_damage_gets_holes() -> None:
    master = opened()
    master.append(NewMessage("a", 0, b"first", b""))
    master.skip_offsets("a", 0, 4)
    master.append(NewMessage("a", 0, b"fifth", b""))
    slave = opened()
    replica = ReplicaLog(slave)
    replica.receive(0, memoryview(log_bytes(master)))
    dispatch_all(replica)
    assert (slave.min_offset("a", 0), slave.max_offset("a", 0)) == (0, 5)
    assert slave.physical_offset_at("a", 0, 4) == master.physical_offset_at("a", 0, 4)


def test_a_queue_of_a_mirrors_target_that_began_anew_begins_anew() -> None:
    config = replace(CONFIG, start_at_second_file=True)
    source = opened()
    for number in range(20):
        source.append(NewMessage("a", 0, b"%d" % number, b""))
    master = opened(config=config)
    for offset in (0, 17):
        start = source.physical_offset_at("a", 0, offset)
        stored = source.message_at(start)
        assert stored is not None
        master.append_preserving_offsets("a", 0, offset, stored, reset=True)
    slave = opened(config=config)
    replica = ReplicaLog(slave)
    follow(replica, master)
    assert (slave.min_offset("a", 0), slave.max_offset("a", 0)) == (17, 18)
    assert_same(slave, master)


def test_a_message_whose_topic_is_no_folder_name_is_left_out() -> None:
    master = opened()
    for topic in ("abc", "abd"):
        master.append(NewMessage(topic, 0, b"x", b""))
    data = log_bytes(master).replace(b"\3abc", b"\3a/c")
    slave = opened()
    replica = ReplicaLog(slave)
    replica.receive(0, memoryview(data))
    dispatch_all(replica)
    assert list(queues_of(slave)) == [("abd", 0)]


def test_a_damaged_message_of_the_master_is_stepped_over(caplog: pytest.LogCaptureFixture) -> None:
    master = opened()
    ends = [sum(master.append(NewMessage("a", 0, b"x", b""))[1:3]) for _ in range(3)]
    data = bytearray(log_bytes(master))
    data[ends[0] + 84 : ends[0] + 88] = b"\xff\xff\xff\xff"
    slave = opened()
    replica = ReplicaLog(slave, check_crc=False)
    replica.receive(0, memoryview(data))
    dispatch_all(replica)
    assert "message is damaged, as the master sent it: it gets no queue entry" in caplog.text
    assert slave.max_offset("a", 0) == 3
    assert slave.physical_offset_at("a", 0, 2) == ends[1]


# -- comparing --


def compared(slave: MessageStore, master: MessageStore, max_bytes: int, size: int) -> int:
    """Compare in pieces; return how many of the master's bytes were looked at."""
    comparison = ReplicaLog(slave).comparison(max_bytes)
    for offset, piece in log_pieces(master, comparison.start, size):
        assert comparison.compare(offset, piece) <= len(piece)
        if comparison.done:
            break
    assert comparison.done
    return comparison.position - comparison.start


@pytest.mark.parametrize("max_bytes", [1, 500, 3000, 1 << 20])
@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_equal_logs_are_equal(max_bytes: int, size: int) -> None:
    master = filled_master()
    slave = opened()
    replica = ReplicaLog(slave)
    for offset, piece in log_pieces(master):
        replica.receive(offset, piece)
    looked_at = compared(slave, master, max_bytes, size)
    last_bytes = slave.max_physical_offset - message_starts(slave)[-1]
    assert last_bytes <= looked_at <= max(last_bytes, max_bytes)
    assert looked_at > min(max_bytes, slave.max_physical_offset) - 2500


def message_starts(store: MessageStore) -> list[int]:
    starts, offset = [], 0
    while offset < store.max_physical_offset:
        message = store.message_at(offset)
        if message is None:
            offset = store.commit_log.base_of(offset) + store.commit_log.file_bytes
        else:
            starts.append(offset)
            offset += len(message)
    return starts


def test_the_first_message_that_differs_is_named() -> None:
    master = filled_master(messages=40)
    data = log_bytes(master)
    starts = message_starts(master)
    for start, following in zip(starts, [*starts[1:], len(data)], strict=True):
        for at in {start, start + 40, following - 1}:
            files = CrashFiles()
            slave = opened(files)
            replica = ReplicaLog(slave)
            for offset, piece in log_pieces(master):
                replica.receive(offset, piece)
            base = at - at % 4096
            if master.message_at(start) is None or at - start >= len(master.message_at(start) or b""):
                continue  # the bytes after a blank marker mean nothing
            files.mapped[f"/s/commitlog/{base:020d}"].buffer[at - base] ^= 1
            if at == start:  # no message leads to the end of the log any more
                with pytest.raises(CorruptionError):
                    replica.comparison(1 << 20)
            else:
                with pytest.raises(Diverged) as diverged:
                    compared(slave, master, 1 << 20, 777)
                assert diverged.value.physical_offset == start


def test_a_slave_that_is_ahead_learns_where_its_master_ends() -> None:
    master = filled_master(messages=10)
    slave = opened()
    replica = ReplicaLog(slave)
    for offset, piece in log_pieces(master):
        replica.receive(offset, piece)
    end = slave.append(NewMessage("a", 0, b"only here", b""))[1]
    comparison = replica.comparison()
    for offset, piece in log_pieces(master, comparison.start):
        comparison.compare(offset, piece)
    assert not comparison.done
    with pytest.raises(Diverged) as diverged:
        comparison.master_ended()
    assert diverged.value.physical_offset == end


def test_an_empty_log_has_nothing_to_compare() -> None:
    comparison = ReplicaLog(opened()).comparison()
    assert comparison.done
    assert comparison.start == 0


def test_a_message_within_the_body_of_another_is_not_where_a_comparison_begins() -> None:
    slave = opened()
    for _ in range(4):
        slave.append(NewMessage("a", 0, bytes(200), b""))
    place = slave.max_physical_offset + 88 + 100
    inner = bytearray(log_bytes(slave)[:300])
    LONG.pack_into(inner, PHYSICAL_OFFSET_AT, place)
    outer = slave.append(NewMessage("a", 0, bytes(100) + bytes(inner) + bytes(500), b""))
    assert START.unpack_from(inner)[1] == MAGIC_V1
    comparison = ReplicaLog(slave).comparison(slave.max_physical_offset - place)
    assert comparison.start <= outer[1]


# -- damaged bodies --


def master_with_body(hosts: bytes) -> tuple[MessageStore, int]:
    """Return a store, and the physical offset of its third message, which has a body of 300 bytes."""
    store = opened()
    for number in range(6):
        message = NewMessage("a", 0, bytes([number]) * 300, b"TAGS\x01t\x02")
        store.append(message.with_changes(born_host=hosts, store_host=hosts))
    return store, store.max_physical_offset // 6 * 2


@pytest.mark.parametrize("hosts", [bytes(8), HOSTS_V6], ids=["v4", "v6"])
@pytest.mark.parametrize("size", [100, 4096])
def test_a_damaged_body_is_refused_and_may_be_sent_again(hosts: bytes, size: int) -> None:
    master, third = master_with_body(hosts)
    whole = log_bytes(master)
    damaged = bytearray(whole)
    damaged[third + 150] ^= 1
    slave = opened()
    replica = ReplicaLog(slave)
    for _ in range(2):
        with pytest.raises(DamagedMessage, match="the body does not match its CRC") as refused:
            receive_all(replica, replica.end, memoryview(damaged)[replica.end :], size)
        assert refused.value.physical_offset == third
        assert slave.max_physical_offset == third, "what came before is stored and may be acknowledged"
    receive_all(replica, third, memoryview(whole)[third:], size)
    dispatch_all(replica)
    assert_same(slave, master)


@pytest.mark.parametrize("hosts", [bytes(8), HOSTS_V6], ids=["v4", "v6"])
@pytest.mark.parametrize("accepts", ["everything", "this message", "another message"])
def test_damage_of_the_master_itself_can_be_accepted(hosts: bytes, accepts: str) -> None:
    master, third = master_with_body(hosts)
    damaged = bytearray(log_bytes(master))
    damaged[third + 150] ^= 1
    slave = opened()
    replica = ReplicaLog(slave, check_crc=accepts != "everything")
    replica.accepted_damage = third if accepts == "this message" else 0
    if accepts == "another message":
        with pytest.raises(DamagedMessage):
            replica.receive(0, memoryview(damaged))
    else:
        replica.receive(0, memoryview(damaged))
        assert log_bytes(slave) == damaged


@pytest.mark.parametrize("value", [-1, 0, 250, 1 << 30])
def test_a_damaged_size_of_a_body_is_refused(value: int) -> None:
    master, third = master_with_body(bytes(8))
    damaged = bytearray(log_bytes(master))
    damaged[third + 84 : third + 88] = value.to_bytes(4, "big", signed=True)
    replica = ReplicaLog(opened())
    if value == 0:
        replica.receive(0, memoryview(damaged))  # a message without a body has no CRC
    else:
        with pytest.raises(DamagedMessage):
            replica.receive(0, memoryview(damaged))


def test_a_comparison_of_many_messages_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.replica_log.MESSAGES_PER_TURN", 5)
    slave = filled_master(messages=60)
    *turns, comparison = ReplicaLog(slave).comparison_slices(1 << 20)
    assert len(turns) >= 60 // 5
    assert set(turns) == {None}
    assert comparison is not None
    assert comparison.start == ReplicaLog(slave).comparison(1 << 20).start == slave.min_physical_offset
    *turns, comparison = ReplicaLog(slave).comparison_slices(2000)
    assert set(turns) == {None}
    assert comparison is not None
    assert comparison.start == ReplicaLog(slave).comparison(2000).start
