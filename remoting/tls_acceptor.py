"""Accepts plain and TLS connections on one port, with certificates that may change while the server runs.

The first byte of a connection shows which it is. Source: NettyRemotingServer.TlsModeHandler, TlsHelper and
FileWatchService, 5.4.0. Deviation: a certificate that does not match its key yet, because only one of the files was
replaced, is tried again after the next change; the official server reloads when both have changed.
"""

import logging
import ssl
import tempfile
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Self

import trio

from codec.hosts import format_host
from remoting.file_watch import FileWatch
from remoting.tls import TlsTransport, server_context
from remoting.transport import SocketTransport, Transport

log = logging.getLogger(__name__)

MAX_FIRST_BYTE_WAIT_S: Final = 120.0
"""Maximum wait for a peer's first byte. Source: NettyServerConfig.serverChannelMaxIdleTimeSeconds, 5.4.0."""
RELOAD_INTERVAL_S: Final = 1.0
"""Time between two checks of the certificate's files; the official server checks every 0.5 s."""
_HANDSHAKE_BYTE: Final = b"\x16"

LoadContext = Callable[[], ssl.SSLContext]
"""Reads certificates. Raises OSError (also ssl.SSLError) or ValueError. Blocks, so it runs in a thread."""


class TlsMode(Enum):
    """The connections that a listener accepts. Source: TlsMode, NettyRemotingServer.TlsModeHandler, 5.4.0."""

    DISABLED = "disabled"
    """Plain connections only."""
    PERMISSIVE = "permissive"
    """Both; the first byte shows which."""
    ENFORCING = "enforcing"
    """TLS only."""


class TlsAcceptor:
    """Turns accepted sockets into transports.

    ``files`` hold the certificate, its key and the authority of clients. They are loaded at construction, so that a
    server with a wrong file does not start (it raises what ``load`` raises), and again by `reload_if_changed`: call it
    every RELOAD_INTERVAL_S. Without files the context is built for the first TLS connection, which most servers never
    see. ``application_protocols`` are offered to clients that negotiate one (ALPN), as those of HTTP/2 do.
    """

    def __init__(
        self,
        mode: TlsMode,
        load: LoadContext,
        files: Sequence[Path] = (),
        max_first_byte_wait_s: float = MAX_FIRST_BYTE_WAIT_S,
        application_protocols: Sequence[str] = (),
    ) -> None:
        def load_with_protocols() -> ssl.SSLContext:
            context = load()
            if application_protocols:
                context.set_alpn_protocols(list(application_protocols))
            return context

        self._mode = mode
        self._load = load_with_protocols
        self._files = tuple(files)
        self._max_first_byte_wait_s = max_first_byte_wait_s
        self._watch = FileWatch(files)
        self._context = self._load() if files and mode is not TlsMode.DISABLED else None
        self._loading = trio.Lock()

    @classmethod
    def of_files(
        cls,
        mode: TlsMode,
        certificate: Path,
        key: Path,
        *,
        key_password: str,
        client_authority: Path | None,
        client_required: bool,
        max_first_byte_wait_s: float = MAX_FIRST_BYTE_WAIT_S,
        application_protocols: Sequence[str] = (),
    ) -> Self:
        """Return an acceptor with these PEM files. Raises what `remoting.tls.server_context` raises."""

        def load() -> ssl.SSLContext:
            return server_context(
                certificate,
                key,
                key_password=key_password,
                client_ca_file=client_authority,
                client_required=client_required,
            )

        files = [file for file in (certificate, key, client_authority) if file is not None]
        return cls(mode, load, files, max_first_byte_wait_s, application_protocols)

    async def accept(self, transport: SocketTransport, *, allows_plain: bool = False) -> Transport:
        """Return the transport for a new peer: the given one, or TLS over it. Waits for its first byte.

        ``allows_plain`` excepts the peer from a mode that enforces TLS. Raises OSError when the peer is silent, does
        what the mode forbids or fails the handshake; the caller closes the transport then.
        """
        if self._mode is TlsMode.DISABLED:
            return transport
        first = None
        with trio.move_on_after(self._max_first_byte_wait_s):
            first = await transport.peek()
        if first is None:
            raise OSError(f"{format_host(transport.remote)} was silent for {self._max_first_byte_wait_s} s")
        if not first:
            raise OSError(f"{format_host(transport.remote)} closed without a byte")
        if first == _HANDSHAKE_BYTE:
            return await self._accept_tls(transport)
        if self._mode is TlsMode.ENFORCING and not allows_plain:
            log.warning(
                "connection without TLS refused",
                extra={"remote": transport.remote, "port": transport.local[1]},
            )
            raise OSError(f"{format_host(transport.remote)} does not use TLS")
        return transport

    async def _accept_tls(self, transport: SocketTransport) -> TlsTransport:
        secure = TlsTransport(transport, await self._present_context(), server_side=True)
        try:
            await secure.handshake()
        except OSError as problem:
            extra = {"remote": transport.remote, "port": transport.local[1], "reason": str(problem)}
            log.warning("TLS handshake failed", extra=extra)
            raise
        return secure

    async def _present_context(self) -> ssl.SSLContext:
        async with self._loading:
            if self._context is None:
                self._context = await trio.to_thread.run_sync(self._load)
            return self._context

    async def reload_if_changed(self) -> None:
        """Load the files again if one has changed. Files that cannot be used are logged, and the present ones stay."""
        if not self._watch.has_changed():
            return
        names = [str(file) for file in self._files]
        try:
            context = await trio.to_thread.run_sync(self._load)
        except (OSError, ValueError) as problem:
            log.warning(
                "changed certificate not loaded, the present one stays in use",
                extra={"files": names, "reason": str(problem)},
            )
        else:
            self._context = context
            log.info("certificate loaded again", extra={"files": names})


def self_signed_context() -> ssl.SSLContext:
    """Build a context for listeners without a certificate: traffic is encrypted, but clients cannot verify the
    server.

    Source: TlsHelper.buildSslContext with tls.test.mode.enable, 5.4.0.
    """
    from remoting.certificates import self_signed_pem  # slow to import, and few servers need it

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "self-signed.pem"
        file.touch(0o600)
        file.write_bytes(self_signed_pem())
        return server_context(file, file)
