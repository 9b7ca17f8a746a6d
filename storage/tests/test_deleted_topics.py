"""A deleted topic stays deleted, whatever crashes and rebuilds follow, and no later message is taken for its own."""

import random
import threading
from collections.abc import Callable

import pytest

from storage.append import NewMessage
from storage.crash_files import CrashFiles, ProcessKilled
from storage.deleted_topics import MAX_EXPIRED_DELETIONS, DeletedTopics
from storage.errors import StoreFull
from storage.store import MessageStore
from storage.tests.support import THREAD_TIMEOUT_S, FakeClock, NoticedLock
from storage.tests.test_recovery import bodies, fill, open_store

NOTE = "/s/deletedtopics.json"
ENDS = "/s/queueends.json"


def kill(files: CrashFiles) -> CrashFiles:
    return files.crash(random.Random(0), lose_unflushed=False)


def deleted_and_created_again(files: CrashFiles, clock: FakeClock) -> MessageStore:
    """Return a store in which a topic of 20 messages was deleted, and has two new ones."""
    store = open_store(files, clock)
    store.append(NewMessage("kept", 0, b"", b""))
    fill(store, 20)
    store.write_checkpoint()
    store.delete_topic("t")
    store.append(NewMessage("t", 0, b"new", b""))
    store.append(NewMessage("t", 1, b"other queue", b""))
    return store


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("end", ["orderly", "kill", "power cut"])
def test_queues_that_are_built_again_know_of_the_deletion(end: str, again: int) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = deleted_and_created_again(files, clock)
    store.flush()
    if end == "orderly":
        store.close()
    else:
        files = files.crash(random.Random(1), lose_unflushed=end == "power cut")
    for _ in range(again):
        files.delete_tree("/s/consumequeue")
        store = open_store(files, clock)
        assert (bodies(store), store.max_offset("t", 1), store.max_offset("kept", 0)) == ([b"new"], 1, 1)
        files = kill(files)
    assert store.append(NewMessage("t", 0, b"next", b""))[0] == 1


@pytest.mark.parametrize("seed", range(20))
def test_files_that_a_power_cut_brings_back_are_deleted_again(seed: int) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("kept", 0, b"", b""))
    fill(store, 20)
    store.write_checkpoint()
    store.delete_topic("t")
    for _ in range(2):
        files = files.crash(random.Random(seed))
        store = open_store(files, clock)
        assert not store.has_queue("t", 0)
        assert not files.list("/s/consumequeue/t")
    assert store.append(NewMessage("t", 0, b"new", b""))[0] == 0
    assert bodies(open_store(kill(files), clock)) == [b"new"]


@pytest.mark.parametrize("lose_unflushed", [False, True])
def test_a_crash_in_the_middle_leaves_all_or_nothing(lose_unflushed: bool) -> None:
    steps, outcomes = 0, set()
    while True:
        files, clock = CrashFiles(), FakeClock()
        store = open_store(files, clock)
        store.append(NewMessage("kept", 0, b"", b""))
        for queue_id in range(3):
            for number in range(12):
                store.append(NewMessage("t", queue_id, b"%d" % number, b""))
        store.write_checkpoint()
        files.operations_left = steps
        try:
            store.delete_topic("t")
        except ProcessKilled:
            pass
        else:
            break
        again = open_store(files.crash(random.Random(steps), lose_unflushed), clock)
        ends = {again.max_offset("t", queue_id) for queue_id in range(3)}
        assert ends in ({0}, {12})
        outcomes |= ends
        steps += 1
    assert outcomes == {0, 12}


def test_what_is_written_where_the_log_lost_the_deleted_messages_is_not_deleted() -> None:
    """The clock stands still, so that only the limited offset tells them apart."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("t", 0, b"durable", b""))
    store.write_checkpoint()
    fill(store, 20)
    store.delete_topic("t")
    files = files.cut_power(lambda path: False)
    store = open_store(files, clock)
    assert not store.has_queue("t", 0)
    store.append(NewMessage("t", 0, b"new", b""))
    files = kill(files)
    files.delete_tree("/s/consumequeue")
    assert bodies(open_store(files, clock)) == [b"new"]


@pytest.mark.parametrize("rebuild", [False, True])
def test_messages_of_an_official_heir_of_the_lost_place_are_not_deleted(rebuild: bool) -> None:
    """An official broker does not limit the noted offset to what a power cut left of the log."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("kept", 0, b"", b""))
    store.write_checkpoint()
    fill(store, 20)
    store.delete_topic("t")
    files, note = files.cut_power(lambda path: False), files.small[NOTE]
    clock.advance(5000)
    store = open_store(files, clock)
    store.append(NewMessage("t", 0, b"new", b""))
    files = kill(files)
    files.small[NOTE] = note
    if rebuild:
        files.delete_tree("/s/consumequeue")
    assert bodies(open_store(files, clock)) == [b"new"]


def test_a_clock_that_is_set_back_a_little_brings_nothing_back() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 20)
    clock.advance(-2000)
    store.delete_topic("t")
    files.delete_tree("/s/consumequeue")
    assert not open_store(kill(files), clock).has_queue("t", 0)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_of_notes_whose_messages_have_expired_the_newest_stay(is_reopened: bool) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("kept", 0, b"", b""))
    topics = [f"t{number:03}" for number in range(MAX_EXPIRED_DELETIONS + 20)]
    # A topic that is deleted again has its earlier place in the table.
    deleted = [*topics[1:], topics[0]]
    for topic in [topics[0], *deleted]:
        store.append(NewMessage(topic, 0, b"", b""))
        store.delete_topic(topic)
        clock.advance(1)
    end = store.max_physical_offset
    assert store.may_have_deleted_messages(deleted[-1])
    while store.commit_log.bases()[-1] < end:
        store.append(NewMessage("kept", 0, bytes(1000), b""))
    while store.min_physical_offset < end:
        store.commit_log.delete_first()
    assert store.deletion_notes.keys() == set(topics)
    assert not store.may_have_deleted_messages(deleted[-1])
    store.append(NewMessage("later", 0, b"", b""))
    if is_reopened:
        store.close()
        store = open_store(files, clock)
        assert store.deletion_notes.keys() == set(deleted[20:])
    store.delete_topic("later")
    assert store.deletion_notes.keys() == {*deleted[20:], "later"}
    assert all(f'"{topic}"'.encode() in files.small[NOTE] for topic in store.deletion_notes)


