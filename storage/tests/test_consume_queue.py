"""Consume queues: many entries at once, deletion, expiry, and checkpoints amid appends."""

import random

import pytest

from codec.batch import encode_batch
from codec.message import decode_message
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.errors import StoreFull
from storage.layout import QUEUE_HOLE_SIZE
from storage.store import MessageStore

MANY_ENTRIES = 256


def open_store(files, **settings):
    config = {
        "root": "/s",
        "commit_log_file_bytes": 1 << 20,
        "consume_queue_file_entries": 1000,
        "reserve_commit_log_bytes": 1 << 16,
        "message_index_enable": False,
        **settings,
    }
    return MessageStore.open(StoreConfig(**config), files)


def bodies(store, topic, queue_id=0):
    return [
        decode_message(store.read(topic, queue_id, offset, 1).chunks[0]).body
        for offset in range(store.max_offset(topic, queue_id))
    ]


def queue_files(files):
    return [path for path in files.mapped if "/consumequeue/" in path]


@pytest.mark.parametrize("file_entries", [1, 2, 3, 1000])
@pytest.mark.parametrize("checkpoint_after", [0, 1, MANY_ENTRIES - 1, MANY_ENTRIES, MANY_ENTRIES + 1])
def test_a_queue_that_grows_gets_its_file(file_entries, checkpoint_after):
    files = CrashFiles()
    store = open_store(files, consume_queue_file_entries=file_entries)
    expected = [b"%d" % number for number in range(MANY_ENTRIES + 5)]
    for number, body in enumerate(expected):
        if number == checkpoint_after:
            store.write_checkpoint()
        store.append(NewMessage("t", 0, body, b""))
    assert queue_files(files)
    assert bodies(store, "t") == expected
    store.close()
    assert bodies(open_store(files, consume_queue_file_entries=file_entries), "t") == expected


@pytest.mark.parametrize("sizes", [(3, 4), (MANY_ENTRIES,), (MANY_ENTRIES - 1, 2), (1, 700), (999, 5)])
def test_batches_fit_whatever_their_size(sizes):
    files = CrashFiles()
    store = open_store(files)
    expected = []
    for size in sizes:
        batch = [b"%d.%d" % (size, number) for number in range(size)]
        expected += batch
        store.append_batch("t", 0, encode_batch([(0, body, b"") for body in batch]))
    assert store.max_offset("t", 0) == len(expected)
    store.close()
    assert bodies(open_store(files), "t") == expected


