"""A whole store has no finding; every kind of damage is found, with its file and byte."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from codec.sysflag import TRANSACTION_PREPARED
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.confirmed_store import ConfirmedStore
from storage.tests.support import FakeClock
from storage.tools.findings import Part
from storage.tools.queue_check import EPOCHS_NAME
from storage.tools.store_reader import StoreReader
from storage.tools.tests.stores import (
    COUNT,
    LOG_FILE_BYTES,
    append_more,
    damage_of,
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def place_of(root: Path, topic: str, queue_id: int, offset: int) -> int:
    """Return the physical offset of a message."""
    store = open_store(root)
    physical_offset = store.physical_offset_at(topic, queue_id, offset)
    store.close()
    return physical_offset


def test_a_whole_store_has_no_findings_and_is_not_changed(root: Path) -> None:
    before = snapshot(root)
    verification, findings = verify(root)
    assert findings == []
    assert verification.log_check.messages == verification.queue_check.entries == COUNT
    assert verification.index_check.entries == 3 * COUNT  # key, unique key and tag
    assert snapshot(root) == before


def test_an_empty_store(tmp_path: Path) -> None:
    open_store(tmp_path / "s").close()
    assert damage_of(tmp_path / "s") == []


def test_a_flipped_bit_in_a_body(root: Path) -> None:
    physical_offset = place_of(root, "t", 1, 20)
    base = physical_offset - physical_offset % LOG_FILE_BYTES
    flip_bit(root / "commitlog" / f"{base:020d}", physical_offset - base + 90)
    (finding,) = damage_of(root)
    assert (finding.part, finding.file) == (Part.LOG, f"{root}/commitlog/{base:020d}")
    assert (finding.offset, finding.reason) == (physical_offset - base, "the body does not match its CRC")
    verification, _ = verify(root)
    assert verification.queue_check.unreadable == 1
    assert verification.log_check.messages == COUNT - 1


def test_every_bit_of_a_queue_entry_matters(root: Path) -> None:
    path = queue_file(root, number=1)
    for position in range(40, 60):  # entry 7
        for bit in range(8):
            flip_bit(path, position, bit)
            first, *_ = findings = damage_of(root)
            assert first.part is Part.QUEUE, findings
            # An entry that now looks empty may be taken for the end of the queue.
            assert (first.file, first.offset, first.queue_offset) == (str(path), 40, 7), findings
            assert (first.topic, first.queue_id) == ("t", 0)
            flip_bit(path, position, bit)
    assert damage_of(root) == []


def test_every_bit_of_an_index_entry_and_slot_matters(root: Path) -> None:
    path = index_file(root)
    entry = 40 + 64 * 4 + 20 * 300
    slots = [40 + 4 * slot for slot in range(0, 64, 9)]
    for position in [*range(entry, entry + 20), *(slot + byte for slot in slots for byte in range(4))]:
        for bit in (0, 6):
            flip_bit(path, position, bit)
            findings = damage_of(root)
            assert {finding.part for finding in findings} == {Part.INDEX}, (position, bit)
            assert {finding.file for finding in findings} == {str(path)}
            if position >= entry:
                assert entry in {finding.offset for finding in findings}
            flip_bit(path, position, bit)
    assert damage_of(root) == []


def test_random_bits_of_log_headers_are_found(root: Path) -> None:
    """All fields that the store relies on: size, magic, CRC, queue, offsets, sys flag's host bits, lengths, topic."""
    physical_offset = place_of(root, "t", 0, 30)
    base = physical_offset - physical_offset % LOG_FILE_BYTES
    path = root / "commitlog" / f"{base:020d}"
    fields = [*range(0, 16), *range(20, 36), *range(84, 88)]
    generator = random.Random(27)
    for position in fields:
        bit = generator.randrange(8)
        flip_bit(path, physical_offset - base + position, bit)
        findings = damage_of(root)
        assert findings, (position, bit)
        flip_bit(path, physical_offset - base + position, bit)


def test_a_missing_log_file(root: Path) -> None:
    log_file(root, 1).unlink()
    findings = damage_of(root)
    assert [(finding.file, finding.reason) for finding in findings] == [
        (str(log_file(root, 1)), "the file is missing")
    ]
    assert findings[0].bytes == LOG_FILE_BYTES


