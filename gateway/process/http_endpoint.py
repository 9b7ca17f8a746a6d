"""The HTTP port of a server: `/healthz`, `/readyz`, `/metrics`, and the list of namesrvs at `/rocketmq/nsaddr`.

The HTTP server itself is in `gateway.http_server`; the shadow gateway has more routes on its own.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from gateway.config.process import ProcessConfig, TlsConfig
from gateway.http_server.errors import ConsoleError
from gateway.http_server.server import Console
from gateway.http_server.settings import ConsoleSettings, is_loopback
from gateway.process.address_server import PATH_PREFIX, AddressServer
from gateway.runtime.metrics import MetricRegistry
from gateway.runtime.server_tls import build_http_acceptor
from gateway.runtime.supervise import TaskSupervisor
from toolkit.settings import SettingsError

METRIC_PREFIX: Final = "rocketmq_gateway_"
NO_PORT: Final = -1

Supervisors = Callable[[], Iterable[TaskSupervisor]]
FindTroubles = Callable[[str], Awaitable[list[str]]]
"""Returns what is wrong in broker processes, but for a task of a name, as text, and soon."""


def failing_tasks(supervisors: Iterable[TaskSupervisor], excluded: str = "") -> list[str]:
    """Return the failing background tasks, as text, but for that of a name."""
    return [
        f"{tasks.part}: {health.name} ({health.failures_in_a_row} times in a row: {health.last_error})"
        for tasks in supervisors
        for health in tasks.failing
        if health.name != excluded
    ]


async def no_troubles(_: str) -> list[str]:
    """Return nothing, for a server without broker processes."""
    return []


class Readiness:
    """The answer of `/readyz`: clients may be sent to a server that is not stopping and none of whose tasks fails.

    Broker processes must run, too.
    """

    def __init__(self, supervisors: Supervisors, find_troubles: FindTroubles = no_troubles) -> None:
        self._supervisors = supervisors
        self._find_troubles = find_troubles
        self.is_stopping = False

    async def report(self, query: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of `/readyz`. Raises ConsoleError (503), which names failing tasks and broker processes.

        ``exclude`` in the query is the name of a task that may fail.
        """
        if self.is_stopping:
            raise ConsoleError("stopping", 503)
        excluded = query.get("exclude", "")
        if failing := failing_tasks(self._supervisors(), excluded):
            raise ConsoleError(f"background tasks fail: {'; '.join(failing)}", 503)
        if troubles := await self._find_troubles(excluded):
            raise ConsoleError(f"broker processes are not ready: {'; '.join(troubles)}", 503)
        return {"ready": True}


def build_http_endpoint(
    config: ProcessConfig,
    tls: TlsConfig,
    metrics: MetricRegistry,
    readiness: Readiness,
    namesrvs: AddressServer | None = None,
) -> Console | None:
    """Return the endpoint, None when ``httpPort`` is -1.

    Raises SettingsError when others can reach it and no token is set, and for a certificate that cannot be used.
    """
    if config.http_port == NO_PORT:
        return None
    if not config.http_token and not is_loopback(config.http_address):
        raise SettingsError(
            f"httpAddress={config.http_address} can be reached by others: set httpToken, which /metrics then "
            "requires (Authorization: Bearer TOKEN). /healthz and /readyz stay open to probes"
        )
    settings = ConsoleSettings(
        host=config.http_address,
        port=config.http_port,
        token=config.http_token,
        hosts=[host.strip() for host in config.http_hosts.split(",") if host.strip()],
        plain_http=True,  # Whether that is so, httpTls says.
    )
    acceptor = build_http_acceptor(tls, config.http_tls)
    console = Console(settings, metrics, METRIC_PREFIX, port_setting="httpPort", acceptor=acceptor)
    console.add_probe("/readyz", readiness.report)
    if namesrvs is not None:
        console.add_open_pages(PATH_PREFIX, namesrvs.list_page)
    return console
