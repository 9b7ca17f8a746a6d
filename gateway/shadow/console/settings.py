"""Settings of the console and of the report: tables `[console]` and `[report]`."""

import ipaddress
from dataclasses import dataclass

from toolkit.settings import SettingsError, setting


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The gateway's HTTP port: state, metrics and control as JSON."""

    enabled: bool = setting(True, "Whether the console listens at all.")
    host: str = setting("127.0.0.1", "Address to listen on. Any other than a loopback address needs a token.")
    port: int = setting(9880, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    token: str = setting(
        "", 'What "Authorization: Bearer <token>" must say; empty asks for none.', secret=True
    )
    max_connections: int = setting(
        32, "Connections served at a time; further ones wait in the kernel.", low=1, high=1000
    )
    max_request_bytes: int = setting(
        1_048_576, "Size of a request's body; larger ones are refused.", low=1024, high=67_108_864
    )
    request_timeout_s: float = setting(
        5.0, "Seconds a client may take to send its request, and to read the answer.", low=0.1, high=600
    )
    answer_timeout_s: float = setting(600.0, "Seconds a route may work on its answer.", low=1, high=86_400)

    def __post_init__(self) -> None:
        if self.enabled and not self.token and not is_loopback(self.host):
            raise SettingsError(
                f"[console] host = {self.host!r} can be reached by others: a token must be set, because "
                "the console's routes change what the gateway does"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """What is remembered of the run, and the report written of it at the end."""

    file: str = setting("", "Where to write the HTML report when the gateway ends; empty for none.")
    json_file: str = setting("", "Where to write the same as JSON when the gateway ends; empty for none.")
    title: str = setting("Shadow gateway", "Heading of the report.")
    series: bool = setting(True, "Whether rates and latencies are remembered over time (2 us per request).")
    topics: int = setting(
        32, "Topics remembered by name, about 0.5 MB each; later ones together as (others).", low=1, high=1000
    )
