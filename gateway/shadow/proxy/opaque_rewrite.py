"""Replace the opaque of a frame, and nothing else in it."""

from struct import Struct
from typing import Final

from codec.command import decode_frame, encode_command
from codec.constants import SERIALIZE_BINARY
from gateway.shadow.proxy.frame_peek import HEADER_AT, OPAQUE_PATTERN, find_header_end

_BINARY_OPAQUE_AT: Final = HEADER_AT + 5
_INT = Struct(">i")
_FIRST_WORDS = Struct(">II")


def replace_opaque(frame: bytes, opaque: int) -> bytes:
    """Return a frame with another opaque. Raises FrameError if it is not a command."""
    if frame[4] == SERIALIZE_BINARY:
        return frame[:_BINARY_OPAQUE_AT] + _INT.pack(opaque) + frame[_BINARY_OPAQUE_AT + 4 :]
    end = find_header_end(frame, 0)
    found = OPAQUE_PATTERN.search(frame, HEADER_AT, end)
    if found is None or frame.rfind(b'"opaque"', HEADER_AT, end) != found.start():
        return _reencode(frame, opaque)
    header = b"%b%d%b" % (frame[HEADER_AT : found.start(1)], opaque, frame[found.end(1) : end])
    return _FIRST_WORDS.pack(len(frame) - end + len(header) + 4, len(header)) + header + frame[end:]


def _reencode(frame: bytes, opaque: int) -> bytes:
    """Decode and encode a frame whose header has an unusual form, or a header field named "opaque"."""
    command = decode_frame(frame, 4, len(frame))
    command.opaque = opaque
    return encode_command(command)
