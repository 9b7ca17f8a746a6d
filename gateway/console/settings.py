"""Settings of a console."""

import ipaddress
from dataclasses import dataclass

from toolkit.settings import SettingsError, setting


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """An HTTP port of the process: status, metrics and control as JSON."""

    enabled: bool = setting(True, "Listen on the console's port.")
    host: str = setting("127.0.0.1", "Address to listen on. Any other than a loopback address needs a token.")
    port: int = setting(9880, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    token: str = setting(
        "",
        'Token that clients must send as "Authorization: Bearer <token>"; empty: none is required.',
        secret=True,
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
        if self.enabled and not self.token and not is_loopback(self.host):
            raise SettingsError(
                f"[console] host = {self.host!r} can be reached by others: a token must be set, because "
                "the console's routes change what the gateway does"
            )


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
