import socket
import ssl
import warnings
from contextlib import suppress
from typing import Any

import pytest
import trio

from remoting.client import open_client_over
from remoting.errors import RequestError
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.tests.certificates import Authority
from remoting.tests.test_transport import pair
from remoting.tests.virtual import Kernel, transports, virtual
from remoting.tls import (
    MAX_HANDSHAKE_S,
    MAX_UNSENT_REPLY_BYTES,
    TlsTransport,
    client_context,
    server_context,
    tls_opener,
)
from remoting.transport import SocketTransport

ANYBODY = client_context(verify=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def listening(authority):
    """The context of a server with a certificate."""
    return server_context(*authority.issue("server"))


@pytest.fixture(autouse=True)
def ends():
    """Makes two connected transports; whatever a test leaves open is closed behind it."""
    opened = []

    def make(*reactors):
        opened.extend(pair())
        reactors += (None, None)
        return [SocketTransport(sock, reactor) for sock, reactor in zip(opened[-2:], reactors, strict=False)]

    yield make
    for sock in opened:
        sock.close()


async def shake(*sides):
    """Both handshakes; the errors of those that failed."""
    errors = []

    async def one(side):
        try:
            await side.handshake()
        except OSError as error:
            errors.append(error)
            side.close()

    async with trio.open_nursery() as nursery:
        for side in sides:
            nursery.start_soon(one, side)
    return errors


async def shaken(ends, server, client=ANYBODY, host="127.0.0.1"):
    """Two ends of a connection over sockets, encrypted, and what went wrong."""
    here, there = ends()
    sides = (
        TlsTransport(here, server, server_side=True),
        TlsTransport(there, client, server_side=False, host=host),
    )
    return *sides, await shake(*sides)


def test_bytes_both_ways_and_the_end(listening, ends):
    async def main():
        here, there, errors = await shaken(ends, listening)
        assert not errors
        await there.send_all(b"question")
        assert await here.receive(100) == b"question"
        assert here.send_now(b"answer") == 6
        assert await there.receive(100) == b"answer"
        assert there.local == here.remote
        there.close()
        assert await here.receive(100) == b""
        here.close()

    trio.run(main)


def test_much_data_while_both_send(listening, ends):
    async def main():
        here, there, _ = await shaken(ends, listening)
        data = bytes(range(256)) * 20_000

        async def read(side):
            got = b""
            while len(got) < len(data):
                got += await side.receive(65_536)
            assert got == data

        async with trio.open_nursery() as nursery:
            for side in (here, there):
                sent = 0
                with suppress(BlockingIOError):
                    sent = side.send_now(data)
                nursery.start_soon(side.send_all, data[sent:])
                nursery.start_soon(read, side)
        here.close()
        there.close()

    trio.run(main)


@virtual
async def test_bytes_the_kernel_does_not_take_are_offered_again_and_encrypted_once(listening):
    kernel = Kernel()
    below, far = transports()
    near = TlsTransport(below, listening, server_side=True)
    peer = TlsTransport(far, ANYBODY, server_side=False)
    assert not await shake(near, peer)
    peer._arrived(await far.receive(1 << 16))  # What a server has to say behind a handshake.
    near._below = kernel
    kernel.room = 10
    with pytest.raises(BlockingIOError):
        near.send_now(b"first")
    kernel.take(5)
    with pytest.raises(BlockingIOError):
        near.send_now(b"first")
    kernel.take(None)
    assert near.send_now(b"first") == 5
    kernel.room = 0
    with pytest.raises(BlockingIOError):
        near.send_now(b"second")
    kernel.take(None)
    await near.send_all(b"second and third")
    peer._in.write(bytes(kernel.sent))
    assert await peer.receive(100) == b"firstsecond and third"


def test_with_a_reactor_and_bytes_that_came_with_the_handshake(listening, ends):
    """The client's first bytes may be read together with the end of its handshake."""

    async def main():
        reactor = Reactor()
        below, far = ends(reactor)
        server = TlsTransport(below, listening, server_side=True)
        client = TlsTransport(far, ANYBODY, server_side=False)
        got, ended = [], trio.Event()

        def readable():
            with suppress(BlockingIOError):
                data = server.receive_now(1 << 16)
                if data:
                    got.append(data)
                else:
                    server.unwatch()
                    ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            nursery.start_soon(server.handshake)
            await client.handshake()
            client.send_now(b"early")
            while not server._in.pending and server._tls.version() is None:
                await trio.lowlevel.checkpoint()
            assert server.watch(readable)
            await client.send_all(b"x" * 100_000)
            await server.send_all(b"done")
            assert await client.receive(100) == b"done"
            client.close()
            await ended.wait()
            nursery.cancel_scope.cancel()
        assert b"".join(got) == b"early" + b"x" * 100_000
        server.close()

    trio.run(main)


def test_pending_bytes_are_announced_once_and_not_after_unwatch(listening, ends):
    async def main():
        reactor = Reactor()
        below, far = ends(reactor)
        server = TlsTransport(below, listening, server_side=True)
        client = TlsTransport(far, ANYBODY, server_side=False)
        await shake(server, client)
        client.send_now(b"early")
        server._in.write(await server._below.receive(1000))
        told = []
        assert server.watch(lambda: told.append(1))
        server.unwatch()
        await trio.testing.wait_all_tasks_blocked()
        assert not told
        assert server.watch(lambda: told.append(server.receive_now(100)))
        await trio.testing.wait_all_tasks_blocked()
        assert told == [b"early"]
        server.close()
        client.close()

    trio.run(main)


def test_connections_ask_and_answer_over_tls(listening):
    async def main():
        async with trio.open_nursery() as nursery:
            listener = socket.create_server(("127.0.0.1", 0))

            async def plain(host, port):
                return SocketTransport(socket.create_connection((host, port)))

            async def serve():
                sock, _ = listener.accept()
                transport = TlsTransport(SocketTransport(sock), listening, server_side=True)
                await transport.handshake()
                await FrameConnection(transport, {}, nursery, ConnectionLimits()).run()

            nursery.start_soon(serve)
            transport = await tls_opener(ANYBODY, plain)(*listener.getsockname())
            async with open_client_over(transport) as client:
                with pytest.raises(RequestError, match="not supported"):
                    await client.ask(GetBrokerClusterInfo())
            listener.close()

    trio.run(main)


def test_a_host_that_no_certificate_can_name(ends):
    """Its name comes from a namesrv, with which anybody may register it."""

    async def main():
        transport, _ = ends()

        async def plain(host, port):
            return transport

        with pytest.raises(OSError, match=r"'\.x'.*hostname"):
            await tls_opener(ANYBODY, plain)(".x", 1)

    trio.run(main)


class Updating:
    """The TLS object of a peer that has sent a key update before each of its bytes."""

    def __init__(self, tls, out):
        self._tls, self._out, self.left = tls, out, 3

    def read(self, size):
        self.left -= 1
        self._out.write(b"u" * 100)
        if self.left < 0:
            raise ssl.SSLWantReadError
        return b"x"

    def unwrap(self):
        return self._tls.unwrap()


@virtual
async def test_a_peer_that_updates_its_keys_and_reads_nothing_is_disconnected(listening):
    kernel = Kernel(room=0)
    transport = TlsTransport(kernel, listening, server_side=True)
    updating: Any = Updating(transport._tls, transport._out)
    transport._tls = updating

    def receive() -> bytes | None:
        updating.left = 3
        return transport._decrypted(1000)

    for _ in range(MAX_UNSENT_REPLY_BYTES // 400):
        assert receive() == b"xxx"
    with pytest.raises(OSError, match="not read"):
        receive()
    kernel.take()
    for _ in range(1000):
        assert receive() == b"xxx", "a peer that reads may update its keys as it likes"


@virtual
async def test_a_peer_that_does_not_go_on_with_its_handshake(listening):
    here, _ = transports()
    began = trio.current_time()
    with pytest.raises(OSError, match="no TLS handshake"):
        await TlsTransport(here, listening, server_side=True).handshake()
    assert trio.current_time() - began == MAX_HANDSHAKE_S


def test_a_peer_is_told_why_its_handshake_fails(authority, ends):
    old = client_context(ca_file=authority.file)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1

    async def main():
        *_, errors = await shaken(ends, server_context(*authority.issue("modern")), old)
        assert any("alert protocol version" in str(error) for error in errors)

    trio.run(main)


def test_a_client_that_can_be_verified_is_verified(authority, tmp_path, ends):
    stranger = Authority(tmp_path, "stranger")
    server = server_context(*authority.issue("here"))
    known = client_context(ca_file=authority.file)

    async def main():
        *_, errors = await shaken(ends, server, known)
        assert not errors
        assert not (await shaken(ends, server, known, "localhost"))[-1]
        *_, errors = await shaken(ends, server, client_context(ca_file=stranger.file))
        assert any(isinstance(error, ssl.SSLCertVerificationError) for error in errors)
        *_, errors = await shaken(ends, server, known, "elsewhere.example")
        assert any("elsewhere.example" in str(error) for error in errors)
        lenient = client_context(ca_file=authority.file, check_host=False)
        assert not (await shaken(ends, server, lenient, "elsewhere.example"))[-1]

    trio.run(main)


def test_clients_with_and_without_a_certificate(authority, tmp_path, ends):
    own, stranger = Authority(tmp_path, "own"), Authority(tmp_path, "stranger")
    files = authority.issue("front")
    strict = server_context(*files, client_ca_file=own.file, client_required=True)
    optional = server_context(*files, client_ca_file=own.file)

    def client(issuer, name):
        certificate, key = issuer.issue(name, password="locked")
        return client_context(verify=False, certificate_file=certificate, key_file=key, key_password="locked")

    friend, enemy = client(own, "friend"), client(stranger, "enemy")

    async def main():
        for server, peer, welcome in (
            (strict, friend, True),
            (strict, enemy, False),
            (strict, ANYBODY, False),
            (optional, ANYBODY, True),
            (optional, enemy, False),
        ):
            *_, errors = await shaken(ends, server, peer)
            assert bool(errors) != welcome

    trio.run(main)


def test_a_key_with_a_password_never_asks_on_the_terminal(authority):
    certificate, key = authority.issue("locked", password="right")
    server_context(certificate, key, key_password="right")
    with pytest.raises(OSError, match=r"(?i)bad|decrypt|password|PEM"):
        server_context(certificate, key, key_password="wrong")
    with pytest.raises(OSError, match=r"(?i)bad|decrypt|password|PEM"):
        server_context(certificate, key)


def test_requiring_certificates_without_a_ca_is_refused(authority):
    with pytest.raises(ValueError, match="CA file"):
        server_context(*authority.issue("nobody"), client_required=True)


def test_garbage_instead_of_a_handshake_and_later(listening, ends):
    async def main():
        here, there = ends()
        there.send_now(b"\x16 and no more sense")
        with pytest.raises(ssl.SSLError):
            await TlsTransport(here, listening, server_side=True).handshake()
        here.close()
        near, far, _ = await shaken(ends, listening)
        far._below.send_now(b"\x17\x03\x03\x00\x05wrong")
        with pytest.raises(ssl.SSLError):
            await near.receive(100)

    trio.run(main)