def test_a_missing_last_log_file(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    last.unlink()
    first, *later = damage_of(root)
    assert "the checkpoint covers it up to" in first.reason
    assert first.file == str(last)
    assert {finding.part for finding in later} <= {Part.QUEUE, Part.INDEX}


def test_a_truncated_log_file(root: Path) -> None:
    os.truncate(log_file(root, 1), 5000)
    first, second, *later = damage_of(root)
    assert (first.file, first.offset, first.reason) == (
        str(log_file(root, 1)),
        5000,
        "the file has 5000 bytes, not 8192",
    )
    assert second.file == first.file
    assert second.offset <= 5000 == second.offset + second.bytes - (LOG_FILE_BYTES - 5000)
    assert later == []


def test_a_missing_queue_file(root: Path) -> None:
    queue_file(root, number=2).unlink()
    (finding,) = damage_of(root)
    assert (finding.file, finding.reason) == (
        str(queue_file(root, number=3)),
        "a file before this one is missing",
    )


def test_a_missing_first_queue_file(root: Path) -> None:
    queue_file(root).unlink()
    (finding,) = damage_of(root)
    assert finding.reason == "entries begin at 5, but the log holds messages from offset 0 on"


def test_a_missing_last_queue_file(root: Path) -> None:
    last = max((root / "consumequeue" / "t" / "0").iterdir())
    last.unlink()
    (finding,) = damage_of(root)
    assert (finding.file, finding.offset, finding.queue_offset) == (str(last), 0, 65)
    assert finding.reason == "entries end at 65, but the log holds messages up to offset 67"


def test_a_truncated_queue_file(root: Path) -> None:
    os.truncate(queue_file(root, number=3), 70)
    (finding,) = damage_of(root)
    assert (finding.file, finding.offset) == (str(queue_file(root, number=3)), 70)


def test_a_lost_page_of_a_queue(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_store(root, consume_queue_file_entries=1000)
    for number in range(900):
        store.append(NewMessage("t", 0, b"%d" % number, b""))
    store.close()
    path = root / "consumequeue" / "t" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    findings = damage_of(root)
    assert findings
    assert {finding.file for finding in findings} == {str(path)}
    assert 4080 <= findings[0].offset <= 8200


def test_a_missing_queue_folder_of_a_known_topic(root: Path) -> None:
    for path in (root / "consumequeue" / "other" / "0").iterdir():
        path.unlink()
    assert damage_of(root) == []  # the topic may have been deleted
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"other":{},"t":{}}}')
    (finding,) = damage_of(root)
    assert (finding.topic, finding.queue_id) == ("other", 0)
    assert "the log holds its messages up to offset 66" in finding.reason


def test_deleted_and_new_topics_are_no_damage(root: Path) -> None:
    store = open_store(root)
    store.delete_topic("t")
    store.append(NewMessage("t", 0, b"new life", b""))
    store.delete_topic("other")
    store.close()
    verification, findings = verify(root)
    assert {finding.reason for finding in findings} == {"messages of a deleted topic are still in the log"}
    assert verification.damage_count == 0


def test_half_messages_and_expired_messages_are_no_damage(root: Path) -> None:
    store = open_store(root)
    store.append(NewMessage("t", 0, b"half", b"", sys_flag=TRANSACTION_PREPARED))
    store.commit_log.delete_first()
    store.close()
    assert damage_of(root) == []


def test_a_truncated_index_file(root: Path) -> None:
    os.truncate(index_file(root), 20)
    (finding,) = damage_of(root)
    assert (finding.part, finding.reason) == (Part.INDEX, "the file has only 20 bytes")


def test_another_number_of_index_slots_is_explained(root: Path) -> None:
    (finding,) = damage_of(root, index_slots=5_000_000)
    assert "maxHashSlotNum" in finding.reason


def test_tables(root: Path) -> None:
    (root / "config").mkdir()
    table = root / "config" / "consumerOffset.json"
    table.write_text('{"offsetTable":{"t@g":{0:3}}}')  # as the official broker writes it
    assert damage_of(root) == []
    table.write_text('{"offsetTable":{"t@g":{0')
    (finding,) = damage_of(root)
    assert (finding.part, finding.file) == (Part.TABLE, str(table))
    assert "it has no backup that can be read" in finding.reason
    table.with_name("consumerOffset.json.bak").write_text(json.dumps({"offsetTable": {}}))
    (finding,) = damage_of(root)
    assert "its backup is whole" in finding.reason


def test_a_short_checkpoint(root: Path) -> None:
    os.truncate(root / "checkpoint", 30)
    (finding,) = damage_of(root)
    assert (finding.part, finding.offset) == (Part.CHECKPOINT, 30)


