"""The benchmark's loads: each runs once against one started endpoint and returns its figures by name.

Send loads are official benchmark producers: they count the messages that reach the queues within a window of steady
state, which begins when the rates of two windows agree. A client of ours (`frame_sender.py`) sends what a Java client
cannot. Catch-up and latency use our `BenchClient` (Java) on the stock client.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from compat_tests.endpoints import Endpoint
from compat_tests.endpoints.ours import process_environment
from compat_tests.endpoints.probe import Probe, ProbeRefused, queue_count
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import compile_jar, java_command
from tools.bench.bottleneck import LoadMeter
from tools.bench.usage import UsageSnapshot, cpu_s, memory_mib, work_until_idle_s

Figures = dict[str, float]
CLIENT = "client-5.5"
_OFFICIAL = "org.apache.rocketmq.example.benchmark."
_BENCH_CLIENT = Path(__file__).parent / "java" / "BenchClient.java"
_FIRST_MESSAGE_TIMEOUT_S = 30.0
_CATCH_UP_PASSES = 6
"""Passes of `BenchClient catchup` over the backlog: its JVM uses three times the processor time in the first ones."""
_PROGRAM_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class LoadDurations:
    """Durations and message counts of the loads.

    A load is warm when the rates of two consecutive windows of `warm_window_s` differ by at most `agreement`, after
    `warm_up_s` at the earliest and `warm_up_limit_s` at the latest. The load before all others, which warms a server
    up, lasts `server_warm_up_s` to `server_warm_up_limit_s`. JVMs need both: on two busy cores the official broker
    takes 10 s of full load to get from 1,000 to 60 µs a message, a client 5 s. On two faster ones it was at 27 µs after
    12 s, at 23 after 20 s, and at 17 to 20 from 25 s on. `backlog` is a multiple of 32 (the batch size) and of 100.
    """

    server_warm_up_s: float = 40.0
    server_warm_up_limit_s: float = 75.0
    warm_up_s: float = 3.0
    warm_up_limit_s: float = 8.0
    warm_window_s: float = 1.5
    agreement: float = 0.05
    window_s: float = 3.0
    idle_s: float = 12.0
    settle_limit_s: float = 20.0
    backlog: int = 499_200
    latency_messages: int = 600
    latency_warm_up: int = 30_000


QUICK = LoadDurations(
    server_warm_up_s=2.0,
    server_warm_up_limit_s=2.0,
    warm_up_s=1.0,
    warm_up_limit_s=1.0,
    warm_window_s=0.5,
    window_s=1.2,
    idle_s=5.0,
    settle_limit_s=3.0,
    backlog=48_000,
    latency_messages=200,
    latency_warm_up=2_000,
)


class MeasuredEndpoint(Protocol):
    """The part of an endpoint that a load needs: clients look up `namesrv`, messages are counted at `broker`."""

    @property
    def name(self) -> str: ...

    @property
    def namesrv(self) -> str: ...

    @property
    def broker(self) -> str: ...

    def pids(self) -> list[int]:
        """Return the ids of the processes whose processor time counts."""


@dataclass(frozen=True)
class Load:
    """A named load. `run(endpoint, durations)` needs a started endpoint, and `fill_backlog` if `reads_backlog`.

    `is_durable`: for servers with SYNC_FLUSH, where each answer waits for the disk.
    """

    name: str
    run: Callable[[MeasuredEndpoint, LoadDurations], Figures]
    reads_backlog: bool = False
    is_durable: bool = False


class LoadFailed(Exception):
    """A client did not complete its load; the text contains the end of its output."""


def measure_start_up(make: Callable[[], Endpoint]) -> tuple[Endpoint, Figures]:
    """Start an endpoint and measure the time from its first process to its first accepted message."""
    endpoint = make()
    begin = time.monotonic()
    endpoint.start()
    with Probe(endpoint.broker) as probe:
        probe.send("BenchFirst", b"first")
    took_ms = (time.monotonic() - begin) * 1000
    return endpoint, {"start_ms": took_ms, "start_rss_mib": memory_mib(endpoint.pids(), "VmRSS")}


def measure_at_rest(endpoints: Sequence[Endpoint], durations: LoadDurations) -> list[Figures]:
    """Measure private memory, and processor use in percent of one core, of idle endpoints."""
    for endpoint in endpoints:
        work_until_idle_s(endpoint.pids(), durations.settle_limit_s)
    before = [cpu_s(endpoint.pids()) for endpoint in endpoints]
    time.sleep(durations.idle_s)
    return [
        {
            "idle_percent": (cpu_s(endpoint.pids()) - used) / durations.idle_s * 100,
            "anon_mib": memory_mib(endpoint.pids(), "RssAnon"),
        }
        for endpoint, used in zip(endpoints, before, strict=True)
    ]


def fill_backlog(endpoint: MeasuredEndpoint, durations: LoadDurations) -> None:
    """Send the messages that every catch-up reads: the numbers 0 to 99 equally often, and one without a number."""
    run_bench_client(
        endpoint,
        "fill",
        _backlog_topic(durations),
        f"count={durations.backlog + 1}",
        "size=128",
        "numbered=1",
    )
    work_until_idle_s(endpoint.pids(), durations.settle_limit_s)


def send_load(name: str, program: str, threads: int, size_bytes: int, *more: str) -> Load:
    """Return a load by an official benchmark producer; counts the messages that reach the topic in the window."""
    topic = "Bench_" + name
    return _producer_load(
        name, program, ["-t", topic, "-w", str(threads), "-s", str(size_bytes), *more], topic
    )


def frame_load(name: str, connections: int, depth: int, size_bytes: int) -> Load:
    """Return a load by our own client, with ``depth`` messages outstanding on each connection."""
    topic = "Bench_" + name

    def run(endpoint: MeasuredEndpoint, durations: LoadDurations) -> Figures:
        options = [f"--connections={connections}", f"--depth={depth}", f"--size={size_bytes}"]
        command = [sys.executable, "-m", "tools.bench.frame_sender", endpoint.broker, topic, *options]
        with Probe(endpoint.broker) as probe, tempfile.TemporaryDirectory(prefix="rocketmq-bench-") as folder:
            probe.send(topic, b"creates the topic")
            client = ChildProcess("frame_sender", command, Path(folder) / "output.txt", process_environment())
            try:
                counter = _QueueCounter(endpoint, probe, topic)
                return _measure_steady_state(endpoint, client, counter, durations)
            finally:
                client.kill()

    return Load(name, run)


def measure_sender(
    endpoint: MeasuredEndpoint, client: ChildProcess, topic: str, durations: LoadDurations
) -> Figures:
    """Measure a running client that sends to ``topic``, once its rate is steady; ends it. Raises LoadFailed."""
    with Probe(endpoint.broker) as probe:
        return _measure_steady_state(endpoint, client, _QueueCounter(endpoint, probe, topic), durations)


def warm_up(endpoint: MeasuredEndpoint, durations: LoadDurations) -> Figures:
    """Send until the server is warm, which takes an official broker up to a minute."""
    longer = replace(
        durations,
        warm_up_s=durations.server_warm_up_s,
        warm_up_limit_s=durations.server_warm_up_limit_s,
        warm_window_s=2 * durations.warm_window_s,
    )
    return WARM_UP.run(endpoint, longer)


def timer_load(name: str, threads: int, size_bytes: int) -> Load:
    """Return a load by the official producer of timer messages; counts the messages that reach the wheel's topic.

    Delivery times are two minutes and 0 to 39 hours ahead: a fortieth comes due while other loads are measured.
    """
    sizes = ["-tc", str(threads), "-ms", str(size_bytes), "-st", "40", "-mt", "5000", "-sd", "3600000"]
    options = ["-t", "Bench_" + name, *sizes]
    return _producer_load(name, "timer.TimerProducer", options, "rmq_sys_wheel_timer")


def _producer_load(name: str, program: str, options: list[str], counted: str) -> Load:
    def run(endpoint: MeasuredEndpoint, durations: LoadDurations) -> Figures:
        with start_java_program(_OFFICIAL + program, ["-n", endpoint.namesrv, *options]) as (client, home):
            with Probe(endpoint.broker) as probe:
                figures = _measure_steady_state(
                    endpoint, client, _QueueCounter(endpoint, probe, counted), durations
                )
            figures["client_errors"] = _count_errors(home)
        return figures

    return Load(name, run)


def _measure_steady_state(
    endpoint: MeasuredEndpoint, client: ChildProcess, counter: "_QueueCounter", durations: LoadDurations
) -> Figures:
    pids = endpoint.pids()
    initial = counter.total()
    _wait_for_first_message(counter, initial, client)
    is_steady = _wait_until_steady(counter, durations)
    first, begin = counter.total(), LoadMeter.read(pids, client.pids())
    time.sleep(durations.window_s)
    last, end = counter.total(), LoadMeter.read(pids, client.pids())
    client.kill()
    later_s = work_until_idle_s(pids, durations.settle_limit_s)
    sent, sent_in_all = last - first, counter.total() - initial
    if sent <= 0:
        raise LoadFailed(f"{client.name} stopped sending\n{_tail(client.log)}")
    return {
        "rate": sent / (end.at_s - begin.at_s),
        "cpu_us": (end.server_s - begin.server_s) / sent * 1e6,
        "deferred_us": later_s / sent_in_all * 1e6,
        "client_us": (end.client_s - begin.client_s) / sent * 1e6,
        "unsteady": float(not is_steady),
        **begin.figures_until(end),
    }


def _wait_until_steady(counter: "_QueueCounter", durations: LoadDurations) -> bool:
    """Wait until the rates of two consecutive windows agree; return False if they did not within the limit."""
    begin_s = at_s = time.monotonic()
    total, rate, agreed = counter.total(), 0.0, False
    limit_s = max(durations.warm_up_s, durations.warm_up_limit_s)
    while (passed_s := time.monotonic() - begin_s) < limit_s:
        if agreed and passed_s >= durations.warm_up_s:
            break
        time.sleep(min(durations.warm_window_s, limit_s - passed_s))
        previous_s, previous_total, previous_rate = at_s, total, rate
        at_s, total = time.monotonic(), counter.total()
        rate = (total - previous_total) / (at_s - previous_s)
        agreed = abs(rate - previous_rate) <= durations.agreement * rate
    return agreed or limit_s == 0


def _wait_for_first_message(counter: "_QueueCounter", initial: int, client: ChildProcess) -> None:
    end = time.monotonic() + _FIRST_MESSAGE_TIMEOUT_S
    while counter.total() <= initial:
        if client.exit_code() is not None or time.monotonic() > end:
            raise LoadFailed(f"{client.name} sent nothing\n{_tail(client.log)}")
        time.sleep(0.02)


class _QueueCounter:
    """Counts the messages in the queues of a topic by asking the broker."""

    def __init__(self, endpoint: MeasuredEndpoint, probe: Probe, topic: str) -> None:
        self._endpoint, self._probe, self._topic = endpoint, probe, topic
        self._queues = 0

    def total(self) -> int:
        if self._queues == 0:
            self._queues = self._find_queues()
        return sum(self._probe.max_offset(self._topic, queue) for queue in range(self._queues))

    def _find_queues(self) -> int:
        try:
            with Probe(self._endpoint.namesrv) as namesrv:
                return queue_count(namesrv.route(self._topic))
        except ProbeRefused:
            return 0  # the topic does not exist before the first send


def _backlog_topic(durations: LoadDurations) -> str:
    return f"topic=BenchBacklog{durations.backlog}"


def measure_catch_up(endpoint: MeasuredEndpoint, durations: LoadDurations) -> Figures:
    """Read the backlog from its beginning with a new consumer group, which must get each message."""
    return _read_backlog(endpoint, durations, durations.backlog + 1)


def filtered_catch_up(name: str, sql: str, percent: int) -> Load:
    """Return a catch-up load through an SQL92 filter; its figures count the messages that the filter examines."""

    def run(endpoint: MeasuredEndpoint, durations: LoadDurations) -> Figures:
        return _read_backlog(endpoint, durations, durations.backlog * percent // 100, f"sql={sql}")

    return Load(name, run, reads_backlog=True)


def read_backlog_once(endpoint: MeasuredEndpoint, durations: LoadDurations) -> float:
    """Read the backlog in one pass with a new consumer group and a new JVM; return the messages per second."""
    return _read_backlog(endpoint, durations, durations.backlog + 1, passes=1)["rate"]


def _read_backlog(
    endpoint: MeasuredEndpoint,
    durations: LoadDurations,
    wanted: int,
    *more: str,
    passes: int = _CATCH_UP_PASSES,
) -> Figures:
    pids = endpoint.pids()
    begin = UsageSnapshot.take(pids)
    figures = run_bench_client(
        endpoint, "catchup", _backlog_topic(durations), f"count={wanted}", f"passes={passes}", *more
    )
    end = UsageSnapshot.take(pids)
    if figures["distinct"] < wanted:
        raise LoadFailed(f"only {figures['distinct']:.0f} of {wanted} messages arrived at {endpoint.name}")
    cpu_us = (end.server_s - begin.server_s) / (passes * durations.backlog) * 1e6
    return {"rate": durations.backlog / figures["seconds"], "cpu_us": cpu_us}


def measure_latency(endpoint: MeasuredEndpoint, durations: LoadDurations) -> Figures:
    """Measure the time from just before a send to the consumer's listener, at 100 messages/s."""
    counts = (f"count={durations.latency_messages}", f"warm_up={durations.latency_warm_up}")
    figures = run_bench_client(endpoint, "latency", "topic=BenchLatency", *counts, "rate=100", "size=128")
    if figures["lost"] > 0:
        raise LoadFailed(f"{figures['lost']:.0f} messages never arrived at {endpoint.name}")
    return {name: figures[name] for name in ("p50_ms", "p99_ms", "max_ms")}