@pytest.mark.parametrize("content", [b"{", b"1", b'{"t":1'])
def test_announcements_that_cannot_be_read_are_named(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files = CrashFiles()
    files.small["/s/topicsbeingdeleted.json"] = content
    assert open_store(files, FakeClock()).announced_deletions == frozenset()
    assert caplog.text.count("an interrupted deletion may stay unfinished") == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"t":1}', b'{"t":[true,2]}'])
def test_a_note_that_cannot_be_read_is_told(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    files, clock = CrashFiles(), FakeClock()
    deleted_and_created_again(files, clock).close()
    files.small[NOTE] = content
    assert bodies(open_store(files, clock)) == [b"new"]
    assert caplog.text.count("file cannot be read, messages of deleted topics may come back") == 1


@pytest.mark.parametrize("error", [OSError(5, "input/output error"), StoreFull("no room")])
def test_a_deletion_that_cannot_be_noted_changes_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(files := CrashFiles(), FakeClock())
    expected = fill(store, 3)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_small", failing(error))
        with pytest.raises(type(error)):
            store.delete_topic("t")
    assert bodies(store) == expected
    assert store.append(NewMessage("t", 0, b"next", b""))[0] == 3
    expected.append(b"next")
    files.delete_tree("/s/consumequeue")
    assert bodies(open_store(kill(files), FakeClock())) == expected


def failing(error: Exception) -> Callable[..., None]:
    def write_small(*args: object) -> None:
        raise error

    return write_small


def test_a_deletion_waits_while_a_checkpoint_writes_the_ends_of_queues() -> None:
    """They would name queues that are deleted, and recovery would take those for lost."""
    files = CrashFiles()
    topics = DeletedTopics(files, "/s")
    waits_or_ended = threading.Event()

    def delete() -> None:
        topics.add("t", 0, 100, 0)
        waits_or_ended.set()

    def write_ends() -> None:
        deletion.start()
        assert waits_or_ended.wait(THREAD_TIMEOUT_S)
        files.write_small(ENDS, b"{}")

    topics._ends_lock = NoticedLock(waits_or_ended.set)  # type: ignore[assignment]
    deletion = threading.Thread(target=delete)
    topics.run_unless_deleted_since(0, write_ends)
    deletion.join(THREAD_TIMEOUT_S)
    assert topics.deletion_of("t") == (100, 0)
    assert files.read_small(ENDS) is None
    topics.run_unless_deleted_since(0, lambda: files.write_small(ENDS, b"{}"))
    assert files.read_small(ENDS) is None


class SlowFiles(CrashFiles):
    """Files of a slow disk: while anything waits for it, `meanwhile` runs in another thread, and must not wait."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile
        self.waits = 0

    def _wait(self) -> None:
        self.waits += 1
        thread = threading.Thread(target=self._meanwhile, daemon=True)
        thread.start()
        thread.join(THREAD_TIMEOUT_S)
        assert not thread.is_alive(), "another thread waits for the disk"

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        self._wait()
        super().write_small(path, data, backup)

    def flush_small(self, path: str) -> None:
        self._wait()
        super().flush_small(path)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_checkpoint_amid_the_deletion_of_a_master_does_not_keep_the_ends_of_its_queues(steps: int) -> None:
    files, clock = CrashFiles(), FakeClock()
    slave = open_store(files, clock)
    fill(slave, 3)
    slave.append(NewMessage("t", 1, b"other queue", b""))
    slices = slave.note_deletions({"t": (slave.max_physical_offset, clock.now_ms())})
    for _ in range(steps):
        next(slices, None)
    clock.advance(60_000)
    slave.write_checkpoint()
    for killed_after in range(2):
        again = open_store(kill(files), FakeClock(clock.now_ms()))
        assert [again.max_offset("t", queue_id) for queue_id in range(2)] == [0, 0], killed_after
        list(slices)
    # What is written later may be trusted again.
    slave.append(NewMessage("u", 0, b"", b""))
    clock.advance(60_000)
    slave.write_checkpoint()
    assert b'"u"' in (files.read_small(ENDS) or b"")


def test_nobody_waits_for_the_disk_where_a_queue_begins_anew() -> None:
    """That happens in the event loop, while deletions and checkpoints are written by other threads."""
    begun_anew: list[MessageStore] = []

    def begin_anew() -> None:
        for open_one in begun_anew:
            with open_one.forget_queue_ends():
                pass

    files, clock = SlowFiles(begin_anew), FakeClock()
    store = open_store(files, clock)
    fill(store, 3)
    begun_anew.append(store)
    files.waits = 0
    store.announce_deletions(["t"])
    store.delete_topic("t")
    assert files.waits == 2
    fill(store, 3)
    clock.advance(60_000)
    store.write_checkpoint()
    assert files.waits == 3
    assert files.read_small(ENDS) is None
    begun_anew.clear()
    clock.advance(60_000)
    store.write_checkpoint()
    assert files.read_small(ENDS) is not None
