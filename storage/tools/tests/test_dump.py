"""The messages that a filter selects, in order, and damage in between."""

import zlib
from pathlib import Path

import pytest

from codec.message import Message
from codec.sysflag import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED
from storage.append import NewMessage
from storage.tools.dump import DumpFilter, dump_messages, message_value
from storage.tools.findings import StoreFinding
from storage.tools.store_reader import StoreReader
from storage.tools.tests.stores import (
    COUNT,
    LOG_FILE_BYTES,
    disk_config,
    flip_bit,
    log_file,
    make_store,
    open_store,
)

START_MS = 1_700_000_000_000


def dump(root: Path, **conditions: object) -> list[Message | StoreFinding]:
    reader = StoreReader(disk_config(root))
    try:
        return list(dump_messages(reader, DumpFilter(**conditions)))
    finally:
        reader.close()


def numbers(root: Path, **conditions: object) -> list[int]:
    return [int(item.body.split()[1]) for item in dump(root, **conditions) if isinstance(item, Message)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_store(tmp_path / "s")


def test_all_messages_in_the_order_of_the_log(root: Path) -> None:
    assert numbers(root) == list(range(COUNT))


def test_filters(root: Path) -> None:
    assert numbers(root, topic="t", queue_id=1) == list(range(1, COUNT, 3))
    assert numbers(root, topic="t") == [*range(0, COUNT, 3), *range(1, COUNT, 3)]
    assert numbers(root, topic="t", queue_id=0, from_offset=5, until_offset=7) == [15, 18]
    assert numbers(root, from_ms=START_MS + 500, until_ms=START_MS + 700) == [5, 6]
    assert numbers(root, key="k77") == numbers(root, key=f"{77:032X}") == [77]
    assert numbers(root, key="k7", topic="other") == []
    assert dump(root, topic="unknown") == []


def test_half_messages_are_in_the_log_only(root: Path) -> None:
    store = open_store(root)
    store.append(NewMessage("t", 0, b"half 1000", b"", sys_flag=TRANSACTION_PREPARED))
    store.close()
    assert numbers(root)[-1] == 1000
    assert 1000 not in numbers(root, topic="t")


@pytest.mark.parametrize("conditions", [{}, {"topic": "t", "queue_id": 0}])
def test_damage_is_passed_over_and_reported(root: Path, conditions: dict[str, object]) -> None:
    store = open_store(root)
    physical_offset = store.physical_offset_at("t", 0, 30)
    store.close()
    base = physical_offset - physical_offset % LOG_FILE_BYTES
    flip_bit(root / "commitlog" / f"{base:020d}", physical_offset - base + 90)
    items = dump(root, **conditions)
    (damage,) = [item for item in items if isinstance(item, StoreFinding)]
    assert (damage.offset, damage.file) == (physical_offset - base, f"{root}/commitlog/{base:020d}")
    assert 90 not in numbers(root, **conditions)
    assert len(items) == (COUNT if not conditions else 67)


def test_a_missing_log_file_is_passed_over(root: Path) -> None:
    log_file(root, 1).unlink()
    items = dump(root)
    assert [item.reason for item in items if isinstance(item, StoreFinding)] == ["the file is missing"]
    assert numbers(root)[-1] == COUNT - 1


def test_values() -> None:
    packed = Message(
        "t", zlib.compress("grün".encode()), {"KEYS": "a"}, sys_flag=COMPRESSED | COMPRESSION_ZLIB
    )
    assert message_value(packed, "text")["body"] == "grün"
    assert message_value(packed, "base64")["body"] == "Z3LDvG4="
    assert "body" not in message_value(packed, "none")
    assert message_value(packed, "none")["properties"] == {"KEYS": "a"}
    binary = message_value(Message("t", b"\xff\0"), "text")
    assert (binary["body"], binary["body_encoding"]) == ("/wA=", "base64")
    unknown = message_value(Message("t", b"not zlib", sys_flag=COMPRESSED), "text")
    assert (unknown["body_encoding"], unknown["body_compressed"]) == ("base64", True)
