"""Measures a broker with many topics and queues: creation, start, memory, routes, and sends over all of them.

Run it with `python -m tools.bench.scale`; `docs/explanation/performance.md` has results. The servers do the same
work one after the other, each alone on the machine, on the stores they fill themselves.
"""

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product

import click

from compat_tests.endpoints import ENDPOINT_KINDS, Endpoint, Unavailable, exit_on_sigterm
from compat_tests.endpoints.probe import Probe, ProbeRefused
from tools.bench.cli import endpoint_factory
from tools.bench.figure_table import FigureRow, figure_table, is_met, percentile
from tools.bench.loads import Figures
from tools.bench.pipelined_sender import PipelinedSender, SendRefused
from tools.bench.usage import memory_mib, work_until_idle_s

UPDATE_AND_CREATE_TOPIC = 17
BODY = bytes(128)
DEPTH = 64
"""Sends that are outstanding at a time."""
EDGE_TOPICS = 500
"""Topics at the beginning and at the end whose creation is compared."""
ROUTE_REQUESTS = 1000
SEND_PARTS = 20
"""Parts of the sends whose latency is compared: the first and the last."""
SETTLE_LIMIT_S = 120.0
READY_POLL_S = 0.01


BARS = (
    FigureRow("create_first_ms", f"creating a topic, the first {EDGE_TOPICS}, ms each"),
    FigureRow("create_last_ms", f"creating a topic, the last {EDGE_TOPICS}, ms each"),
    FigureRow("create_ratio", "last to first", 1.5),
    FigureRow("first_sends_ms", "first message of a queue, ms each"),
    FigureRow("route_p50_ms", "route of a topic, p50 ms"),
    FigureRow("route_p99_ms", "route of a topic, p99 ms", 5.0),
    FigureRow("private_mib", "private memory with all topics and queues, MiB", 150.0),
    FigureRow("send_rate", "sends over all queues, messages/s"),
    FigureRow("send_first_p50_ms", f"send, p50 of the first 1/{SEND_PARTS}, ms"),
    FigureRow("send_last_p50_ms", f"send, p50 of the last 1/{SEND_PARTS}, ms"),
    FigureRow("send_first_p99_ms", f"send, p99 of the first 1/{SEND_PARTS}, ms"),
    FigureRow("send_last_p99_ms", f"send, p99 of the last 1/{SEND_PARTS}, ms"),
    FigureRow("send_ratio", "p50, last to first", 1.5),
    FigureRow("clean_start_s", "start after a clean stop, to an accepted message, s", 5.0),
    FigureRow("crash_start_s", "start after SIGKILL, to an accepted message, s", 15.0),
    FigureRow("end_private_mib", "private memory at the end, MiB", 150.0),
)


@click.command()
@click.option("--topics", type=click.IntRange(1), default=10_000, show_default=True, help="Number of topics.")
@click.option("--queues", type=click.IntRange(1), default=4, show_default=True, help="Queues of each topic.")
@click.option(
    "--messages",
    type=click.IntRange(SEND_PARTS),
    default=1_000_000,
    show_default=True,
    help="Number of messages sent over all queues in turn, besides the first one of each queue.",
)
@click.option("--subject", default="ours", show_default=True, help=f"Server to measure: {ENDPOINT_KINDS}.")
@click.option("--baseline", help="Server to compare with, for example official (default: none).")
def main(topics: int, queues: int, messages: int, subject: str, baseline: str | None) -> None:
    """Measure a server with many topics and queues, and print a table."""
    exit_on_sigterm()
    names = [subject, *([baseline] if baseline else [])]
    results = []
    for name in names:
        try:
            results.append(measure(endpoint_factory(name, {}), ScaleWork(topics, queues, messages)))
        except (Unavailable, SendRefused, OSError) as error:
            raise click.ClickException(f"cannot measure {name}: {error}") from error
    click.echo(figure_table(BARS, names, results))
    sys.exit(0 if all(is_met(bar, results[0]) is not False for bar in BARS) else 1)


@dataclass(frozen=True)
class ScaleWork:
    """The amount of work: topics, queues of each, and messages over all of them."""

    topics: int
    queues: int
    messages: int

    def topic_names(self) -> list[str]:
        return [f"Scale_{number:05d}" for number in range(self.topics)]

    def all_queues(self) -> Iterator[tuple[str, int]]:
        """Yield every queue once, those of one topic apart from each other."""
        for queue_id, topic in product(range(self.queues), self.topic_names()):
            yield topic, queue_id


