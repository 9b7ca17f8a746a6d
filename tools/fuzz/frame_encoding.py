"""Encodes requests and damages frames, without the codec under test and without its checks.

Both header forms can carry what a correct encoder refuses: repeated fields, lone surrogates, numbers in place of text,
codes beyond 16 bits, and lengths that lie.
"""

import struct
from typing import Any, Final

from codec.constants import LANGUAGE_CODES
from tools.fuzz.json_mutations import mutate_bytes, write_json
from tools.fuzz.valid_requests import FuzzRequest
from tools.fuzz.values import Chance

_BINARY_HEAD: Final = struct.Struct(">hBhiii")
NO_FRAMES: Final = (
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    bytes.fromhex("16030100c8010000c40303") + bytes(194),
    b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
    b"PROXY TCP6 ::1 ::1 1 2\r\n",
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    bytes(64),
    b"\xff" * 64,
    struct.pack(">i", -1) + b"x" * 64,
    struct.pack(">i", -(1 << 31)) + b"x" * 64,
    struct.pack(">i", 16 * 1024 * 1024 + 1) + b"x" * 64,
    struct.pack(">II", 20, 0x00FFFFFF) + b"{}" * 50,
    struct.pack(">II", 20, 0x07000010) + b"{" * 100,
    struct.pack(">II", 20, 16) + b"\xff" * 16,
    struct.pack(">II", 11, 7) + b"[1,2,3]",
    struct.pack(">II", 8, 4) + b"null",
    struct.pack(">II", 9, 0x01000005) + b"\0\1\2\3\4",
    struct.pack(">II", 4, 0),
    struct.pack(">II", 4, 0x01000000),
    struct.pack(">I", 4) * 100,
    struct.pack(">II", 100_004, 100_000) + b"[" * 100_000,
    struct.pack(">II", 600_004, 600_000) + b'{"a":' * 120_000,
)
"""Bytes that are no frame, or a frame whose header is no command."""


def encode_request(request: FuzzRequest) -> bytes:
    """Return the whole frame of a request whose body has been written."""
    if request.binary:
        header, kind = _binary_header(request), 1
    else:
        header, kind = _json_header(request), 0
    return (
        struct.pack(">II", 4 + len(header) + len(request.body), kind << 24 | len(header))
        + header
        + request.body
    )


def _json_header(request: FuzzRequest) -> bytes:
    return b"".join(
        (
            b'{"code":',
            write_json(request.code),
            b',"extFields":',
            _json_fields(request),
            b',"flag":',
            write_json(request.flag),
            b',"language":',
            write_json(request.language),
            b',"opaque":',
            write_json(request.opaque),
            b',"serializeTypeCurrentRPC":"JSON","version":',
            write_json(request.version),
            b"}",
        )
    )


def _json_fields(request: FuzzRequest) -> bytes:
    if not request.repeated:
        return write_json(request.ext)
    pairs = [*request.ext.items(), *request.repeated]
    return b"{" + b",".join(write_json(name) + b":" + write_json(value) for name, value in pairs) + b"}"


def _binary_header(request: FuzzRequest) -> bytes:
    fields = b"".join(
        struct.pack(">H", len(name)) + name + struct.pack(">I", len(value)) + value
        for name, value in map(_binary_field, (*request.ext.items(), *request.repeated))
    )
    language = LANGUAGE_CODES.get(request.language, 0xFE)
    code, version = _cut(request.code, 16), _cut(request.version, 16)
    head = _BINARY_HEAD.pack(code, language, version, _cut(request.opaque, 32), _cut(request.flag, 32), 0)
    return head + struct.pack(">I", len(fields)) + fields


def _binary_field(pair: tuple[str, Any]) -> tuple[bytes, bytes]:
    name, value = pair
    return name.encode("utf-8", "surrogatepass")[:0xFFFF], str(value).encode("utf-8", "surrogatepass")


def _cut(number: Any, bits: int) -> int:
    """Return the lowest bits of a number, as a signed one; 0 for anything else."""
    if not isinstance(number, int):
        return 0
    low = number & (1 << bits) - 1
    return low - (1 << bits) if low >> bits - 1 else low


# -- damage -----------------------------------------------------------------------------------------------------------


def damage_frame(chance: Chance, frame: bytes) -> bytes:
    """Return a frame with lengths that lie, or with bytes missing, flipped or added."""
    kind = chance.below(7)
    if kind == 0:
        return frame[: chance.below(len(frame))]
    if kind == 1:
        return _with_word(chance, frame, 0)
    if kind == 2:
        return _with_word(chance, frame, 4)
    if kind == 3:
        return frame[:8] + mutate_bytes(chance, frame[8:])
    if kind == 4:
        return mutate_bytes(chance, frame[:60]) + frame[60:]
    if kind == 5:
        return chance.pick(NO_FRAMES)
    return frame + chance.pick(NO_FRAMES)


def _with_word(chance: Chance, frame: bytes, at: int) -> bytes:
    """Return a frame with one of its two length words replaced."""
    word = int.from_bytes(frame[at : at + 4])
    lies = (
        word + 1,
        word - 1,
        word + 5000,
        0,
        3,
        4,
        5,
        2**31 - 1,
        2**31,
        2**32 - 1,
        word | 1 << 24,
        word | 7 << 24,
    )
    return frame[:at] + (chance.pick(lies) & 0xFFFFFFFF).to_bytes(4) + frame[at + 4 :]
