"""Raw sockets: split, joined, damaged and endless frames, none of which may affect other clients."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from codec.command import Command, encode_command
from compat_tests.clients.typed import connect, has_route, pull, pull_request, send, send_many, send_request
from compat_tests.marks import case, needs_admin, read_only
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.blocking import BlockingClient
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset


def max_offset(topic: str, opaque: int = 1) -> bytes:
    return encode_command(GetMaxOffset(topic=topic, queue_id=0).to_command(opaque))


def raw(where: str) -> socket.socket:
    found = socket.create_connection(split_address(where), 10)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def is_closed(connection: socket.socket, timeout_s: float = 10) -> bool:
    """Return True if the peer closes the connection in time; drops whatever it sends before."""
    connection.settimeout(timeout_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.fixture
def witness(server: ServerUnderTest, topic: str) -> Iterator[BlockingClient]:
    """Another client, which must work before and after a case's misbehaviour."""
    with connect(server.broker) as client:
        before = send(client, topic, queue_id=3).queue_offset
        yield client
        assert send(client, topic, queue_id=3).queue_offset == before + 1
        with connect(server.broker) as new:
            assert send(new, topic, queue_id=3).queue_offset == before + 2


@read_only
@case("wire", "a frame split byte by byte")
def test_byte_by_byte(broker: BlockingClient, topic: str) -> None:
    for byte in max_offset(topic, 77):
        broker.send_bytes(bytes([byte]))
    assert broker.receive_command().opaque == 77


@read_only
@case("wire", "a frame split at every place")
def test_every_split(broker: BlockingClient, topic: str) -> None:
    frame = max_offset(topic, 5)
    for at in range(1, len(frame), 7):
        broker.send_bytes(frame[:at])
        broker.send_bytes(frame[at:])
        assert broker.receive_command().opaque == 5


@read_only
@case("wire", "two hundred frames in one write")
def test_joined(broker: BlockingClient, topic: str) -> None:
    broker.send_bytes(b"".join(max_offset(topic, opaque) for opaque in range(200)))
    assert sorted(broker.receive_command().opaque for _ in range(200)) == list(range(200))


@case("wire", "one and a half frames, then the rest")
def test_one_and_a_half(broker: BlockingClient, topic: str) -> None:
    frame = max_offset(topic, 2)
    broker.send_bytes(max_offset(topic, 1) + frame[:20])
    assert broker.receive_command().opaque == 1
    broker.send_bytes(frame[20:])
    assert broker.receive_command().opaque == 2


@case("wire", "a big frame in small pieces")
def test_big_in_pieces(broker: BlockingClient, topic: str) -> None:
    frame = encode_command(send_request(topic, os.urandom(1_000_000)).to_command(3))
    for start in range(0, len(frame), 10_000):
        broker.send_bytes(frame[start : start + 10_000])
    assert broker.receive_command().code == 0


@needs_admin("misbehaves on connections")
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        struct.pack(">I", 17 * 1024 * 1024),
        struct.pack(">II", 100, 5000) + b"x" * 96,
        struct.pack(">II", 24, 20) + b"{this is not json :("[:20],
    ],
    ids=["http", "ones", "over 16 MiB", "header beyond frame", "not json"],
)
@case("wire", "garbage closes its connection or is skipped, and affects no other client")
def test_garbage(server: ServerUnderTest, witness: BlockingClient, topic: str, data: bytes) -> None:
    with closing(raw(server.broker)) as bad:
        bad.sendall(data)
        send(witness, topic, queue_id=2)
        bad.close()
    with closing(raw(server.namesrv)) as bad:
        bad.sendall(data)
    with connect(server.namesrv) as good:
        assert has_route(good, topic)


@needs_admin("misbehaves on connections")
@pytest.mark.parametrize("length", [16 * 1024 * 1024 + 1, 0x7FFFFFFF])
@case("wire", "a frame over 16 MiB closes its connection")
def test_oversize(server: ServerUnderTest, witness: BlockingClient, length: int) -> None:
    assert witness
    with closing(raw(server.broker)) as bad:
        bad.sendall(struct.pack(">II", length, 100) + b"x" * 1000)
        assert is_closed(bad)


@needs_admin("misbehaves on connections")
@case("wire", "a negative frame length closes its connection")
def test_negative_length(server: ServerUnderTest, witness: BlockingClient) -> None:
    assert witness
    with closing(raw(server.broker)) as bad:
        bad.sendall(struct.pack(">iI", -5, 100) + b"x" * 100)
        assert is_closed(bad)


