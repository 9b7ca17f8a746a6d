"""Hellos, reports and frames of AutoSwitchHA, as an official broker 5.4.0 sends them, in parts of every length."""

import struct

import pytest

from gateway.broker.replication.auto_switch_wire import (
    MasterHello,
    MasterHelloReader,
    SlaveHello,
    SlaveReader,
    TransferReader,
    encode_frame_head,
    encode_master_hello,
    encode_report,
    encode_slave_hello,
)
from gateway.broker.replication.epochs import EpochStart
from gateway.broker.replication.ha_wire import HaWireError

HELLO = MasterHello(1620, (EpochStart(1, 0), EpochStart(5, 1350)))
HELLO_BYTES = bytes.fromhex(
    "00000001 00000018 0000000000000654 00000005 00000001 0000000000000000 00000005 0000000000000546"
)
FRAME_BYTES = bytes.fromhex("00000002 00000546 0000000000000000 00000005 0000000000000546 0000000000000654")


def test_the_bytes_are_the_official_ones() -> None:
    assert encode_slave_hello(SlaveHello(2)) == bytes.fromhex("00000001 0000 0000 0000000000000002")
    assert encode_slave_hello(SlaveHello(258, True, True)) == bytes.fromhex(
        "00000001 0001 0001 0000000000000102"
    )
    assert encode_report(1350) == bytes.fromhex("00000002 0000000000000546")
    assert encode_master_hello(HELLO) == HELLO_BYTES
    assert encode_frame_head(0, 1350, EpochStart(5, 1350), 1620) == FRAME_BYTES
    empty = encode_master_hello(MasterHello(0, ()))
    assert empty == bytes.fromhex("00000001 00000000 0000000000000000 ffffffff")


@pytest.mark.parametrize("size", [*range(1, 20), 100])
def test_words_of_a_slave_in_parts(size: int) -> None:
    data = encode_slave_hello(SlaveHello(7, True)) + encode_report(0) + encode_report(1 << 40)
    reader = SlaveReader()
    messages = [
        message for start in range(0, len(data), size) for message in reader.feed(data[start : start + size])
    ]
    assert messages == [SlaveHello(7, True), 0, 1 << 40]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode_report(-5), "negative offset -5"),
        (bytes(8), "without a controller"),
        (struct.pack(">iq", 3, 0), "state 3"),
        (b"\xff" * 16, "state -1"),
    ],
)
def test_words_that_no_slave_says(data: bytes, reason: str) -> None:
    with pytest.raises(HaWireError, match=reason):
        list(SlaveReader().feed(data))


@pytest.mark.parametrize("size", [*range(1, 50), 100])
def test_an_answer_in_parts(size: int) -> None:
    reader, answer = MasterHelloReader(), None
    for start in range(0, len(HELLO_BYTES), size):
        assert answer is None
        answer = reader.feed(HELLO_BYTES[start : start + size])
    assert answer == (HELLO, b"")
    assert MasterHelloReader().feed(HELLO_BYTES + b"more") == (HELLO, b"more")


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">iiqi", 2, 0, 0, -1),
        struct.pack(">iiqi", 1, -12, 0, -1),
        struct.pack(">iiqi", 1, 13, 0, -1),
        struct.pack(">iiqi", 1, 12 * 1001, 0, -1),
        struct.pack(">iiqi", 1, 2**31 - 1, 0, -1),
        struct.pack(">iiqi", 1, 0, -1, -1),
        encode_master_hello(MasterHello(100, (EpochStart(1, 101),))),
        encode_master_hello(MasterHello(100, (EpochStart(1, -1),))),
        encode_master_hello(MasterHello(100, (EpochStart(-1, 0),))),
        encode_master_hello(MasterHello(100, (EpochStart(2, 0), EpochStart(2, 50)))),
        encode_master_hello(MasterHello(100, (EpochStart(2, 50), EpochStart(3, 40)))),
    ],
)
def test_an_answer_that_no_master_gives(answer: bytes) -> None:
    with pytest.raises(HaWireError, match="handshake"):
        MasterHelloReader().feed(answer)


@pytest.mark.parametrize("size", [*range(1, 50), 5000])
def test_frames_in_parts(size: int) -> None:
    data = FRAME_BYTES + bytes(1350) + encode_frame_head(1350, 0, EpochStart(6, 1350), 1400)
    reader, log, seen = TransferReader(), b"", set()
    for start in range(0, len(data), size):
        for offset, part in reader.feed(data[start : start + size]):
            assert offset == len(log)
            log += part
            seen.add((reader.epoch, reader.confirm_offset, bool(part)))
    assert log == bytes(1350)
    assert seen == {((5, 1350), 1620, True), ((6, 1350), 1400, False)}


def test_a_heartbeat_of_a_master_that_does_not_know_where_it_begins() -> None:
    reader = TransferReader()
    assert list(reader.feed(encode_frame_head(-1, 0, EpochStart(1, 0), -1))) == [(-1, b"")]
    assert reader.epoch == (-1, 0)


@pytest.mark.parametrize(
    "values",
    [(1, 0, 0, 1, 0, 0), (2, -1, 0, 1, 0, 0), (2, 5, -1, 1, 0, 0), (2, 0, -2, 1, 0, 0), (2, 0, 0, -1, 0, 0),
     (2, 0, 0, 1, -1, 0), (2, 0, 0, 1, 0, -2)],
)  # fmt: skip
def test_a_frame_that_no_master_sends(values: tuple[int, ...]) -> None:
    with pytest.raises(HaWireError, match="a frame of"):
        list(TransferReader().feed(struct.pack(">iiqiqq", *values)))
