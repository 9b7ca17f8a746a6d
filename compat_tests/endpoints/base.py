"""The `Endpoint` protocol, and the base class of endpoints that consist of local processes."""

import shutil
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from compat_tests.endpoints.probe import wait_for_route
from compat_tests.endpoints.process import ChildProcess


class NotPossible(Exception):
    """An operation that this kind of endpoint cannot do, e.g. crash somebody else's server; used as a skip reason."""


class Endpoint(Protocol):
    """One namesrv with the broker(s) behind it.

    The constructor starts nothing; `start` returns once a client can find a route and send. As a context manager an
    endpoint starts on entry and closes on exit. `settings` are keys of the official broker.conf and may be changed
    while the endpoint is stopped. Addresses are "host:port" and survive restarts.
    """

    kind: str
    name: str
    settings: dict[str, str]

    @property
    def namesrv(self) -> str: ...

    @property
    def broker(self) -> str:
        """The address of the (first) broker."""

    @property
    def grpc(self) -> str | None:
        """The address of its gRPC listener for 5.x clients; None if the endpoint starts with none."""

    def pids(self) -> list[int]:
        """Return the ids of the server's processes, for measurements; [] if they run on another machine."""

    def logs(self) -> str:
        """Return the end of the server's logs, for failure reports."""

    def start(self) -> None:
        """Start the server. Raises Unavailable if this machine lacks something, RuntimeError if it does not come up."""

    def stop(self) -> None:
        """Stop the server in order; its store remains until `close`."""

    def crash(self) -> None:
        """Kill the server's processes with SIGKILL. `start` brings them back on the same store and ports."""

    def close(self) -> None:
        """End everything at once, as `crash` does, and delete the store unless the caller passed its directory."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BlockEndpoint:
    """An endpoint that starts at the beginning of a block, and closes at its end."""

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ServesOnPorts:
    """Addresses of an endpoint whose servers listen on two known ports, and which starts no gRPC listener."""

    host = "127.0.0.1"
    namesrv_port: int
    broker_port: int

    @property
    def namesrv(self) -> str:
        return f"{self.host}:{self.namesrv_port}"

    @property
    def broker(self) -> str:
        return f"{self.host}:{self.broker_port}"

    @property
    def grpc(self) -> str | None:
        return None


class LocalEndpoint(BlockEndpoint, ServesOnPorts):
    """Base class of endpoints whose servers are child processes with a directory of their own.

    `tls`: the context of probes, for servers that refuse plain connections.
    """

    kind = "local"
    start_timeout_s = 90.0
    stop_timeout_s = 60.0

    def __init__(
        self,
        ports: tuple[int, int],
        settings: Mapping[str, str] | None,
        directory: Path | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = self.kind
        self.settings = dict(settings or {})
        self.namesrv_port, self.broker_port = ports
        self._probe_tls = tls
        self._owned = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"rocketmq-{self.kind}-"))
        self.children: list[ChildProcess] = []

    @property
    def store(self) -> Path:
        """The broker's store directory, in the official layout."""
        return self.directory / "store"

    def pids(self) -> list[int]:
        return [pid for child in self.children for pid in child.pids()]

    def logs(self) -> str:
        parts = [
            f"== {path.name}\n{_tail(path)}"
            for path in sorted(self.directory.glob("*.log"))
            if path.stat().st_size
        ]
        return "\n".join(parts)

    def start_children(self) -> None:
        """Start the child processes and append them to `children`."""
        raise NotImplementedError

    def start(self) -> None:
        if self.children:
            raise RuntimeError(f"{self.name} is started already")
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self.start_children()
            wait_for_route(
                self.namesrv, self.broker_port, self.start_timeout_s, self._while_starting, self._probe_tls
            )
        except BaseException:
            self.crash()
            raise

    def stop(self) -> None:
        # The broker was started last and stops first, so that it can still unregister.
        while self.children:
            self.children.pop().terminate(self.stop_timeout_s)

    def crash(self) -> None:
        while self.children:
            self.children.pop().kill()

    def close(self) -> None:
        self.crash()
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _while_starting(self) -> None:
        """Check on the children; called repeatedly while `start` waits for a route."""
        self._check_alive()

    def _check_alive(self) -> None:
        for child in self.children:
            code = child.exit_code()
            if code is not None:
                raise RuntimeError(f"{self.name}: {child.name} ended with {code} at start\n{self.logs()}")


def _tail(path: Path, size_bytes: int = 4000) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - size_bytes))
        return log.read().decode(errors="replace")
