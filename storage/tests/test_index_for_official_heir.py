"""After a kill, an official broker that opens the store finds every message by its key."""

import random

import pytest

from codec import layouts
from storage import index
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

MARGIN_MS = 3000
ENTRIES = 60


def open_store(files: CrashFiles, clock: FakeClock) -> MessageStore:
    return MessageStore.open(small_config(index_entries=ENTRIES, index_slots=16), files, clock)


def officially_missing(files: CrashFiles, stored: dict[int, int]) -> list[int]:
    """Return the physical offsets of messages without an index entry once an official broker has recovered the store.

    ``stored``: store timestamps by physical offset. It keeps index files up to the first that ends after the
    checkpoint's index time, and indexes the messages of the log from the last file that begins with a message older
    than the checkpoint's other times. Source: IndexService.load, CommitLog.isMappedFileMatchedRecover, 5.4.0.
    """
    checkpoint = layouts.CHECKPOINT.parse(bytes(files.mapped["/s/checkpoint"].buffer))
    indexed_until = -1
    for name in files.list("/s/index"):
        header = layouts.INDEX_HEADER.parse(bytes(files.mapped[f"/s/index/{name}"].buffer[:40]))
        if header.end_timestamp <= checkpoint.index_timestamp:
            indexed_until = max(indexed_until, header.end_physical_offset)
    covered_ms = min(checkpoint.commit_log_timestamp, checkpoint.consume_queue_timestamp) - MARGIN_MS
    bases = sorted(int(name) for name in files.list("/s/commitlog"))
    first_of = {base: min((o for o in stored if o >= base), default=None) for base in bases}
    begin = max(
        [b for b, o in first_of.items() if o is not None and stored[o] <= covered_ms], default=bases[0]
    )
    return [offset for offset in stored if indexed_until < offset < begin]


@pytest.mark.parametrize("seed", range(30))
def test_no_key_is_lost_to_an_official_heir(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    stored: dict[int, int] = {}
    monkeypatch.setattr(index.IndexFile, "write_header", _check_then_write(files, stored))
    for _ in range(120):
        step = chance.random()
        if step < 0.5:
            for _ in range(chance.randrange(1, 20)):
                keys = b"KEYS\x01a b\x02" if chance.random() < 0.8 else b""
                appended = store.append(NewMessage("t", chance.randrange(3), b"x" * 40, keys))
                stored[appended[1]] = clock.now_ms()
                clock.advance(chance.randrange(0, 60))
        elif step < 0.75:
            store.build_index(chance.choice((1, 7, 1000)))
        elif step < 0.95:
            store.write_checkpoint()
        else:
            store = open_store(files.crash(chance, lose_unflushed=False), clock)
            files = store.files  # type: ignore[assignment]
            monkeypatch.setattr(index.IndexFile, "write_header", _check_then_write(files, stored))
        assert officially_missing(files, stored) == []


def test_keys_added_to_a_file_that_the_checkpoint_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official broker deletes a file that ends later than announced, with all the older keys in it."""
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    stored: dict[int, int] = {}
    monkeypatch.setattr(index.IndexFile, "write_header", _check_then_write(files, stored))
    for number in range(200):
        physical_offset = store.append(NewMessage("t", 0, b"x" * 200, b"KEYS\x01a\x02"))[1]
        stored[physical_offset] = clock.now_ms()
        clock.advance(2000)
        if number % 7 == 0:
            store.build_index(7)
        if number % 10 == 0:
            store.write_checkpoint()
        assert officially_missing(files, stored) == []


def _check_then_write(files: CrashFiles, stored: dict[int, int], original=index.IndexFile.write_header):
    """Return a `write_header` that looks at the files right before and after: the process may be killed there."""

    def write_header(self: index.IndexFile) -> None:
        assert officially_missing(files, stored) == []
        original(self)
        assert officially_missing(files, stored) == []

    return write_header
