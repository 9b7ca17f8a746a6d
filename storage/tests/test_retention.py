"""Retention: whole expired files go; what is stored keeps its offset, its keys, and its place to go on."""

import random

import pytest

from codec.message import decode_message
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

HOUR_MS = 3_600_000
LOG_FILE_BYTES = 8192
PER_FILE = 4
BODY_BYTES = 1900  # so that PER_FILE messages fill a log file
FILES = ["/s/commitlog/" + f"{number * LOG_FILE_BYTES:020d}" for number in range(5)]


class FullDisk(CrashFiles):
    """Files on a disk that is nearly full."""

    used_ratio = 0.89

    def disk_used_ratio(self, path: str) -> float:
        return self.used_ratio


def filled(
    count: int, files: CrashFiles, clock: FakeClock, *, apart_ms: int = 0, **changes: object
) -> MessageStore:
    """Return a store with messages that are numbered, carry the keys ``all`` and ``k<number>``, and fill log files."""
    store = MessageStore.open(small_config(**changes), files, clock)
    for number in range(count):
        store.append(NewMessage("t", 0, body(number), b"KEYS\x01all k%d\x02" % number))
        clock.advance(apart_ms)
    return store


def body(number: int) -> bytes:
    return b"%d" % number + bytes(BODY_BYTES)


def readable(store: MessageStore) -> list[int]:
    """Return the numbers of the messages that can be read, checked to be at their offsets."""
    numbers = []
    for offset in range(store.min_offset("t", 0), store.max_offset("t", 0)):
        message = decode_message(store.read("t", 0, offset, 1).chunks[0])
        numbers.append(int(message.body.rstrip(b"\0")))
        assert message.queue_offset == offset == numbers[-1]
    return numbers


def test_the_setup_fills_a_log_file_with_so_many_messages() -> None:
    store = filled(9, CrashFiles(), FakeClock())
    assert [store.physical_offset_at("t", 0, number) for number in (4, 8)] == [8192, 16384]


@pytest.mark.parametrize("count", [1, 3, PER_FILE + 1, 3 * PER_FILE])
def test_the_written_file_stays_however_few_bytes_may_be_kept(count: int) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = filled(count, files, clock, retained_bytes=10)
    last_file = count - 1 - (count - 1) % PER_FILE
    store.delete_expired(manual=True)
    assert readable(store) == list(range(last_file, count))
    assert store.append(NewMessage("t", 0, body(count), b""))[0] == count
    store = MessageStore.open(small_config(), files.crash(random.Random(0), lose_unflushed=False), clock)
    assert readable(store)[-1] == count


@pytest.mark.parametrize("count", [2, 2 * PER_FILE + 2])
def test_the_written_file_stays_when_the_disk_is_nearly_full(count: int) -> None:
    store = filled(count, FullDisk(), FakeClock(), clean_forcibly_enable=True)
    store.write_checkpoint()
    for _ in range(3):
        store.delete_expired()
    assert readable(store) == list(range(count))[-2:]
    assert store.append(NewMessage("t", 0, body(count), b""))[0] == count


@pytest.mark.parametrize(("level", "is_full"), [(88, True), (89, False), (95, False)])
def test_messages_are_refused_above_the_level_that_is_set(level: int, is_full: bool) -> None:
    """The official broker takes every level above 90 percent for 90."""
    files = FullDisk()
    files.used_ratio = 0.89 if level < 90 else 0.94
    store = filled(1, files, FakeClock(), disk_warning_percent=level)
    store.delete_expired()
    assert store.disk_full == is_full


@pytest.mark.parametrize(("level", "deleted"), [(93, 2), (95, 0)])
def test_files_are_deleted_at_any_age_above_the_level_that_is_set(level: int, deleted: int) -> None:
    """The official broker takes every level above 85 percent for 85."""
    files = FullDisk()
    files.used_ratio = 0.94
    changes = {"clean_forcibly_enable": True, "disk_clean_forcibly_percent": level}
    store = filled(2 * PER_FILE + 1, files, FakeClock(), **changes)
    store.write_checkpoint()
    assert store.delete_expired() == deleted


def test_files_that_are_not_old_enough_stay() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = filled(2 * PER_FILE + 1, files, clock, apart_ms=HOUR_MS, file_reserved_hours=20)
    store.write_checkpoint()
    clock.advance(11 * HOUR_MS - 1)
    assert store.delete_expired(manual=True) == 0
    clock.advance(4 * HOUR_MS)  # the first message of the second file is 20 hours old, less a millisecond
    assert store.delete_expired(manual=True) == 0
    clock.advance(1)
    assert store.delete_expired(manual=True) == 1
    assert readable(store) == list(range(PER_FILE, 2 * PER_FILE + 1))


