"""A backup opens like the store itself, holds all messages up to its end, and is never half made."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from codec.message import Message
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.errors import CorruptionError, StoreError, StoreFull
from storage.store import MessageStore
from storage.tests.support import FakeClock
from storage.tools import backup as backup_module
from storage.tools.backup import Backup, BackupRefused, BackupResult, back_up
from storage.tools.dump import DumpFilter, dump_messages
from storage.tools.file_copy import FileCopier
from storage.tools.findings import StoreFinding
from storage.tools.store_reader import StoreReader
from storage.tools.tests.stores import (
    COUNT,
    LOG_FILE_BYTES,
    append_more,
    disk_config,
    fill,
    flip_bit,
    index_file,
    kill_store,
    log_file,
    make_store,
    open_elsewhere,
    open_store,
    queue_file,
    snapshot,
    verify,
)

Hook = Callable[[int], object]


def make_backup(
    root: Path, target: Path, progress: Hook = lambda copied: None, **changes: object
) -> BackupResult:
    reader = StoreReader(disk_config(root, **changes))
    try:
        return back_up(reader, str(target), progress)
    finally:
        reader.close()


def bodies(store: MessageStore) -> set[bytes]:
    """Return all messages that can be read, and check that queues have no gaps."""
    messages = set()
    for topic, queue_id in store.queue_keys():
        offset = store.min_offset(topic, queue_id)
        while offset < store.max_offset(topic, queue_id):
            view = store.message_at(store.physical_offset_at(topic, queue_id, offset))
            assert view is not None
            messages.add(bytes(view))
            offset += 1
    return messages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def test_a_closed_store(root: Path, target: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    (root / "config" / "topics.json.bak").write_text("old")
    (root / "staged" / "writer" / "pieces").mkdir(parents=True)
    (root / "staged" / "writer" / "pieces" / "1.a.0").write_text("piece")
    (root / "rocksdbstore").mkdir()
    (root / "kvStore").mkdir()
    before = snapshot(root)
    result = make_backup(root, target)
    assert snapshot(root) == before
    assert not result.needs_recovery
    assert result.left_out == ["kvStore"]
    copied = snapshot(target)
    del before["lock"], before["config/topics.json.bak"], before["queueends.json"]
    assert copied.keys() == before.keys()
    assert {name for name in copied if copied[name] != before[name]} <= {
        str(index_file(root).relative_to(root))
    }
    assert verify(target)[1] == []
    store, copy = open_store(root), open_store(target)
    assert bodies(copy) == bodies(store)
    assert "recovering" not in caplog.text
    fill(copy, 3, 500)
    copy.close()
    store.close()


@pytest.mark.parametrize("blank", [0, 1])
def test_a_queue_whose_messages_have_expired_keeps_its_place_in_the_copy(
    tmp_path: Path, target: Path, blank: int
) -> None:
    """At the beginning of a file the queue has no entry, not even a blank one."""
    root = tmp_path / "store"
    store = open_store(root)
    store.begin_log_at(LOG_FILE_BYTES)
    store.append(NewMessage("t", 0, b"", b""))
    end = 5 * store.config.consume_queue_file_entries + blank
    store.begin_empty_queues_at({("old", 0): end})
    store.close()
    make_backup(root, target)
    copy = open_store(target)
    assert copy.max_offset("old", 0) == end
    copy.close()


def test_a_deleted_topic_does_not_come_back_with_the_copy(root: Path, target: Path) -> None:
    clock = FakeClock()
    clock.advance(1000 * COUNT)
    store = open_store(root, clock)
    store.delete_topic("t")
    store.close()
    make_backup(root, target)
    shutil.rmtree(target / "consumequeue")
    copy = open_store(target)
    assert copy.topics() == {"other"}
    copy.close()


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/t/0", "index"])
def test_later_changes_in_place_do_not_reach_the_copy(root: Path, target: Path, folder: str) -> None:
    """Not hard links: a repair replaces bytes of old files, and a broker would change them through the copy."""
    make_backup(root, target)
    before = snapshot(target)
    for path in (root / folder).iterdir():
        assert path.stat().st_ino != (target / folder / path.name).stat().st_ino
        for position in (0, 50):
            flip_bit(path, position)
    assert snapshot(target) == before


@pytest.mark.parametrize("number", [0, 1, 2, 49, 50, 100, 150, COUNT - 1])
def test_whatever_came_after_the_end_is_left_out(
    root: Path, target: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the messages from this one on had been appended and indexed during the backup."""
    store = open_store(root)
    end = store.physical_offset_at(*(("t", 0), ("t", 1), ("other", 0))[number % 3], number // 3)
    expected = {message for message in bodies(store) if int.from_bytes(message[28:36]) < end}
    assert len(expected) == number
    store.close()
    monkeypatch.setattr(Backup, "_find_end", lambda self, known_until: end)
    os.truncate(root / "checkpoint", 0)  # it would cover more than the copy has
    (root / "checkpoint").write_bytes(bytes(4096))
    result = make_backup(root, target)
    assert (result.end_offset, result.needs_recovery) == (end, False)
    _, findings = verify(target)
    assert findings == []
    copy = open_store(target)
    assert copy.max_physical_offset == end
    assert bodies(copy) == expected
    if number > 10:
        assert len(copy.query_by_key("t", f"k{number // 2 // 3 * 3}", 9, 0, 1 << 60)) == 1
        assert copy.query_by_key("t", "k199", 9, 0, 1 << 60) == []
    copy.close()


def test_a_broker_goes_on_writing(root: Path, target: Path) -> None:
    with open_elsewhere(root) as process:
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.01):
                append_more(process)

        append_more(process)
        reader = StoreReader(disk_config(root))
        acknowledged = {message.body for message in all_messages(reader)}
        reader.close()
        writer = threading.Thread(target=write)
        writer.start()
        try:
            results = [make_backup(root, target.with_name(f"backup{number}")) for number in range(5)]
        finally:
            stop.set()
            writer.join()
        assert len(acknowledged) == COUNT + 60
    for number, result in enumerate(results):
        backup_path = target.with_name(f"backup{number}")
        assert not result.needs_recovery
        assert verify(backup_path)[1] == []
        reader = StoreReader(disk_config(backup_path))
        assert {message.body for message in all_messages(reader)} >= acknowledged
        reader.close()
        copy = open_store(backup_path)
        assert copy.max_physical_offset == result.end_offset
        copy.close()


