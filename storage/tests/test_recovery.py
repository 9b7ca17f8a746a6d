"""Opening a store: files that do not fit the settings, files that are missing, damage."""

import random
import struct
from typing import Any
from zlib import crc32

import pytest

from codec.message import iter_messages
from storage import log_scan
from storage.append import NewMessage
from storage.crash_files import CrashFiles, ProcessKilled
from storage.deleted_topics import DeletedTopics
from storage.errors import CorruptionError
from storage.layout import QUEUE_ENTRY
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config


def open_store(files: CrashFiles, clock: FakeClock, **changes: object) -> MessageStore:
    return MessageStore.open(small_config(**changes), files, clock)


def bodies(store: MessageStore, topic: str = "t") -> list[bytes]:
    messages: list[bytes] = []
    while chunks := store.read(topic, 0, store.min_offset(topic, 0) + len(messages), 99).chunks:
        messages += [bytes(message.body) for chunk in chunks for message in iter_messages(chunk)]
    return messages


def fill(store: MessageStore, count: int, topic: str = "t") -> list[bytes]:
    expected = [b"%d" % number for number in range(count)]
    for body in expected:
        store.append(NewMessage(topic, 0, body, b""))
    return expected


@pytest.mark.parametrize("entries", [3, 5, 50])
def test_another_size_of_queue_files_keeps_the_files_and_their_size(entries: int, caplog) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    expected = fill(store, 17)
    store.close()
    before = set(files.mapped)
    again = open_store(files, clock, consume_queue_file_entries=entries)
    assert bodies(again) == expected
    assert set(files.mapped) >= before
    assert again.append(NewMessage("t", 0, b"next", b""))[0] == 17
    again.close()
    assert bodies(open_store(files, clock)) == [*expected, b"next"]
    assert ("mappedFileSizeConsumeQueue" in caplog.text) == (entries != 5)


def test_queue_files_of_different_sizes_are_refused_before_anything_is_deleted() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 17)
    store.close()
    files.open_mapped("/s/consumequeue/t/1/00000000000000000000", 60)
    before = {path: bytes(file.buffer) for path, file in files.mapped.items()}
    with pytest.raises(
        CorruptionError, match="without the folder /s/consumequeue all queues are built again"
    ):
        open_store(files, clock)
    assert {path: bytes(file.buffer) for path, file in files.mapped.items()} == before


LOG_FILE = "/s/commitlog/00000000000000000000"