def test_a_killed_store_may_end_in_a_torn_message(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_store(root)
    store.append(NewMessage("t", 0, b"whole", b""))
    end = store.max_physical_offset
    physical_offset = store.append(NewMessage("t", 0, b"torn" * 100, b""))[1]
    kill_store(store)
    flip_bit(log_file(root), physical_offset + 100)
    verification, findings = verify(root)
    assert verification.damage_count == 0
    torn, *_ = findings
    assert (torn.offset, torn.part) == (end, Part.LOG)
    assert "which the next start cuts off" in torn.reason


def test_damage_before_whole_messages_of_a_killed_store_is_damage(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_store(root)
    physical_offset = store.append(NewMessage("t", 0, b"torn" * 100, b""))[1]
    store.append(NewMessage("t", 0, b"whole", b""))
    kill_store(store)
    flip_bit(log_file(root), physical_offset + 100)
    (finding,) = damage_of(root)
    assert finding.offset == physical_offset


def test_mended_damage_is_a_note(root: Path) -> None:
    physical_offset = place_of(root, "t", 0, 30)
    base = physical_offset - physical_offset % LOG_FILE_BYTES
    store = open_store(root)
    fill_clock = FakeClock()
    kill_store(store)
    flip_bit(root / "commitlog" / f"{base:020d}", physical_offset - base + 90)
    os.truncate(queue_file(root), 100)
    (root / "abort").write_bytes(b"rebuilding queues")
    open_store(root, fill_clock).close()
    verification, findings = verify(root)
    assert verification.damage_count == 0, findings
    assert verification.note_count > 0


def test_a_store_open_elsewhere(root: Path) -> None:
    with open_elsewhere(root) as process:
        reader = StoreReader(StoreConfig(str(root)))
        assert (reader.state.state, reader.state.pid) == ("open", process.pid)
        assert "storage.tools" in reader.state.command
        reader.close()
        verification, findings = verify(root)
        assert findings == []
        assert verification.log_check.messages == COUNT + 30
        append_more(process)
        assert verify(root)[0].log_check.messages == COUNT + 60
    assert verify(root)[0].damage_count == 0  # it was killed


def test_files_that_the_official_broker_creates_ahead_are_no_damage(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    for ahead in (1, 2):
        path = last.with_name(f"{int(last.name) + ahead * LOG_FILE_BYTES:020d}")
        path.write_bytes(bytes(LOG_FILE_BYTES))
    assert verify(root)[1] == []
    reader = StoreReader(StoreConfig(str(root)))
    assert reader.bases[-1] == int(last.name)
    assert len(reader.spare) == 2
    reader.close()


def test_a_last_file_whose_beginning_is_lost_is_damage(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    last.write_bytes(bytes(300) + last.read_bytes()[300:])
    first, *_ = damage_of(root)
    assert (first.file, first.offset, first.reason) == (str(last), 0, "zeros")


def test_messages_that_are_not_confirmed_yet_are_no_damage(root: Path) -> None:
    store = open_store(root)
    config = replace(store.config, awaits_confirmation=True)
    store.close()
    confirmed = ConfirmedStore.open(config, clock=FakeClock())
    confirmed.append(NewMessage("t", 0, b"x", b""))
    confirmed.append(NewMessage("nothing-confirmed", 0, b"x", b""))
    confirmed.close()
    assert [place for place in damage_of(root) if place.part is Part.QUEUE] != []
    (root / EPOCHS_NAME).write_bytes(b"")
    assert [place for place in damage_of(root) if place.part is Part.QUEUE] == []
    reasons = [finding.reason for finding in verify(root)[1] if finding.part is Part.QUEUE]
    assert len(reasons) == 2
    assert all("confirmed by all replicas in sync" in reason for reason in reasons)


def test_lost_entries_of_confirmed_messages_are_damage(root: Path) -> None:
    (root / EPOCHS_NAME).write_bytes(b"")
    store = open_store(root)
    (topic, queue_id) = next(iter(store.queue_keys()))
    end = store.max_offset(topic, queue_id)
    store.close()
    path = Path(queue_file(root, topic, queue_id))
    content = bytearray(path.read_bytes())
    content[(end - 1) * 20 : end * 20] = bytes(20)
    path.write_bytes(content)
    assert [place for place in damage_of(root) if place.part is Part.QUEUE] != []
