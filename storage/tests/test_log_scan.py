"""Properties full of zeros are refused, and messages whose lengths lie are told from real ones."""

import random

import pytest

from codec.batch import encode_batch
from codec.message import Message, encode_message, iter_messages
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from storage import append
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.errors import MessageIllegal
from storage.log_scan import NoMessage, ScannedMessage, check_message
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

ZEROS = b"KEYS\x01a" + bytes(1100) + b"b"


def open_store(files: CrashFiles, clock: FakeClock) -> MessageStore:
    return MessageStore.open(small_config(), files, clock)


def bodies(store: MessageStore) -> list[bytes]:
    chunks = store.read("t", 0, 0, 99).chunks
    return [bytes(message.body) for chunk in chunks for message in iter_messages(chunk)]


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store as a broker that refuses no properties."""
    monkeypatch.setattr(append, "check_no_lost_sector", lambda properties: None)


@pytest.mark.parametrize("properties", [ZEROS, b"\0a\x01b", b"a\x01b\0", bytes(600)])
def test_properties_that_look_like_a_lost_sector_are_refused(properties: bytes) -> None:
    store = open_store(CrashFiles(), FakeClock())
    with pytest.raises(MessageIllegal, match="NUL"):
        store.append(NewMessage("t", 0, b"body", properties))
    with pytest.raises(MessageIllegal, match="NUL"):
        store.append_batch("t", 0, encode_batch([(0, b"body", properties)]))
    assert store.max_physical_offset == 0


def test_a_few_zeros_inside_a_property_are_stored() -> None:
    store = open_store(CrashFiles(), FakeClock())
    store.append(NewMessage("t", 0, b"body", b"a\x01b\0\0c\x02"))
    assert store.max_offset("t", 0) == 1


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("is_last", [True, False])
def test_after_an_orderly_end_they_are_messages_like_others(is_last: bool) -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("t", 0, b"first", b""))
    store.append(NewMessage("t", 0, b"zeros", ZEROS))
    expected = [b"first", b"zeros"]
    if not is_last:
        store.append(NewMessage("t", 0, b"last", b""))
        expected.append(b"last")
    store.close()
    again = open_store(files, clock)
    assert bodies(again) == expected


@pytest.mark.usefixtures("foreign")
def test_after_a_killed_process_nothing_behind_them_is_cut() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    for body in (b"first", b"zeros", b"last"):
        store.append(NewMessage("t", 0, body, ZEROS if body == b"zeros" else b""))
    again = open_store(files.crash(random.Random(1), lose_unflushed=False), clock)
    assert bodies(again) == [b"first", b"zeros", b"last"]


def test_a_power_cut_that_loses_a_sector_of_properties_is_noticed() -> None:
    files, clock = CrashFiles(), FakeClock()
    store = open_store(files, clock)
    store.append(NewMessage("t", 0, b"first", b""))
    store.flush()
    store.append(NewMessage("t", 0, b"torn", b"KEYS\x01" + b"k" * 1500))
    log = files.mapped["/s/commitlog/00000000000000000000"]
    log.buffer[512:1024] = bytes(512)
    files.flush(log.path)
    again = open_store(files.crash(random.Random(1)), clock)
    assert bodies(again) == [b"first"]


def forged_message(physical_offset: int, size: int, sys_flag: int = 0, body_bytes: int = 3) -> bytes:
    """Return bytes that look like a message at a physical offset, and whose size, flag and body length may lie."""
    whole = bytearray(encode_message(Message("t", b"abc", physical_offset=physical_offset)))
    whole[:4], whole[36:40], whole[84:88] = size.to_bytes(4), sys_flag.to_bytes(4), body_bytes.to_bytes(4)
    return bytes(whole)


@pytest.mark.parametrize("size", [0, 1, 36, 90])
def test_bytes_in_a_body_that_are_too_short_for_a_message_are_none(size: int) -> None:
    store = open_store(CrashFiles(), FakeClock())
    store.append(NewMessage("t", 0, forged_message(88, size), b""))
    assert store.message_at(0) is not None
    assert store.message_at(88) is None


@pytest.mark.parametrize("sys_flag", [BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
def test_a_message_that_is_shorter_than_its_header_is_named_so(sys_flag: int) -> None:
    stored = forged_message(0, 95, sys_flag)[:95]
    assert "shorter than its header" in str(check_message(memoryview(stored), 0, 0, True))


@pytest.mark.parametrize("body_bytes", [4, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_a_body_length_that_lies_is_named(body_bytes: int) -> None:
    stored = forged_message(0, 96, body_bytes=body_bytes)
    assert isinstance(check_message(memoryview(stored)[:96], 0, 0, True), NoMessage)


@pytest.mark.parametrize("kind", ["body", "place"])
def test_a_message_with_a_torn_body_or_of_another_place_is_none(kind: str) -> None:
    """Whole messages of an earlier life of the file name the places that they had then."""
    stored = bytearray(encode_message(Message("t", b"x" * 1000, physical_offset=4096)))
    assert isinstance(check_message(memoryview(stored), 0, 4096, True), ScannedMessage)
    if kind == "body":
        stored[500:800] = bytes(300)
    physical_offset = 4096 if kind == "body" else 0
    result = check_message(memoryview(stored), 0, physical_offset, True)
    assert result == NoMessage(
        "the body does not match its CRC" if kind == "body" else "the message belongs at physical offset 4096"
    )
