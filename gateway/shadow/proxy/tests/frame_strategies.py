"""Hypothesis strategies for frames, as known clients and others write them."""

import json
import struct

from hypothesis import strategies as some

from codec.command import Command, decode_frame, encode_command
from codec.errors import FrameError
from gateway.shadow.proxy.frame_peek import FrameHead

TEXT = some.text(some.characters(codec="utf-8"), max_size=20)
NAMES = some.sampled_from(["topic", "opaque", "flag", "code", "b", '"opaque":1,', '"flag":7}']) | TEXT.filter(
    bool
)
INTS = some.integers(-(2**31), 2**31 - 1)


@some.composite
def encoded_commands(draw):
    """Requests and answers in either serialization; some header fields have the names of header values."""
    binary = draw(some.booleans())
    code = draw(some.integers(-(2**15), 2**15 - 1) if binary else INTS)
    ext = draw(some.dictionaries(NAMES, NAMES, max_size=4))
    remark = draw(some.none() | NAMES)
    command = Command(
        code, draw(INTS), draw(INTS), ext, draw(some.binary(max_size=30)), remark, binary=binary
    )
    return encode_command(command)


def frame_of(header, body=b""):
    """A frame with a header as some other client would write it."""
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


@some.composite
def foreign_frames(draw):
    """JSON headers in any order, with values left out, spelled differently or nested twice."""
    number = INTS | INTS.map(str) | some.none() | some.floats(0, 9)
    fields = {name: draw(number) for name in draw(some.permutations(["code", "opaque", "flag", "version"]))}
    fields["extFields"] = draw(some.dictionaries(NAMES, NAMES | some.integers(0, 9), max_size=3))
    for name in draw(some.sets(some.sampled_from(sorted(fields)), max_size=2)):
        del fields[name]
    separators = draw(some.sampled_from([(",", ":"), (", ", ": ")]))
    return frame_of(json.dumps(fields, separators=separators).encode())


def decoded_head(frame):
    """The head of a frame by the decoder, None for a frame that it refuses."""
    try:
        command = decode_frame(frame, 4, len(frame))
    except FrameError:
        return None
    return FrameHead(command.code, command.opaque, command.flag)
