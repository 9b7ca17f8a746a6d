"""Walks against the gRPC port: RPCs with requests of all kinds, damaged HTTP/2, floods, and unusual peers.

Each walk has connections of its own, whose bytes are made beforehand: nothing in them depends on what the server says.
"""

import gzip
from collections.abc import Callable
from typing import Final

from hpack import Encoder

from tools.fuzz.grpc_messages import METHODS, WAITING, MessageSource, part
from tools.fuzz.values import Chance
from tools.fuzz.walks import Ending, Expect, Port, Walk, WalkFrame
from tools.fuzz.world import CLIENT_IDS, FuzzWorld

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
INITIAL_WINDOW: Final = 4
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
MAX_DATA_BYTES: Final = 16_384
FLOOD_FRAMES: Final = 3000


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def settings_frame(**values: int) -> bytes:
    """Return a frame with settings, named ``n`` and their number."""
    pairs = (int(name[1:]).to_bytes(2) + value.to_bytes(4) for name, value in values.items())
    return http2_frame(SETTINGS, 0, 0, b"".join(pairs))


def begin_connection(window: int = MAX_WINDOW) -> bytes:
    """Return a client's preface, with this window for each stream and the largest for the connection."""
    grown = http2_frame(WINDOW_UPDATE, 0, 0, (MAX_WINDOW - DEFAULT_WINDOW).to_bytes(4))
    return PREFACE + settings_frame(n4=window) + http2_frame(SETTINGS, ACK, 0) + grown


def grpc_prefix(message: bytes, *, packed: bool = False) -> bytes:
    """Return a message as it stands in the data of a stream."""
    return bytes([packed]) + len(message).to_bytes(4) + message


class GrpcWalkBuilder:
    """Builds one walk."""

    def __init__(self, seed: int, number: int, world: FuzzWorld) -> None:
        self.chance = Chance(f"{seed}/{number}/grpc")
        self.source = MessageSource(self.chance, world)
        self.walk = Walk(number, "calls", Port.GRPC, connections=1)
        self._encoder = Encoder()
        self.next_stream = 1

    def build(self) -> Walk:
        """Return the walk."""
        kind = self.chance.random()
        if kind < 0.8:
            self._build_calls()
        elif kind < 0.9:
            self._build_damage()
        else:
            flood = self.chance.pick(_FLOODS)
            self.walk.kind = flood.__name__.strip("_")
            self.walk.ending = self.chance.pick((Ending.HALF_CLOSE, Ending.CLOSE, Ending.RESET, Ending.HOLD))
            flood(self)
        return self.walk

    def add_bytes(self, data: bytes) -> None:
        """Append bytes that need no answer."""
        self.walk.frames.append(WalkFrame(data))

    def request_headers(self, method: str, **more: str) -> bytes:
        """Return the header block of an RPC."""
        chance = self.chance
        headers = {
            ":method": "POST", ":scheme": "http", ":path": SERVICE + method, ":authority": "fuzz",
            "content-type": "application/grpc", "te": "trailers", "x-mq-client-id": chance.pick(CLIENT_IDS),
            "x-mq-client-version": chance.pick(("5.1.0", "5.0.3", "", "9" * 5000, "x.y")), "x-mq-language": "JAVA",
        }  # fmt: skip
        if chance.happens(0.1):
            headers["grpc-timeout"] = chance.pick(("1n", "1S", "99999999H", "0m", "x", "9" * 20 + "S"))
        if chance.happens(0.05):
            headers[chance.pick(tuple(headers))] = chance.pick(("", "x", "\xff" * 30, "y" * 3000))
        headers.update({name.replace("_", "-"): value for name, value in more.items()})
        block: bytes = self._encoder.encode(list(headers.items()))
        return block

    def add_call(self, method: str, message: bytes, *, expects: Expect | None = None) -> None:
        """Append an RPC with one request."""
        chance, stream = self.chance, self.next_stream
        self.next_stream += 2
        packed = chance.happens(0.2)
        block = self.request_headers(method, **({"grpc_encoding": "gzip"} if packed else {}))
        body = grpc_prefix(gzip.compress(message, 1) if packed else message, packed=packed)
        if chance.happens(0.03):
            body = chance.pick(
                (body[:-1], body + b"\0", b"\0\xff\xff\xff\xff" + body, b"\7" + body[1:], body * 2)
            )
        data = http2_frame(HEADERS, END_HEADERS, stream, block)
        for at in range(0, len(body), MAX_DATA_BYTES):
            data += http2_frame(DATA, 0, stream, body[at : at + MAX_DATA_BYTES])
        data += http2_frame(DATA, END_STREAM, stream)
        due = expects or (Expect.LATER if method in WAITING else Expect.ANSWER)
        self.walk.frames.append(WalkFrame(data, method, stream, due))

    def add_some_call(self) -> None:
        """Append an RPC of a method by chance."""
        chance, source = self.chance, self.source
        kind = chance.random()
        if kind < 0.15:
            self.add_call("SendMessage", source.valid_send())
        elif kind < 0.25:
            self.add_call("ReceiveMessage", source.valid_receive())
        elif kind < 0.35:
            self.add_call("Telemetry", source.settings())
        else:
            method = chance.pick(tuple(METHODS))
            self.add_call(method, source.request(method))

    def _build_calls(self) -> None:
        self.walk.ending = self.chance.pick((Ending.FINISH, Ending.FINISH, Ending.HALF_CLOSE, Ending.RESET))
        self.add_bytes(begin_connection())
        for _ in range(1 + self.chance.below(20)):
            self.add_some_call()

    def _build_damage(self) -> None:
        """Change, drop or insert bytes of a connection that would be good."""
        chance = self.chance
        self.walk.kind, self.walk.ending = "damage", Ending.HALF_CLOSE
        self.add_bytes(begin_connection())
        for _ in range(1 + chance.below(4)):
            self.add_some_call()
        data = bytearray(b"".join(frame.data for frame in self.walk.frames))
        for _ in range(1 + chance.below(6)):
            at = chance.below(len(data))
            match chance.below(4):
                case 0:
                    data[at] = chance.below(256)
                case 1:
                    del data[at : at + chance.below(20)]
                case 2:
                    data[at:at] = chance.randbytes(chance.below(20))
                case _:
                    del data[at + 1 :]
            data = data or bytearray(b"x")
        self.walk.frames = [WalkFrame(bytes(data))]


