"""What the tables `[listen]`, `[primary]` and `[target]` say about TLS and credentials, and what comes of it.

Not responsible for protocols: `remoting.tls` and `remoting.acl` are.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from codec.command import Command
from remoting import acl, tls
from remoting.acl import Credentials
from remoting.tls import TlsMode
from remoting.transport import Opener
from toolkit.settings import SettingsError, setting


@dataclass(frozen=True, slots=True)
class ListenTls:
    """`[listen.tls]`: what clients of the gateway may speak."""

    mode: str = setting(
        "permissive",
        "disabled: plain connections only; permissive: plain and TLS; enforcing: TLS only",
        choices=tuple(mode.value for mode in TlsMode),
    )
    certificate: str = setting(
        "", "PEM file of the certificate and those that signed it; none: one is made at start"
    )
    key: str = setting("", "PEM file of its private key; none: it is in the file of the certificate")
    key_password: str = setting("", "opens the private key", secret=True)
    client_ca: str = setting("", "PEM file of who signs clients' certificates; none: they are not looked at")
    client_required: bool = setting(False, "refuse clients that have no certificate")


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """`[primary.tls]` and `[target.tls]`: how the gateway connects to namesrvs and brokers."""

    enabled: bool = setting(False, "connect with TLS")
    ca: str = setting("", "PEM file of who signs servers' certificates; none: those the system trusts")
    verify: bool = setting(True, "refuse servers with other certificates; stock clients take any")
    check_host: bool = setting(True, "the certificate must be for the address that is dialled")
    certificate: str = setting("", "PEM file of the gateway's own certificate")
    key: str = setting("", "PEM file of its private key; none: it is in the file of the certificate")
    key_password: str = setting("", "opens the private key", secret=True)


@dataclass(frozen=True, slots=True)
class CredentialSettings:
    """`[primary.credentials]` and `[target.credentials]`: signs what the gateway asks on its own behalf.

    Clients' requests to the primary keep the signatures of the clients.
    """

    access_key: str = setting("", "name of the user; none: requests are not signed")
    secret_key: str = setting("", "the user's secret", secret=True)
    secret_key_file: str = setting("", "file with the secret, instead of secret_key")
    security_token: str = setting("", "sent along where the server wants one", secret=True)


def listener_context(settings: ListenTls, where: str = "listen.tls") -> ssl.SSLContext | None:
    """The context that goes with the mode, None for plain connections only. Raises SettingsError."""
    if TlsMode(settings.mode) is TlsMode.DISABLED:
        return None
    if not settings.certificate:
        if settings.client_ca or settings.client_required:
            raise SettingsError(
                f"{where}: certificate must be given when clients' certificates are looked at"
            )
        return tls.self_signed_context()
    try:
        return tls.server_context(
            Path(settings.certificate),
            Path(settings.key or settings.certificate),
            key_password=settings.key_password,
            client_ca_file=Path(settings.client_ca) if settings.client_ca else None,
            client_required=settings.client_required,
        )
    except (OSError, ValueError) as error:
        raise SettingsError(f"{where}: {error}") from error


def upstream_opener(settings: UpstreamTls, open_plain: Opener, where: str) -> Opener:
    """How connections are opened: as ``open_plain`` does, with TLS over it if so configured. Raises SettingsError."""
    if not settings.enabled:
        return open_plain
    try:
        context = tls.client_context(
            ca_file=Path(settings.ca) if settings.ca else None,
            verify=settings.verify,
            check_host=settings.check_host,
            certificate_file=Path(settings.certificate) if settings.certificate else None,
            key_file=Path(settings.key) if settings.key else None,
            key_password=settings.key_password,
        )
    except OSError as error:
        raise SettingsError(f"{where}: {error}") from error
    return tls.tls_opener(context, open_plain)


def make_signer(settings: CredentialSettings, where: str) -> Callable[[Command], None] | None:
    """What signs the gateway's own requests; None when they are not. Raises SettingsError."""
    found = load_credentials(settings, where)
    return None if found is None else acl.make_signer(found)


def load_credentials(settings: CredentialSettings, where: str) -> Credentials | None:
    """Whom requests are signed for; None when they are not. Raises SettingsError."""
    if not settings.access_key:
        if settings.secret_key or settings.secret_key_file:
            raise SettingsError(f"{where}: access_key must be given with a secret")
        return None
    if bool(settings.secret_key) == bool(settings.secret_key_file):
        raise SettingsError(f"{where}: either secret_key or secret_key_file must be given")
    secret = settings.secret_key or _read_secret(Path(settings.secret_key_file), where)
    return Credentials(settings.access_key, secret, settings.security_token or None)


def _read_secret(file: Path, where: str) -> str:
    try:
        secret = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"{where}: secret_key_file {file}: {reason}") from None
    if not secret:
        raise SettingsError(f"{where}: secret_key_file {file} is empty")
    return secret
