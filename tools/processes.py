"""Starts `rmq-gateway` processes on free ports for cases about processes.

The server that all other cases share is an endpoint, see the package `endpoints`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compat_tests.endpoints.ours import process_environment
from compat_tests.endpoints.process import ChildProcess
from compat_tests.server import split_address
from remoting.blocking import BlockingClient

# The machine may be busy with other tests; a start takes half a second on an idle one.
START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 60.0


class ProcessEndedEarly(Exception):
    """The process ended before it was ready; `output` is what it printed."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"ended with {code}: {output}")
        self.code, self.output = code, output


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process: a home of its own, and every RMQ_GATEWAY_* variable blanked."""
    blank = {name: "" for name in os.environ if name.startswith("RMQ_GATEWAY_") or name == "NAMESRV_ADDR"}
    return {**blank, **process_environment(), "HOME": str(home), **(extra or {})}


class Gateway:
    """A running `rmq-gateway` process; as a context manager it kills the process on exit.

    `arguments` follow the command word; ports they do not set are free ones. Raises ProcessEndedEarly if the
    process ends before it is ready.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        command: str = "serve",
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"{command}.log"
        begin = self.log.stat().st_size if self.log.exists() else 0
        self._begin = begin
        started = time.monotonic()
        line = [
            *prefix,
            sys.executable,
            "-m",
            "gateway.commands.cli",
            command,
            *_with_ports(command, arguments),
        ]
        self.child = ChildProcess(command, line, self.log, environment(directory, env))
        self.ready = self._wait_ready()
        self.start_s = time.monotonic() - started

    def _wait_ready(self) -> dict[str, Any]:
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            code = self.child.exit_code()
            for line in self.output().splitlines(keepends=True):
                if line.startswith('{"event": "ready"') and line.endswith("\n"):
                    ready: dict[str, Any] = json.loads(line)
                    return ready
            if code is not None:
                raise ProcessEndedEarly(code, self.output())
            time.sleep(0.01)
        self.child.kill()
        raise RuntimeError(f"not ready in {START_TIMEOUT_S} s\n{self.output()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def namesrv(self) -> str:
        return str(self.ready["namesrv"])

    @property
    def brokers(self) -> dict[str, str]:
        """Broker addresses ("host:port") by broker name."""
        return dict(self.ready["brokers"])

    @property
    def broker(self) -> str:
        """The first broker's address."""
        return next(iter(self.brokers.values()))

    def connect(self, *, timeout_s: float = 15.0) -> BlockingClient:
        """Connect our typed client to the first broker."""
        return BlockingClient(*split_address(self.broker), timeout_s=timeout_s)

    def output(self) -> str:
        """Return the output and log of this process so far."""
        with self.log.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode(errors="replace")

    def lines(self, text: str) -> list[str]:
        """Return the lines of `output` that contain a text."""
        return [line for line in self.output().splitlines() if text in line]

    def memory_bytes(self) -> int:
        """Return the process's anonymous memory, which excludes mapped files that the kernel may drop."""
        return self._status("RssAnon")

    def resident_bytes(self) -> int:
        """Return the process's resident memory, including mapped files and libraries."""
        return self._status("VmRSS")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} in the status of the process")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait for the process to end by itself and return its exit code."""
        return self.child.wait(timeout_s)

    def stop(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Kill the process with SIGKILL; does nothing after it has ended."""
        self.child.kill()


def _with_ports(command: str, arguments: tuple[str, ...]) -> list[str]:
    """Return the arguments with free ports where they set none, and on loopback for the shadow gateway."""
    line = list(arguments)
    if command == "shadow":
        ports = ("listen.host=127.0.0.1", "listen.namesrv_port=0", "listen.broker_port=0", "console.port=0")
        return [*(word for port in ports for word in ("--set", port)), *line]
    if "--port" not in line and command != "controller":  # whose settings name its port
        line += ["--port", "0"]
    if command == "serve" and "--broker-port" not in line:
        line += ["--broker-port", "0"]
    return line