def damaged_store(
    *numbers: int, count: int = 200, seconds: float = 0.0
) -> tuple[CrashFiles, FakeClock, list[bytes]]:
    """Return the files of a killed broker, in whose log some messages of queue t/0 have a flipped bit."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    expected = [b"body %d" % number for number in range(count)]
    for number, body in enumerate(expected):
        store.append(NewMessage("t", 0, body, b""))
        store.append(NewMessage("other", 0, b"x", b""))
        clock.advance(1)
        if number == count // 2:
            store.write_checkpoint()
    clock.advance(round(seconds * 1000))
    store.write_checkpoint()
    for number in numbers:
        physical_offset = store.physical_offset_at("t", 0, number)
        base = physical_offset - physical_offset % 8192
        files.mapped[f"/s/commitlog/{base:020d}"].buffer[physical_offset - base + 90] ^= 4
    return files.crash(random.Random(0), lose_unflushed=False), clock, expected


def without(expected: list[bytes], *numbers: int) -> list[bytes]:
    return [body for number, body in enumerate(expected) if number not in numbers]


@pytest.mark.parametrize("numbers", [(3,), (0,), (150,), (150, 151, 152), (199,), (10, 100, 190), (198, 199)])
@pytest.mark.parametrize("seconds", [0, 10])
def test_what_lies_behind_a_flipped_bit_stays_readable(numbers, seconds, caplog) -> None:
    files, clock, expected = damaged_store(*numbers, seconds=seconds)
    store = open_store(files, clock)
    for _ in range(2):
        assert readable(store, len(expected)) == without(expected, *numbers)
        assert len(readable(store, len(expected), "other")) == len(expected)
        assert store.max_offset("t", 0) == len(expected)
        store.close()
        store = open_store(files, clock)
    assert store.append(NewMessage("t", 0, b"next", b""))[0] == len(expected)
    store.close()


def readable(store: MessageStore, end: int, topic: str = "t") -> list[bytes]:
    """Read as a consumer does: damaged messages, whose start is whole, are found by their CRC."""
    sound_bodies, offset = [], 0
    while offset < end:
        result = store.read(topic, 0, offset, 32)
        assert result.next_offset > offset
        messages = [message for chunk in result.chunks for message in iter_messages(chunk, check_crc=False)]
        sound_bodies += [
            bytes(message.body)
            for message in messages
            if crc32(message.body) & 0x7FFFFFFF == message.body_crc
        ]
        offset = result.next_offset
    return sound_bodies


@pytest.mark.parametrize("number", [10, 15, 18])
def test_damage_after_the_checkpoint_does_not_cut_what_follows(number: int) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    expected = [b"body %d" % index for index in range(20)]
    for body in expected[:10]:
        store.append(NewMessage("t", 0, body, b""))
    store.write_checkpoint()
    for body in expected[10:]:
        store.append(NewMessage("t", 0, body, b""))
    files.mapped[LOG_FILE].buffer[store.physical_offset_at("t", 0, number) + 90] ^= 4
    store = open_store(files.crash(random.Random(0), lose_unflushed=False), clock)
    assert readable(store, 20) == without(expected, number)
    assert store.max_offset("t", 0) == 20
    assert store.append(NewMessage("t", 0, b"next", b""))[0] == 20


def test_damage_of_the_last_message_keeps_its_offset() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("t", 0, b"only", b""))
    store.write_checkpoint()
    files.mapped[LOG_FILE].buffer[89] ^= 1
    store = open_store(files.crash(random.Random(0), lose_unflushed=False), clock)
    assert store.append(NewMessage("t", 0, b"next", b""))[0] == 1
    assert readable(store, 2) == [b"next"]


def test_damaged_bytes_are_kept_apart_and_reported(caplog) -> None:
    files, clock, _ = damaged_store(150)
    log_file = max(
        path for path in files.mapped if b"body 15" in files.mapped[path].buffer and "commitlog" in path
    )
    before = bytes(files.mapped[log_file].buffer)
    open_store(files, clock)
    (name,) = files.list("/s/damaged")
    start, end = (int(part) % 8192 for part in name.split("-"))
    assert files.read_small(f"/s/damaged/{name}") == before[start:end]
    (report,) = [message for message in caplog.records if message.message.startswith("commit log is damaged")]
    assert (report.copy, report.bytes) == (f"/s/damaged/{name}", end - start)


def test_a_missing_last_file_of_the_log_is_an_error() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 100)
    store.close()
    last = max(path for path in files.mapped if "/commitlog/" in path)
    files.delete(last)
    with pytest.raises(
        CorruptionError, match=f"{last} .*the file is missing: the checkpoint covers the log up to"
    ):
        open_store(files, clock)
    assert last not in files.mapped


def test_a_search_by_time_looks_past_holes() -> None:
    files, clock, expected = damaged_store(*range(120, 130), count=200)
    store = open_store(files, clock)
    began_ms = store.store_timestamp_at("t", 0, 0)
    for number in (0, 90, 119, 131, 199):
        assert store.offset_by_time("t", 0, began_ms + number) == number
    assert store.offset_by_time("t", 0, began_ms + 130) in range(120, 131)
    assert len(expected) == 200


def ends(store: MessageStore) -> dict[tuple[str, int], int]:
    return {key: store.max_offset(*key) for key in store.queue_keys()}


def killed(files: CrashFiles) -> CrashFiles:
    return files.crash(random.Random(0), lose_unflushed=False)


def store_with_idle_queues(files: CrashFiles, clock: FakeClock) -> MessageStore:
    """Write two queues over several log files; only one of them has messages in the last log file."""
    store = open_store(files, clock)
    fill(store, 17, "early")
    for _ in range(40):
        store.append(NewMessage("early", 0, bytes(1000), b"", sys_flag=4))
    store.append(NewMessage("other", 0, b"first", b""))
    clock.advance(10_000)
    store.write_checkpoint()
    store.append(NewMessage("other", 0, b"second", b""))
    clock.advance(10_000)
    store.write_checkpoint()
    return store


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "missing", ["/s/consumequeue", "/s/consumequeue/early/0/00000000000000000100"], ids=["all", "one file"]
)
def test_missing_queue_files_are_built_again_from_the_whole_log(clean: bool, missing: str) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = store_with_idle_queues(files, clock)
    before = ends(store)
    if clean:
        store.close()
    files = killed(files)
    files.delete_tree(missing)
    files.delete(missing)
    again = open_store(files, clock)
    assert ends(again) == before
    assert bodies(again, "early") == [b"%d" % number for number in range(17)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("byte", [3, 4, 30, 86], ids=["size", "magic", "offset", "body size"])
def test_a_damaged_header_of_the_last_message_of_a_queue_keeps_its_offset(clean: bool, byte: int) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = store_with_idle_queues(files, clock)
    physical_offset = store.physical_offset_at("early", 0, 16)
    store.close(clean)
    files = killed(files)
    files.mapped[LOG_FILE].buffer[physical_offset + byte] ^= 1
    for _ in range(2):
        again = open_store(files, clock)
        assert readable(again, 17, "early") == [b"%d" % number for number in range(16)]
        assert ends(again) == {("early", 0): 17, ("other", 0): 2}
        again.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("entry", [2, 16])
def test_a_damaged_last_entry_is_derived_from_the_log(clean: bool, entry: int) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    expected = fill(store, entry + 1)
    fill(store, 3, "other")
    store.write_checkpoint()
    store.close(clean)
    files = killed(files)
    number, position = divmod(entry, 5)
    files.mapped[f"/s/consumequeue/t/0/{number * 100:020d}"].buffer[position * 20 + 11] ^= 1
    again = open_store(files, clock)
    assert bodies(again) == expected
    assert bodies(again, "other") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("lose_unflushed", [True, False])
@pytest.mark.parametrize("numbers", [(3,), (19,), (5, 6, 19)])
def test_a_crash_in_the_middle_of_handling_damage(numbers: tuple[int, ...], lose_unflushed: bool) -> None:
    damaged, clock, expected = damaged_store(*numbers, count=20)
    damaged.settle()
    steps = 0
    while True:
        files = killed(damaged)
        files.operations_left = steps
        try:
            open_store(files, clock)
        except ProcessKilled:
            files = files.crash(random.Random(steps), lose_unflushed)
        else:
            break
        again = open_store(files, clock)
        assert readable(again, 20) == without(expected, *numbers)
        assert ends(again) == {("t", 0): 20, ("other", 0): 20}
        steps += 1
    assert steps > 10


def test_a_checkpoint_of_a_lost_log_does_not_cover_the_new_one() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 17)
    store.close()
    files.delete_tree("/s/commitlog")
    with pytest.raises(
        CorruptionError, match=r"/s/commitlog .*missing.* or delete /s/checkpoint to begin an empty"
    ):
        open_store(files, clock)
    files.delete("/s/checkpoint")
    store = open_store(files, clock)
    fill(store, 5)
    store.append(NewMessage("young", 0, b"first", b""))
    again = open_store(killed(files), clock)
    assert ends(again) == {("t", 0): 5, ("young", 0): 1}


@pytest.mark.parametrize("seed", range(10))
def test_a_checkpoint_of_an_empty_store_vouches_for_nothing(seed: int) -> None:
    """The clock is set back, and power fails: a torn message is older than the checkpoint, and not damaged."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    clock.advance(10_000)
    store.write_checkpoint()
    clock.advance(-3_600_000)
    for _ in range(6):
        store.append(NewMessage("t", 0, bytes(600), b""))
    again = open_store(files.crash(random.Random(seed)), clock)
    assert ends(again).get(("t", 0), 0) <= 6


