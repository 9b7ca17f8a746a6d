"""Peeking at a header finds the same values as the decoder."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from codec.constants import MAX_HEADER_BYTES
from gateway.shadow.proxy.frame_peek import UNKNOWN, find_header_end, peek_code, peek_head
from gateway.shadow.proxy.tests.frame_strategies import (
    decoded_head,
    encoded_commands,
    foreign_frames,
    frame_of,
)


@given(encoded_commands() | foreign_frames())
@example(frame_of(b'{"code":10,"extFields":{"opaque":5},"flag":0,"language":"GO"}'))
@example(frame_of(b'{"code":10,"flag":0,"opaque":3,"extFields":{"flag":"1","opaque":"2"}}'))
def test_peeked_heads_equal_decoded_ones(frame):
    head = decoded_head(frame)
    before, after = b"\0" * 3, b"\1" * 9
    data = before + frame + after
    start, end = len(before), len(before) + len(frame)
    found = peek_head(data, start, end)
    if head is None:
        return  # The upstream refuses such a frame, so the values do not matter.
    assert found == head
    assert peek_code(data, start, end) == head.code
    assert peek_code(data, start, end) == head.code  # The second time it may be known by its first bytes.
    assert peek_head(data, start, end, head.code) == head


@given(some.binary(min_size=4, max_size=60))
def test_garbage_raises_nothing(content):
    frame = struct.pack(">I", len(content)) + content
    peek_head(frame, 0, len(frame))
    peek_code(frame, 0, len(frame))
    find_header_end(frame, 0)


@pytest.mark.parametrize("header", [b"", b"[]", b'{"code":"x"}', b"{" * 200, b'{"code":99999999999}'])
def test_headers_without_a_readable_code(header):
    frame = frame_of(header)
    assert peek_code(frame, 0, len(frame)) == UNKNOWN
    assert peek_head(frame, 0, len(frame)) is None


@pytest.mark.parametrize("filler", [b'"flag":', b"9", b'"opaque":1,', b"[", b"\\"])
def test_headers_larger_than_any_broker_accepts_are_not_searched(filler):
    header = b'{"code":10,"x":"' + filler * (2 * MAX_HEADER_BYTES // len(filler)) + b'","flag":0,"opaque":1}'
    frame = frame_of(header)
    assert peek_head(frame, 0, len(frame), 10) is None
