"""Builds TLS from the configured keys: for the server's listeners, and for connections to namesrvs and etcd."""

import ssl
from pathlib import Path
from typing import Final

from gateway.config.controller import ControllerConfig
from gateway.config.tls import TlsConfig
from remoting.tls import client_context, tls_opener
from remoting.tls_acceptor import MAX_FIRST_BYTE_WAIT_S, TlsAcceptor, TlsMode, self_signed_context
from remoting.transport import Opener
from toolkit.settings import SettingsError

APPLICATION_PROTOCOLS: Final = ("h2",)
"""Offered for the gRPC port, whose clients require it. Clients of the other ports negotiate no protocol."""
HTTP_PROTOCOLS: Final = ("http/1.1",)
"""Offered by the HTTP port. Clients that prefer HTTP/2 do without it."""


class TlsError(SettingsError):
    """Certificates or keys that cannot be used; the text names the setting."""


def build_acceptor(config: TlsConfig, max_first_byte_wait_s: float) -> TlsAcceptor | None:
    """Return the acceptor of TLS and plain connections for the ports; None if all are plain. Raises TlsError."""
    if config.mode == "disabled":
        return None
    return _build_acceptor(
        config,
        TlsMode(config.mode),
        APPLICATION_PROTOCOLS,
        verifies=config.verify_clients or config.client_certificates == "require",
        max_first_byte_wait_s=max_first_byte_wait_s,
    )


def build_http_acceptor(config: TlsConfig, mode: str) -> TlsAcceptor:
    """Return the acceptor of the HTTP port, with a mode of its own and the certificate of the other ports.

    It asks no client for a certificate, because probes and Prometheus seldom have one. Raises TlsError.
    """
    if mode == "disabled":
        return TlsAcceptor(TlsMode.DISABLED, self_signed_context)
    return _build_acceptor(config, TlsMode(mode), HTTP_PROTOCOLS, verifies=False)


def _build_acceptor(
    config: TlsConfig,
    mode: TlsMode,
    protocols: tuple[str, ...],
    *,
    verifies: bool,
    max_first_byte_wait_s: float = MAX_FIRST_BYTE_WAIT_S,
) -> TlsAcceptor:
    if not config.certificate:
        if not config.test_mode or verifies:
            condition = "clients are verified" if verifies else "tls.test.mode.enable=false"
            raise TlsError(
                f"tls.server.certPath is not set, although {condition}. Set it and tls.server.keyPath "
                "(`rmq-gateway cert` creates both for development), or tls.server.mode=disabled"
            )
        return TlsAcceptor(mode, self_signed_context, (), max_first_byte_wait_s, protocols)
    if verifies and not config.client_authority:
        raise TlsError(
            "tls.server.trustCertPath is not set, although clients' certificates are verified by it"
        )
    certificate, private_key = Path(config.certificate), Path(config.private_key or config.certificate)
    client_authority = Path(config.client_authority) if verifies else None
    try:
        return TlsAcceptor.of_files(
            mode,
            certificate,
            private_key,
            key_password=config.key_password,
            client_authority=client_authority,
            client_required=verifies and config.client_certificates == "require",
            max_first_byte_wait_s=max_first_byte_wait_s,
            application_protocols=protocols,
        )
    except (OSError, ValueError) as problem:
        files = [file for file in (certificate, private_key, client_authority) if file is not None]
        raise TlsError(f"TLS cannot be set up: {_describe(problem, files)}") from problem


def build_opener(config: TlsConfig, open_plain: Opener) -> Opener:
    """Return the opener of brokers' connections to namesrvs, with TLS if configured. Raises TlsError."""
    if not config.use_client_tls:
        return open_plain
    authority, certificate = config.server_authority, config.client_certificate
    files = [Path(name) for name in (authority, certificate, config.client_key) if name]
    try:
        context = client_context(
            ca_file=Path(authority) if authority else None,
            verify=config.verify_servers,
            certificate_file=Path(certificate) if certificate else None,
            key_file=Path(config.client_key) if config.client_key else None,
            key_password=config.client_key_password,
        )
    except (OSError, ValueError) as problem:
        raise TlsError(f"TLS to namesrvs cannot be set up: {_describe(problem, files)}") from problem
    return tls_opener(context, open_plain)


def build_etcd_context(config: ControllerConfig) -> ssl.SSLContext | None:
    """Return the context of a controller's connections to etcd; None if all of them are plain. Raises TlsError."""
    if not config.etcd_is_encrypted():
        return None
    ca_file, certificate, key = (
        Path(name) if name else None for name in (config.etcd_ca, config.etcd_certificate, config.etcd_key)
    )
    try:
        return client_context(ca_file=ca_file, certificate_file=certificate, key_file=key)
    except (OSError, ValueError) as problem:
        files = [file for file in (ca_file, certificate, key) if file is not None]
        raise TlsError(f"TLS to etcd cannot be set up: {_describe(problem, files)}") from problem


def _describe(problem: Exception, files: list[Path]) -> str:
    """Describe the problem together with the files, because OpenSSL does not name them."""
    if isinstance(problem, OSError) and problem.filename is not None:
        return str(problem)
    return f"{problem} (files: {', '.join(map(str, files))})"
