"""Commits of clients survive the death of the process, and nothing else comes back."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.fastjson import loads
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.consumers.offset_journal import OffsetJournal, open_journal
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ConfigFile
from storage.clock import SystemClock
from storage.crash_files import CrashFiles
from storage.errors import StoreFull
from storage.files import DiskFiles, Files

ROOT = "/store"
PATH = f"{ROOT}/consumeroffsets.journal"
JOURNAL_BYTES = 1 << 18


def open_offsets(
    files: Files, *, was_killed: bool = True, root: str = ROOT, size_bytes: int = JOURNAL_BYTES
) -> ConsumerOffsets:
    journal, records = open_journal(files, root, size_bytes, was_killed=was_killed)
    return ConsumerOffsets(
        ConfigFile(files, f"{root}/config/consumerOffset.json"),
        SystemClock(),
        limits=BrokerLimits(),
        journal=journal,
        records=records,
    )


def killed(files: CrashFiles) -> CrashFiles:
    """Return the files as the next process finds them."""
    return files.crash(random.Random(0), lose_unflushed=False)


@pytest.fixture
def files() -> CrashFiles:
    return CrashFiles()


@pytest.fixture
def offsets(files: CrashFiles) -> ConsumerOffsets:
    return open_offsets(files, was_killed=False)


def test_commits_after_the_last_save_are_there_after_a_kill(
    files: CrashFiles, offsets: ConsumerOffsets
) -> None:
    offsets.commit_of_client("g", "t", 0, 5)
    offsets.persist()
    offsets.commit_of_client("g", "t", 0, 9)
    offsets.commit_of_client("g", "t", 7, 1)
    offsets.commit_of_client("ünïcode", "t", 0, 3)
    again = open_offsets(files := killed(files))
    assert again.table == {"t@g": {0: 9, 7: 1}, "t@ünïcode": {0: 3}}
    assert again.is_dirty
    again.commit_of_client("g", "t", 0, 11)
    assert open_offsets(killed(files)).table == {"t@g": {0: 11, 7: 1}, "t@ünïcode": {0: 3}}


def test_an_offset_that_went_back_is_the_one_that_comes_back(
    files: CrashFiles, offsets: ConsumerOffsets
) -> None:
    offsets.commit_of_client("g", "t", 0, 9)
    offsets.persist()
    offsets.assign_reset("g", "t", 0, 2)
    assert open_offsets(killed(files)).query_offset("g", "t", 0) == 2


def test_what_the_broker_moves_by_itself_is_as_old_as_the_last_save(
    files: CrashFiles, offsets: ConsumerOffsets
) -> None:
    """Pops and transactions have other progress, which is saved at intervals: offsets ahead of it lose messages."""
    offsets.commit_offset("g", "t", 0, 4)
    offsets.persist()
    offsets.commit_offset("g", "t", 0, 8)
    assert open_offsets(killed(files)).query_offset("g", "t", 0) == 4


def test_a_commit_of_the_broker_replaces_one_of_a_client(files: CrashFiles, offsets: ConsumerOffsets) -> None:
    offsets.commit_of_client("g", "t", 0, 4)
    offsets.commit_offset("g", "t", 0, 8)
    offsets.persist()
    assert open_offsets(killed(files)).query_offset("g", "t", 0) == 8


@pytest.mark.parametrize(
    "remove", [lambda offsets: offsets.remove_group("g"), lambda offsets: offsets.remove_topic("t")]
)
def test_removed_offsets_do_not_come_back(
    files: CrashFiles, offsets: ConsumerOffsets, remove: Callable[[ConsumerOffsets], None]
) -> None:
    offsets.commit_of_client("g", "t", 0, 4)
    remove(offsets)
    offsets.persist()
    assert open_offsets(killed(files)).table == {}


def test_cloned_and_limited_offsets(files: CrashFiles, offsets: ConsumerOffsets) -> None:
    offsets.commit_of_client("g", "t", 0, 4)
    offsets.commit_of_client("other", "t", 1, 4)
    offsets.clone_offsets("g", "other", "t")
    offsets.limit_to_queues(lambda topic, queue_id: 3)
    again = open_offsets(killed(files))
    assert again.table == {"t@g": {0: 3}, "t@other": {0: 3}}


def test_nothing_is_read_after_a_power_cut_or_a_clean_close(
    files: CrashFiles, offsets: ConsumerOffsets
) -> None:
    offsets.commit_of_client("g", "t", 0, 4)
    assert open_offsets(killed(files), was_killed=False).table == {}
    offsets.persist()
    offsets.delete_journal()
    assert files.size(PATH) is None
    offsets.commit_of_client("g", "t", 0, 5)  # by a request that ends after the close
    assert open_offsets(killed(files)).query_offset("g", "t", 0) == 4


def test_every_kill_leaves_what_was_committed(files: CrashFiles, offsets: ConsumerOffsets) -> None:
    """A record that is not finished is not there; the bytes of the file after each store of a word."""
    journal, _ = open_journal(files, ROOT, JOURNAL_BYTES, was_killed=True)
    assert journal is not None
    seen = []

    class Words:
        def __init__(self, words: Any) -> None:
            self._words = words

        def __len__(self) -> int:
            return len(self._words)

        def __getitem__(self, at: int) -> int:
            return int(self._words[at])

        def __setitem__(self, at: int, value: int) -> None:
            self._words[at] = value
            seen.append(open_offsets(killed(files)).table)

    journal._words = Words(journal._words)  # type: ignore[assignment]
    journal.record("t@g", 0, 4)
    journal.record("t@g", 1, 5)
    journal.record("t@g", 0, 6)
    tables = [{}, {}, {"t@g": {0: 4}}, {"t@g": {0: 4}}, {"t@g": {0: 4}}]
    assert seen == [*tables, {"t@g": {0: 4, 1: 5}}, {"t@g": {0: 6, 1: 5}}]


@pytest.mark.parametrize("seed", range(100))
def test_a_disk_that_went_away_takes_nothing_that_was_saved(seed: int) -> None:
    """Each sector is old or new by chance, in the same boot: an offset is never older than the last save."""
    chance = random.Random(seed)
    files = CrashFiles()
    offsets = open_offsets(files, was_killed=False)
    history: dict[tuple[str, int], list[int]] = {}
    for _ in range(chance.randrange(200)):
        topic, queue_id = f"topic-{chance.randrange(20) * 'x'}", chance.randrange(3)
        if chance.random() < 0.02:
            offsets.persist()
            history = {each: offsets_of_queue[-1:] for each, offsets_of_queue in history.items()}
        offset = chance.randrange(1 << 40)
        offsets.commit_of_client("g", topic, queue_id, offset)
        history.setdefault((topic, queue_id), []).append(offset)
    again = open_offsets(files.crash(chance, lose_unflushed=True))
    for key, queues in again.table.items():
        for queue_id, offset in queues.items():
            assert offset in history[key.partition("@")[0], queue_id]
    if saved := files.read_small(f"{ROOT}/config/consumerOffset.json"):
        for key, queues in loads(saved)["offsetTable"].items():
            assert set(map(int, queues)) <= again.table[key].keys()


def test_a_file_that_is_not_a_journal_is_replaced(
    files: CrashFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.open_mapped(PATH, JOURNAL_BYTES).view[:8] = b"whatever"
    offsets = open_offsets(files)
    assert "journal of consumer offsets cannot be read" in caplog.text
    offsets.commit_of_client("g", "t", 0, 4)
    assert open_offsets(killed(files)).query_offset("g", "t", 0) == 4


def test_without_room_on_the_disk_offsets_are_saved_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    files = CrashFiles(capacity_bytes=20_000)
    offsets = open_offsets(files, was_killed=False)
    for queue_id in range(2000):
        offsets.commit_of_client("g", "t", queue_id, queue_id)
    assert caplog.text.count("consumer offsets survive SIGKILL no more") == 1
    assert 0 < len(open_offsets(killed(files)).table["t@g"]) < 2000
    assert len(offsets.table["t@g"]) == 2000
    full = CrashFiles(capacity_bytes=0)
    assert open_journal(full, ROOT, JOURNAL_BYTES, was_killed=False) == (None, [])
    with pytest.raises(StoreFull):
        OffsetJournal(full, full.open_mapped(PATH, JOURNAL_BYTES)).begin()


def test_a_full_journal_keeps_what_it_has(files: CrashFiles, caplog: pytest.LogCaptureFixture) -> None:
    offsets = open_offsets(files, was_killed=False, size_bytes=80)
    for queue_id, offset in ((0, 1), (1, 2), (2, 3), (3, 3), (0, 4)):
        offsets.commit_of_client("g", "t", queue_id, offset)
    assert open_offsets(killed(files)).table == {"t@g": {0: 4, 1: 2}}
    assert caplog.text.count("consumer offsets survive SIGKILL no more") == 1


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["client", "broker", "reset", "clone", "topic", "group", "save", "kill"]),
        st.sampled_from("ab"),
        st.sampled_from("tu"),
        st.integers(0, 2),
        st.integers(0, 9),
    ),
    max_size=30,
)


@given(CHANGES)
def test_a_kill_loses_no_more_than_the_brokers_own_commits(
    changes: list[tuple[str, str, str, int, int]],
) -> None:
    """A model: each offset is what the table said at the kill, or of the broker's own commits the last saved one."""
    files = CrashFiles()
    offsets = open_offsets(files, was_killed=False)
    volatile: set[tuple[str, int]] = set()
    saved: dict[str, dict[int, int]] = {}
    for kind, group, topic, queue_id, offset in changes:
        key = f"{topic}@{group}"
        match kind:
            case "client":
                offsets.commit_of_client(group, topic, queue_id, offset)
                volatile.discard((key, queue_id))
            case "broker":
                offsets.commit_offset(group, topic, queue_id, offset)
                volatile.add((key, queue_id))
            case "reset":
                offsets.assign_reset(group, topic, queue_id, offset)
                volatile.discard((key, queue_id))
            case "clone":
                other = "b" if group == "a" else "a"
                had = offsets.queue_offsets(group, topic) is not None
                offsets.clone_offsets(group, other, topic)
                if had:
                    volatile -= {each for each in volatile if each[0] == f"{topic}@{other}"}
                    volatile |= {(f"{topic}@{other}", each) for each in saved.get(f"{topic}@{other}", {})}
                    volatile -= {(f"{topic}@{other}", each) for each in offsets.table[f"{topic}@{other}"]}
            case "topic" | "group":
                keys = [each for each in offsets.table if each.startswith(topic) or kind == "group"]
                keys = [each for each in keys if each.endswith(group) or kind == "topic"]
                (offsets.remove_topic if kind == "topic" else offsets.remove_group)(
                    topic if kind == "topic" else group
                )
                volatile |= {(each, number) for each in keys for number in range(3)}
            case "save":
                offsets.persist()
                saved = {each: dict(queues) for each, queues in offsets.table.items()}
                volatile.clear()
            case "kill":
                before = {each: dict(queues) for each, queues in offsets.table.items()}
                offsets = open_offsets(files := killed(files))
                for each in {*before, *offsets.table}:
                    for number in range(3):
                        found = offsets.table.get(each, {}).get(number)
                        expected = saved if (each, number) in volatile else before
                        assert found == expected.get(each, {}).get(number)
                offsets.persist()
                saved = {each: dict(queues) for each, queues in offsets.table.items()}
                volatile.clear()


def test_files_on_a_disk(tmp_path: Any) -> None:
    files = DiskFiles()
    offsets = open_offsets(files, was_killed=False, root=str(tmp_path))
    for number in range(1000):
        offsets.commit_of_client("g", f"topic-{number % 50}", number % 4, number)
    path = tmp_path / "consumeroffsets.journal"
    assert path.stat().st_size == JOURNAL_BYTES
    assert path.stat().st_blocks * 512 < 64 * 1024
    again = open_offsets(files, root=str(tmp_path))
    assert again.table == offsets.table
    again.persist()
    again.delete_journal()
    assert not path.exists()
