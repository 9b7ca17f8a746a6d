"""A namesrv and brokers in memory on free ports, on an event loop in a thread of the test process."""

import contextlib
import gc
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from gateway.commands import cli
from gateway.config.process import ListenerLimits, NamesrvConfig, ProcessConfig, ServeConfig
from gateway.process.server import Server
from gateway.runtime.stop_signals import StopSignals
from gateway.tests.configs import broker_config
from remoting.blocking import BlockingClient

START_TIMEOUT_S = 60.0


@dataclass
class LocalServer:
    """The running server, and the command line against it."""

    namesrv: str
    brokers: dict[str, str]
    flags: list[str] = field(default_factory=list)

    def invoke(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """Run a command and return its result; exceptions that are no exit of the command are raised."""
        return CliRunner().invoke(
            cli.main,
            [*arguments, "--namesrv", self.namesrv, *self.flags],
            input=stdin,
            catch_exceptions=False,
        )

    def run(self, *arguments: str, stdin: str | bytes | None = None, code: int = 0) -> str:
        """Run a command, check its exit code and return what it printed on standard output."""
        result = self.invoke(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        return result.stdout

    def read(self, *arguments: str) -> Any:
        """Run a command with --json and return the value it printed."""
        return json.loads(self.run(*arguments, "--json"))

    def connect(self, broker: str = "broker-a") -> BlockingClient:
        """Connect a client to a broker."""
        host, _, port = self.brokers[broker].rpartition(":")
        return BlockingClient(host, int(port), timeout_s=30)


@contextlib.contextmanager
def run_server(
    directory: Path,
    *,
    brokers: int = 1,
    memory: bool = True,
    parts: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[LocalServer]:
    """Run a server for the block; ``parts`` are further fields of ServeConfig, ``settings`` those of BrokerConfig."""
    ready = directory / "ready"
    config = ServeConfig(
        process=ProcessConfig(host="127.0.0.1", memory=memory, ready_file=str(ready)),
        limits=ListenerLimits(drain_s=0),
        namesrv=NamesrvConfig(listen_port=0),
        brokers=tuple(
            broker_config(
                broker_name=f"broker-{'abc'[number]}",
                listen_port=0,
                store_path_root_dir=str(directory / str(number)),
                mapped_file_size_commit_log_bytes=1 << 20,
                **settings,
            )
            for number in range(brokers)
        ),
        **(parts or {}),
    )
    loop: list[tuple[trio.lowlevel.TrioToken, Server]] = []
    problems: list[BaseException] = []
    started = threading.Event()

    async def serve() -> None:
        server = Server(config)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            while not ready.exists():
                await trio.sleep(0.002)
            loop.append((trio.lowlevel.current_trio_token(), server))
            started.set()

    def main() -> None:
        try:
            trio.run(serve)
        except BaseException as problem:  # noqa: BLE001 - raised again by the test's thread
            problems.append(problem)
        finally:
            started.set()

    thread = threading.Thread(target=main)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # A server changes settings of the process at its start, and signal handlers belong to the main thread.
            patch.setattr(StopSignals, "install", lambda self: None)
            for name in ("freeze", "set_threshold"):
                patch.setattr(gc, name, lambda *values: None)
            thread.start()
            assert started.wait(START_TIMEOUT_S)
        if problems:
            raise problems[0]
        facts = json.loads(ready.read_text())
        yield LocalServer(facts["namesrv"], facts["brokers"])
    finally:
        if loop:
            token, server = loop[0]
            for _ in range(2):  # the second signal does not wait for clients
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(server._signals.record_signal, 15)
        thread.join(START_TIMEOUT_S)
    if problems:
        raise problems[0]
