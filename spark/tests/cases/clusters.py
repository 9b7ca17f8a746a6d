"""Spark clusters on loopback for the cases: a standalone master with workers, a Connect server, ways of shipping.

Everything is pip's pyspark; ports are free ones that the servers choose and log. Nothing of this checkout is on their
path, so that a case sees what it ships and nothing else.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pyspark

from compat_tests.endpoints.process import ChildProcess
from compat_tests.server import eventually
from spark.session.packing import run_command
from spark.tests.cases.jvm import OPTIONS
from spark.tests.cases.sessions import QUICK

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 300.0
"""Maximum start-up time of a server."""

LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": OPTIONS,
    "spark.driver.extraJavaOptions": OPTIONS,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "60s",
}
"""Configuration of drivers of these clusters."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of Spark's processes, without paths to this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    kept.pop("PYTHONPATH", None)
    own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    java = {"SPARK_DAEMON_JAVA_OPTS": OPTIONS, "SPARK_SUBMIT_OPTS": OPTIONS}
    return {**kept, **own, **java, **more}


class _Server(ChildProcess):
    """A Spark JVM that logs where it listens."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        super().__init__(name, command, directory / f"{name}.log", environment())

    def logged(self, pattern: str) -> str:
        """Wait for a line in the log, and return its first group."""

        def look() -> re.Match[str] | None:
            if self.exit_code() is not None:
                raise RuntimeError(f"{self.name} ended at start\n{self.log.read_text()[-4000:]}")
            return re.search(pattern, self.log.read_text(errors="replace"))

        found = eventually(look, START_S)
        assert found is not None
        return found[1]


class Standalone:
    """A master and workers of one core each, with their logs in `directory`. A context manager."""

    def __init__(self, directory: Path, workers: int = 2, memory: str = "1g") -> None:
        self.directory, self.count, self.memory = directory, workers, memory
        self.url = ""
        self._servers: list[_Server] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        places = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = self._launch("master", "org.apache.spark.deploy.master.Master", *places)
        self.url = master.logged(r"Starting Spark master at (spark://\S+)")
        size = ["--cores", "1", "--memory", self.memory, "--work-dir", str(self.directory / "work")]
        for number in range(self.count):
            self._launch(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *places, *size, self.url)
        for worker in self._servers[1:]:
            worker.logged(r"Successfully (registered) with master")

    def _launch(self, name: str, kind: str, *arguments: str) -> _Server:
        command = [str(SPARK_HOME / "bin" / "spark-class"), kind, *arguments]
        self._servers.append(_Server(name, command, self.directory))
        return self._servers[-1]

    def executors(self) -> list[int]:
        """Return the process ids of the running executors."""
        return [
            pid
            for worker in self._servers[1:]
            for pid in worker.pids()
            if "CoarseGrainedExecutorBackend" in _command_line(pid)
        ]

    def executor_logs(self) -> str:
        """Return what the executors of all applications wrote to standard error."""
        return "\n".join(path.read_text(errors="replace") for path in self.directory.glob("work/*/*/stderr"))

    def stop(self) -> None:
        """Kill all processes, executors included."""
        while self._servers:
            self._servers.pop().kill()


class ConnectServer:
    """A Spark Connect server with a local Spark, whose Python workers are `python`. A context manager."""

    def __init__(self, directory: Path, python: Path, **conf: str) -> None:
        self.directory, self.python, self.conf = directory, python, conf
        self.url = ""
        self._server: ChildProcess | None = None

    def __enter__(self) -> Self:
        kind = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        settings = {**LOOPBACK, "spark.connect.grpc.binding.port": "0", **self.conf}
        flags = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2,4]", *kind, *flags]
        python = {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        # a Connect server counts as a daemon, whose memory is not what the configuration says
        more = {**python, "SPARK_DAEMON_MEMORY": "768m"}
        env = ["env", *(f"{name}={value}" for name, value in more.items())]
        self._server = server = _Server("connect", [*env, *command, "spark-internal"], self.directory)
        try:
            port = server.logged(r"Spark Connect server started at: \S+?:(\d+)")
        except BaseException:
            server.kill()
            raise
        self.url = f"sc://127.0.0.1:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.kill()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


# -- what is shipped ----------------------------------------------------------------------------------------------


class Shipped(NamedTuple):
    """Pythons with this distribution as a wheel and without it, and the wheel."""

    installed: Path
    bare: Path
    wheel: Path


def new_environment(directory: Path, *wheels: Path) -> Path:
    """Create an environment with these wheels, which borrows their dependencies; return its Python."""
    run_command(sys.executable, "-m", "venv", "--without-pip", str(directory))
    python = directory / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = Path(found.stdout.strip())
    # a plain path: what is installed there is found, but its own .pth files, as of editable installs, are not read
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    shutil.copy(QUICK / "sitecustomize.py", packages)
    for wheel in wheels:
        run_command(
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--no-deps",
            str(wheel),
        )
    return python


def drive(
    python: Path | str, program: str, directory: Path, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a driver program in its own process, with its files in `directory`."""
    script = directory / "driver.py"
    script.write_text(program)
    command = [str(python), str(script), *arguments]
    return finished(command, directory, {"PYSPARK_PYTHON": str(python), **env})


def finished(command: list[str], directory: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Return a command's output; a JVM on a busy machine may take minutes."""
    return subprocess.run(
        command, cwd=directory, env=environment(**env), capture_output=True, text=True, timeout=900
    )
