"""Drives a program with stock clients by commands, so that many cases share its start.

`java/CommandLoop.java` describes the protocol; the programs are in `java`, `python_grpc` and `go_grpc`.
"""

import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar


class StockClientError(Exception):
    """An error of a stock client: its class there (`type`) and its response code (`code`; -1 for none)."""

    def __init__(self, type: str, code: int, message: str) -> None:
        super().__init__(f"{type} {code}: {message}")
        self.type, self.code, self.message = type, code, message


class CommandDriver:
    """A running program; thread-safe. Every command names `namesrv`.

    `home` is deleted when the program has ended. `environment` is added to that of this process.
    """

    error: ClassVar[type[StockClientError]] = StockClientError

    def __init__(
        self,
        command: Sequence[str],
        home: tempfile.TemporaryDirectory[str],
        namesrv: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.namesrv = namesrv
        self._home = home
        self._log = Path(home.name) / "driver.err"
        variables = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**variables, **(environment or {})},
            )
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()
        self.call("hello")

    def call(self, op: str, *, timeout_s: float = 60.0, **arguments: Any) -> Any:
        """Run one operation and return its result. Raises `error` if the client does."""
        return self.start_call(op, **arguments).result(timeout_s)

    def wait_for(self, op: str, name: str, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return what a client of this name has got so far, once there are `count` or the time is up."""
        messages: list[dict[str, Any]] = self.call(
            op, name=name, count=count, timeout=int(timeout_s * 1000), timeout_s=timeout_s + 30
        )
        return messages

    def start_call(self, op: str, **arguments: Any) -> Future[Any]:
        """Start one operation without waiting for its result."""
        future: Future[Any] = Future()
        number = next(self._ids)
        line = json.dumps({"id": number, "op": op, "namesrv": self.namesrv, **arguments})
        with self._lock:
            self._waiting[number] = future
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        return future

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            if "error" in answer:
                future.set_exception(self.error(**answer["error"]))
            else:
                future.set_result(answer["ok"])
        with self._lock:
            unanswered, self._waiting = self._waiting, {}
        for future in unanswered.values():
            future.set_exception(RuntimeError(f"the driver ended: {self._log.read_text()[-1500:]}"))

    def kill(self) -> None:
        """Kill the program with SIGKILL, so that its clients vanish without unregistering. `close` is still needed."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()  # it reads the log to fail the calls that still wait
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._home.cleanup()
