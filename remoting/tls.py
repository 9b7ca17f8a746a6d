"""TLS over any transport: contexts for either side, and who may do without.

Not responsible for sockets: the transport below does not know what it carries.
"""

import datetime
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

import trio

from remoting.transport import Address, Buffer, Opener, SocketTransport, Transport

MAX_HANDSHAKE_S: Final = 10.0
"""A peer that has begun a handshake must have finished it by then. Source: SslHandler's default, Netty 4.1."""
MAX_FIRST_BYTE_WAIT_S: Final = 120.0
"""As long may a peer be silent at first. Source: NettyServerConfig.serverChannelMaxIdleTimeSeconds, 5.4.0."""
_HANDSHAKE_BYTE: Final = b"\x16"
_READ_BYTES: Final = 64 * 1024


class TlsMode(Enum):
    """What a listener accepts. Source: TlsMode, NettyRemotingServer.TlsModeHandler, 5.4.0."""

    DISABLED = "disabled"
    """Plain connections only."""
    PERMISSIVE = "permissive"
    """Both; the first byte tells."""
    ENFORCING = "enforcing"
    """TLS only."""


def server_context(
    certificate_file: Path,
    key_file: Path,
    *,
    key_password: str | None = None,
    client_ca_file: Path | None = None,
    client_required: bool = False,
) -> ssl.SSLContext:
    """For listeners, from PEM files. A client's certificate, if it has one, must be signed by ``client_ca_file``.

    Raises OSError (also ssl.SSLError) for files that cannot be read or do not fit, ValueError for a client that must
    have a certificate nobody can check.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file, _password(key_password))
    if client_ca_file is not None:
        context.load_verify_locations(client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if client_required else ssl.CERT_OPTIONAL
    elif client_required:
        raise ValueError("a client's certificate can only be required with a file of who may sign it")
    return context


def client_context(
    *,
    ca_file: Path | None = None,
    verify: bool = True,
    check_host: bool = True,
    certificate_file: Path | None = None,
    key_file: Path | None = None,
    key_password: str | None = None,
) -> ssl.SSLContext:
    """For connections that we open. Without ``ca_file`` the system's certificates count.

    ``check_host`` wants the name we dial in the server's certificate, ``verify=False`` takes any certificate (both as
    the stock client does unless told otherwise). Raises OSError for files that cannot be read or do not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = verify and check_host
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    elif verify:
        context.load_default_certs()
    if certificate_file is not None:
        context.load_cert_chain(certificate_file, key_file, _password(key_password))
    return context


def _password(text: str | None) -> Callable[[], str]:
    """Never None, for which OpenSSL would ask on the terminal."""
    return lambda: text or ""


