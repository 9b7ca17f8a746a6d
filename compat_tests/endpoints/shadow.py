"""Another endpoint behind our shadow gateway, which only forwards here: `rmq-gateway shadow`."""

import importlib.util
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compat_tests.endpoints.base import LocalEndpoint, ServesOnPorts
from compat_tests.endpoints.ours import python_path, wait_ready
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.endpoints.probe import wait_for_route
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import Unavailable


class ShadowEndpoint(ServesOnPorts):
    """A gateway, whose addresses are those of this endpoint, and the `primary` behind it.

    The gateway keeps running while the primary is stopped or killed, as it would in production. `extra`: further
    options of `shadow`, e.g. ("--set", "listen.vip=false").
    """

    kind = "shadow"
    start_timeout_s = 60.0

    def __init__(self, primary: LocalEndpoint, extra: tuple[str, ...] = ()) -> None:
        if importlib.util.find_spec("gateway") is None:
            raise Unavailable("our server is not installed; choose another endpoint")
        self.primary = primary
        self.name = f"shadow:{primary.name}"
        self.namesrv_port, self.broker_port = find_server_ports()
        self.extra = extra
        self.ready: dict[str, Any] = {}
        self._gateway: ChildProcess | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Keys of the primary's broker.conf."""
        return self.primary.settings

    @settings.setter
    def settings(self, settings: dict[str, str]) -> None:
        self.primary.settings = settings

    @property
    def store(self) -> Path:
        """The primary's store directory."""
        return self.primary.store

    @property
    def gateway_pid(self) -> int:
        """The id of the started gateway's process."""
        assert self._gateway is not None
        return self._gateway.pid

    def pids(self) -> list[int]:
        return [*self.primary.pids(), *(self._gateway.pids() if self._gateway is not None else [])]

    def logs(self) -> str:
        return self.primary.logs()  # the gateway logs into the same directory

    def start(self) -> None:
        self.primary.start()
        if self._gateway is None:
            self._start_gateway()
        wait_for_route(self.namesrv, self.broker_port, self.start_timeout_s, self._check_alive)

    def _start_gateway(self) -> None:
        # The primary's broker gets a fixed port; brokers that register during a run get free ones.
        ports = f"{{{json.dumps(self.primary.broker)} = {self.broker_port}}}"
        tables = {
            "primary.namesrv": json.dumps([self.primary.namesrv]),
            "listen.namesrv_port": str(self.namesrv_port),
            "listen.broker_port": "0",
            "listen.ports": ports,
            "console.port": "0",
        }
        command = [sys.executable, "-m", "gateway.commands.cli", "shadow"]
        for key, value in tables.items():
            command += ["--set", f"{key}={value}"]
        log = self.primary.directory / "shadow.log"
        self._gateway = ChildProcess("shadow", [*command, *self.extra], log, python_path())
        self.ready = wait_ready(log, 0, self.start_timeout_s, self._check_alive)

    def _check_alive(self) -> None:
        code = self._gateway.exit_code() if self._gateway is not None else None
        if code is not None:
            raise RuntimeError(f"{self.name}: the gateway ended with {code}\n{self.logs()}")

    def stop(self) -> None:
        self.primary.stop()

    def crash(self) -> None:
        self.primary.crash()

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.terminate(10)
            self._gateway = None
        self.primary.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
