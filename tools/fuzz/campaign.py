"""One campaign: servers, world, healthy client, walks, and the oracles that judge what happened.

The oracles: the processes live; every request is answered or its connection closed in time; the healthy client has no
error and stays fast; no process logs a failure that nobody expected; memory returns to where it was once the peers are
gone; and the store starts again after SIGTERM or SIGKILL with every message of the healthy client.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from tools.fuzz.corpus import load_corpus
from tools.fuzz.driver import MAX_OUTSTANDING, Driver
from tools.fuzz.findings import FindingList, FuzzFinding, Recording, show_frame
from tools.fuzz.grpc_walks import build_grpc_walk
from tools.fuzz.healthy_client import HealthyClient, HealthyReport, missing_messages
from tools.fuzz.servers_under_test import ServersUnderTest
from tools.fuzz.walks import Port, Walk, WalkFrame, build_walk
from tools.fuzz.world import FuzzWorld, set_up_world
from tools.processes import ProcessEndedEarly

CHECK_INTERVAL_S: Final = 0.5
WARM_UP_FRAMES: Final = 10_000
"""Frames after which memory counts as settled: caches are filled, tables have reached their limits."""
RECENT_WALKS: Final = 4000
"""Walks before a finding that nobody answered for: one of them caused it."""
PORTS: Final = {
    "namesrv": (Port.NAMESRV,),
    "broker": (Port.BROKER, Port.BROKER, Port.BROKER, Port.BROKER, Port.BROKER, Port.BROKER, Port.NAMESRV),
    "shadow": (Port.BROKER, Port.BROKER, Port.NAMESRV),
    "grpc": (Port.GRPC,),
}
"""The ports that walks draw from, by target."""
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits at which an oracle reports. None: only reported as a figure, on a machine that may be busy."""

    patience_s: float = 5.0
    healthy_p99_ms: float | None = 50.0
    memory_growth: float = 0.2
    memory_growth_bytes: int = 16 * MIB
    """Allowed in any case: cyclic garbage of 50,000 objects waits for the collector."""
    settle_s: float = 30.0
    restart_s: float = 10.0


QUIET_MACHINE: Final = Bounds()
BUSY_MACHINE: Final = Bounds(
    patience_s=60.0, healthy_p99_ms=None, memory_growth_bytes=300 * MIB, settle_s=5.0, restart_s=60.0
)


@dataclass
class CampaignResult:
    """The figures of one campaign, and its findings."""

    against: str
    seed: int
    findings: FindingList = field(default_factory=FindingList)
    frames: int = 0
    seconds: float = 0.0
    answers: dict[int, int] = field(default_factory=dict)
    closed_by_server: int = 0
    healthy: HealthyReport = field(default_factory=HealthyReport)
    memory_mib: dict[str, list[float]] = field(default_factory=dict)
    """By process: once settled, at most, and at the end."""
    slowest: dict[int, tuple[float, WalkFrame]] = field(default_factory=dict)
    restart_s: float = 0.0
    log_mib: float = 0.0

    def __str__(self) -> str:
        memory = ", ".join(
            f"{name} {values[0]:.0f} → {values[1]:.0f} (most) → {values[2]:.0f} MiB"
            for name, values in self.memory_mib.items()
        )
        answered = sum(self.answers.values())
        return (
            f"{self.against}, seed {self.seed}: {self.frames} frames in {self.seconds:.0f} s "
            f"({self.frames / max(self.seconds, 0.001):.0f}/s), {answered} answers "
            f"({self.answers.get(0, 0)} ok), {self.closed_by_server} connections closed by the server\n"
            f"  healthy client: {self.healthy}\n"
            f"  memory: {memory}; log {self.log_mib:.1f} MiB; restart in {self.restart_s:.1f} s\n"
            f"  findings: {len(self.findings)}"
        )

    def slow_requests(self, count: int = 15) -> str:
        """Return the request codes whose slowest request took longest, with the beginning of that request."""
        slowest = sorted(self.slowest.items(), key=lambda item: -item[1][0])[:count]
        return "\n".join(
            f"{took_ms:8.1f} ms  code {code}  {show_frame(frame.data)[:300]}"
            for code, (took_ms, frame) in slowest
        )


