"""Our server as a child process, used through its command line only: `rmq-gateway serve`."""

import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.ports import find_ports, find_server_ports
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import Unavailable

ROOT = Path(__file__).resolve().parents[2]
# Settings of all our processes in tests, which get them from the environment. By default, a disk that is 85 percent
# full costs a store its oldest files; above 90 percent messages are refused.
FULL_DISK_SETTINGS = {"diskSpaceWarningLevelRatio": "99", "cleanFileForciblyEnable": "false"}
# Settings the suite needs that our server does not enable by default.
BROKER_SETTINGS = {"traceTopicEnable": "true"}


class OursEndpoint(LocalEndpoint):
    """Namesrv and broker in one process.

    `extra`: more options of `serve`, e.g. ("--brokers", "3"). `serves_grpc`: listen for 5.x clients as well.
    """

    kind = "ours"

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        directory: Path | None = None,
        extra: tuple[str, ...] = (),
        *,
        serves_grpc: bool = False,
    ) -> None:
        if importlib.util.find_spec("gateway") is None:
            raise Unavailable("our server is not installed; choose another endpoint")
        super().__init__(find_server_ports(), settings, directory)
        self.extra = extra
        self._grpc_port = find_ports(1)[0] if serves_grpc else None
        self.ready: dict[str, Any] = {}

    @property
    def grpc(self) -> str | None:
        return f"127.0.0.1:{self._grpc_port}" if self._grpc_port is not None else None

    def start_children(self) -> None:
        command = [sys.executable, "-m", "gateway.commands.cli", "serve", "--port", str(self.namesrv_port)]
        command += ["--broker-port", str(self.broker_port), "--store", str(self.store)]
        for key, value in {**BROKER_SETTINGS, **self.settings}.items():
            command += ["--set", f"{key}={value}"]
        if self._grpc_port is not None:
            command += ["--grpc-port", str(self._grpc_port)]
        log = self.directory / "server.log"
        begin = log.stat().st_size if log.exists() else 0
        self.children.append(ChildProcess("server", [*command, *self.extra], log, process_environment()))
        self.ready = wait_ready(log, begin, self.start_timeout_s, self._check_alive)


def process_environment() -> dict[str, str]:
    """Return the environment variables of a child process: to find our packages, and to run on a disk nearly full."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        "RMQ_GATEWAY" + re.sub("(^|[A-Z])", r"_\1", key).upper(): value
        for key, value in FULL_DISK_SETTINGS.items()
    }
    return {"PYTHONPATH": os.pathsep.join(paths), **variables}


def wait_ready(log: Path, begin: int, timeout_s: float, check: Callable[[], None]) -> dict[str, Any]:
    """Wait for the ready line in a log, from byte `begin` on, and return its content.

    `check` is called between polls and may raise. Raises RuntimeError after `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        check()
        for line in log.read_bytes()[begin:].splitlines(keepends=True):
            if (ready := _parse_ready_line(line)) is not None:
                return ready
        time.sleep(0.005)
    raise RuntimeError(f"no ready line in {log.name} in {timeout_s} s\n{log.read_text()[-4000:]}")


def _parse_ready_line(line: bytes) -> dict[str, Any] | None:
    """Return the content of a ready line; None for an unfinished line and for log lines, which may be JSON too."""
    if not (line.startswith(b"{") and line.endswith(b"\n")):
        return None
    facts: dict[str, Any] = json.loads(line)
    return facts if {"pid", "namesrv", "brokers"} <= facts.keys() else None