def run_bench_client(endpoint: MeasuredEndpoint, mode: str, *pairs: str) -> Figures:
    """Run a mode of BenchClient and return the figures it prints. Raises LoadFailed."""
    return run_java_program(_BENCH_CLIENT, mode, f"namesrv={endpoint.namesrv}", *pairs)


def run_java_program(source: Path, mode: str, *pairs: str) -> Figures:
    """Run a mode of one of our Java programs and return the figures it prints last. Raises LoadFailed."""
    with start_java_program(source.stem, [mode, *pairs], [source]) as (client, _):
        try:
            code = client.wait(_PROGRAM_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise LoadFailed(f"{source.stem} {mode} was not done in {_PROGRAM_TIMEOUT_S} s") from error
        lines = client.log.read_text().splitlines()
        if code != 0 or not lines:
            raise LoadFailed(f"{source.stem} {mode} ended with {code}\n{_tail(client.log)}")
        result: Figures = json.loads(lines[-1])
        return result


@contextmanager
def start_java_program(
    main_class: str, arguments: Sequence[str], sources: Sequence[Path] = ()
) -> Iterator[tuple[ChildProcess, Path]]:
    """Run a Java program on the client's jars during the block; yield it and the folder for the files it writes.

    `sources`: our own program's source files, if it is not in the jars.
    """
    classes = [compile_jar(sources, CLIENT)] if sources else []
    with tempfile.TemporaryDirectory(prefix="rocketmq-bench-") as folder:
        home = Path(folder)
        command = java_command(
            CLIENT, main_class, home, heap="-Xms512m -Xmx1g -XX:+UseG1GC", classes=classes, mapped=False
        )
        client = ChildProcess(main_class.rpartition(".")[2], [*command, *arguments], home / "output.txt")
        try:
            yield client, home
        finally:
            client.kill()


def _count_errors(home: Path) -> float:
    log = home / "java.log"
    return float(log.read_text().count(" ERROR ")) if log.exists() else 0.0


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-1500:]


