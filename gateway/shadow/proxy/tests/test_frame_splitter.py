"""The raw splitter finds the same frames as the decoder's."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some

from codec.command import Command, encode_command
from codec.frames import FrameSplitter
from gateway.shadow.proxy.frame_peek import FrameHead
from gateway.shadow.proxy.frame_splitter import RawFrameSplitter
from gateway.shadow.proxy.tests.frame_strategies import decoded_head, encoded_commands


@given(some.lists(encoded_commands(), max_size=6), some.lists(some.integers(1, 40)))
def test_streams_are_split_like_the_decoder_splits_them(sent, sizes):
    stream = b"".join(sent)
    raw_splitter, splitter = RawFrameSplitter(), FrameSplitter()
    found, commands = [], []
    while stream:
        size = sizes.pop() if sizes else len(stream)
        piece, stream = stream[:size], stream[size:]
        data, ends = raw_splitter.split(piece)
        found += [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        commands += splitter.feed(piece)
        assert len(raw_splitter.unfinished) == splitter.buffered_bytes
    assert found == sent
    assert [decoded_head(frame) for frame in found] == [
        FrameHead(each.code, each.opaque, each.flag) for each in commands
    ]
    assert raw_splitter.error is None


@pytest.mark.parametrize("length", [0, 3, 97, 2**31, 2**32 - 1])
def test_a_bad_length_ends_the_splitting_after_the_complete_frames(length):
    whole = encode_command(Command(1))[:90]
    whole = struct.pack(">I", len(whole) - 4) + whole[4:]
    splitter = RawFrameSplitter(max_frame_bytes=100)
    data, ends = splitter.split(whole + struct.pack(">I", length) + b"x")
    assert ends == [len(whole)]
    assert data[: ends[-1]] == whole
    assert "is not between 4 and 96" in (splitter.error or "")


def test_the_largest_frame_passes():
    splitter = RawFrameSplitter(max_frame_bytes=100)
    frame = struct.pack(">I", 96) + b"x" * 96
    assert splitter.split(frame[:99]) == (frame[:99], [])
    assert splitter.split(frame[99:] + b"\0") == (frame + b"\0", [100])
    assert len(splitter.unfinished) == 1
