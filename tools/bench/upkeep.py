"""Measures what a store does besides sends: key queries, catching up after a start, deletion of files amid sends.

Run it with `python -m tools.bench.upkeep`; `docs/explanation/performance.md` has results. The servers do the
same work one after the other, each alone on the machine.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import click

from compat_tests.endpoints import ENDPOINT_KINDS, Unavailable, exit_on_sigterm
from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.probe import Probe
from tools.bench.cli import endpoint_factory
from tools.bench.figure_table import FigureRow, figure_table, is_met, percentile
from tools.bench.loads import Figures, LoadDurations, LoadFailed, fill_backlog, read_backlog_once
from tools.bench.pipelined_sender import PipelinedSender, SendRefused

QUERY_MESSAGE = 12
TOPIC = "Upkeep"
QUEUES = [(TOPIC, queue_id) for queue_id in range(4)]
BODY = bytes(128)
LARGE_BODY = bytes(1024)
DEPTH = 64
RETENTION_DEPTH = 8
"""Few outstanding sends, so that a pause of the server is not hidden by queueing in the client."""
QUERIES = 500
FILE_BYTES = 8 << 20
CLEAN_INTERVAL_MS = 1000
SETTINGS = {"mappedFileSizeCommitLog": str(FILE_BYTES), "cleanResourceInterval": str(CLEAN_INTERVAL_MS)}
DISK_BYTES = 1 << 30
BALLAST_BYTES = 770 << 20
"""Used by something else on the small disk, of which both servers delete their oldest files above 85 %."""
INDEX_TIMEOUT_S = 60.0

BARS = (
    FigureRow(
        "first_query_ms", "first key query after the fill, until it finds the last message, ms", 2000.0
    ),
    FigureRow("query_p50_ms", "key query, p50 ms"),
    FigureRow("query_p99_ms", "key query, p99 ms"),
    FigureRow("catch_up_cold", "catching up with a cold page cache, messages/s"),
    FigureRow("catch_up_warm", "the same with a warm one, messages/s"),
    FigureRow("kept_p50_ms", "send without retention, p50 ms"),
    FigureRow("kept_p99_ms", "send without retention, p99 ms"),
    FigureRow("deleting_p50_ms", "send while files are deleted, p50 ms"),
    FigureRow("deleting_p99_ms", "send while files are deleted, p99 ms"),
    FigureRow("deleting_max_ms", "send while files are deleted, longest, ms"),
    FigureRow("files_deleted", "files of 8 MiB deleted meanwhile"),
    FigureRow("refusals", "times that the senders were faster than that and the disk was full"),
)


@click.command()
@click.option(
    "--messages", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Keys to fill."
)
@click.option(
    "--backlog", type=click.IntRange(3200), default=499_200, show_default=True, help="Messages to catch up."
)
@click.option(
    "--seconds",
    type=click.IntRange(1),
    default=25,
    show_default=True,
    help="Duration of sends with retention.",
)
@click.option("--subject", default="ours", show_default=True, help=f"Server to measure: {ENDPOINT_KINDS}.")
@click.option("--baseline", help="Server to compare with, for example official (default: none).")
def main(messages: int, backlog: int, seconds: int, subject: str, baseline: str | None) -> None:
    """Measure key queries, catching up and retention, and print a table."""
    exit_on_sigterm()
    names = [subject, *([baseline] if baseline else [])]
    results = []
    for name in names:
        try:
            figures = measure_key_queries(name, messages) | measure_catch_up(name, backlog)
            results.append(figures | measure_retention(name, seconds))
        except (Unavailable, LoadFailed, SendRefused) as error:
            raise click.ClickException(f"cannot measure {name}: {error}") from error
        click.echo(f"{name} load {os.getloadavg()[0]:.1f} {results[-1]}", err=True)
    click.echo(figure_table(BARS, names, results))
    sys.exit(0 if all(is_met(bar, results[0]) is not False for bar in BARS) else 1)


def _local_endpoint(name: str, settings: Mapping[str, str]) -> LocalEndpoint:
    endpoint = endpoint_factory(name, settings)()
    if not isinstance(endpoint, LocalEndpoint):
        raise Unavailable(f"{name} is not a server whose store is on this machine")
    return endpoint


def measure_key_queries(name: str, messages: int) -> Figures:
    """Fill a topic as fast as one connection can, and query keys at once."""
    with _local_endpoint(name, {}) as endpoint:
        with PipelinedSender(endpoint.broker, DEPTH) as sender:
            sender.send_all(islice(cycle(QUEUES), messages), BODY, keys="key")
        with Probe(endpoint.broker, timeout_s=INDEX_TIMEOUT_S) as probe:
            begin = time.perf_counter()
            while not _has_key(probe, f"key{messages}"):
                if time.perf_counter() - begin > INDEX_TIMEOUT_S:
                    raise LoadFailed(f"the last key was not found in {INDEX_TIMEOUT_S} s")
            first_ms = (time.perf_counter() - begin) * 1000
            took_ms = []
            for number in range(QUERIES):
                begin = time.perf_counter()
                _has_key(probe, f"key{1 + number * (messages // QUERIES)}")
                took_ms.append((time.perf_counter() - begin) * 1000)
    return {
        "first_query_ms": first_ms,
        "query_p50_ms": percentile(took_ms, 50),
        "query_p99_ms": percentile(took_ms, 99),
    }


def _has_key(probe: Probe, key: str) -> bool:
    now_ms = time.time_ns() // 1_000_000
    fields = {"topic": TOPIC, "key": key, "maxNum": "32"}
    answer = probe.ask_any(
        QUERY_MESSAGE, fields | {"beginTimestamp": "0", "endTimestamp": str(now_ms + 60_000)}
    )
    return answer == 0


def measure_catch_up(name: str, backlog: int) -> Figures:
    """Read a backlog with a stock consumer: after a restart without the store in the page cache, and again."""
    durations = LoadDurations(backlog=backlog)
    with _local_endpoint(name, {}) as endpoint:
        fill_backlog(endpoint, durations)
        endpoint.stop()
        drop_from_page_cache(endpoint.store)
        endpoint.start()
        cold = read_backlog_once(endpoint, durations)
        return {"catch_up_cold": cold, "catch_up_warm": read_backlog_once(endpoint, durations)}


def drop_from_page_cache(folder: Path) -> None:
    """Write the files of a folder to the disk and drop them from the page cache. No process may have them mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def measure_retention(name: str, seconds: int) -> Figures:
    """Send for a while with room on the disk, and on a disk so full that old files are deleted all the time.

    Return nothing where no small disk can be mounted.
    """
    kept_ms, _, _ = _send_for(name, seconds, None)
    try:
        with small_disk() as disk:
            deleting_ms, deleted, refusals = _send_for(name, seconds, disk)
    except (OSError, subprocess.CalledProcessError) as error:
        click.echo(f"retention is not measured, because no small disk can be mounted: {error}", err=True)
        return {}
    if not deleted:
        raise LoadFailed("no file was deleted; the sends were too few or too short")
    return {
        "kept_p50_ms": percentile(kept_ms, 50),
        "kept_p99_ms": percentile(kept_ms, 99),
        "deleting_p50_ms": percentile(deleting_ms, 50),
        "deleting_p99_ms": percentile(deleting_ms, 99),
        "deleting_max_ms": max(deleting_ms),
        "files_deleted": deleted,
        "refusals": refusals,
    }