def test_entries_behind_lost_ones_do_not_return() -> None:
    """Power fails, and of the entries behind the checkpoint only later ones are on the disk."""
    files, clock = CrashFiles(), FakeClock()
    settings = {"consume_queue_file_entries": 400, "commit_log_file_bytes": 1 << 16}
    store = open_store(files, clock, **settings)
    fill(store, 26)
    store.write_checkpoint()
    end = store.max_physical_offset
    fill(store, 300)
    queue_file = "/s/consumequeue/t/0/00000000000000000000"
    entries = files.mapped[queue_file].buffer[1024:]
    log_durable = files.mapped[LOG_FILE].durable
    files = killed(files)
    files._boot += 1
    assert log_durable is not None
    files.mapped[LOG_FILE].buffer[:] = log_durable
    files.mapped[queue_file].buffer[520:] = bytes(504) + entries
    assert any(entries)
    again = open_store(files, clock, **settings)
    assert (again.max_offset("t", 0), again.max_physical_offset) == (26, end)
    assert not any(files.mapped[queue_file].buffer[520:])
    assert not any((files.mapped[queue_file].durable or b"x")[520:])


def test_an_entry_of_another_topic_at_the_same_offset_is_not_valid() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 4, "a")
    fill(store, 5, "b")
    entry = store.physical_offset_at("b", 0, 4), 93, 0
    assert store.message_at(entry[0]).nbytes == entry[1]
    store.close()
    files.mapped["/s/consumequeue/a/0/00000000000000000000"].buffer[80:100] = QUEUE_ENTRY.pack(*entry)
    again = open_store(files, clock)
    assert ends(again) == {("a", 0): 4, ("b", 0): 5}


