"""The index that the C extension builds is the one that Python builds, byte by byte."""

import random
from typing import Any

import pytest

from codec.native import native_module
from storage import index
from storage.append import NewMessage
from storage.files import MemoryFiles
from storage.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexFile
from storage.index_keys import key_hashes, parse_common_message
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

pytestmark = pytest.mark.skipif(
    native_module() is None, reason="the C extension is not built: there is nothing to compare"
)
HEADER_FIELDS = ("begin_time", "end_time", "begin_offset", "end_offset", "slots_used", "next_entry")
TEXTS = (
    b"",
    b"a",
    b"order-1",
    b"a b",
    b"a  a",
    b" a ",
    b"x" * 700,
    "ключ".encode(),
    b"\xff",
    b"UNIQ_KEY",
    b"a\0b",
)


def random_properties(source: random.Random) -> bytes:
    """Return properties as clients send them, and as no client does."""
    pairs = []
    for name in (b"UNIQ_KEY", b"KEYS", b"TAGS"):
        if source.random() < 0.8:
            value = source.choice(TEXTS) if source.random() < 0.4 else b"%X" % source.getrandbits(90)
            if name == b"KEYS" and source.random() < 0.3:
                count = source.choice((2, 3, 7, 8, 9, 31, 32, 33, 40))
                value = b" ".join(b"k%d" % source.randrange(count * 2) for _ in range(count))
            pairs.append(name + b"\x01" + value)
    if source.random() < 0.3:
        pairs.append(
            source.choice(
                (b"MY_KEYS\x01v", b"NOKEYS\x01w", b"a\x01UNIQ_KEY", b"WAIT\x01true", b"TAGS\x01again")
            )
        )
    if source.random() < 0.2:
        source.shuffle(pairs)
    text = b"\x02".join(pairs)
    return text + b"\x02" if source.random() < 0.7 else text


def random_messages(seed: int, count: int) -> list[tuple[NewMessage[bytes], int]]:
    """Return messages with the time in ms that passes before each."""
    source = random.Random(seed)
    messages = []
    for _ in range(count):
        topic = source.choice(("t", "Orders", "Orders", "T" * 127, "über"))
        flag = source.choice((0, 0, 0, 0x4, 0x8, 0xC, 0x10, 0x20))
        message = NewMessage(
            topic,
            source.randrange(3),
            source.randbytes(source.randrange(30)),
            random_properties(source),
            sys_flag=flag,
            born_host=bytes(20 if flag & 0x10 else 8),
            store_host=bytes(20 if flag & 0x20 else 8),
        )
        messages.append((message, source.choice((0, 0, 1, 900, 1000, 70_000))))
    return messages


