"""Another endpoint with our gRPC front as a process of its own before it: `rmq-gateway proxy`."""

import importlib.util
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.ours import python_path, wait_ready
from compat_tests.endpoints.ports import find_ports
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import Unavailable


class OurProxyEndpoint:
    """The `cluster`, at its own addresses, whose 5.x clients connect to our proxy.

    The proxy keeps running while the cluster is stopped or killed. `extra`: further options of `proxy`.
    """

    kind = "proxy"
    start_timeout_s = 60.0

    def __init__(self, cluster: LocalEndpoint, extra: tuple[str, ...] = ()) -> None:
        if importlib.util.find_spec("gateway") is None:
            raise Unavailable("our server is not installed; choose another endpoint")
        self.cluster = cluster
        self.name = f"proxy:{cluster.name}"
        self.extra = extra
        self.ready: dict[str, Any] = {}
        self._grpc_port = find_ports(1)[0]
        self._proxy: ChildProcess | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Keys of the broker.conf of the cluster."""
        return self.cluster.settings

    @settings.setter
    def settings(self, settings: dict[str, str]) -> None:
        self.cluster.settings = settings

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv

    @property
    def broker(self) -> str:
        return self.cluster.broker

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    @property
    def store(self) -> Path:
        """The store directory of the broker."""
        return self.cluster.store

    @property
    def proxy_pid(self) -> int:
        """The id of the started proxy's process."""
        assert self._proxy is not None
        return self._proxy.pid

    def pids(self) -> list[int]:
        return [*self.cluster.pids(), *(self._proxy.pids() if self._proxy is not None else [])]

    def logs(self) -> str:
        return self.cluster.logs()  # the proxy logs into the same directory

    def start(self) -> None:
        self.cluster.start()
        if self._proxy is None:
            self.start_proxy()

    def start_proxy(self) -> None:
        """Start the proxy, for the first time or after `kill_proxy`."""
        command = [sys.executable, "-m", "gateway.commands.cli", "proxy", "--namesrv", self.namesrv]
        command += ["--host", "127.0.0.1", "--port", str(self._grpc_port)]
        log = self.cluster.directory / "proxy.log"
        begin = log.stat().st_size if log.exists() else 0
        self._proxy = ChildProcess("proxy", [*command, *self.extra], log, python_path())
        self.ready = wait_ready(log, begin, self.start_timeout_s, self._check_alive)

    def kill_proxy(self) -> None:
        """Kill the proxy with SIGKILL."""
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy = None

    def _check_alive(self) -> None:
        code = self._proxy.exit_code() if self._proxy is not None else None
        if code is not None:
            raise RuntimeError(f"{self.name}: the proxy ended with {code}\n{self.logs()}")

    def stop(self) -> None:
        self.cluster.stop()

    def crash(self) -> None:
        self.cluster.crash()

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.terminate(10)
            self._proxy = None
        self.cluster.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
