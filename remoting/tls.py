"""TLS over any transport: contexts for either side, and the handshake. The transport below sees only bytes.

`tls_acceptor.py` chooses between TLS and plain connections.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from codec.hosts import format_host
from codec.java_numbers import quoted
from remoting.transport import Address, Buffer, Opener, Transport

MAX_HANDSHAKE_S: Final = 10.0
"""Maximum duration of a handshake. Source: SslHandler's default, Netty 4.1."""
MAX_UNSENT_REPLY_BYTES: Final = 64 * 1024
"""Maximum size of unread answers to key updates, which TLS sends by itself. Above it the peer is disconnected."""
_READ_BYTES: Final = 64 * 1024


def server_context(
    certificate_file: Path,
    key_file: Path,
    *,
    key_password: str | None = None,
    client_ca_file: Path | None = None,
    client_required: bool = False,
) -> ssl.SSLContext:
    """Build the context of listeners from PEM files. A client's certificate must be signed by ``client_ca_file``.

    Raises OSError (also ssl.SSLError) for files that cannot be read or do not match, ValueError if client
    certificates are required but cannot be verified.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_file, key_file, _password(key_password))
    if client_ca_file is not None:
        context.load_verify_locations(client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if client_required else ssl.CERT_OPTIONAL
    elif client_required:
        raise ValueError("requiring client certificates needs a CA file to verify them")
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
    """Build the context of outgoing connections. Without ``ca_file`` the system's certificates are trusted.

    ``check_host`` requires the dialled name in the server's certificate, ``verify=False`` accepts any certificate (as
    the stock client does by default). Raises OSError for files that cannot be read or do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
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
    """Return a password callback. It never returns None, for which OpenSSL would ask on the terminal."""
    return lambda: text or ""


class TlsTransport:
    """Encrypts and decrypts the bytes of a transport below.

    Each direction needs one copy and no task, so that a reactor below works as it does for plain sockets.
    """

    __slots__ = (
        "_below",
        "_encrypted",
        "_in",
        "_offered_bytes",
        "_out",
        "_readable",
        "_reply_bytes",
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
        self._encrypted = memoryview(b"")
        self._offered_bytes = 0
        self._reply_bytes = 0
        self._sending = False
        self._readable: Callable[[], None] | None = None
        self.remote: Address = below.remote
        self.local: Address = below.local

    async def handshake(self) -> None:
        """Do the handshake; call it first. Raises OSError (also ssl.SSLError) when it fails or takes too long."""
        with trio.move_on_after(MAX_HANDSHAKE_S) as limit:
            try:
                while not self._try_handshake():
                    await self._below.send_all(self._out.read())
                    self._arrived(await self._below.receive(_READ_BYTES))
            except ssl.SSLError:
                if alert := self._out.read():  # It tells the peer what is wrong.
                    with suppress(OSError):
                        await self._below.send_all(alert)
                raise
            await self._below.send_all(self._out.read())
        if limit.cancelled_caught:
            raise OSError(f"no TLS handshake with {format_host(self.remote)} within {MAX_HANDSHAKE_S} s")

    def _try_handshake(self) -> bool:
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
        """Return everything that can be decrypted; None when no record is complete.

        All of it, because no event of the socket would announce the rest. Raises OSError for a peer that requests key
        updates without end and does not read the replies.
        """
        pieces: list[bytes] = []
        pending_bytes = self._out.pending
        try:
            while piece := self._tls.read(max_bytes):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            self._reply_bytes += self._out.pending - pending_bytes
            if self._flush():  # Send the reply to a key update.
                self._reply_bytes = 0
            elif self._reply_bytes > MAX_UNSENT_REPLY_BYTES:
                raise OSError("replies of TLS are not read") from None
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
            # These bytes came together with the end of the handshake: no event of the socket will announce them.
            self._readable = readable
            trio.lowlevel.current_trio_token().run_sync_soon(self._call_readable)
        return watched

    def _call_readable(self) -> None:
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
        """Send as `Transport.send_now` does.

        After an exception the next call must offer the same bytes, because they may be encrypted already.
        """
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
        """Send encrypted bytes if the transport below takes them; return True if none are left."""
        if self._sending:
            return False
        if self._out.pending:
            self._encrypted = memoryview(bytes(self._encrypted) + self._out.read())
        if self._encrypted:
            with suppress(BlockingIOError):
                self._encrypted = self._encrypted[self._below.send_now(self._encrypted) :]
        return not self._encrypted

    async def send_all(self, data: Buffer) -> None:
        fresh = memoryview(data)[self._offered_bytes :]
        self._offered_bytes = 0
        if fresh:
            self._tls.write(fresh)
        self._sending = True
        try:
            while self._encrypted or self._out.pending:
                encrypted, self._encrypted = bytes(self._encrypted) + self._out.read(), memoryview(b"")
                await self._below.send_all(encrypted)
        finally:
            self._sending = False

    def close(self) -> None:
        """Send a closure alert, if that needs no waiting, and close."""
        self._readable = None
        with suppress(OSError):
            self._tls.unwrap()
        with suppress(OSError):
            self._flush()
        self._below.close()


def tls_opener(context: ssl.SSLContext, open_plain: Opener) -> Opener:
    """Return an opener of TLS connections over ``open_plain``; it raises OSError also when TLS fails."""

    async def open_secure(host: str, port: int) -> Transport:
        below = await open_plain(host, port)
        try:
            try:
                secure = TlsTransport(below, context, server_side=False, host=host)
            except ValueError as error:  # Also a UnicodeError: the name comes from a peer.
                raise OSError(f"{quoted(host)!r} is not a hostname: {error}") from error
            await secure.handshake()
        except BaseException:
            below.close()
            raise
        return secure

    return open_secure
