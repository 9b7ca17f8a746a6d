from contextlib import suppress
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.command import Command, encode_command
from codec.errors import FrameError
from codec.frames import MAX_FRAME_BYTES, FrameSplitter, frame_size, split_frames
from codec.tests.test_command import COMMANDS


@given(st.lists(COMMANDS, max_size=4), st.integers(1, 40))
def test_frames_come_out_whole_however_they_are_cut(commands, step):
    stream = b"".join(map(encode_command, commands))
    splitter = FrameSplitter()
    decoded = [c for at in range(0, len(stream), step) for c in splitter.feed(stream[at : at + step])]
    assert decoded == commands
    assert splitter.buffered_bytes == 0


@given(
    st.lists(st.sampled_from([0, 10, 70_000, 300_000]), max_size=4),
    st.lists(st.tuples(st.integers(1, 120_000), st.booleans()), min_size=1),
)
def test_large_frames_are_filled_where_they_stay(sizes, cuts):
    """However they are cut, and whether or not the rest is written where it is wanted."""
    commands = [Command(1, number, 0, {}, bytes([number]) * size) for number, size in enumerate(sizes)]
    stream = memoryview(b"".join(map(encode_command, commands)))
    splitter, decoded, at = FrameSplitter(), [], 0
    for step, in_place in cycle(cuts):
        if at == len(stream):
            break
        rest = splitter.rest_buffer() if in_place else None
        if rest is None:
            piece = stream[at : at + step]
            decoded += splitter.feed(piece)
        else:
            piece = stream[at : at + min(step, len(rest))]
            rest[: len(piece)] = piece
            decoded += splitter.rest_written(len(piece))
        at += len(piece)
    assert decoded == commands
    assert splitter.buffered_bytes == 0


def test_split_leaves_the_beginning_of_the_next_frame():
    frame = encode_command(Command(1, body=b"body"))
    buffer = bytearray(frame + frame[:7])
    assert split_frames(buffer) == [Command(1, body=b"body")]
    assert buffer == frame[:7]


@pytest.mark.parametrize("length", [0, 3, MAX_FRAME_BYTES - 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_impossible_lengths_are_refused_before_their_bytes_arrive(length):
    with pytest.raises(FrameError, match="frame length"):
        FrameSplitter().feed(length.to_bytes(4))
    splitter = FrameSplitter()
    splitter.feed(length.to_bytes(4)[:3])
    assert splitter.rest_buffer() is None


def test_the_length_word_counts_towards_the_limit():
    assert frame_size((MAX_FRAME_BYTES - 4).to_bytes(4), 0) == MAX_FRAME_BYTES
    with pytest.raises(FrameError):
        frame_size((97).to_bytes(4), 0, max_frame_bytes=100)


@given(st.binary(max_size=100))
def test_garbage_raises_nothing_but_frame_error(data):
    with suppress(FrameError):
        FrameSplitter().feed(data)