class TlsTransport:
    """What is sent and received here travels encrypted through the transport below.

    One pass of memory per direction and no task, so that a reactor below works as it does for plain sockets.
    """

    __slots__ = (
        "_below",
        "_in",
        "_kept",
        "_offered_bytes",
        "_out",
        "_readable",
        "_sending",
        "_tls",
        "local",
        "remote",
    )

    def __init__(
        self, below: Transport, context: ssl.SSLContext, *, server_side: bool, host: str | None = None
    ) -> None:
        self._below = below
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side, host)
        self._kept = memoryview(b"")
        self._offered_bytes = 0
        self._sending = False
        self._readable: Callable[[], None] | None = None
        self.remote: Address = below.remote
        self.local: Address = below.local

    async def handshake(self) -> None:
        """To be called first. Raises OSError (also ssl.SSLError) when the peer does not agree or takes too long."""
        with trio.move_on_after(MAX_HANDSHAKE_S) as limit:
            while not self._shaken():
                await self._below.send_all(self._out.read())
                self._arrived(await self._below.receive(_READ_BYTES))
            await self._below.send_all(self._out.read())
        if limit.cancelled_caught:
            raise OSError(f"no TLS handshake with {self.remote} within {MAX_HANDSHAKE_S} s")

    def _shaken(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _arrived(self, data: bytes) -> None:
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def _decrypted(self, max_bytes: int) -> bytes | None:
        """All there is, since nobody will say again that there is something; None when nothing is complete."""
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(max_bytes):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            self._flush()  # An answer to a change of keys.
            return b"".join(pieces) if pieces else None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        return b"".join(pieces)

    async def receive(self, max_bytes: int) -> bytes:
        while (data := self._decrypted(max_bytes)) is None:
            self._arrived(await self._below.receive(max_bytes))
        return data

    def watch(self, readable: Callable[[], None]) -> bool:
        watched = self._below.watch(readable)
        if watched and self._in.pending:
            # It came with the end of the handshake: no socket will tell of it.
            self._readable = readable
            trio.lowlevel.current_trio_token().run_sync_soon(self._tell)
        return watched

    def _tell(self) -> None:
        readable, self._readable = self._readable, None
        if readable is not None:
            readable()

    def unwatch(self) -> None:
        self._readable = None
        self._below.unwatch()

    def receive_now(self, max_bytes: int) -> bytes:
        with suppress(BlockingIOError):
            self._arrived(self._below.receive_now(max_bytes))
        data = self._decrypted(max_bytes)
        if data is None:
            raise BlockingIOError
        return data

    def send_now(self, data: Buffer) -> int:
        """As always, but where it raises, the bytes may be encrypted and wait: the same ones must be offered next."""
        if self._sending or not self._flush():
            raise BlockingIOError
        if not self._offered_bytes:
            self._tls.write(data)
            self._offered_bytes = len(data)
        if not self._flush():
            raise BlockingIOError
        sent, self._offered_bytes = self._offered_bytes, 0
        return sent

    def _flush(self) -> bool:
        """Sends what is encrypted, if the transport below takes it; whether nothing is left."""
        if self._sending:
            return False
        if self._out.pending:
            self._kept = memoryview(bytes(self._kept) + self._out.read())
        if self._kept:
            with suppress(BlockingIOError):
                self._kept = self._kept[self._below.send_now(self._kept) :]
        return not self._kept

    async def send_all(self, data: Buffer) -> None:
        fresh = memoryview(data)[self._offered_bytes :]
        self._offered_bytes = 0
        if fresh:
            self._tls.write(fresh)
        self._sending = True
        try:
            while self._kept or self._out.pending:
                encrypted, self._kept = bytes(self._kept) + self._out.read(), memoryview(b"")
                await self._below.send_all(encrypted)
        finally:
            self._sending = False

    def close(self) -> None:
        """Says goodbye, if that needs no waiting."""
        self._readable = None
        with suppress(OSError):
            self._tls.unwrap()
        with suppress(OSError):
            self._flush()
        self._below.close()


async def accept_transport(
    transport: SocketTransport, mode: TlsMode, context: ssl.SSLContext | None
) -> Transport:
    """The transport to use for a peer that has just connected: itself, or TLS over it. Waits for its first byte.

    Without a context every mode is DISABLED. Raises OSError when the peer is silent, does what the mode does not
    allow or fails the handshake; whoever called closes the transport then.
    """
    if mode is TlsMode.DISABLED or context is None:
        return transport
    first = None
    with trio.move_on_after(MAX_FIRST_BYTE_WAIT_S):
        first = await transport.peek()
    if first is None:
        raise OSError(f"{transport.remote} was silent for {MAX_FIRST_BYTE_WAIT_S} s")
    if first == _HANDSHAKE_BYTE:
        secure = TlsTransport(transport, context, server_side=True)
        await secure.handshake()
        return secure
    if mode is TlsMode.ENFORCING:
        raise OSError(f"{transport.remote} does not use TLS")
    return transport


def tls_opener(context: ssl.SSLContext, open_plain: Opener) -> Opener:
    """Opens connections with TLS over those that ``open_plain`` opens; raises OSError as well when TLS fails."""

    async def open_secure(host: str, port: int) -> Transport:
        below = await open_plain(host, port)
        try:
            secure = TlsTransport(below, context, server_side=False, host=host)
            await secure.handshake()
        except BaseException:
            below.close()
            raise
        return secure

    return open_secure


def self_signed_context() -> ssl.SSLContext:
    """For listeners without a certificate of their own: encrypted, but nobody knows with whom one talks.

    Source: TlsHelper.buildSslContext with tls.test.mode.enable, 5.4.0.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "self-signed.pem"
        file.touch(0o600)
        file.write_bytes(_self_signed())
        return server_context(file, file)


def _self_signed() -> bytes:
    """A key and its certificate in PEM. What makes them takes a while to load, and few need it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rocketmq-gateway")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate.public_bytes(serialization.Encoding.PEM)
