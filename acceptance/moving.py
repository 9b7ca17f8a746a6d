"""Helpers for cases that move topics: a gateway process with its commands, and producers that never give up."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient, JavaTransactionProducer
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from tools.processes import Gateway, environment

STEP_TIMEOUT_S = 120
PAUSE_S = 0.1
REFUSED = 3
# Client settings: report offsets and send heartbeats every second instead of every 5 s and 30 s.
FREQUENT_REPORTS = {"persistConsumerOffsetInterval": 1000, "heartbeatBrokerInterval": 1000}
# Broker settings: check back on open transactions after 2 s, every second.
QUICK_CHECK_BACKS = {"transactionCheckInterval": "1000", "transactionTimeOut": "2000"}


class ShadowProcess:
    """A gateway process that can be killed and restarted at the same addresses, and its commands.

    ``more``: further tables of shadow.toml.
    """

    def __init__(self, directory: Path, primary: str, target: str, *, kind: str, more: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.namesrv_port, self.broker_port = find_server_ports()
        self.file = directory / "shadow.toml"
        self.file.write_text(
            f"""
            [primary]
            namesrv = ["{primary}"]
            [target]
            namesrv = ["{target}"]
            kind = "{kind}"
            [cutover]
            state_file = {json.dumps(str(directory / "moves.json"))}
            {more}
            """
        )
        self.process: Gateway | None = None
        self.addresses = "", ""
        """Brokers of the primary and of the target, for cases that set them."""

    def start(self) -> Self:
        """Start the process; like after a reboot, it knows only what is in files."""
        ports = {"listen.namesrv_port": self.namesrv_port, "listen.broker_port": self.broker_port}
        sets = [word for key, port in ports.items() for word in ("--set", f"{key}={port}")]
        self.process = Gateway(self.directory, "-c", str(self.file), *sets, command="shadow")
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def broker(self) -> str:
        """The gateway's address for the first broker of the primary."""
        return f"127.0.0.1:{self.broker_port}"

    def get_json(self, path: str) -> dict[str, Any]:
        """Return a JSON page of the gateway's console."""
        assert self.process is not None
        with urlopen(f"http://{self.process.ready['console']}{path}", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def wait_until_mirrored(self) -> None:
        """Wait until no exchange is queued for the other side."""
        eventually(
            lambda: not any(each["queued"] for each in self.get_json("/mirror")["streams"]), STEP_TIMEOUT_S
        )

    def run_command(self, *words: str, code: int = 0, timeout_s: float = STEP_TIMEOUT_S) -> str:
        """Run `rmq-gateway shadow …`, assert its exit code, and return its output."""
        line = [sys.executable, "-m", "gateway.commands.cli", "shadow", "-c", str(self.file), *words]
        if words[0] not in ("backfill", "parity"):  # these two commands talk to the clusters themselves
            assert self.process is not None
            line += ["--console", self.process.ready["console"]]
        done = subprocess.run(
            line,
            env=environment(self.directory),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run_step(
        self, way: str, topic: str, *words: str, state: str, wait_s: int = STEP_TIMEOUT_S // 2
    ) -> str:
        """Run `advance` or `rollback` (`way`), waiting for its checks, and assert the topic's state afterwards."""
        confirmed = ("--yes",) if way == "advance" else ()
        text = self.run_command(
            way, topic, "--wait", str(wait_s), *confirmed, *words, timeout_s=wait_s + STEP_TIMEOUT_S
        )
        assert text.splitlines()[-1] == f"{topic}: {state}", text
        return text


class KeyedProducer:
    """A stock producer that sends messages "key number", in order within each key, until `stop`.

    Whatever happens to the gateway, each message is sent again until it is acknowledged, before the next of its key.
    """

    def __init__(self, java: JavaClient, name: str, topic: str, keys: Iterable[int] = range(4)) -> None:
        self.java, self.name, self.topic = java, name, topic
        self.keys = tuple(keys)
        self.sent = dict.fromkeys(self.keys, 0)
        self.resend_count = 0
        self.resent_bodies: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def _run(self) -> None:
        while not self._ending.is_set():
            sending = [(key, self._start_send(key)) for key in self.keys]
            for key, result in sending:
                while not _acknowledged(result):
                    self.resend_count += 1
                    self.resent_bodies.add(f"{key} {self.sent[key]}")
                    result = self._start_send(key)
                self.sent[key] += 1
            self._ending.wait(PAUSE_S)

    def _start_send(self, key: int) -> Future[Any]:
        message = {"topic": self.topic, "body": f"{key} {self.sent[key]}"}
        return self.java.driver.start_call(
            "send", name=self.name, messages=[message], mode="selector", arg=key
        )


class TransactionSender:
    """Sends half messages one after the other until `stop`; every other one is committed only at a check-back."""

    def __init__(self, producer: JavaTransactionProducer, topic: str) -> None:
        self.producer, self.topic, self.sent = producer, topic, 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.wait(0.2):
            ways = ("local", "check") if self.sent % 2 else ("check",)
            message = {
                "topic": self.topic,
                "body": f"tx {self.sent}",
                "properties": dict.fromkeys(ways, "COMMIT_MESSAGE"),
            }
            with contextlib.suppress(JavaClientError):  # sent again
                self.sent += self.producer.send(message)[0]["status"] == "SEND_OK"


def _acknowledged(result: Future[Any]) -> bool:
    try:
        (one,) = result.result(60)
    except JavaClientError:
        return False
    return bool(one["status"] == "SEND_OK")
