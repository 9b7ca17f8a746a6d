"""gRPC on one HTTP/2 stream: length-prefixed messages, their compression, timeouts and status codes.

Each message has a prefix of five bytes: a flag that tells whether it is compressed, and its length.
Source: PROTOCOL-HTTP2.md of grpc/grpc.
"""

import re
import zlib
from enum import IntEnum
from struct import Struct
from typing import Final
from urllib.parse import quote

_PREFIX: Final = Struct(">BI")
_GZIP_WINDOW_BITS: Final = 31
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])").fullmatch
_UNIT_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
IDENTITY: Final = "identity"
GZIP: Final = "gzip"
ACCEPTED_ENCODINGS: Final = f"{IDENTITY},{GZIP}"
MAX_STATUS_CHARS: Final = 1024
"""Longest text of a status. Texts quote what a client sent, and a header is packed by slow code."""


class GrpcStatus(IntEnum):
    """The end of an RPC, for the transport. The protocol's own codes are in the answers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """Ends an RPC with a status of the transport."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(f"{status.name}: {text}")
        self.status = status
        self.text = text


class MessageReader:
    """Cuts messages off the bytes of one stream. No message may be longer than ``max_bytes``, unpacked or not."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with ``data``. Raises GrpcError."""
        held = self._held
        held += data
        messages, position = [], 0
        while len(held) - position >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(held, position)
            if size > self._max_bytes:
                raise self._too_large(f"of {size} bytes")
            end = position + _PREFIX.size + size
            if len(held) < end:
                break
            message = bytes(memoryview(held)[position + _PREFIX.size : end])
            messages.append(self._unpack(message) if compressed else message)
            position = end
        del held[:position]
        return messages

    def _unpack(self, message: bytes) -> bytes:
        if self._encoding != GZIP:
            raise GrpcError(
                GrpcStatus.UNIMPLEMENTED,
                f"grpc-encoding {self._encoding!r} is not supported, only {ACCEPTED_ENCODINGS}",
            )
        inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            plain = inflater.decompress(message, self._max_bytes + 1)
        except zlib.error as error:
            raise GrpcError(GrpcStatus.INTERNAL, f"a compressed message is damaged: {error}") from error
        if len(plain) > self._max_bytes:
            raise self._too_large("when it is unpacked")
        if not inflater.eof:
            raise GrpcError(GrpcStatus.INTERNAL, "a compressed message ends early")
        return plain

    def _too_large(self, what: str) -> GrpcError:
        remedy = "send less in one request; com.rocketmq.remoting.frameMaxLength limits those with messages"
        return GrpcError(
            GrpcStatus.RESOURCE_EXHAUSTED, f"a message {what} exceeds {self._max_bytes} bytes: {remedy}"
        )


def frame_message(message: bytes) -> bytes:
    """Return a message with its prefix, not compressed."""
    return _PREFIX.pack(0, len(message)) + message


def parse_timeout(text: str) -> float:
    """Return the seconds of a ``grpc-timeout`` header. Raises GrpcError."""
    match = _TIMEOUT(text)
    if match is None:
        raise GrpcError(
            GrpcStatus.INVALID_ARGUMENT, f"grpc-timeout {text[:32]!r} is not a time such as 3S or 500m"
        )
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def encode_status_text(text: str) -> str:
    """Return a status text as the ``grpc-message`` header holds it: percent-encoded."""
    return quote(text[:MAX_STATUS_CHARS], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
