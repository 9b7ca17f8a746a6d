"""An honest client in a process of its own: `python -m tools.fuzz.healthy_client NAMESRV BROKER [GRPC]`.

At a fixed rate it sends a message to a topic that only it knows, pulls it again, and asks for the topic's route, over
gRPC as well if there is such a port. On SIGTERM it prints one JSON line: latencies in ms, errors, and the number of
messages that the server acknowledged.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from compat_tests.clients.typed import bodies, connect, create_topic, iter_queue, pull, send
from compat_tests.endpoints.ours import process_environment
from compat_tests.endpoints.process import ChildProcess
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic
from tools.fuzz.grpc_probe import GrpcProbe

ROUNDS_PER_S: Final = 50
TIMEOUT_S: Final = 60.0
MAX_ERRORS: Final = 20
TOPIC: Final = "healthy"
STARTED: Final = "started"


@dataclass
class HealthyReport:
    """The experience of the honest client."""

    latencies_ms: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    acknowledged: int = 0

    def quantile_ms(self, share: float) -> float:
        """Return the latency that this share of all operations stayed below."""
        values = sorted(value for latencies in self.latencies_ms.values() for value in latencies)
        return values[min(int(share * len(values)), len(values) - 1)] if values else 0.0

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} rounds, p50 {self.quantile_ms(0.5):.1f} ms, p99 {self.quantile_ms(0.99):.1f} ms, "
            f"max {self.quantile_ms(1):.0f} ms, {len(self.errors)} errors"
        )


class HealthyWork:
    """The work of the client's process."""

    def __init__(self, namesrv: str, broker: str, grpc: str = "") -> None:
        self._grpc = grpc
        self._probe: GrpcProbe | None = None
        self._addresses = {"namesrv": namesrv, "broker": broker}
        self._clients: dict[str, BlockingClient] = {}
        self._stopping = threading.Event()
        self.report = HealthyReport()

    def run(self) -> None:
        """Work until SIGTERM, then print the report."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())
        server = ServerUnderTest("fuzz", "ours", self._addresses["namesrv"], self._addresses["broker"])
        create_topic(server, TOPIC, 1)
        print(STARTED, flush=True)
        next_s = time.monotonic()
        while not self._stopping.is_set():
            self._round()
            next_s = max(next_s + 1 / ROUNDS_PER_S, time.monotonic() - 1)
            self._stopping.wait(max(0.0, next_s - time.monotonic()))
        print(json.dumps(vars(self.report)), flush=True)

    def _round(self) -> None:
        body = b"%d" % self.report.acknowledged
        try:
            offset = self._timed("send", lambda: send(self._client("broker"), TOPIC, body)).queue_offset
            self.report.acknowledged += 1
            pulled = self._timed(
                "pull", lambda: bodies(pull(self._client("broker"), TOPIC, offset, max_msg_nums=1))
            )
            route = self._timed(
                "route", lambda: self._client("namesrv").ask(GetRouteInfoByTopic(topic=TOPIC))
            ).data
            if pulled != [body]:
                self._note(f"sent {body!r} to offset {offset}, and pulled {pulled!r}")
            addresses = [broker_data.broker_addrs.get(0) for broker_data in route.broker_datas]
            if self._grpc and TOPIC.encode() not in self._timed("grpc", self._ask_grpc):
                self._note("the gRPC port does not know the topic")
            if self._addresses["broker"] not in addresses:
                self._note(f"the topic's route leads to {addresses}")
        except (RequestError, RemotingTimeout, RemotingClosed) as error:
            self._note(f"{type(error).__name__}: {error}")
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            self._close_probe()
            self._stopping.wait(0.2)

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        begin_s = time.monotonic()
        result = work()
        self.report.latencies_ms.setdefault(name, []).append(round((time.monotonic() - begin_s) * 1e3, 2))
        return result

    def _client(self, name: str) -> BlockingClient:
        if name not in self._clients:
            self._clients[name] = connect(self._addresses[name], timeout_s=TIMEOUT_S)
        return self._clients[name]

    def _ask_grpc(self) -> bytes:
        if self._probe is None or self._probe.is_used_up:
            self._close_probe()
            self._probe = GrpcProbe(self._grpc, TIMEOUT_S)
        return self._probe.ask_route(TOPIC)

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _note(self, error: str) -> None:
        if len(self.report.errors) < MAX_ERRORS:
            self.report.errors.append(error)


class HealthyClient:
    """The honest client's process, seen from the campaign."""

    def __init__(self, namesrv: str, broker: str, directory: Path, grpc: str = "") -> None:
        self._log = directory / "healthy.log"
        command = [sys.executable, "-m", "tools.fuzz.healthy_client", namesrv, broker]
        command += [grpc] if grpc else []
        self._child = ChildProcess("healthy", command, self._log, process_environment())
        eventually(lambda: STARTED in self._log.read_text() or self._child.exit_code() is not None, 30)

    def finish(self) -> HealthyReport:
        """Stop the client and return its report."""
        self._child.terminate(TIMEOUT_S + 10)
        for line in self._log.read_text().splitlines():
            if line.startswith("{"):
                return HealthyReport(**json.loads(line))
        return HealthyReport(
            errors=[f"the healthy client ended without a report: {self._log.read_text()[-2000:]}"]
        )

    def kill(self) -> None:
        """End the process, if it still runs."""
        self._child.kill()


def missing_messages(broker: str, acknowledged: int) -> int:
    """Return how many of the healthy client's messages a broker no longer has."""
    with connect(broker, timeout_s=TIMEOUT_S) as client:
        stored = {bytes(message.body) for message in iter_queue(client, TOPIC, 0)}
    return sum(b"%d" % number not in stored for number in range(acknowledged))


if __name__ == "__main__":
    HealthyWork(*sys.argv[1:4]).run()
