"""Sends messages through one connection with several outstanding, and notes how long each send took.

It speaks the protocol itself, as `Probe` does, because a stock client spends more processor time than the server, and
caches a route for each of ten thousand topics.
"""

import json
import re
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from typing import Self

SEND_MESSAGE_V2 = 310
_CODE = re.compile(rb'"code"\s*:\s*(-?\d+)')
_OPAQUE = re.compile(rb'"opaque"\s*:\s*(\d+)')


class SendRefused(Exception):
    """The broker answered a send with another code than 0; the text is its header."""


class PipelinedSender:
    """A connection to a broker on which at most ``depth`` sends are outstanding."""

    def __init__(self, address: str, depth: int, timeout_s: float = 60.0) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._depth = depth
        self._started_s: dict[int, float] = {}
        self._received = bytearray()
        self._next_opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send_all(self, queues: Iterable[tuple[str, int]], body: bytes, keys: str = "") -> list[float]:
        """Send one message to each queue, in order; return how long each took, in seconds, in order of the answers.

        Raises SendRefused, and OSError if the broker closes the connection or does not answer in time.
        """
        took_s: list[float] = []
        waiting = deque(queues)
        while waiting or self._started_s:
            frames = []
            while waiting and len(self._started_s) < self._depth:
                topic, queue_id = waiting.popleft()
                frames.append(self._frame(topic, queue_id, body, keys))
            if frames:
                self._socket.sendall(b"".join(frames))
            self._receive_answers(took_s)
        return took_s

    def _frame(self, topic: str, queue_id: int, body: bytes, keys: str) -> bytes:
        self._next_opaque += 1
        opaque = self._next_opaque
        properties = f"UNIQ_KEY\1{opaque:032X}\2WAIT\1true\2" + (f"KEYS\1{keys}{opaque}\2" if keys else "")
        fields = {
            "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        header = {"code": SEND_MESSAGE_V2, "language": "JAVA", "version": 463, "opaque": opaque, "flag": 0}
        head = json.dumps({**header, "extFields": fields}).encode()
        self._started_s[opaque] = time.perf_counter()
        return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body

    def _receive_answers(self, took_s: list[float]) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("closed by the broker")
        received, now_s, position = self._received, time.perf_counter(), 0
        received += data
        while len(received) - position >= 8:
            end = position + 4 + int.from_bytes(received[position : position + 4], "big")
            if end > len(received):
                break
            head = bytes(received[position + 8 : end])
            code, opaque = _CODE.search(head), _OPAQUE.search(head)
            if code is None or opaque is None or code[1] != b"0":
                raise SendRefused(head.decode(errors="replace"))
            took_s.append(now_s - self._started_s.pop(int(opaque[1])))
            position = end
        del received[:position]
