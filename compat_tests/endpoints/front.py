"""A process of ours before another endpoint, which stays where it is: a gateway or a proxy."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compat_tests.endpoints.base import BlockEndpoint, LocalEndpoint
from compat_tests.endpoints.ours import process_environment, wait_ready
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import Unavailable


class FrontEndpoint(BlockEndpoint):
    """One of our commands as a process before ``behind``. It keeps running while that is stopped or killed.

    `extra`: further options of the command. ``ready`` is what the process says when it serves.
    """

    command: str
    start_timeout_s = 90.0

    def __init__(self, behind: LocalEndpoint, extra: tuple[str, ...] = ()) -> None:
        if importlib.util.find_spec("gateway") is None:
            raise Unavailable("our server is not installed; choose another endpoint")
        self.behind = behind
        self.name = f"{self.command}:{behind.name}"
        self.extra = extra
        self.ready: dict[str, Any] = {}
        self._front: ChildProcess | None = None

    def options(self) -> Sequence[str]:
        """Return the options of the command, without `extra`."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, str]:
        """Keys of the broker.conf of the endpoint behind."""
        return self.behind.settings

    @settings.setter
    def settings(self, settings: dict[str, str]) -> None:
        self.behind.settings = settings

    @property
    def store(self) -> Path:
        """The store directory of the broker behind."""
        return self.behind.store

    def pids(self) -> list[int]:
        return [*self.behind.pids(), *(self._front.pids() if self._front is not None else [])]

    def logs(self) -> str:
        return self.behind.logs()  # the front logs into the same directory

    def start(self) -> None:
        self.behind.start()
        if self._front is None:
            self.start_front()

    def start_front(self) -> None:
        """Start the process, for the first time or after `kill_front`."""
        command = [sys.executable, "-m", "gateway.commands.cli", self.command, *self.options(), *self.extra]
        log = self.behind.directory / f"{self.command}.log"
        begin = log.stat().st_size if log.exists() else 0
        self._front = ChildProcess(self.command, command, log, process_environment())
        self.ready = wait_ready(log, begin, self.start_timeout_s, self._check_alive)

    def kill_front(self) -> None:
        """Kill the process with SIGKILL."""
        if self._front is not None:
            self._front.kill()
            self._front = None

    def _check_alive(self) -> None:
        code = self._front.exit_code() if self._front is not None else None
        if code is not None:
            raise RuntimeError(f"{self.name}: the process ended with {code}\n{self.logs()}")

    def stop(self) -> None:
        self.behind.stop()

    def crash(self) -> None:
        self.behind.crash()

    def close(self) -> None:
        if self._front is not None:
            self._front.terminate(10)
            self._front = None
        self.behind.close()