@needs_admin("misbehaves on connections")
@case("wire", "a frame that never ends affects no other client")
def test_truncated(server: ServerUnderTest, witness: BlockingClient, topic: str) -> None:
    frame = max_offset(topic)
    for at in (1, 4, 8, len(frame) // 2, len(frame) - 1):
        with closing(raw(server.broker)) as bad:
            bad.sendall(frame[:at])
    with closing(raw(server.broker)) as waiting:
        waiting.sendall(frame[:-1])
        send(witness, topic, queue_id=2)


@needs_admin("misbehaves on connections")
@case("wire", "a peer that resets its connection with outstanding requests affects no other client")
def test_reset(server: ServerUnderTest, witness: BlockingClient, topic: str) -> None:
    for _ in range(10):
        bad = raw(server.broker)
        bad.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        bad.sendall(
            max_offset(topic) * 20 + encode_command(pull_request(topic, suspend_ms=15_000).to_command(9))
        )
        bad.close()
    send(witness, topic, queue_id=2)


@needs_admin("misbehaves on connections")
@case("wire", "a peer that never reads its answers affects no other client")
def test_never_reads(server: ServerUnderTest, witness: BlockingClient, topic: str) -> None:
    send_many(witness, topic, [bytes(60_000)] * 4)
    eventually(lambda: pull(witness, topic, 3).code == 0)
    request = encode_command(pull_request(topic).to_command(1))
    with closing(raw(server.broker)) as bad:
        bad.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bad.settimeout(0.2)
        try:
            # 72 MB of answers, far more than the sockets hold. An official broker buffers all of them; with 480 MB it
            # ran out of a heap of 512 MB.
            for _ in range(300):
                bad.sendall(request)
        except (TimeoutError, ConnectionError):
            pass  # the server stopped reading or closed the connection: both are fine
        began = time.monotonic()
        for _ in range(20):
            send(witness, topic, queue_id=2)
        assert time.monotonic() - began < 10


@needs_admin("misbehaves on connections")
@case("wire", "two hundred idle connections and a working client")
def test_idle_connections(server: ServerUnderTest, witness: BlockingClient, topic: str) -> None:
    idle = [raw(server.broker) for _ in range(200)]
    try:
        for _ in range(20):
            send(witness, topic, queue_id=2)
    finally:
        for connection in idle:
            connection.close()


@needs_admin("misbehaves on connections")
@case("wire", "connections that come and go")
def test_come_and_go(server: ServerUnderTest, topic: str) -> None:
    for _ in range(100):
        with closing(raw(server.broker)) as short:
            short.sendall(max_offset(topic, 6))
            assert short.recv(4)


@read_only
@case("wire", "half-closed connection: earlier requests are answered")
def test_half_closed(server: ServerUnderTest, topic: str) -> None:
    with closing(raw(server.namesrv)) as half:
        frame = encode_command(GetRouteInfoByTopic(topic=topic).to_command(8))
        half.sendall(frame)
        assert half.recv(1)
        half.shutdown(socket.SHUT_WR)
        assert is_closed(half)


@read_only
@case("wire", "a header of many fields")
def test_many_fields(broker: BlockingClient, topic: str) -> None:
    ext = {"topic": topic, "queueId": "0"} | {f"extra{number}": "v" * 20 for number in range(500)}
    assert broker.send_command(Command(30, ext=ext)).code == 0


@case("wire", "a body that looks like a frame is a body")
def test_frame_in_body(broker: BlockingClient, topic: str) -> None:
    inner = max_offset(topic) * 3
    send(broker, topic, inner)
    reply = eventually(lambda: (r := pull(broker, topic)).code == 0 and r)
    assert inner in reply.body


@read_only
@pytest.mark.parametrize(
    ("header", "code"),
    [(b'{"opaque":5}', 3), (b'{"code":105,"extFields":{"topic":"unknown"}}', 17)],
    ids=["no code", "no opaque"],
)
@case("wire", "a header without code or without opaque is answered")
def test_sparse_header(namesrv: BlockingClient, header: bytes, code: int) -> None:
    namesrv.send_bytes(struct.pack(">II", 4 + len(header), len(header)) + header)
    assert namesrv.receive_command().code == code
