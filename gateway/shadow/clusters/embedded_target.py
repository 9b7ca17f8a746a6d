"""A target of this project as a child process: started and stopped with the gateway, and restarted when it ends.

It is a process of its own so that it uses another processor, and the primary's traffic never waits for it.
"""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from gateway.config.keys import Key, keys_of
from gateway.config.process import TABLES
from toolkit.settings import SettingsError, setting

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_POLL_INTERVAL_S: Final = 0.02
_MIN_BACK_OFF_S: Final = 1.0
_MAX_BACK_OFF_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """A target that the gateway starts itself."""

    store: str = setting(
        "", "Directory of its store, which is kept between starts; empty: no target is started."
    )
    namesrv_port: int = setting(9976, "Port of its namesrv.", low=1, high=65535)
    broker_port: int = setting(
        11911, "Port of its first broker; the next ones follow in steps of 10.", low=1, high=65535
    )
    brokers: int = setting(1, "Number of brokers: one for each broker of the primary.", low=1, high=100)
    settings: dict[str, str] = setting(
        dict, "Settings of broker.conf for its brokers.", example={"flushDiskType": "SYNC_FLUSH"}
    )
    start_s: float = setting(30.0, "Maximum time until it is ready.", low=0.1, high=600)
    stop_s: float = setting(
        10.0, "Maximum time to stop cleanly; after it the process is killed.", low=0.1, high=600
    )

    def __post_init__(self) -> None:
        if self.store and self.namesrv_port == self.broker_port:
            raise SettingsError("target.embedded: namesrv_port and broker_port must differ")

    @property
    def namesrv(self) -> str:
        """The address of its namesrv."""
        return f"127.0.0.1:{self.namesrv_port}"


def _die_with_parent() -> None:
    """Make the child receive SIGTERM when the gateway is killed.

    Runs in the child. Linux only; elsewhere a child that survives holds the store, and the next start fails.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _secret_keys() -> dict[str, Key]:
    """Return the keys of a server whose values are secrets, by name."""
    keys = {name: key for table in TABLES.values() for name, key in keys_of(table).items()}
    return {name: key for name, key in keys.items() if key.setting.secret}


class EmbeddedTarget:
    """Runs one child process; `pid` is None while there is none."""

    def __init__(self, settings: EmbeddedSettings) -> None:
        self._settings = settings
        self._ready = Path(settings.store) / "ready.json"
        self.pid: int | None = None
        self.restarts = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the child until cancelled, and restart it with back-off when it ends.

        Raises OSError if the first start fails.
        """
        pause_s = _MIN_BACK_OFF_S
        process = await self._start()
        task_status.started()
        while True:
            began_s = trio.current_time()
            await self._wait_for_end(process)
            log.error("embedded target ended unexpectedly", extra={"status": process.returncode})
            # A child that ran for a while had a new cause to end: the back-off begins again.
            pause_s = _MIN_BACK_OFF_S if trio.current_time() - began_s > _MAX_BACK_OFF_S else pause_s
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_BACK_OFF_S)
            self.restarts += 1
            # A start that fails leaves the process that ended, so the next turn waits longer and tries again.
            with suppress(OSError):
                process = await self._start()

    async def _start(self) -> subprocess.Popen[bytes]:
        self._ready.parent.mkdir(parents=True, exist_ok=True)
        # A file of an earlier run would report a server as ready that is still starting.
        self._ready.unlink(missing_ok=True)
        # Not in a worker thread: PR_SET_PDEATHSIG signals the child when the thread that made it ends.
        process = subprocess.Popen(  # noqa: ASYNC220
            self.command(),
            stdout=subprocess.DEVNULL,
            env={**os.environ, **self.secret_variables()},
            preexec_fn=_die_with_parent,
        )
        self.pid = process.pid
        try:
            with trio.move_on_after(self._settings.start_s):
                while process.poll() is None and not self._ready.exists():  # noqa: ASYNC110 - another process's file
                    await trio.sleep(_POLL_INTERVAL_S)
        except trio.Cancelled:
            self._stop(process)
            raise
        if process.poll() is not None or not self._ready.exists():
            process.kill()  # An orderly stop would delay the clients' traffic.
            self.pid = None
        if self.pid is None:
            raise OSError(f"the embedded target did not start (status {process.wait()}); see its log")
        log.info("embedded target started", extra={"pid": process.pid, "namesrv": self._settings.namesrv})
        return process

    def secret_variables(self) -> dict[str, str]:
        """Return the secret settings as environment variables, which other users of the machine cannot read."""
        return {
            secret.environment: self._settings.settings[name]
            for name, secret in _secret_keys().items()
            if name in self._settings.settings
        }

    def command(self) -> list[str]:
        """Return the command line, with all settings that are not secret."""
        settings, secrets = self._settings, _secret_keys()
        keys = {**settings.settings, "mirrorTarget": "true"}
        command = [sys.executable, "-m", "gateway.commands.cli", "serve", "--host", "127.0.0.1"]
        command += ["--port", str(settings.namesrv_port), "--broker-port", str(settings.broker_port)]
        command += ["--brokers", str(settings.brokers), "--store", settings.store]
        command += ["--advertise", "127.0.0.1", "--ready-file", str(self._ready), "--log-level", "warning"]
        for key, value in keys.items():
            # Other users of the machine can read a command line.
            if key not in secrets:
                command += ["--set", f"{key}={value}"]
        return command

    async def _wait_for_end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            while process.poll() is None:  # noqa: ASYNC110 - a waiting thread would delay the gateway's stop
                await trio.sleep(10 * _POLL_INTERVAL_S)
        finally:
            self._stop(process)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """Terminate the child, and kill it after `stop_s`. Blocks: the gateway itself is ending."""
        self.pid = None
        if process.poll() is None:
            process.terminate()
            end_s = time.monotonic() + self._settings.stop_s
            while process.poll() is None and time.monotonic() < end_s:
                time.sleep(_POLL_INTERVAL_S)
            if process.poll() is None:
                log.warning("embedded target did not stop in time; killing it", extra={"pid": process.pid})
                process.kill()
        process.wait()
