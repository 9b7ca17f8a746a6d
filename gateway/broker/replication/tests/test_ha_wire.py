"""Reports and frames of replication, in parts of every length."""

import pytest

from gateway.broker.replication.ha_wire import (
    FrameReader,
    HaWireError,
    ReportReader,
    encode_frame_head,
    encode_report,
)

STREAM = (
    encode_frame_head(0, 5) + b"abcde" + encode_frame_head(5, 0) + encode_frame_head(5, 1) + b"f"
    + encode_frame_head(6, 20) + bytes(range(20))
)  # fmt: skip


def read_parts(parts: list[bytes]) -> list[tuple[int, bytes]]:
    reader = FrameReader()
    return [(offset, bytes(view)) for part in parts for offset, view in reader.feed(part)]


def test_reports_and_heads_are_big_endian() -> None:
    assert encode_report(258) == b"\0\0\0\0\0\0\1\2"
    assert encode_frame_head(1 << 40, 32768) == b"\0\0\1\0\0\0\0\0\0\0\x80\0"


def test_frames_in_one_read() -> None:
    assert read_parts([STREAM]) == [(0, b"abcde"), (5, b""), (5, b"f"), (6, bytes(range(20)))]


@pytest.mark.parametrize("size", range(1, 30))
def test_frames_in_parts(size: int) -> None:
    parts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    frames = read_parts(parts)
    assert frames.count((5, b"")) == 1
    log, end = b"", 0
    for offset, data in frames:
        assert offset == end
        log, end = log + data, end + len(data)
    assert log == b"abcdef" + bytes(range(20))


def test_parts_are_not_copied() -> None:
    data = bytearray(encode_frame_head(7, 3) + b"xyz")
    ((_, view),) = FrameReader().feed(data)
    data[12] = ord("X")
    assert bytes(view) == b"Xyz"


@pytest.mark.parametrize("head", [encode_frame_head(-1, 5), encode_frame_head(0, -5)])
def test_impossible_frames(head: bytes) -> None:
    with pytest.raises(HaWireError, match="a frame of"):
        list(FrameReader().feed(head))


def test_the_last_of_several_reports_counts() -> None:
    reader = ReportReader()
    assert reader.feed(encode_report(1) + encode_report(3) + encode_report(2) + b"\0\0\0") == 2
    assert reader.feed(b"\0\0\0\0") is None
    assert reader.feed(b"\x09") == 9
    assert reader.feed(b"") is None


def test_a_negative_report() -> None:
    with pytest.raises(HaWireError, match="negative offset -2"):
        ReportReader().feed(encode_report(-2))