def test_one_flush_makes_all_new_files_of_the_log_durable() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    for _ in range(20):
        store.append(NewMessage("t", 0, bytes(2000), b""))
    store.flush()
    for seed in range(5):
        assert ends(open_store(files.crash(random.Random(seed)), clock)) == {("t", 0): 20}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("body_bytes", [1, 1000], ids=["one log file", "several log files"])
def test_power_lost_after_a_killed_process_was_started_again(body_bytes: int, seed: int) -> None:
    """The messages found were in the page cache; opening makes them durable."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    for _ in range(30):
        store.append(NewMessage("t", 0, bytes(body_bytes), b""))
    files = killed(files)
    assert open_store(files, clock).durable_offset == store.max_physical_offset
    again = open_store(files.crash(random.Random(seed)), clock)
    assert ends(again) == {("t", 0): 30}
    assert bodies(again) == [bytes(body_bytes)] * 30


@pytest.mark.parametrize("lose_unflushed", [True, False])
def test_a_crash_while_the_store_closes(lose_unflushed: bool) -> None:
    steps = 0
    while True:
        files, clock = CrashFiles(), FakeClock()
        store = open_store(files, clock)
        store.append(NewMessage("young", 0, b"first", b"KEYS\x01k\x02"))
        fill(store, 7)
        store.flush()
        files.operations_left = steps
        try:
            store.close()
        except ProcessKilled:
            files = files.crash(random.Random(steps), lose_unflushed)
        else:
            break
        again = open_store(files, clock)
        assert ends(again) == {("t", 0): 7, ("young", 0): 1}
        assert len(again.query_by_key("young", "k", 9, 0, 1 << 60)) == 1
        steps += 1
    assert steps > 5


def test_messages_of_the_last_seconds_before_the_checkpoint_may_be_torn() -> None:
    """The official broker's times are those of the last flushed page, and it records no offset."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 3)
    clock.advance(10_000)
    end = store.append(NewMessage("t", 0, b"torn", b""))[1]
    clock.advance(2_900)
    fields = [clock.now_ms()] * 2 + [0, 0, 0]
    files.mapped["/s/checkpoint"].buffer[:40] = struct.pack(">5q", *fields)
    store.flush()
    files = killed(files)
    files.small["/s/abort"] = b""
    files.mapped[LOG_FILE].buffer[end + 89] ^= 1
    again = open_store(files, clock)
    assert (again.max_physical_offset, ends(again)) == (end, {("t", 0): 3})


