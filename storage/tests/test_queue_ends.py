"""Queue files that are missing are noticed, rebuilt from the commit log, and no queue offset is given out twice."""

import random

import pytest

from codec.message import decode_message
from storage.append import NewMessage
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
