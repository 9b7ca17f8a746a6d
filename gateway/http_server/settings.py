"""Settings of a console."""

import ipaddress
from dataclasses import dataclass
from typing import Final

from gateway.http_server.password_hash import (
    BLOCK_SIZE,
    KEY_BYTES,
    LOG_N,
    PARALLELISM,
    SALT_BYTES,
    PasswordHash,
)
from gateway.runtime.listener_tls import ListenTls
from remoting.tls_acceptor import TlsMode
from toolkit.settings import SettingsError, setting

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
UNKNOWN_HASH: Final = str(
    PasswordHash(LOG_N, BLOCK_SIZE, PARALLELISM, salt=bytes(SALT_BYTES), key=bytes(KEY_BYTES))
)
"""A hash whose password nobody knows. Verifying it takes as long as for a new user."""


@dataclass(frozen=True, slots=True)
class ConsoleUser:
    """A user of a console, as `rmq-gateway shadow console-user` prints one."""

    name: str = setting(
        "",
        "name of the user: letters, digits and . _ @ - (at most 64)",
        pattern=r"[A-Za-z0-9._@-]{1,64}",
        example="vera",
    )
    password_hash: str = setting("", "scrypt hash of the password", secret=True, example=UNKNOWN_HASH)
    role: str = setting(
        VIEWER, "viewer: look only; operator: change modes, move topics", choices=(VIEWER, OPERATOR)
    )


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """An HTTP port of the process: status, metrics and control as JSON."""

    enabled: bool = setting(True, "Listen on the console's port.")
    host: str = setting(
        "127.0.0.1",
        "Address to listen on. Any other than a loopback address needs users or a token, and TLS.",
    )
    port: int = setting(9880, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    token: str = setting(
        "",
        'Token that clients must send as "Authorization: Bearer <token>"; empty: none is required.',
        secret=True,
    )
    users: list[ConsoleUser] = setting(
        list,
        "Users, who send name and password (HTTP Basic). Without users and token everybody is an operator.",
    )
    hosts: list[str] = setting(
        list,
        "Host names under which the console may be addressed, besides localhost and addresses.",
        example=["gateway.example.org"],
    )
    tls: ListenTls = setting(ListenTls, "TLS of the console.")
    plain_http: bool = setting(
        False, "Allow plain HTTP on other than loopback addresses, such as behind a proxy that ends TLS."
    )
    max_connections: int = setting(
        32,
        "Maximum number of requests worked on at a time; as many more wait, further ones get status 503.",
        low=1,
        high=1000,
    )
    max_request_bytes: int = setting(
        1_048_576, "Maximum size of a request's body; larger ones are refused.", low=1024, high=67_108_864
    )
    request_timeout_s: float = setting(
        5.0, "Maximum time for a client to send its request, and to read the answer.", low=0.1, high=600
    )
    answer_timeout_s: float = setting(600.0, "Maximum time to produce an answer.", low=1, high=86_400)

    def __post_init__(self) -> None:
        names = [user.name for user in self.users]
        for user in self.users:
            if not user.name:
                raise SettingsError("[[console.users]]: name must be given")
            if names.count(user.name) > 1:
                raise SettingsError(f"[[console.users]]: two users have the name {user.name}")
            try:
                PasswordHash.parse(user.password_hash)
            except ValueError as error:
                raise SettingsError(f"[[console.users]] {user.name}: password_hash: {error}") from None
        if self.enabled and not is_loopback(self.host):
            self._check_reachable()

    def _check_reachable(self) -> None:
        """Raise SettingsError unless strangers can neither use nor overhear the console."""
        if not self.token and not self.users:
            raise SettingsError(
                f"[console] host = {self.host!r} can be reached by others: set users or a token, because the "
                "console's routes change what the gateway does (rmq-gateway shadow console-user NAME)"
            )
        if self.tls.mode != TlsMode.ENFORCING.value and not self.plain_http:
            raise SettingsError(
                f"[console] host = {self.host!r} can be reached by others, who could read passwords: set "
                '[console.tls] mode = "enforcing", or plain_http = true if something else encrypts'
            )


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