def test_the_filler_is_durable_after_an_orderly_end() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 3)
    physical_offset = store.physical_offset_at("t", 0, 2)
    store.close()
    files.mapped[LOG_FILE].buffer[physical_offset + 4] ^= 1
    open_store(files, clock)
    durable = files.mapped[LOG_FILE].durable
    assert durable is not None
    assert durable[physical_offset:] == files.mapped[LOG_FILE].buffer[physical_offset:]


@pytest.mark.parametrize("last_boot", [b"boot 0", b"", b"4711"], ids=["earlier", "unknown", "official"])
def test_another_boot_means_that_power_was_cut(last_boot: bytes) -> None:
    """Properties have no CRC: only after a power cut zeros in them are taken for a lost sector."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    assert files.small["/s/abort"] == b"boot 1"
    physical_offset = store.append(NewMessage("t", 0, b"", b"KEYS\x01" + b"k" * 2000))[1]
    files.mapped[LOG_FILE].buffer[512:1024] = bytes(512)
    files = killed(files)
    assert ends(open_store(killed(files), clock)) == {("t", 0): 1}
    files.small["/s/abort"] = last_boot
    again = open_store(files, clock)
    assert again.max_physical_offset == physical_offset
    assert again.crashed


@pytest.mark.parametrize("lose_unflushed", [True, False])
@pytest.mark.parametrize("cause", ["files", "entry", "deleted topic"])
def test_a_crash_in_the_middle_of_building_queues_again(cause: str, lose_unflushed: bool) -> None:
    """The checkpoint covers their messages, but after a power cut not all of the new entries are there."""
    damaged, clock = CrashFiles(), FakeClock()
    store = open_store(damaged, clock)
    fill(store, 60)
    store.append(NewMessage("other", 0, b"", b""))
    store.write_checkpoint()
    expected = {("t", 0): 60, ("other", 0): 1}
    if cause == "files":
        damaged.delete_tree("/s/consumequeue")
    elif cause == "entry":
        damaged.mapped["/s/consumequeue/t/0/00000000000000000000"].buffer[8:12] = bytes(4)
        damaged.mapped["/s/consumequeue/t/0/00000000000000001100"].buffer[88:92] = bytes(4)
    else:
        fill(store, 1)
        store.delete_topic("t")
        damaged.delete("/s/deletedtopics.json")  # an official broker notes no deletion
        fill(store, 2)
        expected["t", 0] = 2
    damaged.settle()
    steps = 0
    while True:
        files = killed(damaged)
        files.operations_left = steps
        try:
            open_store(files, clock)
        except ProcessKilled:
            files = files.crash(random.Random(steps), lose_unflushed)
        else:
            break
        again = open_store(files, clock)
        assert ends(again) == expected
        assert bodies(again) == [b"%d" % number for number in range(expected["t", 0])]
        steps += 1
    assert steps > 10


def test_damage_at_the_end_of_a_log_file_does_not_shorten_queues_that_are_built_again() -> None:
    """Fillers tell how much was lost, also where a marker ends the file."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    expected = fill(store, 200)
    places = [store.physical_offset_at("t", 0, number) for number in range(200)]
    last_of_file = max(number for number in range(200) if places[number] < 8192)
    store.write_checkpoint()
    files.mapped[LOG_FILE].buffer[places[last_of_file] + 89] ^= 4
    files = files.crash(random.Random(0), lose_unflushed=False)
    open_store(files, clock).close()
    files.delete_tree("/s/consumequeue")
    store = open_store(files, clock)
    assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (0, 200)
    assert readable(store, 200) == without(expected, last_of_file)


