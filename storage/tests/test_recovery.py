"""Opening a store: files that do not fit the settings, files that are missing, damage."""

import pytest

from codec.message import iter_messages
from storage.crash_files import CrashFiles
from storage.errors import CorruptionError
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config


def open_store(files: CrashFiles, clock: FakeClock, **changes: object) -> MessageStore:
    return MessageStore.open(small_config(**changes), files, clock)


def bodies(store: MessageStore, topic: str = "t") -> list[bytes]:
    found: list[bytes] = []
    while chunks := store.read(topic, 0, store.min_offset(topic, 0) + len(found), 99).chunks:
        found += [bytes(message.body) for chunk in chunks for message in iter_messages(chunk)]
    return found


def fill(store: MessageStore, count: int, topic: str = "t") -> list[bytes]:
    expected = [b"%d" % number for number in range(count)]
    for body in expected:
        store.append(topic, 0, body)
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
    assert again.append("t", 0, b"next")[0] == 17
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
