"""Queue files that are missing are noticed, rebuilt from the commit log, and no queue offset is given out twice."""

import random
from collections.abc import Callable
from itertools import islice, takewhile

import pytest

from codec.message import decode_message
from storage.append import NewMessage
from storage.consume_queue import ConsumeQueue
from storage.crash_files import CrashFiles
from storage.deleted_topics import DeletedTopics
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

CONFIG = small_config()
COUNTS = {("a", 0): 12, ("a", 1): 3, ("b", 0): 7}
BAD = "queue files are missing, rebuilding all queues from the commit log"


def filled(*, kill: bool, log_files: int = 1) -> CrashFiles:
    files = CrashFiles()
    store = MessageStore.open(CONFIG, files, FakeClock())
    for number in range(max(COUNTS.values())):
        for (topic, queue_id), count in COUNTS.items():
            if number < count:
                store.append(
                    NewMessage(topic, queue_id, b"%s %d %d" % (topic.encode(), queue_id, number), b"")
                )
    while store.commit_log.base < (log_files - 1) * CONFIG.commit_log_file_bytes:
        store.append(NewMessage("later", 0, bytes(1000), b""))
    store.close()
    if kill:
        MessageStore.open(CONFIG, files, FakeClock())
        return files.crash(random.Random(0), lose_unflushed=False)
    return files