def _send_for(name: str, seconds: int, disk: Path | None) -> tuple[list[float], int, int]:
    """Return how long each send took in ms, the commit log files deleted, and how often sends were refused."""
    took_ms: list[float] = []
    refusals = 0
    queues = cycle(QUEUES)
    endpoint = _local_endpoint(name, SETTINGS)
    if disk is not None:
        endpoint.directory = disk / "server"
    with endpoint:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                with PipelinedSender(endpoint.broker, RETENTION_DEPTH) as sender:
                    while time.monotonic() < end:
                        took_ms += (
                            duration_s * 1000
                            for duration_s in sender.send_all(islice(queues, 1000), LARGE_BODY)
                        )
            except SendRefused:
                refusals += 1
                time.sleep(CLEAN_INTERVAL_MS / 1000)  # as long as the broker takes to look at the disk again
        names = [path.name for path in (endpoint.store / "commitlog").iterdir() if path.name.isdecimal()]
        return took_ms, int(min(names)) // FILE_BYTES, refusals


@contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a disk of DISK_BYTES during the block, most of which is used. Raises OSError, CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="rocketmq-bench-disk-") as folder:
        image, mount_point = Path(folder) / "image", Path(folder) / "disk"
        mount_point.mkdir()
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(mount_point)], check=True, capture_output=True)
        try:
            with (mount_point / "ballast").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
            yield mount_point
        finally:
            subprocess.run(["umount", "-l", str(mount_point)], check=False, capture_output=True)


if __name__ == "__main__":
    main()
