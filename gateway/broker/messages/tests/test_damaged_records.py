import logging

import pytest

from codec.message import Message, encode_message
from gateway.broker.messages.damaged_records import DamagedRecords, RecordKind, RecordLocation

PLACE = RecordLocation("t", 3, 7, 4096)


@pytest.fixture
def damaged():
    return DamagedRecords("b1")


def lines(caplog):
    return [record.__dict__ for record in caplog.records if record.levelno == logging.ERROR]


def test_records_are_logged_with_their_place(damaged, caplog):
    damaged.skip(RecordKind.TIMER_MESSAGE, PLACE, ValueError("x" * 10_000))
    damaged.skip(RecordKind.OP_MESSAGE, PLACE, "no offsets")
    first, second = lines(caplog)
    assert (first["kind"], first["topic"], first["queue_id"]) == ("timer_message", "t", 3)
    assert (first["queue_offset"], first["physical_offset"], len(first["reason"])) == (7, 4096, 300)
    assert (second["kind"], second["reason"]) == ("op_message", "no offsets")


def test_every_record_is_counted(damaged):
    for _ in range(1001):
        damaged.skip(RecordKind.POP_RECORD, PLACE, "bad")
    counts = {metric.labels["kind"]: metric.value for metric in damaged.metrics()}
    assert (counts["pop_record"], counts["timer_message"], len(counts)) == (1001, 0, len(RecordKind))


def test_damaged_messages_of_a_chunk_are_skipped_and_located(damaged, caplog):
    def stored(offset):
        return encode_message(
            Message(
                "t", b"body", {"TAGS": "a"}, queue_id=3, queue_offset=offset, physical_offset=offset * 1000
            )
        )

    torn = bytearray(stored(2))
    torn[84:88] = (1 << 30).to_bytes(4)  # its body is said to be longer than the message
    chunk = memoryview(stored(1) + bytes(torn) + stored(3) + b"\0" * 40)
    found = damaged.decode_readable(RecordKind.OP_MESSAGE, "t", 3, 1, chunk)
    assert [message.queue_offset for message in found] == [1, 3]
    assert damaged.count(RecordKind.OP_MESSAGE) == 2
    assert (lines(caplog)[0]["queue_offset"], lines(caplog)[0]["physical_offset"]) == (2, 2000)
