"""After a repair everything that was not damaged is readable at its offset, and what was cut is kept."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from codec.message import iter_messages
from storage.append import NewMessage
from storage.errors import StoreError
from storage.store import MessageStore
from storage.tools.repair import RepairPlan, StoreIsOpen, carry_out, plan_repair
from storage.tools.store_reader import StoreReader
from storage.tools.tests.stores import (
    COUNT,
    LOG_FILE_BYTES,
    damage_of,
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
)

QUEUES = (("t", 0), ("t", 1), ("other", 0))
ENDS = {("t", 0): 67, ("t", 1): 67, ("other", 0): 66}


def plan(root: Path, *, index_sizes_known: bool = True, **changes: object) -> RepairPlan:
    reader = StoreReader(disk_config(root, **changes))
    try:
        return plan_repair(
            reader, lambda done: None, lambda finding: None, index_sizes_known=index_sizes_known
        )
    finally:
        reader.close()


def read_all(store: MessageStore) -> list[int]:
    """Return the numbers of all readable messages, each at the offset it was stored at."""
    message_numbers = []
    for index, (topic, queue_id) in enumerate(QUEUES):
        offset = store.min_offset(topic, queue_id)
        while offset < store.max_offset(topic, queue_id):
            result = store.read(topic, queue_id, offset, 32)
            assert result.next_offset > offset
            for chunk in result.chunks:
                for message in iter_messages(chunk):
                    assert message.queue_id == queue_id
                    message_numbers.append(int(message.body.split()[1]))
                    assert message.queue_offset * 3 + index == message_numbers[-1]
            offset = result.next_offset
    return sorted(message_numbers)


def place_of(root: Path, number: int) -> int:
    store = open_store(root)
    physical_offset = store.physical_offset_at(*QUEUES[number % 3], number // 3)
    store.close()
    return physical_offset


def damage_message(root: Path, number: int) -> None:
    physical_offset = place_of(root, number)
    base = physical_offset - physical_offset % LOG_FILE_BYTES
    flip_bit(root / "commitlog" / f"{base:020d}", physical_offset - base + 90)


def messages_of_file(root: Path, number: int) -> set[int]:
    """Return the numbers of the messages in one log file."""
    return {
        message_number
        for message_number in range(COUNT)
        if place_of(root, message_number) // LOG_FILE_BYTES == number
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def repair_and_check(root: Path, lost: set[int]) -> MessageStore:
    """Repair a store; assert that it is whole and has all messages but the lost ones. Return it open."""
    repair_plan = plan(root)
    assert not repair_plan.is_empty
    assert list(repair_plan.describe())
    carry_out(repair_plan)
    assert damage_of(root) == []
    assert plan(root).is_empty
    store = open_store(root)
    assert read_all(store) == [number for number in range(COUNT) if number not in lost]
    assert {key: store.max_offset(*key) for key in QUEUES} == ENDS
    for number in set(range(0, COUNT, 7)) - lost:
        key = f"k{number}"
        (physical_offset,) = store.query_by_key(QUEUES[number % 3][0], key, 9, 0, 1 << 60)
        assert physical_offset == store.physical_offset_at(*QUEUES[number % 3], number // 3)
    return store


def test_a_whole_store_needs_nothing(root: Path) -> None:
    before = snapshot(root)
    assert plan(root).is_empty
    assert snapshot(root) == before


@pytest.mark.parametrize(
    "numbers", [{0}, {50}, {50, 51, 52}, {COUNT - 1}, {COUNT - 3, COUNT - 2, COUNT - 1}, {3, 150}]
)
def test_damaged_messages(root: Path, numbers: set[int]) -> None:
    for number in numbers:
        damage_message(root, number)
    before = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    store = repair_and_check(root, numbers)
    for copy in (root / "damaged").glob("0*"):
        start, end = (int(part) for part in copy.name.split("-"))
        base = start - start % LOG_FILE_BYTES
        assert copy.read_bytes()[:92] == before[f"{base:020d}"][start - base : start - base + 92]
    fill(store, 3, COUNT + 1)  # 201 is the next of queue t 0
    assert store.max_offset("t", 0) == 68
    store.close()
    assert damage_of(root) == []


@pytest.mark.parametrize("which", [1, 2, -1])
def test_a_missing_log_file(root: Path, which: int) -> None:
    files = sorted((root / "commitlog").iterdir())
    lost = messages_of_file(root, range(len(files))[which])
    files[which].unlink()
    repair_and_check(root, lost).close()


def test_a_truncated_log_file(root: Path) -> None:
    lost = {number for number in messages_of_file(root, 1) if place_of(root, number) > LOG_FILE_BYTES + 4800}
    os.truncate(log_file(root, 1), 4900)
    repair_and_check(root, lost).close()


def test_a_last_log_file_that_lost_only_zeros_is_extended(root: Path) -> None:
    store = open_store(root)
    end = store.max_physical_offset
    store.close()
    last = max((root / "commitlog").iterdir())
    os.truncate(last, end % LOG_FILE_BYTES)
    repair_and_check(root, set()).close()
    assert not (root / "damaged").exists()


def flip_queue_entry(root: Path) -> None:
    flip_bit(queue_file(root, number=1), 44)


def delete_queue_file(root: Path) -> None:
    queue_file(root, number=2).unlink()


def truncate_queue_file(root: Path) -> None:
    os.truncate(queue_file(root, number=2), 50)


def flip_index_entry(root: Path) -> None:
    flip_bit(index_file(root), 40 + 64 * 4 + 20 * 300)


def truncate_checkpoint(root: Path) -> None:
    os.truncate(root / "checkpoint", 7)


def spoil_table(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text("{")


DAMAGES = (
    flip_queue_entry, delete_queue_file, truncate_queue_file, flip_index_entry, truncate_checkpoint, spoil_table
)  # fmt: skip


@pytest.mark.parametrize("spoil", DAMAGES)
def test_other_files(root: Path, spoil: Callable[[Path], None]) -> None:
    spoil(root)
    before = snapshot(root)
    damaged = {os.path.relpath(finding.file, root) for finding in damage_of(root)}
    repair_and_check(root, set()).close()
    (folder,) = (root / "damaged").iterdir()
    copies = snapshot(folder)
    assert copies
    assert all(before[name] == content for name, content in copies.items())
    assert damaged & before.keys() <= copies.keys()


def test_everything_at_once(root: Path) -> None:
    damage_message(root, 100)
    for spoil in DAMAGES:
        if spoil is not truncate_queue_file:  # its file is missing already
            spoil(root)
    repair_and_check(root, {100}).close()


def test_a_torn_end_is_kept_before_it_is_cut_off(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    store = open_store(root)
    end = store.append(NewMessage("t", 0, b"torn " * 20, b""))[1]
    kill_store(store)
    last = max((root / "commitlog").iterdir())
    flip_bit(last, end % LOG_FILE_BYTES + 100)
    torn = last.read_bytes()[end % LOG_FILE_BYTES :].rstrip(b"\0")
    repair_and_check(root, set()).close()
    (copy,) = (root / "damaged").iterdir()
    assert copy.read_bytes().rstrip(b"\0") == torn


def test_a_killed_store_is_recovered(root: Path) -> None:
    store = open_store(root)
    kill_store(store)
    repair_plan = plan(root)
    assert list(repair_plan.describe()) == [
        "recover, as the next start would: add missing queue entries after the checkpoint"
    ]
    repair_and_check(root, set()).close()
    assert not (root / "abort").exists()


def test_deleted_topics_do_not_come_back(root: Path) -> None:
    store = open_store(root)
    store.delete_topic("other")
    store.close()
    flip_queue_entry(root)
    carry_out(plan(root))
    store = open_store(root)
    assert store.topics() == {"t"}
    store.close()


def test_topics_stay_if_nothing_tells_that_they_were_deleted(root: Path) -> None:
    for path in sorted((root / "consumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (root / "consumequeue").rmdir()
    flip_bit(log_file(root), 90)
    carry_out(plan(root))
    store = open_store(root)
    assert store.topics() == {"t", "other"}
    store.close()


def test_an_open_store_is_refused(root: Path) -> None:
    with open_elsewhere(root) as process:
        before = snapshot(root)
        with pytest.raises(StoreIsOpen, match=f"process {process.pid}"):
            plan(root)
        assert snapshot(root) == before


def test_an_index_of_unknown_size_is_not_taken_for_damage(root: Path) -> None:
    before = snapshot(root)
    with pytest.raises(StoreError, match="maxHashSlotNum"):
        plan(root, index_sizes_known=False, index_slots=5_000_000)
    assert snapshot(root) == before


def test_a_plan_from_before_a_broker_ran_is_refused(root: Path) -> None:
    damage_message(root, 50)
    repair_plan = plan(root)
    store = open_store(root)
    fill(store, 3, COUNT + 1)
    store.close()
    before = snapshot(root)
    with pytest.raises(StoreError, match="run the command again"):
        carry_out(repair_plan)
    assert snapshot(root) == before