def check(files: CrashFiles) -> MessageStore:
    store = MessageStore.open(CONFIG, files, FakeClock())
    for (topic, queue_id), count in COUNTS.items():
        for offset in range(count):
            chunk = store.read(topic, queue_id, offset, 1).chunks[0]
            assert decode_message(chunk).body == b"%s %d %d" % (topic.encode(), queue_id, offset)
        assert store.append(NewMessage(topic, queue_id, b"next", b""))[0] == count
    return store


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("lost", ["a/", "b/", "a/0/", "a/1/", "a/0/" + "0" * 17 + "200", "a/0/" + "0" * 20])
def test_a_missing_folder_or_file_is_rebuilt_with_one_line(
    lost: str, kill: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = filled(kill=kill)
    removed = [path for path in files.mapped if path.startswith(f"/s/consumequeue/{lost}")]
    assert removed
    for path in removed:
        files.delete(path)
    caplog.clear()
    check(files)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    expected = [] if not kill else ["store was not closed cleanly, recovering"]
    assert len(warnings) == len(expected) + 1, warnings


def test_a_queue_whose_messages_have_expired_goes_on_behind_them() -> None:
    files = filled(kill=False, log_files=3)
    files.delete("/s/commitlog/" + "0" * 20)
    for path in [path for path in files.mapped if path.startswith("/s/consumequeue/a/1/")]:
        files.delete(path)
    store = MessageStore.open(CONFIG, files, FakeClock())
    assert store.append(NewMessage("a", 1, b"next", b""))[0] == 3


@pytest.mark.parametrize("kill", [False, True])
def test_a_deleted_topic_begins_anew(kill: bool) -> None:
    files = filled(kill=False)
    store = MessageStore.open(CONFIG, files, FakeClock())
    store.delete_topic("a")
    assert store.append(NewMessage("a", 0, b"new", b""))[0] == 0
    if kill:
        files = files.crash(random.Random(0), lose_unflushed=False)
    else:
        store.close()
    store = MessageStore.open(CONFIG, files, FakeClock())
    assert store.append(NewMessage("a", 0, b"next", b""))[0] == 1
    assert store.append(NewMessage("a", 1, b"new", b""))[0] == 0


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("note", ["durable", "lost"])
def test_ends_of_a_deleted_topic_that_a_power_cut_brings_back_do_not_count(
    seed: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file with the ends was deleted, which was not on the disk yet; neither was the deletion of the queues.

    If the note of the deletion is lost, so is the deletion of the ends.
    """
    files, clock = filled(kill=False), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    with monkeypatch.context() as patch:
        if note == "lost":
            patch.setattr(DeletedTopics, "add", lambda *deletion: None)
        store.delete_topic("a")
    store.append(NewMessage("a", 0, b"new", b""))
    store.flush()
    for _ in range(2):
        files = files.crash(random.Random(seed))
        store = MessageStore.open(CONFIG, files, clock)
        assert store.max_offset("a", 0) == 1
    assert store.append(NewMessage("a", 0, b"next", b""))[0] == 1


def test_ends_from_before_another_broker_used_the_store_do_not_count() -> None:
    files = filled(kill=False)
    ends = files.small["/s/queueends.json"]
    store = MessageStore.open(CONFIG, files, clock := FakeClock())
    store.delete_topic("a")
    clock.advance(5000)
    store.append(NewMessage("a", 0, b"new", b""))
    store.close()
    files.small["/s/queueends.json"] = ends
    store = MessageStore.open(CONFIG, files, clock)
    assert store.append(NewMessage("a", 0, b"next", b""))[0] == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"queues":{"a":[]}}'])
def test_a_file_that_cannot_be_read_is_told(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    files = filled(kill=False)
    files.small["/s/queueends.json"] = content
    check(files)
    assert caplog.text.count("file cannot be read, missing queues go unnoticed") == 1


def test_a_damaged_last_message_is_not_taken_for_missing_files(caplog: pytest.LogCaptureFixture) -> None:
    """To build the queues again would lose the offsets of messages that were damaged before."""
    files, clock = filled(kill=False), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    store.append(NewMessage("damaged", 0, b"body", b""))
    store.write_checkpoint()
    for topic in ("damaged", "a"):
        last = store.max_offset(topic, 0) - 1
        damage(files, store.physical_offset_at(topic, 0, last))
        files = files.crash(random.Random(0), lose_unflushed=False)
        store = MessageStore.open(CONFIG, files, clock)
    assert {key: store.max_offset(*key) for key in COUNTS} == COUNTS
    assert store.max_offset("damaged", 0) == 1
    assert BAD not in caplog.text


def test_a_damaged_last_entry_is_not_taken_for_missing_files(caplog: pytest.LogCaptureFixture) -> None:
    files = filled(kill=False)
    MessageStore.open(CONFIG, files, FakeClock())
    last = COUNTS["a", 1] - 1
    files.mapped["/s/consumequeue/a/1/" + "0" * 20].buffer[last * 20 + 11] ^= 1
    check(files.crash(random.Random(0), lose_unflushed=False))
    assert "queue entries are damaged, deriving them from the log" in caplog.text
    assert BAD not in caplog.text


def damage(files: CrashFiles, physical_offset: int) -> None:
    """Flip a bit in the size of a stored message."""
    base = physical_offset - physical_offset % CONFIG.commit_log_file_bytes
    files.mapped[f"/s/commitlog/{base:020d}"].buffer[physical_offset - base + 3] ^= 1


def test_a_queue_folder_removed_after_a_kill_is_built_again(caplog: pytest.LogCaptureFixture) -> None:
    """The store was never closed cleanly; no message of the queue comes after the checkpoint."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    for number in range(30):
        store.append(NewMessage("t", number % 2, b"%d" % number, b""))
    store.write_checkpoint()
    clock.advance(20_000)
    for _ in range(10):
        store.append(NewMessage("t", 1, b"later", b""))
    store.write_checkpoint()
    files = files.crash(random.Random(0), lose_unflushed=False)
    for path in [path for path in files.mapped if path.startswith("/s/consumequeue/t/0/")]:
        files.delete(path)
    store = MessageStore.open(CONFIG, files, clock)
    assert caplog.text.count("queue files are missing, rebuilding all queues from the commit log") == 1
    assert [store.max_offset("t", 0), store.max_offset("t", 1)] == [15, 25]


class Disk(CrashFiles):
    """Files on a disk that is nearly full when a test says so."""

    is_full = False

    def disk_used_ratio(self, path: str) -> float:
        return 0.89 if self.is_full else 0.0


def expired(*, kill: bool, offsets: int = 7) -> tuple[Disk, FakeClock]:
    """Return a store with a queue ``gone/0`` that reached 3 when its end was first noted, and has no message left."""
    files, clock = Disk(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    store.append(NewMessage("later", 0, b"", b""))  # now, because a new queue would have the ends noted again
    for number in range(offsets):
        store.append(NewMessage("gone", 0, b"%d" % number, b""))
        if number == 2:
            store.write_checkpoint()
            clock.advance(20_000)
    for _ in range(9):
        store.append(NewMessage("later", 0, bytes(1900), b""))
    store.write_checkpoint()
    clock.advance(20_000)
    files.is_full = True
    assert store.delete_expired() > 0
    files.is_full = False
    store.append(NewMessage("later", 0, b"", b""))
    store.write_checkpoint()
    if kill:
        files = files.crash(random.Random(0), lose_unflushed=False)
    else:
        store.close()
    return files, clock


def partly_expired() -> tuple[Disk, FakeClock, MessageStore]:
    """Return a store whose queue ``t/0`` has lost its first messages; the entries of these are not hidden yet.

    The ends of its queues were noted while all messages were there.
    """
    files, clock = Disk(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    for _ in range(20):
        store.append(NewMessage("t", 0, bytes(1900), b""))
    clock.advance(20_000)
    store.write_checkpoint()
    files.is_full = True
    assert store.delete_expired_log_files(max_files=2) == 2
    files.is_full = False
    return files, clock, store


def test_ends_are_noted_at_once_after_messages_have_expired() -> None:
    """An idle broker writes no later checkpoint, and the log does not tell any more how far the queues had come."""
    files, clock = Disk(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    store.append(NewMessage("gone", 0, b"", b""))
    store.append(NewMessage("later", 0, b"", b""))
    store.write_checkpoint()
    for _ in range(6):
        store.append(NewMessage("gone", 0, b"", b""))
    for _ in range(9):
        store.append(NewMessage("later", 0, bytes(1900), b""))
    store.write_checkpoint()
    files.is_full = True
    assert store.delete_expired() > 0
    store.write_checkpoint()
    files = files.crash(random.Random(0), lose_unflushed=False)
    remove(files, "consumequeue/")
    store = MessageStore.open(CONFIG, files, clock)
    assert store.max_offset("gone", 0) == 7


def test_ends_of_new_queues_are_noted_at_intervals() -> None:
    """There may be thousands of queues."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    contents = []
    for number in range(4):
        store.append(NewMessage("t", number, b"", b""))
        store.write_checkpoint()
        contents.append(files.small["/s/queueends.json"])
        clock.advance(5000)
    assert contents[0] == contents[1] != contents[2] == contents[3]


@pytest.mark.parametrize("kill", [False, True])
def test_expired_entries_that_are_not_hidden_yet_are_not_taken_for_missing_files(
    kill: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The ends are written between the deletion of a log file and of the queue files that point into it."""
    files, clock, store = partly_expired()
    if kill:
        store.write_checkpoint()
    else:
        store.close()
        store = MessageStore.open(CONFIG, files, clock)
    list(store.hide_expired_entries())
    files = files.crash(random.Random(0), lose_unflushed=False)
    store = MessageStore.open(CONFIG, files, clock)
    assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (8, 20)
    assert BAD not in caplog.text


@pytest.mark.parametrize("hidden_later", [False, True])
def test_a_first_queue_file_that_is_missing_after_messages_expired_is_built_again(
    hidden_later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files, clock, store = partly_expired()
    if hidden_later:
        store.write_checkpoint()
        clock.advance(20_000)
    list(store.hide_expired_entries())
    store.write_checkpoint()
    files = files.crash(random.Random(0), lose_unflushed=False)
    remove(files, "consumequeue/t/0/" + f"{5 * 20:020d}")
    store = MessageStore.open(CONFIG, files, clock)
    assert store.read("t", 0, 8, 1).count == 1
    assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (8, 20)
    assert BAD in caplog.text


def test_a_store_in_memory_notes_no_ends() -> None:
    """It is never opened again."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(small_config(retained_bytes=20_000), files, clock)
    for _ in range(20):
        store.append(NewMessage("t", 0, bytes(1900), b""))
        store.write_checkpoint()
        clock.advance(20_000)
    assert store.min_physical_offset > 0
    assert "/s/queueends.json" not in files.small


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("slices", [1, 100], ids=["begun", "done"])
def test_queues_of_a_topic_that_is_deleted_meanwhile_are_not_named(slices: int, expired: bool) -> None:
    """A later topic of the name would continue where this one ended."""
    files, _, store = partly_expired()
    for queue_id in range(50):
        store.append(NewMessage("deleted", queue_id, b"", b""))
    if expired:
        for _ in range(5):
            store.append(NewMessage("t", 0, bytes(1900), b""))
        store.write_checkpoint()
        files.is_full = True
        assert store.delete_expired_log_files() > 0
    ends = store.ends_of_empty_queues()
    assert bool([queue for queue in takewhile(bool, ends)]) == expired
    deletion = store.delete_topic_in_slices("deleted")
    for _ in islice(deletion, slices):
        pass
    assert [queue for queue in ends if queue is not None] == []


def remove(files: CrashFiles, start: str) -> None:
    removed = [path for path in files.mapped if path.startswith(f"/s/{start}")]
    assert removed
    for path in removed:
        files.delete(path)


def erase_entry(files: CrashFiles, number: int) -> None:
    path = "/s/consumequeue/gone/0/" + f"{number // 5 * 100:020d}"
    files.mapped[path].buffer[number % 5 * 20 : number % 5 * 20 + 20] = bytes(20)


LOSSES: dict[str, Callable[[CrashFiles], None]] = {
    "folder": lambda files: remove(files, "consumequeue/gone/"),
    "all folders": lambda files: remove(files, "consumequeue/"),
    "last file": lambda files: remove(files, "consumequeue/gone/0/" + "0" * 17 + "100"),
    "last entry": lambda files: erase_entry(files, 6),
    "first entry": lambda files: erase_entry(files, 5),
    "checkpoint": lambda files: remove(files, "checkpoint"),
}


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("without_checkpoint", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_queue_whose_messages_have_expired_keeps_its_place_without_its_files(
    loss: str, without_checkpoint: bool, kill: bool
) -> None:
    files, clock = expired(kill=kill)
    LOSSES[loss](files)
    if without_checkpoint and loss != "checkpoint":
        LOSSES["checkpoint"](files)
    for _ in range(2):
        store = MessageStore.open(CONFIG, files, clock)
        assert store.max_offset("gone", 0) == 7
        assert store.min_offset("gone", 0) == 7, "none of them comes back as a hole"
        assert list(store.ends_of_empty_queues()) == [("gone", 0, 7)]
        files = files.crash(random.Random(0), lose_unflushed=False)
    assert store.append(NewMessage("gone", 0, b"next", b""))[0] == 7


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("offsets", [3, 5, 7])
def test_queues_without_messages_are_named_as_soon_as_the_store_is_open(offsets: int, kill: bool) -> None:
    """A slave asks for them: it may have begun in the middle of the log."""
    files, clock = expired(kill=kill, offsets=offsets)
    store = MessageStore.open(CONFIG, files, clock)
    assert list(store.ends_of_empty_queues()) == [("gone", 0, offsets)]


@pytest.mark.parametrize("lose_unflushed", [False, True])
@pytest.mark.parametrize("end", [5, 7])
def test_ends_of_a_former_master_survive_a_crash(end: int, lose_unflushed: bool) -> None:
    """At 5 the file has no entry, not even a blank one."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    store.begin_log_at(8192)
    store.append(NewMessage("later", 0, b"", b""))
    store.begin_empty_queues_at({("gone", 0): end})
    store.write_checkpoint()
    for seed in range(10):
        again = MessageStore.open(CONFIG, files.crash(random.Random(seed), lose_unflushed), clock)
        assert (again.min_offset("gone", 0), again.max_offset("gone", 0)) == (end, end)


@pytest.mark.parametrize("lose_unflushed", [False, True])
def test_a_message_stored_while_ends_are_read_is_not_taken_for_missing_files(
    lose_unflushed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ends name it, the checkpoint does not cover it yet. The whole log would be read for nothing."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    for _ in range(4):
        store.append(NewMessage("a", 0, b"", b""))
    list_queues = store._queue_set.queues

    def append_and_list() -> list[ConsumeQueue]:
        store.append(NewMessage("a", 0, b"meanwhile", b""))
        return list_queues()

    monkeypatch.setattr(store._queue_set, "queues", append_and_list)
    store.write_checkpoint()
    assert b'"a":{"0":[0,5]}' in files.small["/s/queueends.json"]
    store = MessageStore.open(CONFIG, files.crash(random.Random(1), lose_unflushed), clock)
    assert store.max_offset("a", 0) == 5
    assert BAD not in caplog.text
