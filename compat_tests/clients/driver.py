"""Drives one JVM with a stock Java client by commands, so that many cases share its start.

`java/CommandLoop.java` is the other end and describes the protocol.
"""

import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from compat_tests.clients.programs import HEAP, admin_classes, java_classes
from compat_tests.jars import java_command

# By default a stock client rebalances every 20 s, which is too slow for the suite, and leaves recalls out of traces.
_PROPERTIES = {
    "com.rocketmq.recall.default.trace.enable": "true",
    "rocketmq.client.rebalance.waitInterval": "1000",
    "rocketmq.client.rebalance.minInterval": "200",
}


class JavaClientError(Exception):
    """An exception thrown by the stock client: its Java class (`type`) and its response code (`code`; -1 for none)."""

    def __init__(self, type: str, code: int, message: str) -> None:
        super().__init__(f"{type} {code}: {message}")
        self.type, self.code, self.message = type, code, message


class JavaDriver:
    """A running JVM with the jars of `profile` and the given system properties; thread-safe.

    Every command names `namesrv`. `program`: the main class and the jar with it, instead of the remoting client's.
    """

    def __init__(
        self,
        profile: str,
        namesrv: str,
        *,
        admin: bool = False,
        program: tuple[str, Path] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.namesrv = namesrv
        self._home = tempfile.TemporaryDirectory(prefix="compat-java-")
        home = Path(self._home.name)
        main, classes = program or ("Driver", admin_classes() if admin else java_classes())
        command = java_command(
            profile,
            main,
            home,
            heap=HEAP,
            classes=[classes],
            properties={**_PROPERTIES, **(properties or {})},
        )
        self._log = home / "driver.err"
        environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()
        self.call("hello")

    def call(self, op: str, *, timeout_s: float = 60.0, **arguments: Any) -> Any:
        """Run one operation and return its result. Raises JavaClientError if the client throws."""
        return self.start_call(op, **arguments).result(timeout_s)

    def wait_for(self, op: str, name: str, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return what a client of this name has got so far, once there are `count` or the time is up."""
        found: list[dict[str, Any]] = self.call(
            op, name=name, count=count, timeout=int(timeout_s * 1000), timeout_s=timeout_s + 30
        )
        return found

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
                future.set_exception(JavaClientError(**answer["error"]))
            else:
                future.set_result(answer["ok"])
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(RuntimeError(f"the Java driver ended: {self._log.read_text()[-1500:]}"))

    def kill(self) -> None:
        """Kill the JVM with SIGKILL, so that its clients vanish without unregistering. `close` is still needed."""
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


__all__ = ["JavaClientError", "JavaDriver"]