@pytest.mark.parametrize("lose_unflushed", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_durable_is_lost_with_a_process(seed, lose_unflushed):
    rng = random.Random(seed)
    files = CrashFiles()
    store = open_store(files)
    sent: dict[str, list[bytes]] = {}
    durable: dict[str, int] = {}
    for number in range(rng.randint(1, 400)):
        topic = f"t{rng.randint(0, 4)}"
        store.append(NewMessage(topic, 0, b"%d" % number, b""))
        sent.setdefault(topic, []).append(b"%d" % number)
        if rng.random() < 0.02:
            store.write_checkpoint()
            durable = {name: len(sent_bodies) for name, sent_bodies in sent.items()}
    again = open_store(files.crash(rng, lose_unflushed))
    for topic, expected in sent.items():
        stored = bodies(again, topic)
        assert stored == expected[: len(stored)]
        assert len(stored) >= (durable.get(topic, 0) if lose_unflushed else len(expected))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_deleted_topic_starts_anew(checkpoint):
    files = CrashFiles()
    store = open_store(files)
    for _ in range(5):
        store.append(NewMessage("t", 0, b"old", b""))
    store.append(NewMessage("u", 0, b"other", b""))
    if checkpoint:
        store.write_checkpoint()
    assert store.delete_topic("t") == 1
    assert store.delete_topic("t") == 0
    assert not [path for path in queue_files(files) if "/t/" in path]
    store.append(NewMessage("t", 0, b"new", b""))
    store.close()
    again = open_store(files)
    assert (bodies(again, "t"), bodies(again, "u")) == ([b"new"], [b"other"])
    assert again.topics() == {"t", "u"}


def test_a_file_that_is_created_while_its_topic_is_deleted_does_not_stay():
    class Interfering(CrashFiles):
        """Deletes the topic in the middle of the checkpoint."""

        def flush(self, path):
            if path.endswith("/commitlog/00000000000000000000"):
                store.delete_topic("t")
            super().flush(path)

    files = Interfering()
    store = open_store(files)
    store.append(NewMessage("t", 0, b"old", b""))
    store.append(NewMessage("u", 0, b"other", b""))
    store.write_checkpoint()
    assert [path for path in queue_files(files) if "/t/" in path] == []


def test_a_topic_that_is_being_deleted_takes_no_messages_and_starts_anew_afterwards():
    files = CrashFiles()
    store = open_store(files)
    for queue_id in range(100):
        store.append(NewMessage("t", queue_id, b"old", b""))
    store.write_checkpoint()
    slices = store.delete_topic_in_slices("t")
    next(slices)
    with pytest.raises(StoreFull, match="the topic t is being deleted"):
        store.append(NewMessage("t", 3, b"new", b""))
    store.append(NewMessage("u", 0, b"other", b""))
    assert list(slices)
    assert not [path for path in queue_files(files) if "/t/" in path]
    store.append(NewMessage("t", 3, b"new", b""))
    assert bodies(store, "t", 3) == [b"new"]


def test_a_deletion_that_is_cancelled_is_finished_at_once():
    files = CrashFiles()
    store = open_store(files)
    for queue_id in range(100):
        store.append(NewMessage("t", queue_id, b"old", b""))
    store.write_checkpoint()
    slices = store.delete_topic_in_slices("t")
    next(slices)
    slices.close()
    assert queue_files(files) == []
    store.append(NewMessage("t", 3, b"new", b""))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_entries_of_deleted_messages_are_hidden_before_anybody_reads_them(checkpoint):
    files = CrashFiles()
    store = open_store(files, consume_queue_file_entries=10, retained_bytes=2 << 20)
    topics = [f"t{number}" for number in range(500)]
    for topic in topics:
        store.append(NewMessage(topic, 0, b"old", b""))
    if checkpoint:
        store.write_checkpoint()
    for _ in range(4000):
        store.append(NewMessage("filler", 0, bytes(1000), b""))
    assert store.min_physical_offset > 0, "the log has deleted its first file"
    assert store.min_offset("t7", 0) == store.max_offset("t7", 0) == 1
    assert store.read("t8", 0, 0, 1).status.name == "OFFSET_TOO_SMALL"
    assert store.offset_by_time("t9", 0, 0) == 1
    assert store.earliest_store_timestamp("t10", 0) == -1
    first = store.min_offset("filler", 0)
    assert decode_message(store.read("filler", 0, first, 1).chunks[0]).queue_offset == first
    before = len(queue_files(files))
    assert len(list(store.hide_expired_entries())) >= 10, "others have their turn in between"
    assert all(queue.min_offset == 1 for queue in store._queue_set.queues() if queue.topic != "filler")
    assert len(queue_files(files)) <= before
    assert list(store.hide_expired_entries()) == []


def test_an_official_broker_finds_that_a_hole_has_no_message() -> None:
    """It tests ``(int) (position + size) <= end of the file``, which an overflow must not make true."""
    for position in (0, 1, 91, 1 << 20, (1 << 30) - 92):
        assert 1 << 30 < position + QUEUE_HOLE_SIZE < 1 << 31


def test_disk_space_is_got_ahead_as_a_queue_grows():
    """Counted: reserved bytes. At 64 KiB for each, 40,000 queues of a few messages took 2.6 GB."""
    files = CrashFiles()
    store = open_store(files, consume_queue_file_entries=20_000)
    for queue_id in range(50):
        store.append(NewMessage("short", queue_id, b"x", b""))
    reserved = [files._reserved[path] for path in queue_files(files)]
    assert max(reserved) <= 4096
    ends = set()
    for number in range(20_000):
        store.append(NewMessage("long", 0, b"x", b""))
        end = files._reserved[path_of_queue(files, "long")]
        ends.add(end)
        assert end >= (number + 1) * 20, "no entry begins within the reserved space and ends behind it"
    assert len(ends) <= 12
    assert max(ends) == 20_000 * 20


@pytest.mark.parametrize("covered", [1, 100, 203])
def test_a_killed_store_opens_on_a_full_disk(covered):
    """Recovery builds the entries after the checkpoint in the space that they had, and gets none for later ones."""
    files = CrashFiles()
    store = open_store(files, consume_queue_file_entries=20_000)
    for number in range(204):  # as many entries as the first page holds
        store.append(NewMessage("t", 0, b"x", b""))
        if number + 1 == covered:
            store.write_checkpoint()
    killed = files.crash(random.Random(0), lose_unflushed=False)
    killed._reserved = dict(files._reserved)
    killed.capacity_bytes = sum(files._reserved.values())
    store = open_store(killed, consume_queue_file_entries=20_000)
    assert store.max_offset("t", 0) == 204
    with pytest.raises(StoreFull):
        store.append(NewMessage("t", 0, b"x", b""))


def path_of_queue(files, topic):
    (path,) = (path for path in queue_files(files) if f"/{topic}/" in path)
    return path


@pytest.mark.parametrize("killed", [False, True])
def test_opening_a_store_opens_the_files_of_its_queues_once(killed, monkeypatch):
    """Counted: queue files opened, of which few may be open at a time."""
    files = CrashFiles()
    store = open_store(files, consume_queue_file_entries=16, commit_log_file_bytes=1 << 14)
    for number in range(300):
        store.append(NewMessage("t", number % 60, b"x" * 100, b""))
    while store.min_physical_offset < store.commit_log.base:
        store.commit_log.delete_first()
    store.write_checkpoint()
    if not killed:
        store.close()
    opened = []
    open_mapped = CrashFiles.open_mapped

    def note_opened(self, path, size):
        opened.append(path)
        return open_mapped(self, path, size)

    monkeypatch.setattr(CrashFiles, "open_mapped", note_opened)
    files = files.crash(random.Random(1), lose_unflushed=False) if killed else files
    again = open_store(
        files, consume_queue_file_entries=16, commit_log_file_bytes=1 << 14, max_open_queue_files=4
    )
    assert len([path for path in opened if "/consumequeue/" in path]) <= 60 + (64 if killed else 0)
    assert again.min_offset("t", 0) > 0, "what expired is hidden when it is read"