class Campaign:
    """Runs walks against one target."""

    def __init__(
        self,
        against: str,
        seed: int,
        bounds: Bounds,
        on_finding: Callable[[Recording], None] = lambda recording: None,
        window: int = MAX_OUTSTANDING,
        with_corpus: bool = True,
    ) -> None:
        self.result = CampaignResult(against, seed)
        self._window = window
        self._corpus = {case.number: (name, case) for name, case in load_corpus(against)}
        self._with_corpus = with_corpus
        self._bounds = bounds
        self._on_finding = on_finding
        self._seed = seed
        self._against = against
        self._recent: list[int] = []
        self._case = ""
        self._reported = 0
        self._most_memory: dict[str, int] = {}
        self._settled_memory: dict[str, int] = {}
        self._next_check_s = 0.0
        self._driver: Driver | None = None
        self.stopped = False
        """True once a process has ended, after which nothing more is sent."""

    def run(self, walks: Iterable[int], max_frames: int | None = None) -> CampaignResult:
        """Send the walks, at most this number of frames, and return what came of it."""
        with ExitStack() as stack:
            servers = stack.enter_context(ServersUnderTest(self._against))
            world = set_up_world(servers.front.namesrv, servers.front.broker)
            healthy = HealthyClient(
                servers.front.namesrv, servers.front.broker, servers.directory, servers.grpc_address
            )
            stack.callback(healthy.kill)
            self._most_memory, self._settled_memory = servers.memory_bytes(), servers.memory_bytes()
            begin_s = time.monotonic()
            driver = self._driver = Driver(
                servers.addresses,
                world,
                self.result.findings,
                self._seed,
                self._bounds.patience_s,
                self._window,
            )
            stack.callback(driver.close)
            self._attack(servers, driver, world, walks, max_frames)
            self.result.seconds = time.monotonic() - begin_s
            self.result.frames, self.result.answers = driver.frames_sent, driver.answers
            self.result.closed_by_server, self.result.slowest = driver.closed_by_server, driver.slowest
            self._judge_memory(servers)
            self._judge_healthy(healthy.finish())
            self._judge_restart(servers)
            self._report_new()
        return self.result

    def _attack(
        self,
        servers: ServersUnderTest,
        driver: Driver,
        world: FuzzWorld,
        walks: Iterable[int],
        max_frames: int | None,
    ) -> None:
        if self._with_corpus:
            for number in self._corpus:
                self._send_case(servers, driver, number)
        for number in walks:
            if self.stopped or (max_frames is not None and driver.frames_sent >= max_frames):
                break
            if number < 0:
                self._send_case(servers, driver, number)
                continue
            self._recent.append(number)
            driver.send_walk(self._build_walk(number, world))
            if time.monotonic() > self._next_check_s:
                driver.check_patience()
                self._check(servers)
        if not self.stopped:
            driver.drain(lambda: self._check(servers))

    def _build_walk(self, number: int, world: FuzzWorld) -> Walk:
        if self._against == "grpc":
            return build_grpc_walk(self._seed, number, world)
        return build_walk(self._seed, number, world, PORTS[self._against])

    def _send_case(self, servers: ServersUnderTest, driver: Driver, number: int) -> None:
        """Send one case of the corpus, and look at once for what it did."""
        name, case = self._corpus[number]
        self._recent = [number]
        self._case = driver.context = f"corpus case {name}: "
        driver.send_walk(case)
        driver.wait_for_own()
        self._next_check_s = 0.0
        self._check(servers)
        self._recent, self._case, driver.context = [], "", ""

    def _check(self, servers: ServersUnderTest) -> None:
        """Look at the processes and their logs, at most every CHECK_INTERVAL_S."""
        if time.monotonic() < self._next_check_s:
            return
        self._next_check_s = time.monotonic() + CHECK_INTERVAL_S
        del self._recent[:-RECENT_WALKS]
        for ended in servers.ended():
            self._add("process ended", ended, servers.front.output()[-3000:])
            self.stopped = True
        for problem in servers.new_problems():
            self._add("logged failure", problem.signature, problem.text)
        if not self.stopped:
            for name, size in servers.memory_bytes().items():
                self._most_memory[name] = max(self._most_memory[name], size)
                if self._driver is not None and self._driver.frames_sent <= WARM_UP_FRAMES:
                    self._settled_memory[name] = max(self._settled_memory[name], size)
        self._report_new()

    def _add(self, kind: str, signature: str, detail: str) -> None:
        self.result.findings.add(FuzzFinding(kind, self._case + signature, detail, list(self._recent)))

    def _report_new(self) -> None:
        findings = self.result.findings.items()
        for finding in findings[self._reported :]:
            recording = Recording(self._against, self._seed, finding.walks, finding.title, finding.detail)
            if len(finding.walks) == 1 and finding.walks[0] >= 0:
                recording.suspect = finding.walks[0]
                recording.walks = [walk for walk in self._recent if walk <= recording.suspect]
            if self._driver is not None:
                recording.last_frames = self._driver.last_frames()
            self._on_finding(recording)
        self._reported = len(findings)

    # -- after the attack ---------------------------------------------------------------------------------------------

    def _judge_memory(self, servers: ServersUnderTest) -> None:
        """Wait until memory is back within its bound, and judge it."""
        bounds, settled = self._bounds, self._settled_memory
        allowed = {
            name: max(size * (1 + bounds.memory_growth), size + bounds.memory_growth_bytes)
            for name, size in settled.items()
        }
        end_s = time.monotonic() + bounds.settle_s
        while True:
            self._next_check_s = 0.0
            self._check(servers)
            after = servers.memory_bytes()
            too_large = [name for name, size in after.items() if size > allowed[name]]
            if self.stopped or not too_large or time.monotonic() > end_s:
                break
            time.sleep(0.5)
        for name in too_large if not self.stopped else ():
            detail = f"{settled[name] / MIB:.1f} MiB once settled, {after[name] / MIB:.1f} MiB at the end"
            self._add("memory not given back", name, detail)
        self.result.memory_mib = {
            name: [settled[name] / MIB, self._most_memory[name] / MIB, size / MIB]
            for name, size in after.items()
        }
        self.result.log_mib = sum(log.size_bytes for log in servers.logs.values()) / MIB

    def _judge_healthy(self, report: HealthyReport) -> None:
        self.result.healthy = report
        for error in report.errors[:3]:
            self._add("healthy client", "refused or disturbed", error)
        p99_ms = report.quantile_ms(0.99)
        if self._bounds.healthy_p99_ms is not None and p99_ms > self._bounds.healthy_p99_ms:
            self._add("healthy client", "slow", f"p99 {p99_ms:.1f} ms, max {report.quantile_ms(1):.0f} ms")

    def _judge_restart(self, servers: ServersUnderTest) -> None:
        """Start the store again, after SIGKILL for odd seeds and SIGTERM for even ones."""
        try:
            again = servers.restart_store(kill=self._seed % 2 == 1)
        except (ProcessEndedEarly, RuntimeError) as error:
            self._add("restart", "the server does not start on its store", str(error)[-3000:])
            return
        self.result.restart_s = again.start_s
        if again.start_s > self._bounds.restart_s:
            self._add("restart", "slow", f"{again.start_s:.1f} s")
        missing = missing_messages(again.broker, self.result.healthy.acknowledged)
        if missing:
            self._add("restart", "messages of the healthy client are missing", f"{missing} messages")