# -- floods and unusual peers ---------------------------------------------------------------------------------------


def _repeat(builder: GrpcWalkBuilder, data: bytes) -> None:
    builder.add_bytes(begin_connection())
    builder.add_bytes(data * builder.chance.pick((10, 300, FLOOD_FRAMES)))


def _pings(builder: GrpcWalkBuilder) -> None:
    _repeat(builder, http2_frame(PING, 0, 0, b"fuzzfuzz"))


def _settings(builder: GrpcWalkBuilder) -> None:
    _repeat(
        builder,
        settings_frame(n1=builder.chance.pick((0, 4096, 2**32 - 1)), n4=builder.chance.below(100_000)),
    )


def _tiny_frames(builder: GrpcWalkBuilder) -> None:
    """Send data without bytes, or with nothing but padding, on a stream that stays open."""
    builder.add_bytes(begin_connection())
    builder.add_bytes(http2_frame(HEADERS, END_HEADERS, 1, builder.request_headers("SendMessage")))
    tiny = builder.chance.pick((http2_frame(DATA, 0, 1), http2_frame(DATA, PADDED, 1, b"\x00")))
    builder.add_bytes(tiny * FLOOD_FRAMES)


def _window_updates(builder: GrpcWalkBuilder) -> None:
    _repeat(builder, http2_frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))


def _priorities(builder: GrpcWalkBuilder) -> None:
    _repeat(builder, http2_frame(PRIORITY, 0, 1, b"\0\0\0\3\x10"))


def _rapid_reset(builder: GrpcWalkBuilder) -> None:
    """Open streams and reset them at once (CVE-2023-44487)."""
    builder.add_bytes(begin_connection())
    data = b""
    for stream in range(1, 1000, 2):
        data += http2_frame(HEADERS, END_HEADERS, stream, builder.request_headers("ReceiveMessage"))
        data += http2_frame(DATA, END_STREAM, stream, grpc_prefix(builder.source.valid_receive()))
        data += http2_frame(RESET, 0, stream, b"\0\0\0\x08")
    builder.add_bytes(data)


