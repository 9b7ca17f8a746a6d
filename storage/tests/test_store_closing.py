"""A store that closes, or that opens after an orderly end: nothing counts as clean before all of it is on the disk."""

import random

import pytest

from codec.message import decode_message
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.errors import CorruptionError
from storage.store import MessageStore
from storage.tests.support import FakeClock, WatchedFiles, small_config

BODY_BYTES = 1500  # of the last messages: each lies in several disk sectors
CONFIG = small_config()
SEEDS = 20


def pictures_of(files: CrashFiles) -> list[CrashFiles]:
    """Return what a power cut leaves if the kernel wrote nothing by itself, and some mixtures."""
    return [files.cut_power(lambda path: False), *(files.crash(random.Random(seed)) for seed in range(SEEDS))]


def bodies(store: MessageStore) -> list[bytes]:
    offsets = range(store.min_offset("t", 0), store.max_offset("t", 0))
    return [bytes(decode_message(store.read("t", 0, offset, 1).chunks[0]).body) for offset in offsets]


def test_power_lost_at_any_operation_of_a_close() -> None:
    """Without the abort file everything is there. With it, what was not on the disk may be torn, and is no damage."""
    files, clock = WatchedFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    expected = [b"%d" % number for number in range(7)]
    for number in range(7):
        expected[number] += bytes(BODY_BYTES) if number > 2 else b""
        store.append(NewMessage("t", 0, expected[number], b"KEYS\x01k\x02"))
        if number == 2:
            clock.advance(10_000)
            store.write_checkpoint()
    pictures: list[CrashFiles] = []
    files.before_operation = lambda: pictures.extend(pictures_of(files))
    store.close()
    pictures += pictures_of(files)
    assert len(pictures) > 10 * SEEDS
    clean = 0
    for picture in pictures:
        is_clean = "/s/abort" not in picture.small
        clean += is_clean
        again = MessageStore.open(CONFIG, picture, clock)
        stored = bodies(again)
        assert stored == expected[: len(stored)]
        assert len(stored) >= (7 if is_clean else 3)
        places = [again.physical_offset_at("t", 0, number) for number in range(len(stored))]
        assert again.query_by_key("t", "k", 64, 0, 1 << 60) == places[::-1]
    assert 0 < clean < len(pictures)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_late_checkpoint_writes_nothing_into_a_closed_store(is_clean: bool) -> None:
    files, clock = WatchedFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    store.append(NewMessage("t", 0, b"1", b""))
    store.close(clean=is_clean)
    operations = []
    files.before_operation = lambda: operations.append(1)
    store.write_checkpoint()
    assert not operations


def test_a_late_checkpoint_changes_nothing_that_a_close_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint and the ends of queues would have two times, as if an official broker had written since."""
    files, clock = WatchedFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    store.append(NewMessage("t", 0, b"1", b""))
    release, operations = store._release, []

    def write_late() -> None:
        files.before_operation = lambda: operations.append(1)
        store.write_checkpoint()
        files.before_operation = lambda: None
        release()

    monkeypatch.setattr(store, "_release", write_late)
    store.close()
    assert not operations


@pytest.mark.parametrize("ends_known", [True, False])
@pytest.mark.parametrize("number", [0, 2, 11, 16])
def test_a_damaged_last_entry_found_after_an_orderly_end_is_derived_from_the_log(
    number: int, ends_known: bool
) -> None:
    """An official broker that closed the store leaves no file that says where the queues ended."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    expected = [b"%d" % count for count in range(number + 1)]
    for body in expected:
        store.append(NewMessage("t", 0, body, b""))
    for _ in range(3):
        store.append(NewMessage("other", 0, b"later", b""))
    store.close()
    if not ends_known:
        files.delete("/s/queueends.json")
    base, position = divmod(number, CONFIG.consume_queue_file_entries)
    files.mapped[f"/s/consumequeue/t/0/{base * 100:020d}"].buffer[position * 20 + 11] ^= 1
    again = MessageStore.open(CONFIG, files, clock)
    assert bodies(again) == expected
    assert again.append(NewMessage("t", 0, b"next", b""))[0] == number + 1


def test_a_log_that_is_torn_after_an_orderly_end_is_damaged() -> None:
    """All of it was on the disk, so that nothing may be cut off in silence."""
    files, clock = CrashFiles(), FakeClock()
    store = MessageStore.open(CONFIG, files, clock)
    physical_offset = store.append(NewMessage("t", 0, b"kept", b""))[1]
    store.close()
    files.delete("/s/queueends.json")
    files.mapped["/s/checkpoint"].buffer[32:40] = bytes(8)  # as an official broker writes it
    files.mapped["/s/commitlog/" + "0" * 20].buffer[physical_offset + 89] ^= 1
    with pytest.raises(CorruptionError):
        MessageStore.open(CONFIG, files, clock)
