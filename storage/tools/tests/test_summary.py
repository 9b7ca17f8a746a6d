"""The summary agrees with the store that wrote the files, whatever their state."""

import os
from pathlib import Path

from storage.append import NewMessage
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


def problems_of(summary: StoreSummary) -> list[str]:
    texts = [part.problem for part in summary.segments] + [part.problem for part in summary.queues]
    return [text for text in texts + [part.problem for part in summary.index] if text]


def test_a_closed_store(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    (root / "config").mkdir()
    table = '{"offsetTable":{"t@g":{0:60,1:67},"gone@g":{"0":5},"broken":{0:1},"t@h":{"x":1,"0":"y"}}}'
    (root / "config" / "consumerOffset.json").write_text(table)
    before = snapshot(root)
    summary = summary_of(root)
    assert snapshot(root) == before
    store = open_store(root)
    end = store.max_physical_offset
    store.close()
    assert (summary.state, summary.pid, summary.first_offset, summary.end_offset) == ("closed", 0, 0, end)
    assert [(part.topic, part.queue_id, part.min_offset, part.max_offset) for part in summary.queues] == [
        ("other", 0, 0, 66),
        ("t", 0, 0, 67),
        ("t", 1, 0, 67),
    ]
    assert [(part.group, part.topic, part.queue_id, part.committed, part.lag) for part in summary.groups] == [
        ("g", "gone", 0, 5, -5),
        ("g", "t", 0, 60, 7),
        ("g", "t", 1, 67, 0),
    ]
    assert [part.first_offset for part in summary.segments] == list(range(0, end, LOG_FILE_BYTES))
    assert summary.segments[-1].end_offset == end
    assert summary.segments[0].first_store_ms == START_MS
    assert summary.segments[-1].last_store_ms == START_MS + 199 * 100
    borders = zip(summary.segments, summary.segments[1:], strict=False)
    assert all(before.last_store_ms + 100 == after.first_store_ms for before, after in borders)
    (index,) = summary.index
    assert (index.keys, index.begin_ms, index.end_ms) == (600, START_MS, START_MS + 199 * 100)
    assert summary.checkpoint["confirmed_until"] == end
    assert problems_of(summary) == []


def test_messages_without_queue_and_expired_ones(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    store = open_store(root, FakeClock(START_MS + 100_000))
    store.append(NewMessage("half", 0, b"x" * 500, b"", sys_flag=4))
    store.commit_log.delete_first()
    for _ in store.hide_expired_entries():
        pass
    end, low = store.max_physical_offset, store.min_offset("t", 0)
    kill_store(store)
    summary = summary_of(root)
    assert summary.state == "crashed"
    assert (summary.first_offset, summary.end_offset) == (LOG_FILE_BYTES, end)
    assert summary.segments[-1].last_store_ms == START_MS + 100_000
    (queue,) = [part for part in summary.queues if (part.topic, part.queue_id) == ("t", 0)]
    assert (queue.min_offset, queue.max_offset, queue.messages) == (low, 67, 67 - low)
    assert low > 0


def test_damaged_files_are_named(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    os.truncate(log_file(root, 1), 5000)
    os.truncate(queue_file(root, number=2), 10)
    summary = summary_of(root)
    assert [part.problem for part in summary.segments if part.problem] == ["it has 5000 bytes, not 8192"]
    assert [part.problem for part in summary.queues if part.problem] == [
        f"{queue_file(root, number=2)} is damaged at byte 10: it has 10 bytes, not 100"
    ]


def test_an_open_store(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_store(root)
    fill(store, 20)
    store.close()
    with open_elsewhere(root) as process:
        summary = summary_of(root)
        assert (summary.state, summary.pid) == ("open", process.pid)
        assert sum(part.messages for part in summary.queues) == 50
        assert {value["kind"] for value in summary.to_values()} == {
            "store", "segment", "queue", "index", "checkpoint"
        }  # fmt: skip


def test_an_empty_store(tmp_path: Path) -> None:
    open_store(tmp_path / "s").close()
    summary = summary_of(tmp_path / "s")
    assert (summary.first_offset, summary.end_offset, summary.queues, summary.index) == (0, 0, [], [])
    assert problems_of(summary) == []