def measure(make: Callable[[], Endpoint], work: ScaleWork) -> Figures:
    """Do the work on a fresh server and return the figures. Raises Unavailable, SendRefused, OSError."""
    endpoint = make()
    figures: Figures = {}

    def note(found: Figures) -> None:
        figures.update(found)
        text = "  ".join(f"{name} {value:.4g}" for name, value in found.items())
        click.echo(f"{endpoint.name:10} load {os.getloadavg()[0]:.1f}  {text}", err=True)

    with endpoint:
        note(_create_topics(endpoint, work))
        note(_send_first_messages(endpoint, work))
        work_until_idle_s(endpoint.pids(), SETTLE_LIMIT_S)
        note({"private_mib": memory_mib(endpoint.pids(), "RssAnon")})
        note(_ask_routes(endpoint, work))
        note(_send_over_all(endpoint, work))
        endpoint.stop()
        note({"clean_start_s": _start(endpoint)})
        with PipelinedSender(endpoint.broker, DEPTH) as sender:  # something to recover
            sender.send_all(islice(work.all_queues(), 10_000), BODY)
        endpoint.crash()
        note({"crash_start_s": _start(endpoint)})
        work_until_idle_s(endpoint.pids(), SETTLE_LIMIT_S)
        note({"end_private_mib": memory_mib(endpoint.pids(), "RssAnon")})
    return figures


def _create_topics(endpoint: Endpoint, work: ScaleWork) -> Figures:
    took_s = []
    with Probe(endpoint.broker, timeout_s=60.0) as probe:
        for topic in work.topic_names():
            begin = time.perf_counter()
            probe.ask(UPDATE_AND_CREATE_TOPIC, _topic_fields(topic, work.queues))
            took_s.append(time.perf_counter() - begin)
    edge = max(1, min(EDGE_TOPICS, len(took_s) // 2))
    first, last = statistics.mean(took_s[:edge]) * 1000, statistics.mean(took_s[-edge:]) * 1000
    return {"create_first_ms": first, "create_last_ms": last, "create_ratio": last / first}


def _topic_fields(topic: str, queues: int) -> dict[str, str]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def _send_first_messages(endpoint: Endpoint, work: ScaleWork) -> Figures:
    """Send one message to every queue, which creates its file."""
    begin = time.perf_counter()
    with PipelinedSender(endpoint.broker, DEPTH) as sender:
        count = len(sender.send_all(work.all_queues(), BODY))
    return {"first_sends_ms": (time.perf_counter() - begin) / count * 1000}


def _ask_routes(endpoint: Endpoint, work: ScaleWork) -> Figures:
    topics = random.Random(1).choices(work.topic_names(), k=ROUTE_REQUESTS)
    took_ms = []
    with Probe(endpoint.namesrv, timeout_s=60.0) as probe:
        for topic in topics:
            begin = time.perf_counter()
            probe.route(topic)
            took_ms.append((time.perf_counter() - begin) * 1000)
    return {"route_p50_ms": percentile(took_ms, 50), "route_p99_ms": percentile(took_ms, 99)}


def _send_over_all(endpoint: Endpoint, work: ScaleWork) -> Figures:
    """Send all messages in parts; only the latencies of the first and the last part are kept."""
    queues = cycle(work.all_queues())
    edges: list[list[float]] = []
    size = work.messages // SEND_PARTS
    begin = time.perf_counter()
    with PipelinedSender(endpoint.broker, DEPTH) as sender:
        for number in range(SEND_PARTS):
            took_s = sender.send_all(islice(queues, size), BODY, keys="key")
            if number in (0, SEND_PARTS - 1):
                edges.append([duration_s * 1000 for duration_s in took_s])
    rate = size * SEND_PARTS / (time.perf_counter() - begin)
    first, last = edges
    return {
        "send_rate": rate,
        "send_first_p50_ms": percentile(first, 50),
        "send_last_p50_ms": percentile(last, 50),
        "send_first_p99_ms": percentile(first, 99),
        "send_last_p99_ms": percentile(last, 99),
        "send_ratio": percentile(last, 50) / percentile(first, 50),
    }


def _start(endpoint: Endpoint) -> float:
    """Start an endpoint and return the seconds from its first process to its first accepted message."""
    begin = time.perf_counter()
    endpoint.start()
    while True:
        try:
            with Probe(endpoint.broker, timeout_s=60.0) as probe:
                probe.send("Scale_00000", BODY)
            return time.perf_counter() - begin
        except (OSError, ProbeRefused):
            if time.perf_counter() - begin > SETTLE_LIMIT_S:
                raise
            time.sleep(READY_POLL_S)


if __name__ == "__main__":
    main()
