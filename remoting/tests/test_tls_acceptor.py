import logging
import shutil
import ssl

import pytest
import trio

from remoting.tests.certificates import Authority
from remoting.tests.test_transport import pair
from remoting.tests.virtual import virtual
from remoting.tls import TlsTransport, client_context, server_context
from remoting.tls_acceptor import TlsAcceptor, TlsMode, self_signed_context
from remoting.transport import SocketTransport

ANYBODY = client_context(verify=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def listening(authority, tmp_path):
    """The context of a server with a certificate."""
    return server_context(*Authority(tmp_path).issue("server"))


@pytest.fixture
def ends():
    """Two connected transports."""
    sockets = pair()
    yield [SocketTransport(sock) for sock in sockets]
    for sock in sockets:
        sock.close()


async def shake_hands(acceptor, here, there, context):
    """Return the accepted transport of a client with TLS."""
    client = TlsTransport(there, context, server_side=False, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.handshake)
        accepted = await acceptor.accept(here)
    return accepted, client


@pytest.mark.parametrize(
    ("mode", "secure", "allowed"),
    [
        (TlsMode.DISABLED, False, True),
        (TlsMode.PERMISSIVE, False, True),
        (TlsMode.PERMISSIVE, True, True),
        (TlsMode.ENFORCING, True, True),
        (TlsMode.ENFORCING, False, False),
    ],
)
def test_modes(mode, secure, allowed, listening, ends):
    acceptor = TlsAcceptor(mode, lambda: listening)

    async def main():
        here, there = ends
        if secure:
            accepted, client = await shake_hands(acceptor, here, there, ANYBODY)
        else:
            client = there
            there.send_now(b"\x00\x00")
            if not allowed:
                with pytest.raises(OSError, match="does not use TLS"):
                    await acceptor.accept(here)
                return
            accepted = await acceptor.accept(here)
        client.send_now(b"x")
        assert isinstance(accepted, TlsTransport) == secure
        assert (await accepted.receive(100)).endswith(b"x" if secure else b"\x00\x00x")
        accepted.close()
        client.close()

    trio.run(main)


def test_a_peer_that_leaves_at_once(listening, ends):
    async def main():
        here, there = ends
        there.close()
        with pytest.raises(OSError, match="closed without a byte"):
            await TlsAcceptor(TlsMode.PERMISSIVE, lambda: listening).accept(here)

    trio.run(main)


class SilentTransport:
    remote = ("10.0.0.1", 4711)

    async def peek(self):
        await trio.sleep_forever()


@virtual
async def test_a_silent_peer_is_not_waited_for_longer_than_allowed():
    acceptor = TlsAcceptor(TlsMode.PERMISSIVE, self_signed_context, max_first_byte_wait_s=7)
    with pytest.raises(OSError, match="silent for 7 s"):
        await acceptor.accept(SilentTransport())
    assert trio.current_time() == 7


def test_a_self_signed_certificate_is_created_for_the_first_connection_with_tls(ends):
    loads = []

    def load():
        loads.append("once")
        return self_signed_context()

    async def main():
        here, there = ends
        acceptor = TlsAcceptor(TlsMode.PERMISSIVE, load)
        there.send_now(b"\x00")
        assert await acceptor.accept(here) is here
        assert not loads
        for _ in range(2):
            near, far = (SocketTransport(sock) for sock in pair())
            await shake_hands(acceptor, near, far, ANYBODY)
            near.close()
            far.close()
        assert loads == ["once"]

    trio.run(main)


def test_a_self_signed_certificate_cannot_be_verified(ends):
    async def main():
        here, there = ends
        with pytest.RaisesGroup(ssl.SSLCertVerificationError):
            await shake_hands(
                TlsAcceptor(TlsMode.PERMISSIVE, self_signed_context), here, there, client_context()
            )

    trio.run(main)


def certificate_of(acceptor, context):
    """Return the subject that a new connection sees."""

    async def main():
        near, far = (SocketTransport(sock) for sock in pair())
        _, client = await shake_hands(acceptor, near, far, context)
        subject = client._tls.getpeercert()["subject"]
        near.close()
        far.close()
        return subject[0][0][1]

    return trio.run(main)


def test_a_changed_certificate_is_used_without_a_restart(authority, tmp_path, caplog):
    files = [tmp_path / "server.pem", tmp_path / "server.key"]

    def install(name):
        for source, file in zip(authority.issue(name), files, strict=True):
            shutil.copy(source, file)

    install("first")
    acceptor = TlsAcceptor(TlsMode.ENFORCING, lambda: server_context(*files), files)
    trusting = client_context(ca_file=authority.file)
    trio.run(acceptor.reload_if_changed)
    assert certificate_of(acceptor, trusting) == "first"
    new_certificate, new_key = authority.issue("second")
    shutil.copy(new_certificate, files[0])  # Its key is still the old one.
    trio.run(acceptor.reload_if_changed)
    trio.run(acceptor.reload_if_changed)
    assert certificate_of(acceptor, trusting) == "first"
    assert caplog.text.count("changed certificate not loaded") == 1
    shutil.copy(new_key, files[1])
    trio.run(acceptor.reload_if_changed)
    assert certificate_of(acceptor, trusting) == "second"
    files[0].unlink()
    trio.run(acceptor.reload_if_changed)
    assert certificate_of(acceptor, trusting) == "second"


def test_files_that_cannot_be_used_prevent_the_start(tmp_path):
    files = [tmp_path / "missing.pem"]
    with pytest.raises(FileNotFoundError):
        TlsAcceptor(TlsMode.ENFORCING, lambda: server_context(files[0], files[0]), files)
    TlsAcceptor(TlsMode.DISABLED, lambda: server_context(files[0], files[0]), files)


def test_reloading_is_logged(authority, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    files = [tmp_path / name for name in ("own.pem", "own.key")]
    for source, file in zip(authority.issue("logged"), files, strict=True):
        shutil.copy(source, file)
    acceptor = TlsAcceptor(TlsMode.PERMISSIVE, lambda: server_context(*files), files)
    shutil.copy(files[0], tmp_path / "copy")
    (tmp_path / "copy").replace(files[0])
    trio.run(acceptor.reload_if_changed)
    assert "certificate loaded again" in caplog.text
