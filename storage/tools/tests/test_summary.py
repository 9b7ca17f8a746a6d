"""The summary agrees with the store that wrote the files, whatever their state."""

import os
from pathlib import Path

from storage.tests.support import FakeClock
from storage.tools.store_reader import StoreReader
from storage.tools.summary import StoreSummary, summarize_store
from storage.tools.tests.stores import (
    LOG_FILE_BYTES,
    disk_config,
    fill,
    kill_store,
    log_file,
    make_store,
    open_elsewhere,
    open_store,
    queue_file,
    snapshot,
)

START_MS = 1_700_000_000_000


def summary_of(root: Path) -> StoreSummary:
    reader = StoreReader(disk_config(root))
    try:
        return summarize_store(reader)
    finally:
        reader.close()


def problems_of(found: StoreSummary) -> list[str]:
    texts = [each.problem for each in found.segments] + [each.problem for each in found.queues]
    return [text for text in texts + [each.problem for each in found.index] if text]


def test_a_closed_store(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    (root / "config").mkdir()
    table = '{"offsetTable":{"t@g":{0:60,1:67},"gone@g":{"0":5},"broken":{0:1},"t@h":{"x":1,"0":"y"}}}'
    (root / "config" / "consumerOffset.json").write_text(table)
    before = snapshot(root)
    found = summary_of(root)
    assert snapshot(root) == before
    store = open_store(root)
    end = store.max_physical_offset
    store.close()
    assert (found.state, found.pid, found.first_offset, found.end_offset) == ("closed", 0, 0, end)
    assert [(each.topic, each.queue_id, each.min_offset, each.max_offset) for each in found.queues] == [
        ("other", 0, 0, 66),
        ("t", 0, 0, 67),
        ("t", 1, 0, 67),
    ]
    assert [(each.group, each.topic, each.queue_id, each.committed, each.lag) for each in found.groups] == [
        ("g", "gone", 0, 5, -5),
        ("g", "t", 0, 60, 7),
        ("g", "t", 1, 67, 0),
    ]
    assert [each.first_offset for each in found.segments] == list(range(0, end, LOG_FILE_BYTES))
    assert found.segments[-1].end_offset == end
    assert found.segments[0].first_store_ms == START_MS
    assert found.segments[-1].last_store_ms == START_MS + 199 * 100
    borders = zip(found.segments, found.segments[1:], strict=False)
    assert all(before.last_store_ms + 100 == after.first_store_ms for before, after in borders)
    (index,) = found.index
    assert (index.keys, index.begin_ms, index.end_ms) == (600, START_MS, START_MS + 199 * 100)
    assert found.checkpoint["confirmed_until"] == end
    assert problems_of(found) == []


def test_messages_without_queue_and_expired_ones(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    store = open_store(root, FakeClock(START_MS + 100_000))
    store.append("half", 0, b"x" * 500, sys_flag=4)
    store.commit_log.delete_first()
    for _ in store.hide_expired_entries():
        pass
    end, low = store.max_physical_offset, store.min_offset("t", 0)
    kill_store(store)
    found = summary_of(root)
    assert found.state == "crashed"
    assert (found.first_offset, found.end_offset) == (LOG_FILE_BYTES, end)
    assert found.segments[-1].last_store_ms == START_MS + 100_000
    (queue,) = [each for each in found.queues if (each.topic, each.queue_id) == ("t", 0)]
    assert (queue.min_offset, queue.max_offset, queue.messages) == (low, 67, 67 - low)
    assert low > 0


def test_damaged_files_are_named(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    os.truncate(log_file(root, 1), 5000)
    os.truncate(queue_file(root, number=2), 10)
    found = summary_of(root)
    assert [each.problem for each in found.segments if each.problem] == ["it has 5000 bytes, not 8192"]
    assert [each.problem for each in found.queues if each.problem] == [
        f"{queue_file(root, number=2)} is damaged at byte 10: it has 10 bytes, not 100"
    ]


def test_an_open_store(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_store(root)
    fill(store, 20)
    store.close()
    with open_elsewhere(root) as process:
        found = summary_of(root)
        assert (found.state, found.pid) == ("open", process.pid)
        assert sum(each.messages for each in found.queues) == 50
        assert {value["kind"] for value in found.to_values()} == {
            "store", "segment", "queue", "index", "checkpoint"
        }  # fmt: skip


def test_an_empty_store(tmp_path: Path) -> None:
    open_store(tmp_path / "s").close()
    found = summary_of(tmp_path / "s")
    assert (found.first_offset, found.end_offset, found.queues, found.index) == (0, 0, [], [])
    assert problems_of(found) == []
