"""TLS of a listener that is configured by a TOML table: its settings, and the acceptor made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remoting.tls_acceptor import TlsAcceptor, TlsMode, self_signed_context
from toolkit.settings import SettingsError, setting


@dataclass(frozen=True, slots=True)
class ListenTls:
    """`[listen.tls]` and `[console.tls]`: TLS of clients."""

    mode: str = setting(
        "permissive",
        "disabled: plain connections only; permissive: plain and TLS; enforcing: TLS only",
        choices=tuple(mode.value for mode in TlsMode),
    )
    certificate: str = setting(
        "", "PEM file of the certificate and its chain; none: a self-signed certificate is generated at start"
    )
    key: str = setting("", "PEM file of the private key; none: the key is in the certificate's file")
    key_password: str = setting("", "password of the private key", secret=True)
    client_ca: str = setting(
        "", "PEM file of the authority that signs clients' certificates; none: they are not verified"
    )
    client_required: bool = setting(False, "refuse clients without a certificate")


def listener_acceptor(
    settings: ListenTls, table_name: str = "listen.tls", *, application_protocols: Sequence[str] = ()
) -> TlsAcceptor:
    """Return the acceptor of a listener's connections, which offers these protocols. Raises SettingsError."""
    mode = TlsMode(settings.mode)
    if not settings.certificate:
        if mode is not TlsMode.DISABLED and (settings.client_ca or settings.client_required):
            raise SettingsError(
                f"{table_name}: certificate must be set when clients' certificates are verified"
            )
        return TlsAcceptor(mode, self_signed_context, application_protocols=application_protocols)
    try:
        return TlsAcceptor.of_files(
            mode,
            Path(settings.certificate),
            Path(settings.key or settings.certificate),
            key_password=settings.key_password,
            client_authority=Path(settings.client_ca) if settings.client_ca else None,
            client_required=settings.client_required,
            application_protocols=application_protocols,
        )
    except (OSError, ValueError) as error:
        raise SettingsError(f"{table_name}: {error}") from error
