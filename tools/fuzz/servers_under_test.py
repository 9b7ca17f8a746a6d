"""The servers that a campaign attacks, as processes, and what can be seen of them from outside: log, memory, life.

They run as a user runs them, in a temporary folder that is also their home. A broker's tables have small limits, so
that a campaign reaches them and its memory has an end.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from compat_tests.endpoints.ports import find_ports
from tools.fuzz.walks import Port
from tools.processes import Gateway

SMALL_LIMITS: Final[Mapping[str, str]] = {
    "broker.maxTopics": "600",
    "maxQueuesPerTopic": "64",
    "maxSubscriptionGroups": "600",
    "maxClients": "600",
    "maxMembersPerGroup": "300",
    "maxLongPolls": "4000",
    "maxSuspendTimeMillis": "20000",
    "maxQueueLocks": "2000",
    "maxCommittedOffsets": "5000",
    "maxRegisteredBrokers": "50",
    "namesrv.maxTopics": "1500",
    "maxTopicsPerBroker": "1000",
    "maxKvEntries": "300",
}
FEATURES: Final[Mapping[str, str]] = {
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
    "mirrorTarget": "true",
    "stagedPublish": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "2000",
    "mappedFileSizeCommitLog": "67108864",
    "maxIndexNum": "500000",
    "maxHashSlotNum": "100000",
}
"""Settings that open every handler, and let background tasks run often."""
STOP_TIMEOUT_S: Final = 60.0
MAX_MEMORY_KIB: Final = 2 * 1024 * 1024
LIMITED: Final = ("sh", "-c", f'ulimit -d {MAX_MEMORY_KIB}; exec "$@"', "sh")
"""Starts a program that gets a MemoryError, with a trace, where it would take the machine's memory."""
_PROBLEM: Final = re.compile(
    r"^\S+ CRITICAL |Traceback|MemoryError|Exception ignored|request failed|(task|callback) failed|unexpected error",
    re.MULTILINE,
)
_FRAME_LINE: Final = re.compile(
    r'File "[^"]*?/((?:gateway|remoting|codec|storage|toolkit)/[^"]+)", line \d+, in (\S+)'
)
_RECORD: Final = re.compile(r"^\d{4}-\d\d-\d\dT")
_NUMBERS: Final = re.compile(r"\d+")


class LogProblem:
    """A log record of a failure that nobody expected, with its trace, or a trace that no logger wrote."""

    def __init__(self, process: str, lines: list[str]) -> None:
        self.process = process
        self.text = "\n".join(lines[:60])
        frames = _FRAME_LINE.findall(self.text)
        where = "{} {}".format(*frames[-1]) if frames else ""
        first = re.sub(r"^\S+ ", "", lines[0])[:120]
        last = next((line for line in reversed(lines) if line.strip()), "")[:100] if len(lines) > 1 else ""
        error = last.split(":")[0] if where else _NUMBERS.sub("N", last)
        self.signature = f"{process}: {_NUMBERS.sub('N', first)} | {where} | {error}".strip(" |")


class WatchedLog:
    """Reads what a process has logged since the last time."""

    def __init__(self, process: str, path: Path) -> None:
        self._process = process
        self._path = path
        self._position = 0

    def new_problems(self) -> Iterator[LogProblem]:
        """Yield the problems in the records that are new."""
        with self._path.open("rb") as log:
            log.seek(self._position)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        if not _PROBLEM.search(whole.decode(errors="replace")):
            return
        record: list[str] = []
        for line in whole.decode(errors="replace").splitlines():
            if _RECORD.match(line) or line.startswith("{"):
                if record and _PROBLEM.search("\n".join(record)):
                    yield LogProblem(self._process, record)
                record = []
            record.append(line)
        if record and _PROBLEM.search("\n".join(record)):
            yield LogProblem(self._process, record)

    @property
    def size_bytes(self) -> int:
        return self._path.stat().st_size


class ServersUnderTest:
    """The processes of one target: one server of ours, for ``shadow`` also a gateway and its target.

    As a context manager it kills all processes and removes the folder on exit.
    """

    def __init__(self, against: str, *, settings: Mapping[str, str] | None = None) -> None:
        self.against = against
        self.directory = Path(tempfile.mkdtemp(prefix=f"rocketmq-fuzz-{against}-"))
        self.settings = {**FEATURES, **SMALL_LIMITS, **(settings or {})}
        self.gateways: dict[str, Gateway] = {}
        self.start_s = 0.0
        self.grpc_address = ""
        """The address for gRPC; empty for the targets without it."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.logs = {name: WatchedLog(name, gateway.log) for name, gateway in self.gateways.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        self.gateways["server"] = self._start_server("server")
        if self.against == "shadow":
            self.gateways["target"] = self._start_server("target")
            self.gateways["shadow"] = self._start_shadow()

    def _start_server(self, name: str) -> Gateway:
        directory = self.directory / name
        sets = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        store = str(directory / "store")
        if self.against == "grpc":
            (port,) = find_ports(1)
            self.grpc_address = f"127.0.0.1:{port}"
            sets += ["--grpc-port", str(port)]
        server = Gateway(directory, "--host", "127.0.0.1", "--store", store, *sets, prefix=LIMITED)
        self.start_s = server.start_s
        return server

    def _start_shadow(self) -> Gateway:
        primary, target = self.gateways["server"].namesrv, self.gateways["target"].namesrv
        directory = self.directory / "shadow"
        tables = {
            "primary.namesrv": [primary],
            "target.namesrv": [target],
            "capture.directory": str(directory / "capture"),
            "compare.enabled": True,
        }
        sets = [word for key, value in tables.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        return Gateway(directory, *sets, command="shadow", prefix=LIMITED)

    @property
    def front(self) -> Gateway:
        """The process that peers reach."""
        return self.gateways["shadow" if self.against == "shadow" else "server"]

    @property
    def addresses(self) -> dict[Port, str]:
        """The addresses that peers use."""
        addresses = {Port.NAMESRV: self.front.namesrv, Port.BROKER: self.front.broker}
        return {**addresses, Port.GRPC: self.grpc_address} if self.grpc_address else addresses

    def ended(self) -> list[str]:
        """Return the processes that have ended, each with its exit code."""
        codes = {name: gateway.child.exit_code() for name, gateway in self.gateways.items()}
        return [f"{name} ended with {code}" for name, code in codes.items() if code is not None]

    def new_problems(self) -> Iterator[LogProblem]:
        """Yield the problems that the processes have logged since the last call."""
        for log in self.logs.values():
            yield from log.new_problems()

    def memory_bytes(self) -> dict[str, int]:
        """Return each process's anonymous memory; a process that has just ended is left out."""
        sizes = {}
        for name, gateway in self.gateways.items():
            with suppress(AssertionError, OSError):
                sizes[name] = gateway.memory_bytes()
        return sizes

    def restart_store(self, *, kill: bool) -> Gateway:
        """End the primary's server and start it again on its store. Raises ProcessEndedEarly if it does not start."""
        server = self.gateways["server"]
        if kill:
            server.kill()
        else:
            server.child.terminate(STOP_TIMEOUT_S)
        self.gateways["server"] = again = self._start_server("server")
        return again

    def close(self) -> None:
        """Kill every process and remove the folder."""
        for gateway in self.gateways.values():
            gateway.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