def all_messages(reader: StoreReader) -> list[Message | StoreFinding]:
    return [message for topic in ("t", "other") for message in dump_messages(reader, DumpFilter(topic=topic))]


def test_progress_is_copied_before_the_log_and_settings_after_it(root: Path, target: Path) -> None:
    """An offset must not be ahead of its queue in the copy, and no topic of a copied message may be missing."""
    config = root / "config"
    config.mkdir()
    names = ("consumerOffset.json", "delayOffset.json", "topics.json", "subscriptionGroup.json")
    for name in names:
        (config / name).write_text('{"then":1}')
    checkpoint = (root / "checkpoint").read_bytes()

    def change(copied: int) -> None:
        for name in names:
            (config / name).write_text('{"later":1}')
        (root / "checkpoint").write_bytes(bytes(4096))

    make_backup(root, target, change)
    files = {name: (target / "config" / name).read_text() for name in names}
    assert files == {
        "consumerOffset.json": '{"then":1}',
        "delayOffset.json": '{"then":1}',
        "topics.json": '{"later":1}',
        "subscriptionGroup.json": '{"later":1}',
    }
    assert (target / "checkpoint").read_bytes() == checkpoint


def test_staged_batches_are_copied_as_they_are_at_one_moment(
    root: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is published meanwhile is copied again: its parts and its intent belong together."""
    folder = root / "staged" / "writer"
    folder.mkdir(parents=True)
    (folder / "intent").write_text("first")
    copied: list[str] = []
    original = FileCopier.copy_whole

    def copy_and_publish(self: FileCopier, source: str, to: str) -> None:
        original(self, source, to)
        if source.endswith("intent"):
            copied.append(source)
            if len(copied) == 1:
                (folder / "intent").unlink()
                (folder / "mark").write_text("published")

    monkeypatch.setattr(FileCopier, "copy_whole", copy_and_publish)
    make_backup(root, target)
    assert snapshot(target / "staged") == {"writer/mark": b"published"}


def test_files_that_expire_meanwhile_leave_no_gap(root: Path, target: Path) -> None:
    """The oldest files vanish after the newest was copied."""
    expired: list[str] = []

    def expire(copied: int) -> None:
        if not expired:
            for number in (0, 1):
                expired.append(str(log_file(root, number)))
                log_file(root, number).unlink()

    result = make_backup(root, target, expire)
    assert len(expired) == 2
    assert result.first_offset == 2 * LOG_FILE_BYTES
    assert sorted(path.name for path in (target / "commitlog").iterdir())[0] == f"{2 * LOG_FILE_BYTES:020d}"
    assert verify(target)[0].damage_count == 0
    copy = open_store(target)
    assert 0 < copy.min_offset("t", 0) < copy.max_offset("t", 0) == 67
    copy.close()


def test_missing_queue_entries_are_added_when_the_copy_is_opened(root: Path, target: Path) -> None:
    """An official broker writes queue entries a moment after the message."""
    for topic, queue_id, number in (("t", 0, 13), ("t", 1, 13), ("other", 0, 13)):
        path = queue_file(root, topic, queue_id, number)
        path.write_bytes(path.read_bytes()[:20].ljust(100, b"\0"))
    assert make_backup(root, target).needs_recovery
    assert (target / "abort").exists()
    copy = open_store(target)
    assert len(bodies(copy)) == COUNT
    copy.close()


def test_a_killed_store(root: Path, target: Path) -> None:
    store = open_store(root)
    fill(store, 30, COUNT)
    physical_offset = store.append(NewMessage("t", 0, b"torn", b""))[1]
    kill_store(store)
    flip_bit(max((root / "commitlog").iterdir()), physical_offset % LOG_FILE_BYTES + 4)
    result = make_backup(root, target)
    assert (result.needs_recovery, result.end_offset) == (True, physical_offset)
    copy = open_store(target)
    assert len(bodies(copy)) == COUNT + 30
    copy.close()


def test_an_empty_store(tmp_path: Path, target: Path) -> None:
    open_store(tmp_path / "s").close()
    assert make_backup(tmp_path / "s", target).end_offset == 0
    open_store(target).close()


def test_a_damaged_end_is_refused(root: Path, target: Path) -> None:
    store = open_store(root)
    physical_offset = store.append(NewMessage("t", 0, b"last", b""))[1]
    store.close()
    flip_bit(max((root / "commitlog").iterdir()), physical_offset % LOG_FILE_BYTES + 4)
    with pytest.raises(CorruptionError, match="store repair"):
        make_backup(root, target)
    assert [path.name for path in target.parent.iterdir()] == ["store"]


def test_places_that_are_refused(root: Path, target: Path) -> None:
    with pytest.raises(BackupRefused, match="inside the store"):
        make_backup(root, root / "backup")
    with pytest.raises(BackupRefused, match="Create it first"):
        make_backup(root, target / "deep")
    target.mkdir()
    with pytest.raises(BackupRefused, match="exists already"):
        make_backup(root, target)


def test_no_room(root: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_module, "try_reflink", lambda from_fd, to_fd: False)
    monkeypatch.setattr(backup_module, "allocated_bytes", lambda reader: 1 << 60)
    with pytest.raises(StoreFull, match=r"needs 1,152,921,504,606,846,976 bytes, but .* has only"):
        make_backup(root, target)
    assert [path.name for path in target.parent.iterdir()] == ["store"]


def test_an_interrupted_backup_leaves_nothing(root: Path, target: Path) -> None:
    def interrupt(copied: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_backup(root, target, interrupt)
    assert [path.name for path in target.parent.iterdir()] == ["store"]


def test_a_killed_backup_is_not_taken_for_a_whole_one(root: Path, target: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom storage.tools.tests.test_backup import make_backup\n"
        "make_backup(Path(sys.argv[1]), Path(sys.argv[2]), lambda copied: os.kill(os.getpid(), signal.SIGKILL))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root), str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.name for path in target.parent.iterdir()) == ["backup.partial", "store"]
    with pytest.raises(BackupRefused, match="was interrupted"):
        make_backup(root, target)


def test_another_index_size_is_explained(root: Path, target: Path) -> None:
    with pytest.raises(StoreError, match="maxHashSlotNum"):
        make_backup(root, target, index_slots=5_000_000)
    assert not target.exists()


def test_the_commit_log_may_be_elsewhere(root: Path, target: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "elsewhere")
    make_backup(root, target, commit_log_dir=str(tmp_path / "elsewhere"))
    assert verify(target)[1] == []


def test_default_sizes(tmp_path: Path, target: Path) -> None:
    """Files of a GiB that are mostly holes stay so."""
    store = MessageStore.open(StoreConfig(str(tmp_path / "s")), clock=FakeClock())
    fill(store, 30)
    store.close()
    reader = StoreReader(StoreConfig(str(tmp_path / "s")))
    result = back_up(reader, str(target), lambda copied: None)
    reader.close()
    assert result.bytes < 64 << 20
    for path in target.rglob("*"):
        source = tmp_path / "s" / path.relative_to(target)
        assert path.is_dir() or path.stat().st_size == source.stat().st_size
    assert sum(path.stat().st_blocks * 512 for path in target.rglob("*")) < 64 << 20


def test_a_queue_that_cannot_be_copied_is_no_complete_backup(
    root: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(self: Backup, queue: object) -> int:
        raise FileNotFoundError("gone")

    monkeypatch.setattr(Backup, "_copy_queue", vanish)
    with pytest.raises(StoreError, match="vanish all the time"):
        make_backup(root, target)
    assert [path.name for path in target.parent.iterdir()] == ["store"]
