"""Command line of the benchmark: fills the topics, runs the loads, and prints the tables."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click
from pyspark.sql import SparkSession

from compat_tests.endpoints import ENDPOINT_KINDS, choose_endpoint, exit_on_sigterm
from compat_tests.endpoints import Endpoint as Subject
from spark.pull.garbage_collection import KEEP_COLLECTING_VARIABLE
from spark.session.registration import register
from tools.bench.usage import work_until_idle_s
from tools.bench_spark.cpu_usage import CpuUsage
from tools.bench_spark.loads import (
    FilledTopic,
    batch_to_noop,
    fill_topic,
    read_without_spark,
    small_triggers,
    stream_to_table,
)

BARS: Final = {
    ("batch to noop", 128): "≥ 250,000/s",
    ("batch to noop", 1024): "≥ 120 MB/s",
    ("stream to table", 1024): "≥ 60,000/s",
}
_HEAD: Final = (
    "| load | body | messages/s | MB/s | CPU µs/message: broker | Python | JVM | of plain | bar |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


@click.command()
@click.option("--endpoint", default="ours", show_default=True, help=ENDPOINT_KINDS)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of broker.conf.")
@click.option(
    "--mib",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Bodies of each topic, MiB.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--triggers",
    type=click.IntRange(0),
    default=30,
    show_default=True,
    help="Number of small batches; 0 leaves them out.",
)
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the tables to this file."
)
def main(
    endpoint: str, settings: Sequence[str], mib: int, rounds: int, triggers: int, markdown: Path | None
) -> None:
    """Read topics of 128-byte and 1-KiB messages with Spark and without it, and print the median rounds."""
    exit_on_sigterm()
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    say(f"Endpoint {endpoint} {' '.join(settings)}; {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}; medians of {rounds}.\n")  # fmt: skip
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        with choose_endpoint(endpoint, dict(pair.split("=", 1) for pair in settings)) as subject:
            host, _, port = subject.broker.rpartition(":")
            topics = []
            for size in (128, 1024):
                topics.append(
                    fill_topic(subject.namesrv, (host, int(port)), f"bench{size}", (mib << 20) // size, size)
                )
            small_topic = fill_topic(subject.namesrv, (host, int(port)), "few", max(triggers, 1) * 100, 128)
            work_until_idle_s(subject.pids(), 120)
            _run_reads(subject, topics, directory, rounds, say)
            if triggers:
                _run_triggers(subject, small_topic, directory, triggers, say)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if markdown:
        markdown.write_text("\n".join(lines) + "\n")


def _run_reads(
    subject: Subject, topics: list[FilledTopic], directory: Path, rounds: int, say: Callable[[str], None]
) -> None:
    say(_HEAD)
    pids = subject.pids()
    with _open_session(directory) as session:
        for filled in topics:
            discarded = _median_run(rounds, partial(read_without_spark, filled, pids, None))
            say(_table_row("pyarrow alone, to nothing", filled, discarded, None))
            parquet = _median_run(
                rounds, partial(read_without_spark, filled, pids, directory / "plain.parquet")
            )
            say(_table_row("pyarrow alone, to Parquet", filled, parquet, None))
            batch = _median_run(rounds, partial(batch_to_noop, session, filled, pids))
            say(_table_row("batch to noop", filled, batch, discarded))
            stream = _median_run(rounds, partial(stream_to_table, session, filled, pids, directory))
            say(_table_row("stream to table", filled, stream, parquet))


def _run_triggers(
    subject: Subject, small_topic: FilledTopic, directory: Path, count: int, say: Callable[[str], None]
) -> None:
    say("\n| triggers of about 100 messages | number | median ms | Python CPU ms each |\n|---|---|---|---|")
    for freeze in (False, True):
        os.environ[KEEP_COLLECTING_VARIABLE] = "" if freeze else "1"
        with _open_session(directory) as session:
            folder = directory / f"triggers-{freeze}"
            times = small_triggers(session, small_topic, subject.pids(), folder, count)
        name = "with `gc.freeze`" if freeze else "without"
        say(f"| {name} | {times.count} | {times.median_ms:.0f} | {times.python_ms:.0f} |")


def _median_run(rounds: int, load: Callable[[], CpuUsage]) -> CpuUsage:
    return sorted((load() for _ in range(rounds)), key=lambda figures: figures.wall_s)[rounds // 2]


def _table_row(load: str, filled: FilledTopic, figures: CpuUsage, reference: CpuUsage | None) -> str:
    costs_us = [
        figures.per_message_us(seconds) for seconds in (figures.broker_s, figures.python_s, figures.jvm_s)
    ]
    ratio = (
        f"{figures.messages / figures.wall_s / (reference.messages / reference.wall_s):.2f}"
        if reference
        else ""
    )
    return (
        f"| {load} | {filled.body_bytes} B | {figures.messages / figures.wall_s:,.0f} "
        f"| {figures.bytes / figures.wall_s / 1e6:.0f} | {costs_us[0]:.2f} | {costs_us[1]:.2f} | {costs_us[2]:.2f} "
        f"| {ratio} | {BARS.get((load, filled.body_bytes), '')} |"
    )


@contextmanager
def _open_session(directory: Path) -> Iterator[SparkSession]:
    """Open a session on two cores with new Python workers."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench")
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    try:
        yield session
    finally:
        session.stop()
        gateway = session.sparkContext._gateway
        # A new JVM for the next session: its Python workers inherit the environment of the time when it starts.
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(60)
            type(session.sparkContext)._gateway = None
            type(session.sparkContext)._jvm = None
