"""Queues whose entries hold addresses in files of extensions, as official brokers write them, filtered by tags."""

import pytest

from codec.hashing import tags_code
from codec.message import iter_messages
from codec.properties import encode_properties
from storage.append import NewMessage
from storage.config import memory_config
from storage.files import MemoryFiles
from storage.queue_read import ReadStatus
from storage.store import MessageStore
from storage.tags import MAX_EXTENSION_ADDRESS

FIRST_ADDRESS = -(1 << 63)


@pytest.fixture
def store() -> MessageStore:
    """A store with twelve messages tagged A, B, A, B, …: the entries of the first eight hold addresses."""
    store = MessageStore.open(memory_config(), MemoryFiles())
    for number in range(12):
        properties = encode_properties({"TAGS": "AB"[number % 2]})
        address = (FIRST_ADDRESS + 30 * number, MAX_EXTENSION_ADDRESS)[number == 7]
        store.append(
            NewMessage("t", 0, b"%d" % number, properties, tags_code=address if number < 8 else None)
        )
    return store


def read(store: MessageStore, *tags: str) -> tuple[list[int], int]:
    result = store.read("t", 0, 0, 32, predicate={tags_code(tag) for tag in tags}.__contains__)
    return [int(m.body) for m in iter_messages(b"".join(result.chunks))], result.next_offset


def test_the_tags_of_the_message_count_where_the_entry_has_an_address(store: MessageStore) -> None:
    assert read(store, "A") == ([0, 2, 4, 6, 8, 10], 12)
    assert read(store, "B") == ([1, 3, 5, 7, 9, 11], 12)
    assert read(store, "A", "B") == (list(range(12)), 12)


def test_other_tags_are_skipped(store: MessageStore) -> None:
    result = store.read("t", 0, 0, 32, predicate={tags_code("C")}.__contains__)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 12)


def test_without_tags_a_message_passes_no_filter(store: MessageStore) -> None:
    store.append(NewMessage("t", 0, b"12", b"", tags_code=FIRST_ADDRESS))
    assert read(store, "A") == ([0, 2, 4, 6, 8, 10], 13)
