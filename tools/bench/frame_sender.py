"""A client that sends plain messages with many outstanding on each connection, for loads the Java client cannot create.

    python -m tools.bench.frame_sender 127.0.0.1:10911 TopicTest --connections 4 --depth 64

The frames are encoded beforehand, in the binary form of the official benchmark producer, and have equal sizes. So a
message costs this client about a microsecond: the head of an answer is compared, and the next frames are a slice. It
sends until it is killed, and ends with an error when the broker refuses a message.
"""

import argparse
import selectors
import socket
import struct
import sys
import time
from typing import Final

from remoting.requests.send import SendMessageV2
from tools.bench.pipelined_sender import SendRefused

FRAMES: Final = 4096
"""Number of different frames, each with a unique key of its own; a power of two."""
READ_BYTES: Final = 1 << 18
_BINARY: Final = 1 << 24
_SUCCESSES: Final = (b'{"code":0,', b"\0\0")


def encode_frames(topic: str, queues: int, body: bytes, count: int = FRAMES) -> list[bytes]:
    """Return send requests of equal size, which take turns with the topic's queues."""
    return [_encode_frame(topic, number % queues, number, body) for number in range(count)]


def _encode_frame(topic: str, queue_id: int, number: int, body: bytes) -> bytes:
    properties = f"UNIQ_KEY\1{time.time_ns() & 0xFFFFFFFFFFFF:016X}{number:016X}\2WAIT\1true\2TAGS\1TagA\2"
    fields = {
        "a": "benchmark_producer", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    pairs = b"".join(
        struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(text)) + text.encode()
        for name, text in fields.items()
    )
    head = struct.pack(">hBhiiiI", SendMessageV2.code, 0, 493, number, 0, 0, len(pairs)) + pairs
    return struct.pack(">II", 4 + len(head) + len(body), _BINARY | len(head)) + head + body


class PreparedSender:
    """Sends prepared frames on one connection, on which `depth` messages are outstanding."""

    def __init__(self, address: tuple[str, int], frames: list[bytes], first: int, depth: int) -> None:
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame_bytes = len(frames[0])
        # Twice, so that a slice never has to wrap around.
        self._frames = memoryview(b"".join(frames) * 2)
        self._count, self._next = len(frames), first
        self._unread = b""
        self.send(depth)

    def send(self, count: int) -> None:
        """Send the next `count` frames, at most as many as there are different ones."""
        start = self._next * self._frame_bytes
        self._next = (self._next + count) % self._count
        self.socket.sendall(self._frames[start : start + count * self._frame_bytes])

    def take_answers(self) -> int:
        """Read what has arrived; return the number of answers. Raises SendRefused, ConnectionError."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        if self._unread:
            data = self._unread + data
        answers, position, end = 0, 0, len(data)
        # The code comes first in most heads of both forms, which follow the sizes of the answer and of the head.
        while end - position >= 4:
            after = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if after > end:
                break
            if not data.startswith(_SUCCESSES, position + 8) and b'"code":0,' not in data[position:after]:
                raise SendRefused(repr(data[position:after]))
            answers, position = answers + 1, after
        self._unread = data[position:]
        return answers


def send_until_killed(address: tuple[str, int], frames: list[bytes], connections: int, depth: int) -> None:
    """Keep `depth` messages outstanding on each connection."""
    with selectors.DefaultSelector() as selector:
        for number in range(connections):
            connection = PreparedSender(address, frames, number * len(frames) // connections, depth)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while True:
            for key, _ in selector.select():
                answers = key.data.take_answers()
                if answers:
                    key.data.send(answers)


def main() -> None:
    """Parse the command line and send."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker", help="Address of the broker, HOST:PORT.")
    parser.add_argument("topic", help="Existing topic.")
    parser.add_argument("--queues", type=int, default=4, help="Number of queues that take turns.")
    parser.add_argument("--connections", type=int, default=1, help="Number of connections.")
    parser.add_argument("--depth", type=int, default=1, help="Messages outstanding on each connection.")
    parser.add_argument("--size", type=int, default=128, help="Bytes of a body.")
    options = parser.parse_args()
    host, port = options.broker.rsplit(":", 1)
    frames = encode_frames(options.topic, options.queues, b"x" * options.size)
    try:
        send_until_killed((host, int(port)), frames, options.connections, min(options.depth, FRAMES))
    except (OSError, SendRefused) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
