"""The RPC of an honest client: asks the gRPC port for the route of a topic, and waits for the answer."""

import socket
from typing import Final, Self

from hpack import Encoder

from compat_tests.server import split_address
from remoting.errors import RemotingClosed, RemotingTimeout
from tools.fuzz.grpc_messages import part
from tools.fuzz.grpc_walks import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RESET,
    SERVICE,
    begin_connection,
    grpc_prefix,
    http2_frame,
)

MAX_CALLS: Final = 10_000
"""Calls on one connection; then another one is opened."""
_HEAD_BYTES: Final = 9


class GrpcProbe:
    """One connection, with one call at a time."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._socket = socket.create_connection(split_address(address), timeout_s)
        self._socket.sendall(begin_connection())
        self._encoder = Encoder()
        self._input = bytearray()
        self._stream = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def is_used_up(self) -> bool:
        return self._stream > 2 * MAX_CALLS

    def ask_route(self, topic: str) -> bytes:
        """Return the data that answers a call. Raises RemotingTimeout, RemotingClosed."""
        self._stream += 2
        headers = {
            ":method": "POST", ":scheme": "http", ":path": f"{SERVICE}QueryRoute", ":authority": "healthy",
            "content-type": "application/grpc", "te": "trailers", "x-mq-client-id": "healthy",
        }  # fmt: skip
        message = grpc_prefix(part(1, part(2, topic.encode())))
        block = self._encoder.encode(list(headers.items()))
        try:
            self._socket.sendall(
                http2_frame(HEADERS, END_HEADERS, self._stream, block)
                + http2_frame(DATA, END_STREAM, self._stream, message)
            )
            return self._read_answer()
        except TimeoutError as error:
            raise RemotingTimeout(f"no answer to call {self._stream} of the gRPC port") from error
        except OSError as error:
            raise RemotingClosed(f"the gRPC port closed the connection: {error}") from error

    def _read_answer(self) -> bytes:
        answer = b""
        while True:
            kind, flags, stream, payload = self._read_frame()
            if stream != self._stream:
                continue
            if kind == DATA:
                answer += payload
            if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
                return answer

    def _read_frame(self) -> tuple[int, int, int, bytes]:
        while len(self._input) < _HEAD_BYTES + int.from_bytes(self._input[:3]):
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionResetError("end of the connection")
            self._input += data
        end = _HEAD_BYTES + int.from_bytes(self._input[:3])
        head, payload = self._input[3:_HEAD_BYTES], bytes(self._input[_HEAD_BYTES:end])
        del self._input[:end]
        return head[0], head[1], int.from_bytes(head[2:]), payload