@pytest.mark.parametrize("seed", range(30))
def test_a_deleted_topic_that_a_power_cut_brings_back_is_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint covers its messages, and its queue files were deleted before they were ever flushed.

    A full disk had no room for the note of the deletion.
    """
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("kept", 0, b"", b""))
    store.write_checkpoint()
    fill(store, 40)
    with monkeypatch.context() as patch:
        patch.setattr(DeletedTopics, "add", lambda *noted: None)
        store.delete_topic("t")
    store.write_checkpoint()
    again = open_store(files.crash(random.Random(seed)), clock)
    assert again.max_offset("t", 0) in (0, 40)
    assert bodies(again) == [b"%d" % number for number in range(again.max_offset("t", 0))]


@pytest.mark.parametrize("lose_unflushed", [True, False])
def test_recovery_reads_the_log_from_the_checkpoint_on(
    lose_unflushed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    for number in range(300):
        store.append(NewMessage("t", 0, b"%d" % number, b""))
        clock.advance(2000)
        if number == 280:
            store.build_index(1000)
            store.write_checkpoint()
            safe = store.max_physical_offset
    store.flush()
    read: list[int] = []
    scan = log_scan.check_message

    def check_message(*args: Any) -> Any:
        read.append(args[2])
        return scan(*args)

    monkeypatch.setattr(log_scan, "check_message", check_message)
    again = open_store(files.crash(random.Random(1), lose_unflushed), clock)
    assert bodies(again) == [b"%d" % number for number in range(300)]
    assert sum(physical_offset < safe for physical_offset in read) <= 10


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_what_recovery_erases_at_the_start_of_a_file_is_erased_on_the_disk(kind: str) -> None:
    """Nothing else flushes a file that only holds remains; they could come back among what is written there next."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 5)
    path = f"/s/consumequeue/t/0/{100:020d}"
    if kind == "log":
        path = f"/s/commitlog/{8192:020d}"
        while store.max_physical_offset + 3000 < 8192:
            store.append(NewMessage("t", 0, bytes(2500), b""))
    store.write_checkpoint()
    count = store.max_offset("t", 0)
    for _ in range(3):
        store.append(NewMessage("t", 0, bytes(2500 if kind == "log" else 2000), b""))
    files.settle()
    lost = 512 if kind == "log" else 20
    files.mapped[path].buffer[:lost] = bytes(lost)
    if kind == "queue":
        files.mapped[LOG_FILE].buffer[store.physical_offset_at("t", 0, count) :] = bytes(
            8192 - store.physical_offset_at("t", 0, count)
        )
    files.settle()
    files.small["/s/abort"] = b"boot 0"
    assert open_store(files, clock).max_offset("t", 0) == count
    assert path not in files.mapped or not any(files.mapped[path].on_disk())


@pytest.mark.parametrize("seed", range(10))
def test_log_files_that_recovery_deletes_do_not_come_back(seed: int) -> None:
    """Their messages would be whole, at their own offsets, once new ones reach up to them."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    fill(store, 3)
    store.write_checkpoint()
    end = store.max_physical_offset
    for _ in range(5):
        store.append(NewMessage("t", 0, bytes(2500), b""))
    files.settle()
    second = f"/s/commitlog/{8192:020d}"
    assert second in files.mapped
    files.mapped[LOG_FILE].buffer[end : end + 512] = bytes(
        512
    )  # the power cut lost the start of the fourth message
    files.settle()
    files.small["/s/abort"] = b"boot 0"
    assert open_store(files, clock).max_physical_offset == end
    files = files.crash(random.Random(seed))
    assert second not in files.mapped
    assert ends(open_store(files, clock)) == {("t", 0): 3}