def _many_streams(builder: GrpcWalkBuilder) -> None:
    """Open more streams than are allowed, of which none says anything."""
    builder.add_bytes(begin_connection())
    blocks = [
        http2_frame(HEADERS, END_HEADERS, stream, builder.request_headers("Telemetry"))
        for stream in range(1, 2 * builder.chance.pick((100, 1200)), 2)
    ]
    builder.add_bytes(b"".join(blocks))


def _endless_headers(builder: GrpcWalkBuilder) -> None:
    """Send a header block that does not end (CVE-2024-27316)."""
    builder.add_bytes(begin_connection())
    literal = b"\x00\x01a" + b"\x7f\x81\x7e" + b"b" * 16_254  # A header of 16 KiB that is not remembered.
    builder.add_bytes(http2_frame(HEADERS, 0, 1, b"\x82"))
    builder.add_bytes(
        http2_frame(CONTINUATION, 0, 1, builder.chance.pick((literal, b"", b"\x20" * 16_000))) * 100
    )


def _header_bomb(builder: GrpcWalkBuilder) -> None:
    """Name one long remembered header again and again."""
    builder.add_bytes(begin_connection())
    remembered = b"\x40\x01a\x7f\x81\x1e" + b"b" * 4000
    builder.add_bytes(http2_frame(HEADERS, END_HEADERS, 1, remembered + b"\xbe" * 10_000))


def _closed_window(builder: GrpcWalkBuilder) -> None:
    """Ask for much, and let none of it come."""
    builder.add_bytes(begin_connection(window=0))
    for _ in range(50):
        builder.add_call("QueryRoute", builder.source.request("QueryRoute"), expects=Expect.LATER)


def _other_protocol(builder: GrpcWalkBuilder) -> None:
    begin = builder.chance.pick(
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI", PREFACE, b"\x16\x03\x01", b"\0\0\0\x10\0\0\0\x0c{}")
    )
    builder.add_bytes(begin + builder.chance.randbytes(builder.chance.below(100)))


def _unknown_streams(builder: GrpcWalkBuilder) -> None:
    """Send data, resets and windows for streams that nobody opened."""
    kind = builder.chance.pick((DATA, RESET, WINDOW_UPDATE, CONTINUATION, 77))
    builder.add_bytes(
        begin_connection() + http2_frame(kind, 0, builder.chance.pick((1, 2, MAX_WINDOW)), b"\0\0\0\1")
    )


def _bombs(builder: GrpcWalkBuilder) -> None:
    """Send requests that grow when they are unpacked, or decoded."""
    chance = builder.chance
    builder.add_bytes(begin_connection())
    empty = chance.pick((b"\x0a\x00", b"\x12\x00", b"\x1a\x00")) * chance.pick((20_000, 1_000_000, 8_000_000))
    nested = b"x"
    for _ in range(200):
        nested = part(2, nested)
    long_tag = part(1, part(1, part(2, b"fuzz_normal")) + part(3, part(1, b"t" * 1_000_000)))
    message = chance.pick((empty, part(1, empty), part(2, part(5, empty)), nested, long_tag))
    data = grpc_prefix(gzip.compress(message, 9), packed=True)
    for _ in range(chance.pick((1, 5))):
        stream, builder.next_stream = builder.next_stream, builder.next_stream + 2
        block = builder.request_headers(chance.pick(tuple(METHODS)), grpc_encoding="gzip")
        builder.add_bytes(http2_frame(HEADERS, END_HEADERS, stream, block))
        for at in range(0, len(data), MAX_DATA_BYTES):
            builder.add_bytes(http2_frame(DATA, 0, stream, data[at : at + MAX_DATA_BYTES]))
        builder.add_bytes(http2_frame(DATA, END_STREAM, stream))


_FLOODS: Final[tuple[Callable[[GrpcWalkBuilder], None], ...]] = (
    _pings,
    _settings,
    _tiny_frames,
    _window_updates,
    _priorities,
    _rapid_reset,
    _many_streams,
    _endless_headers,
    _header_bomb,
    _closed_window,
    _other_protocol,
    _unknown_streams,
    _bombs,
)


def build_grpc_walk(seed: int, number: int, world: FuzzWorld) -> Walk:
    """Return the walk of this number; the same arguments give the same bytes, but for what the world has learned."""
    return GrpcWalkBuilder(seed, number, world).build()