def story(seed: int, steps: int, with_extension: bool, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Store messages and index them in steps of random sizes; return what every step left behind."""
    monkeypatch.setattr(index, "native_module", native_module if with_extension else lambda: None)
    source, clock, files = random.Random(seed), FakeClock(), MemoryFiles()
    config = small_config(
        index_entries=source.choice((32, 200)),
        index_slots=source.choice((1, 8, 64)),
        max_keys_per_message=source.choice((1, 3, 32, 256)),
    )
    store = MessageStore.open(config, files, clock)
    states: list[Any] = []
    for message, pause_ms in random_messages(seed, steps):
        clock.advance(pause_ms)
        store.append(message)
        if source.random() < 0.2:
            limit = source.choice((1, 2, 5, 100))
            states.append(store.build_index(limit))
            states.append((store.index.next_offset, [describe(file) for file in store.index.files]))
    store.close()
    return [*states, {name: bytes(content) for name, content in index_content(files).items()}]


def describe(file: IndexFile) -> tuple[int, ...]:
    return tuple(getattr(file, name) for name in HEADER_FIELDS)


def index_content(files: MemoryFiles) -> dict[str, bytes]:
    """Return the index files of a store by name."""
    names = files.list("/s/index")
    contents = {}
    for name in names:
        size = files.size(f"/s/index/{name}")
        assert size is not None
        mapped = files.open_mapped(f"/s/index/{name}", size)
        contents[name] = bytes(mapped.view)
    return contents


@pytest.mark.parametrize("seed", range(12))
def test_stories_leave_the_same_files(seed, monkeypatch):
    by_python = story(seed, 150, False, monkeypatch)
    by_extension = story(seed, 150, True, monkeypatch)
    assert by_extension == by_python
    assert len(by_python) > 10


def new_file(slots: int, entries: int, source: random.Random) -> IndexFile:
    """Return an index file that has some entries already."""
    mapped = MemoryFiles().open_mapped("/i", HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES)
    file = IndexFile(mapped, slots, entries)
    for number in range(source.randrange(1, 8)):
        file.add_key(source.getrandbits(31), number, 1_000_000 + number)
    return file


def add_by_python(file: IndexFile, log: memoryview, end: int, offset: int, size: int, max_keys: int) -> int:
    """Add the messages of the first ``size`` bytes, and return what they count."""
    position = indexed = 0
    while position < size:
        message = parse_common_message(log, position, offset + position, end - position)
        assert message is not None, "the extension accepts what Python does not"
        message_bytes, sys_flag, stored, topic, properties = message
        if sys_flag & 0xC != 0xC:
            hashes = key_hashes(topic, properties, max_keys)
            assert file.try_add_keys(hashes, offset + position, stored)
            indexed += (len(properties) >> 9) + (len(hashes) >> 3)
        indexed += 1
        position += message_bytes
    assert position == size
    return indexed


@pytest.mark.parametrize("seed", range(8))
def test_damaged_logs_are_read_as_python_reads_them(seed):
    """Lengths, magic numbers, flags and texts of stored messages with random bytes changed, also at the very end."""
    module, source = native_module(), random.Random(seed)
    assert module is not None
    store = MessageStore.open(small_config(commit_log_file_bytes=1 << 20), MemoryFiles(), FakeClock())
    starts = [store.append(message)[1] for message, _ in random_messages(seed, 60)]
    whole = bytes(store.commit_log.mapped_file(0).view[: store.max_physical_offset])
    reached = 0
    for round_number in range(250):
        log = bytearray(whole)
        for _ in range(source.choice((0, 1, 2, 6))):
            # The lengths of body, topic and properties lie at or after byte 84 of a message.
            at = source.choice(starts) + source.choice(
                (source.randrange(8), 36, 84, 85, 86, 87, 88, source.randrange(200))
            )
            log[min(at, len(log) - 1)] = source.choice(
                (0, 1, 2, 0x20, 0x7F, 0x80, 0xFF, source.randrange(256))
            )
        begin = source.choice(starts)
        end = len(log) if source.random() < 0.7 else source.randrange(begin, len(log) + 1)
        # Exactly these bytes, so that sanitizers notice a read beyond them.
        view = memoryview(bytes(log[begin:end]))
        slots, entries, max_keys = (
            source.choice((1, 7, 50)),
            source.choice((10, 40, 500)),
            source.choice((1, 5, 256)),
        )
        random_state = source.getstate()
        by_extension = new_file(slots, entries, source)
        source.setstate(random_state)
        by_python = new_file(slots, entries, source)
        indexed, size = by_extension.add_messages(
            module.index_messages, view, 0, len(view), begin, 1 << 30, max_keys
        )
        assert add_by_python(by_python, view, len(view), begin, size, max_keys) == indexed
        assert describe(by_extension) == describe(by_python), round_number
        assert bytes(by_extension._mapped.view) == bytes(by_python._mapped.view), round_number
        reached += size
    assert reached > 250 * 50, "the extension stops at nearly every message"


def test_extension_takes_all_usual_messages(monkeypatch):
    module, sizes = native_module(), []
    assert module is not None

    class Counting:
        @staticmethod
        def index_messages(*arguments):
            answer = module.index_messages(*arguments)
            sizes.append(answer[1])
            return answer

    monkeypatch.setattr(index, "native_module", lambda: Counting)
    store = MessageStore.open(small_config(commit_log_file_bytes=1 << 20), MemoryFiles(), FakeClock())
    first = store.append(NewMessage("t", 0, b"x", b"KEYS\x01k\x02UNIQ_KEY\x01u"))[1]
    second = store.append(NewMessage("t", 0, b"x", b"KEYS\x01k\x02UNIQ_KEY\x01u"))[1]
    for number in range(5):
        store.append(
            NewMessage("t", 0, b"x" * number, b"UNIQ_KEY\x01%d\x02TAGS\x01a\x02WAIT\x01true\x02" % number)
        )
    assert store.build_index(100) == 7
    assert sizes == [store.max_physical_offset - second]
    assert first == 0


def test_step_is_shorter_where_messages_are_left_to_python(monkeypatch):
    store = MessageStore.open(small_config(commit_log_file_bytes=1 << 20), MemoryFiles(), FakeClock())
    for _ in range(30):
        store.append(NewMessage("t", 0, b"x", "KEYS\x01ключ\x02".encode()))
    assert store.build_index(100, cost_in_python=10) >= 100
    assert 0 < store.index.unindexed_bytes < store.max_physical_offset


@pytest.mark.parametrize(
    "changes",
    [
        {"position": -1},
        {"position": 9, "end": 8},
        {"end": 101},
        {"slots": 0},
        {"slots": 1 << 40},
        {"next_entry": 0},
        {"next_entry": 1 << 31},
        {"last_entry": 11},
        {"last_entry": 1 << 31},
    ],
)
def test_positions_outside_of_their_files_are_refused(changes):
    module = native_module()
    assert module is not None
    positions = {"position": 0, "end": 100, "slots": 2, "next_entry": 1, "last_entry": 10} | changes
    position, end, slots, next_entry, last_entry = positions.values()
    file = bytearray(HEADER_BYTES + 2 * SLOT_BYTES + 10 * ENTRY_BYTES)
    arguments = (bytes(100), position, end, 0, 5, 5, file, slots, next_entry, last_entry, 1, 1, 0, 0)
    with pytest.raises(ValueError, match="outside of its file"):
        module.index_messages(*arguments)