@pytest.mark.parametrize("damaged", [1, PER_FILE, PER_FILE + 1], ids=["message", "file", "more"])
def test_damage_at_the_start_of_a_file_makes_the_one_before_it_no_older(damaged: int) -> None:
    """The filler in the place of damaged messages has no store timestamp."""
    files, clock = CrashFiles(), FakeClock()
    store = filled(4 * PER_FILE, files, clock, apart_ms=HOUR_MS)
    store.write_checkpoint()
    for number in range(PER_FILE, PER_FILE + damaged):
        physical_offset = store.physical_offset_at("t", 0, number)
        files.mapped[FILES[physical_offset // LOG_FILE_BYTES]].buffer[
            physical_offset % LOG_FILE_BYTES + 3
        ] ^= 1
    store = MessageStore.open(small_config(), files.crash(random.Random(0), lose_unflushed=False), clock)
    assert store.files.list("/s/damaged")
    first_behind = PER_FILE + damaged  # the file before it ended at the latest when this message was stored
    clock.advance((72 - 4 * PER_FILE + first_behind) * HOUR_MS - 1)
    assert store.delete_expired(manual=True) == 0
    clock.advance(1)
    assert store.delete_expired(manual=True) == (2 if damaged >= PER_FILE else 1)
    oldest = store.commit_log.first_store_timestamp(store.min_physical_offset)
    assert oldest == store.store_timestamp_at("t", 0, first_behind)


@pytest.mark.parametrize("entries", [2, 3, 4, 5, 6])
def test_a_queue_file_whose_last_message_is_stored_stays(entries: int) -> None:
    """Of 5 entries the last one points to the first message that is stored, at the physical offset of its file."""
    files, clock = CrashFiles(), FakeClock()
    store = filled(3 * PER_FILE, files, clock, consume_queue_file_entries=entries)
    store.write_checkpoint()
    clock.advance(100 * HOUR_MS)
    assert store.delete_expired_log_files(manual=True, max_files=1) == 1
    for _ in store.hide_expired_entries():
        pass
    stored = list(range(PER_FILE, 3 * PER_FILE))
    assert readable(store) == stored
    queue_files = [path for path in files.mapped if "/consumequeue/t/0/" in path]
    assert min(queue_files).endswith(f"{PER_FILE // entries * entries * 20:020d}")
    store.close()
    assert (
        readable(MessageStore.open(small_config(consume_queue_file_entries=entries), files, clock)) == stored
    )


def test_the_keys_of_stored_messages_are_found_after_older_ones_have_expired() -> None:
    """The first index file holds keys of the first two log files, of which one expires."""
    files, clock = CrashFiles(), FakeClock()
    count = 4 * PER_FILE
    store = filled(count, files, clock, apart_ms=1000, index_entries=2 * (PER_FILE + 2) + 1)
    store.build_index()
    assert len(store.index.files) > 2
    store.write_checkpoint()
    clock.advance(100 * HOUR_MS)
    for expired in (1, 2, 3):
        assert store.delete_expired_log_files(manual=True, max_files=1) == 1
        stored = range(expired * PER_FILE, count)
        places = [store.physical_offset_at("t", 0, number) for number in stored]
        assert store.query_by_key("t", "all", 64, 0, 1 << 60) == places[::-1]
        for number, physical_offset in zip(stored, places, strict=True):
            assert store.query_by_key("t", f"k{number}", 64, 0, 1 << 60) == [physical_offset]


def test_a_file_that_was_written_lately_stays_though_its_messages_say_they_are_old() -> None:
    """A message that a mirror appended keeps another broker's store timestamp."""
    files, clock = CrashFiles(), FakeClock()
    store = filled(2 * PER_FILE + 1, files, clock)
    clock.advance(100 * HOUR_MS)
    store.write_checkpoint()
    files.modified[FILES[1]] = files.modified[FILES[0]] = clock.now_ms() - 71 * HOUR_MS
    assert store.delete_expired(manual=True) == 0
    clock.advance(HOUR_MS)
    assert store.delete_expired(manual=True) == 2


@pytest.mark.parametrize("lose_unflushed", [False, True], ids=["killed", "power cut"])
def test_a_file_that_the_checkpoint_does_not_cover_stays(lose_unflushed: bool) -> None:
    """Recovery drops the queue entries that the checkpoint does not cover, and builds them from the log."""
    files, clock = FullDisk(), FakeClock()
    store = filled(PER_FILE - 1, files, clock, clean_forcibly_enable=True)
    store.write_checkpoint()
    for _ in range(2 * PER_FILE):
        store.append(NewMessage("other", 0, body(0), b""))
    store.append(NewMessage("u", 0, b"", b""))
    assert store.delete_expired() == 0
    store.flush()
    store = MessageStore.open(
        small_config(), files.crash(random.Random(0), lose_unflushed=lose_unflushed), clock
    )
    assert store.append(NewMessage("t", 0, body(3), b""))[0] == 3
    assert store.append(NewMessage("other", 0, b"", b""))[0] == 2 * PER_FILE


def test_a_file_goes_once_the_checkpoint_covers_it() -> None:
    files = FullDisk()
    store = filled(2 * PER_FILE + 1, files, FakeClock(), clean_forcibly_enable=True)
    paths: list[str] = []

    def delete_before_flush(path: str) -> bool:
        if path == store.config.checkpoint_path:
            paths.append(path)
            assert store.delete_expired() == 0
        return False

    files.flush_fails = delete_before_flush
    store.write_checkpoint()
    assert paths
    assert store.delete_expired() == 2
    assert readable(store) == [2 * PER_FILE]


def test_a_closed_store_deletes_nothing() -> None:
    """An administrator's request may go on when the broker has opened the store again, in another role."""
    files, clock = FullDisk(), FakeClock()
    store = filled(5 * PER_FILE, files, clock)
    store.write_checkpoint()
    for _ in range(PER_FILE):
        store.append(NewMessage("t", 0, body(0), b""))
    assert store.delete_expired_log_files(max_files=1) == 1
    hidden = store.hide_expired_entries()
    clock.advance(100 * HOUR_MS)
    assert store.delete_expired_log_files(manual=True) == 3
    assert store.delete_expired_log_files(manual=True) == 0
    assert store.expiry_awaits_checkpoint
    store.close()
    again = MessageStore.open(small_config(), files, clock)
    paths = set(files.mapped)
    assert store.delete_expired_log_files(manual=True) == 0
    assert not store.expiry_awaits_checkpoint
    assert list(hidden) == list(store.hide_expired_entries()) == []
    assert set(files.mapped) == paths
    assert again.min_physical_offset == 4 * LOG_FILE_BYTES


def test_a_store_that_is_closed_meanwhile_deletes_no_more_queue_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.queue_set.CHECKED_PER_SLICE", 1)
    files, clock = FullDisk(), FakeClock()
    store = MessageStore.open(small_config(), files, clock)
    for number in range(3 * 6):
        store.append(NewMessage("t", number % 3, body(number), b""))
    for _ in range(2 * PER_FILE):
        store.append(NewMessage("other", 0, body(0), b""))
    store.write_checkpoint()
    assert store.delete_expired_log_files() > 0
    hidden = store.hide_expired_entries()
    next(hidden)
    store.close()
    paths = set(files.mapped)
    assert list(hidden) == []
    assert set(files.mapped) == paths
    assert any(path.endswith("/consumequeue/t/2/" + "0" * 20) for path in paths)


def expired_since_checkpoint(files: CrashFiles, clock: FakeClock) -> MessageStore:
    """Return a store with a queue ``t/1`` of three messages in the first log file, the last not in the checkpoint."""
    store = MessageStore.open(small_config(), files, clock)
    for number in range(2):
        store.append(NewMessage("t", 1, b"%d" % number, b""))
    store.write_checkpoint()
    clock.advance(5000)
    store.append(NewMessage("t", 1, b"2", b""))
    for number in range(2 * PER_FILE):
        store.append(NewMessage("t", 0, body(number), b""))
    assert store.physical_offset_at("t", 1, 2) < LOG_FILE_BYTES < store.commit_log.base
    return store


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("lose_unflushed", [False, True], ids=["kill", "power cut"])
def test_an_expired_queue_continues_after_messages_newer_than_the_checkpoint(
    lose_unflushed: bool, seed: int
) -> None:
    files, clock = FullDisk(), FakeClock()
    store = expired_since_checkpoint(files, clock)
    store.write_checkpoint()
    assert store.delete_expired() == 2
    files_after_crash = files.crash(random.Random(seed), lose_unflushed=lose_unflushed)
    store = MessageStore.open(small_config(), files_after_crash, clock)
    assert store.max_offset("t", 1) == 3
    # A power cut may bring the deleted files back.
    assert store.min_offset("t", 1) == (0 if store.min_physical_offset == 0 else 3)
    assert store.append(NewMessage("t", 1, b"3", b""))[0] == 3


def test_a_log_file_stays_until_a_checkpoint_covers_its_messages() -> None:
    files, clock = FullDisk(), FakeClock()
    store = expired_since_checkpoint(files, clock)
    assert store.delete_expired_log_files() == 0
    assert store.expiry_awaits_checkpoint
    store.write_checkpoint()
    assert store.delete_expired_log_files() == 2
    assert not store.expiry_awaits_checkpoint


def test_a_store_in_memory_drops_its_oldest_file_without_a_checkpoint() -> None:
    """There is nothing to recover, and its memory is bounded."""
    store = filled(3 * PER_FILE, CrashFiles(), FakeClock(), retained_bytes=10)
    assert store.min_physical_offset == 2 * LOG_FILE_BYTES


@pytest.mark.parametrize("log_files", [1, 2])
def test_a_kill_after_a_file_beyond_the_checkpoint_expired_keeps_the_ends_of_queues(log_files: int) -> None:
    """Earlier versions deleted such files."""
    files, clock = CrashFiles(), FakeClock()
    store = expired_since_checkpoint(files, clock)
    for _ in range(log_files):
        store.commit_log.delete_first()
    next_offset = store.max_offset("t", 0)
    store = MessageStore.open(small_config(), files.crash(random.Random(0), lose_unflushed=False), clock)
    assert store.append(NewMessage("t", 1, b"3", b""))[0] == 3
    assert store.append(NewMessage("t", 0, body(next_offset), b""))[0] == next_offset
    assert readable(store) == list(range(PER_FILE * log_files - 1, next_offset + 1))
