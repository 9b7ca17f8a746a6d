"""Hostile and careless peers of our server, while an honest client works and must not notice them."""

import itertools
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from acceptance.workload import assert_nothing_lost
from codec.command import encode_command
from compat_tests.clients.typed import bodies, pull, pull_request, send, send_many, send_request
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout
from tools.processes import Gateway

MIB = 1024 * 1024
# Longest acceptable time of an honest client's send and pull while others misbehave. The machine may be busy with other
# tests, so this is far above the usual time (1 ms) and below a client's timeout (3 s).
PATIENCE_S = 1.5


class HonestClient(threading.Thread):
    """Repeatedly sends a message and pulls it again, and records the durations."""

    def __init__(self, broker: str, topic: str = "honest") -> None:
        super().__init__(daemon=True)
        self.broker, self.topic = broker, topic
        self.acknowledged: dict[tuple[str, int], dict[int, bytes]] = {(topic, 0): {}}
        self.seconds: list[float] = []
        self.problem: BaseException | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            with BlockingClient(*split_address(self.broker), timeout_s=15) as client:
                for number in itertools.count():
                    if self._ending.is_set():
                        return
                    self._once(client, b"%d" % number)
        except BaseException as problem:  # noqa: BLE001 - raised again in the test's thread
            self.problem = problem

    def _once(self, client: BlockingClient, body: bytes) -> None:
        started = time.monotonic()
        offset = send(client, self.topic, body).queue_offset
        assert bodies(pull(client, self.topic, offset, max_msg_nums=1)) == [body]
        self.seconds.append(time.monotonic() - started)
        self.acknowledged[self.topic, 0][offset] = body
        time.sleep(0.002)  # leaves the server's only thread to the other peers

    def finish(self) -> None:
        self._ending.set()
        self.join(30)
        if self.problem is not None:
            raise self.problem


