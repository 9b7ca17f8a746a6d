"""The number by which an answer finds its request, changed in a frame; all else stays.

Not responsible for which numbers are free.
"""

from struct import Struct
from typing import Final

from codec.command import decode_frame, encode_command
from codec.constants import SERIALIZE_BINARY
from gateway.shadow.proxy.peek import HEADER_AT, OPAQUE, header_end

_BINARY_OPAQUE_AT: Final = HEADER_AT + 5
_INT = Struct(">i")
_HEAD = Struct(">II")


def with_opaque(frame: bytes, opaque: int) -> bytes:
    """A whole frame with another opaque. Raises FrameError for what is no command."""
    if frame[4] == SERIALIZE_BINARY:
        return frame[:_BINARY_OPAQUE_AT] + _INT.pack(opaque) + frame[_BINARY_OPAQUE_AT + 4 :]
    stop = header_end(frame, 0)
    found = OPAQUE.search(frame, HEADER_AT, stop)
    if found is None or frame.rfind(b'"opaque"', HEADER_AT, stop) != found.start():
        return _encoded_again(frame, opaque)
    header = b"%b%d%b" % (frame[HEADER_AT : found.start(1)], opaque, frame[found.end(1) : stop])
    return _HEAD.pack(len(frame) - stop + len(header) + 4, len(header)) + header + frame[stop:]


def _encoded_again(frame: bytes, opaque: int) -> bytes:
    """For headers that are spelled as nobody does, or have a field of that name."""
    command = decode_frame(frame, 4, len(frame))
    command.opaque = opaque
    return encode_command(command)