SENDS = tuple(
    send_load(f"send-{threads}t-{size}B", "Producer", threads, size)
    for size in (128, 1024)
    for threads in (1, 4, 64)
)
SYNC_SENDS = tuple(
    replace(load, is_durable=True)
    for load in (
        *(send_load(f"sync-{threads}t-128B", "Producer", threads, 128) for threads in (1, 4, 64)),
        frame_load("sync-lone-128B", 1, 1, 128),
        frame_load("sync-pipelined-128B", 4, 64, 128),
    )
)
"""Sends to servers with SYNC_FLUSH."""
BATCH = send_load("batch16-4t-128B", "BatchProducer", 4, 128, "-b", "16")
WARM_UP = send_load("warm-up", "Producer", 64, 128)
LOADS = (
    *SENDS,
    BATCH,
    Load("catch-up", measure_catch_up, reads_backlog=True),
    Load("latency", measure_latency),
)
TIMER = timer_load("timer", 16, 128)
TRANSACTION = send_load("transaction", "TransactionProducer", 16, 128)
FILTERED = (
    filtered_catch_up("filtered-1%", "n > 98", 1),
    filtered_catch_up("filtered-50%", "n BETWEEN 50 AND 99", 50),
)
PIPELINED = (frame_load("pipelined-128B", 4, 64, 128), frame_load("lone-128B", 1, 1, 128))
OPT_IN_LOADS = (TIMER, TRANSACTION, *FILTERED, *PIPELINED, *SYNC_SENDS)
"""Loads that run only if `--only` selects them."""
GROUPS = {
    "sends": ("send-64t-128B", "send-1t-128B", "pipelined-128B"),
    "durable": ("sync-64t-128B", "sync-1t-128B"),
    "others": ("batch16", "catch-up", "timer", "transaction"),
    "rest": ("start-up", "at rest"),
}
"""Names for `--only` that stand for the loads of a row of goals."""