@contextmanager
def honest_work(gateway: Gateway, patience_s: float = PATIENCE_S) -> Iterator[HonestClient]:
    """Run an honest client during the block; assert at the end that nothing was lost and nothing took long."""
    honest = HonestClient(gateway.broker)
    honest.start()
    eventually(lambda: len(honest.seconds) > 3 or honest.problem)
    try:
        yield honest
        seen = len(honest.seconds)
        eventually(lambda: len(honest.seconds) > seen + 3 or honest.problem)
    finally:
        honest.finish()
    usual, worst = sorted(honest.seconds)[len(honest.seconds) // 2], max(honest.seconds)
    print(
        f"\nhonest client: {len(honest.seconds)} rounds, "
        f"median {usual * 1e3:.1f} ms, worst {worst * 1e3:.0f} ms"
    )
    assert worst < patience_s
    with gateway.connect() as client:
        assert_nothing_lost(client, [honest])
    assert "Traceback" not in gateway.output()


def plain(gateway: Gateway) -> socket.socket:
    """Open a raw connection to the broker."""
    return socket.create_connection(split_address(gateway.broker), 15)


def is_closed(peer: socket.socket, timeout_s: float = 15.0) -> bool:
    """Return True if the server closes the connection in time; drops whatever it sends before."""
    peer.settimeout(timeout_s)
    try:
        while peer.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.fixture(scope="module")
def many_files() -> Iterator[int]:
    """Raises this process's limit of open files to the maximum, which is the fixture's value."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path, "--store", str(tmp_path / "store")) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output()


# Many connections


def test_idle_connections(gateway: Gateway, many_files: int) -> None:
    """2,000 idle connections cost little memory and no time."""
    count = 2000
    if many_files < count + 200:
        pytest.skip(f"only {many_files} files may be open")
    with honest_work(gateway), ExitStack() as stack:
        before = gateway.memory_bytes()
        for _ in range(count):
            stack.enter_context(plain(gateway))
        with gateway.connect() as client:
            send(client, "after_them")  # accepted after all others
        each = (gateway.memory_bytes() - before) / count
        print(f"\n{each / 1024:.1f} KiB for each of {count} connections")
        assert each < 24 * 1024


def test_connect_and_close_storm(gateway: Gateway) -> None:
    with honest_work(gateway):
        before = gateway.memory_bytes()
        for number in range(3000):
            peer = plain(gateway)
            if number % 3 == 0:
                # Close with a reset instead of in order.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif number % 3 == 1:
                peer.sendall(b"\0\0")
            peer.close()
        eventually(lambda: open_files(gateway) < 60)
        assert gateway.memory_bytes() - before < 16 * MIB
    assert len(gateway.output().splitlines()) < 30


def open_files(gateway: Gateway) -> int:
    return len(list(Path(f"/proc/{gateway.pid}/fd").iterdir()))


def test_clients_that_vanish_leave_nothing(gateway: Gateway) -> None:
    """Producers and waiting consumers that vanish take their groups and waiting pulls with them."""
    with honest_work(gateway):
        for _ in range(100):
            with gateway.connect() as client:
                send(client, "vanished", queue_id=1)
                client.send_bytes(encode_command(pull_request("vanished", suspend_ms=60_000).to_command(1)))
        eventually(lambda: open_files(gateway) < 60)
        with gateway.connect() as client:
            # The message that would have answered their pulls is there for the next client.
            send(client, "vanished", b"for whom it may concern")
            assert bodies(pull(client, "vanished")) == [b"for whom it may concern"]


# Slow and silent peers


def test_a_client_that_never_reads_is_held_to_its_limit(tmp_path: Path) -> None:
    """Clients request 1 GB: the unread answers held for them are bounded, and they are closed after the idle time."""
    idle = ["--set", "serverChannelMaxIdleTimeSeconds=4"]
    with Gateway(tmp_path, "--store", str(tmp_path / "store"), *idle) as gateway:
        with gateway.connect() as client:
            send_many(client, "big", [b"x" * MIB] * 4)
        before = gateway.memory_bytes()
        with honest_work(gateway), ExitStack() as stack:
            silent = [stack.enter_context(gateway.connect()) for _ in range(4)]
            for client in silent:
                requests = [pull_request("big", number % 4, max_msg_nums=1) for number in range(250)]
                client.send_bytes(b"".join(encode_command(one.to_command(1)) for one in requests))
            grown = 0
            end = time.monotonic() + 2
            while time.monotonic() < end:
                grown = max(grown, gateway.memory_bytes() - before)
                time.sleep(0.02)
            print(f"\n{grown / MIB / len(silent):.0f} MiB kept for each client that does not read")
            assert grown < len(silent) * 24 * MIB
            for client in silent:
                eventually(partial(closed_by_server, client), 30)
        eventually(lambda: gateway.memory_bytes() - before < 24 * MIB)
        assert gateway.stop() == 0


def closed_by_server(client: BlockingClient) -> bool:
    """Return True if the server has closed the connection; like the client in question, reads nothing."""
    try:
        client.send_bytes(encode_command(pull_request("big", 0, max_msg_nums=1).to_command(1)))
    except (RemotingClosed, RemotingTimeout):
        return True
    return False


def test_waiting_pulls_of_a_client_that_never_reads(gateway: Gateway) -> None:
    """Answers to waiting pulls are bounded as well: the client is closed, and that is logged once."""
    with gateway.connect() as client, gateway.connect() as silent, honest_work(gateway):
        send(client, "woken", queue_id=1)
        before = gateway.memory_bytes()
        waiting = [encode_command(pull_request("woken", suspend_ms=60_000).to_command(n)) for n in range(400)]
        silent.send_bytes(b"".join(waiting))
        assert pull(silent, "woken", 0, queue_id=1).code == 0  # so the server has read all of them
        send(client, "woken", b"x" * MIB)  # 400 answers of 1 MiB
        eventually(lambda: gateway.lines("answers are not read"))  # no answer is read until then
        assert silent.is_closed_by_peer(timeout_s=10)
        eventually(lambda: gateway.memory_bytes() - before < 96 * MIB)
        assert len(gateway.lines("answers are not read")) == 1


def test_a_slow_reader_gets_everything(gateway: Gateway) -> None:
    """A client that slowly reads 64 MiB of answers gets all of them in order, and delays no other client."""
    with gateway.connect() as client:
        send_many(client, "slow", [bytes([number]) * 250_000 for number in range(64)])
    with honest_work(gateway), gateway.connect() as slow:
        requests = [
            pull_request("slow", number % 64, max_msg_nums=1).to_command(number) for number in range(256)
        ]
        sender = threading.Thread(target=slow.send_bytes, args=(b"".join(map(encode_command, requests)),))
        sender.start()
        for number in range(256):
            answer = slow.receive_command()
            assert answer.opaque == number
            assert answer.body[200] == number % 64
            if number % 16 == 0:
                time.sleep(0.05)  # that is what makes it slow
        sender.join(10)


def test_a_slow_reader_is_not_idle(tmp_path: Path) -> None:
    """A client that reads its outstanding answers for far longer than the idle time is not closed."""
    idle_s = 1
    settings = ["--memory", "--set", f"serverChannelMaxIdleTimeSeconds={idle_s}"]
    with Gateway(tmp_path, *settings) as gateway, gateway.connect() as slow:
        send_many(slow, "slow", [bytes(MIB)] * 2)
        requests = [pull_request("slow", n % 2, max_msg_nums=1).to_command(n) for n in range(60)]
        slow.send_bytes(b"".join(map(encode_command, requests)))
        started = time.monotonic()
        for number in range(60):
            assert slow.receive_command().opaque == number
            time.sleep(0.05)  # that is what makes it slow
        assert time.monotonic() - started > 2 * idle_s
        assert gateway.stop() == 0


def test_one_byte_at_a_time(gateway: Gateway) -> None:
    with honest_work(gateway), gateway.connect() as client:
        frame = encode_command(send_request("bytewise", b"slowly").to_command(7))
        for position in range(len(frame)):
            client.send_bytes(frame[position : position + 1])
        answer = client.receive_command()
        assert (answer.opaque, answer.code) == (7, 0)
        assert bodies(pull(client, "bytewise")) == [b"slowly"]


# Bytes that are no frame

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(194)
NO_FRAMES = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": TLS_HELLO,
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "negative length": struct.pack(">i", -1) + b"x" * 64,
    "lowest length": struct.pack(">i", -(1 << 31)) + b"x" * 64,
    "length over the limit": struct.pack(">i", 16 * MIB + 1) + b"x" * 64,
    "empty frame": bytes(64),
    "header longer than its frame": struct.pack(">II", 20, 0x00FFFFFF) + b"{}" * 50,
    "header of no known kind": struct.pack(">II", 20, 0x07000010) + b"{" * 100,
    "no JSON": struct.pack(">II", 20, 16) + b"\xff" * 16,
    "JSON that is no object": struct.pack(">II", 11, 7) + b"[1,2,3]",
    "short binary header": struct.pack(">II", 9, 0x01000005) + b"\0\1\2\3\4",
}


# One line for each port: what the same host does again is counted.
LINES = {"HTTP": ("the peer speaks another protocol", 2), "TLS": ("TLS handshake failed", 2)}


@pytest.mark.parametrize("kind", NO_FRAMES)
def test_no_frame(gateway: Gateway, kind: str) -> None:
    """Broker and namesrv close the connection, and log that."""
    text, count = LINES.get(kind, ("connection closed: bad frame", 2))
    with honest_work(gateway):
        for where in (gateway.broker, gateway.namesrv):
            with socket.create_connection(split_address(where), 15) as peer:
                peer.sendall(NO_FRAMES[kind])
                assert is_closed(peer)
    assert len(gateway.lines(text)) == count
    assert len(gateway.output().splitlines()) < 30


def test_garbage(gateway: Gateway) -> None:
    """Random bytes, some after a valid request: only the valid requests take effect."""
    import random

    chance = random.Random(4)
    with honest_work(gateway):
        for number in range(60):
            with plain(gateway) as peer:
                if number % 2:
                    peer.sendall(encode_command(send_request("garbage", b"right").to_command(1)))
                with suppress(ConnectionError):
                    peer.sendall(chance.randbytes(chance.randrange(8, 4096)) + b"\xff" * 64)
                peer.shutdown(socket.SHUT_WR) if number % 3 == 0 else None
                assert is_closed(peer) or number % 3
        with gateway.connect() as client:
            assert set(bodies(pull(client, "garbage"))) == {b"right"}
            assert len(bodies(pull(client, "garbage"))) == 30


def test_truncated_frame_then_close(gateway: Gateway) -> None:
    whole = encode_command(send_request("truncated", b"x" * 100_000).to_command(1))
    with honest_work(gateway), gateway.connect() as client:
        send(client, "truncated", b"before")
        for cut in (1, 3, 4, 5, 8, 9, 100, len(whole) - 1):
            with plain(gateway) as peer:
                peer.sendall(whole[:cut])
                peer.shutdown(socket.SHUT_WR)
                assert is_closed(peer)
        assert bodies(pull(client, "truncated")) == [b"before"]


def test_unfinished_large_frames_of_many(gateway: Gateway, many_files: int) -> None:
    """1,000 peers that announce 16 MiB frames and send 15 MiB stay below the limit for all of them together."""
    count, piece = 1000, bytes(MIB)
    head = struct.pack(">II", 16 * MIB - 4, 100)
    if many_files < count + 200:
        pytest.skip(f"only {many_files} files may be open")
    most = 0
    with honest_work(gateway, 5.0), ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = stack.enter_context(plain(gateway))
            peer.settimeout(0.5)
            with suppress(OSError):
                peer.sendall(head)
                peers.append(peer)
        end = time.monotonic() + 15
        for _ in range(15):
            for peer in list(peers):
                try:
                    peer.sendall(piece)
                except OSError:
                    peers.remove(peer)
                if time.monotonic() > end:
                    break
            most = max(most, gateway.memory_bytes())
        print(f"\n{most / MIB:.0f} MiB at most, {count - len(peers)} peers closed")
        assert most < 1400 * MIB
        assert len(peers) < count
    print(f"{gateway.memory_bytes() / MIB:.0f} MiB at once after")
    eventually(lambda: gateway.memory_bytes() < 200 * MIB, 60)
    assert len(gateway.lines("unfinished frames")) < count / 4
