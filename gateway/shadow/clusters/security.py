"""TLS and credentials of the shadow gateway at both clusters: their settings in `[primary]` and `[target]`.

The protocols live in `remoting.tls` and `remoting.acl`, TLS of listeners in `gateway.runtime.listener_tls`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from codec.command import Command
from remoting import acl, tls
from remoting.acl import Credentials
from remoting.transport import Opener
from toolkit.secret_file import read_secret_file
from toolkit.settings import SettingsError, setting


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """`[primary.tls]` and `[target.tls]`: TLS of the gateway's connections to namesrvs and brokers."""

    enabled: bool = setting(False, "connect with TLS")
    ca: str = setting(
        "", "PEM file of the authority that signs servers' certificates; none: the system's authorities"
    )
    verify: bool = setting(True, "refuse servers with other certificates; stock clients accept any")
    check_host: bool = setting(True, "require that the certificate is for the address that is dialled")
    certificate: str = setting("", "PEM file of the gateway's own certificate")
    key: str = setting("", "PEM file of the private key; none: the key is in the certificate's file")
    key_password: str = setting("", "password of the private key", secret=True)


@dataclass(frozen=True, slots=True)
class CredentialSettings:
    """`[primary.credentials]` and `[target.credentials]`: the user that signs the gateway's own requests.

    Clients' requests to the primary keep the signatures of the clients.
    """

    access_key: str = setting("", "access key of the user; none: requests are not signed")
    secret_key: str = setting("", "the user's secret", secret=True)
    secret_key_file: str = setting("", "file with the secret, used instead of secret_key")
    security_token: str = setting("", "security token, for servers that require one", secret=True)


def upstream_opener(settings: UpstreamTls, open_plain: Opener, where: str) -> Opener:
    """Return a function that opens connections as ``open_plain`` does, with TLS if configured. Raises SettingsError."""
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
    """Return a function that signs the gateway's own requests; None if they are not signed. Raises SettingsError."""
    found = load_credentials(settings, where)
    return None if found is None else acl.make_signer(found)


def load_credentials(settings: CredentialSettings, where: str) -> Credentials | None:
    """Return the credentials to sign requests with; None if requests are not signed. Raises SettingsError."""
    if not settings.access_key:
        if settings.secret_key or settings.secret_key_file:
            raise SettingsError(f"{where}: access_key must be set together with a secret")
        return None
    if bool(settings.secret_key) == bool(settings.secret_key_file):
        raise SettingsError(f"{where}: set either secret_key or secret_key_file")
    secret = settings.secret_key or read_secret_file(settings.secret_key_file, f"{where}: secret_key_file")
    return Credentials(settings.access_key, secret, settings.security_token or None)
