"""What is read of a header without decoding it is what the decoder finds; streams are cut as the decoder's are."""

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from codec.command import Command, decode_frame, encode_command
from codec.errors import FrameError
from codec.frames import FrameSplitter
from gateway.shadow.proxy.peek import UNKNOWN, Cutter, Head, code_of, head_of, header_end

TEXT = some.text(some.characters(codec="utf-8"), max_size=20)
NAMES = some.sampled_from(["topic", "opaque", "flag", "code", "b", '"opaque":1,', '"flag":7}']) | TEXT.filter(
    bool
)
INTS = some.integers(-(2**31), 2**31 - 1)


@some.composite
def frames(draw):
    """Requests and answers in either serialisation, their header fields named as the header itself at times."""
    binary = draw(some.booleans())
    code = draw(some.integers(-(2**15), 2**15 - 1) if binary else INTS)
    ext = draw(some.dictionaries(NAMES, NAMES, max_size=4))
    remark = draw(some.none() | NAMES)
    command = Command(
        code, draw(INTS), draw(INTS), ext, draw(some.binary(max_size=30)), remark, binary=binary
    )
    return encode_command(command)


def framed(header, body=b""):
    """A frame with a header as somebody else would write it."""
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


@some.composite
def foreign_frames(draw):
    """JSON headers in any order, with fields left out, spelled differently or twice nested."""
    number = INTS | INTS.map(str) | some.none() | some.floats(0, 9)
    fields = {name: draw(number) for name in draw(some.permutations(["code", "opaque", "flag", "version"]))}
    fields["extFields"] = draw(some.dictionaries(NAMES, NAMES | some.integers(0, 9), max_size=3))
    for name in draw(some.sets(some.sampled_from(sorted(fields)), max_size=2)):
        del fields[name]
    separators = draw(some.sampled_from([(",", ":"), (", ", ": ")]))
    return framed(json.dumps(fields, separators=separators).encode())


def expected(frame):
    try:
        command = decode_frame(frame, 4, len(frame))
    except FrameError:
        return None
    return Head(command.code, command.opaque, command.flag)


@given(frames() | foreign_frames())
@example(framed(b'{"code":10,"extFields":{"opaque":5},"flag":0,"language":"GO"}'))
@example(framed(b'{"code":10,"flag":0,"opaque":3,"extFields":{"flag":"1","opaque":"2"}}'))
def test_heads_are_those_of_the_decoder(frame):
    head = expected(frame)
    before, behind = b"\0" * 3, b"\1" * 9
    data = before + frame + behind
    found = head_of(data, len(before), len(before) + len(frame))
    if head is None:
        return  # The upstream refuses it, whatever was read of it.
    assert found == head
    assert code_of(data, len(before), len(before) + len(frame)) == head.code
    assert code_of(data, len(before), len(before) + len(frame)) == head.code  # Remembered by its beginning.


@given(some.binary(min_size=4, max_size=60))
def test_nothing_is_raised_for_garbage(content):
    frame = struct.pack(">I", len(content)) + content
    head_of(frame, 0, len(frame))
    code_of(frame, 0, len(frame))
    header_end(frame, 0)


@pytest.mark.parametrize("header", [b"", b"{}", b"[]", b'{"code":"x"}', b"{" * 200, b'{"code":99999999999}'])
def test_no_code_can_be_read(header):
    frame = framed(header)
    assert code_of(frame, 0, len(frame)) == UNKNOWN
    assert head_of(frame, 0, len(frame)) is None


@given(some.lists(frames(), max_size=6), some.lists(some.integers(1, 40)))
def test_streams_are_cut_as_the_decoder_cuts_them(sent, sizes):
    stream = b"".join(sent)
    cutter, splitter = Cutter(), FrameSplitter()
    found, commands = [], []
    while stream:
        size = sizes.pop() if sizes else len(stream)
        piece, stream = stream[:size], stream[size:]
        data, stops = cutter.cut(piece)
        found += [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
        commands += splitter.feed(piece)
        assert len(cutter.kept) == splitter.buffered_bytes
    assert found == sent
    assert [expected(frame) for frame in found] == [
        Head(each.code, each.opaque, each.flag) for each in commands
    ]
    assert cutter.problem is None


@pytest.mark.parametrize("length", [0, 3, 97, 2**31, 2**32 - 1])
def test_bad_lengths_end_the_cutting_after_what_was_whole(length):
    whole = encode_command(Command(1))[:90]
    whole = struct.pack(">I", len(whole) - 4) + whole[4:]
    cutter = Cutter(frame_bytes=100)
    data, stops = cutter.cut(whole + struct.pack(">I", length) + b"x")
    assert stops == [len(whole)]
    assert data[: stops[-1]] == whole
    assert "is not between 4 and 96" in cutter.problem


def test_the_largest_frame_passes():
    cutter = Cutter(frame_bytes=100)
    frame = struct.pack(">I", 96) + b"x" * 96
    assert cutter.cut(frame[:99]) == (frame[:99], [])
    assert cutter.cut(frame[99:] + b"\0") == (frame + b"\0", [100])
    assert len(cutter.kept) == 1
