"""Building blocks of a pipeline: its declaration, the running job, a streaming query's totals, and the summary.

    def run(job: Job) -> Summary:
        frame = job.session.read.format("rocketmq").options(**job.option_texts("source")).load()
        with job.timed_step("counting"):
            count = frame.count()
        return Summary("Counted", {"messages": count})

    PIPELINE = Pipeline("count", "Counts messages.", {"source": OPTIONS}, run)

Importing this module imports neither pyspark nor rich.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark.pipelines.config import Config, Tables
from toolkit.exit_codes import ExitCode
from toolkit.printable import LINES_AND_TABS, printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console

POLL_INTERVAL_S = 1
"""Interval at which a streaming query's progress is read."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A declared pipeline: the `tables` of its TOML file, and the function that runs it. `doc` may have several lines.

    `check` raises OptionError for a configuration that cannot work. It runs before Spark starts, which takes seconds;
    its result is not used. A pipeline that only reads other pipelines' results gets no session (`on_spark` false).
    """

    name: str
    doc: str
    tables: Tables
    run: "Callable[[Job], Summary]"
    on_spark: bool = True
    check: Callable[[Config], object] | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A table below a summary's figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(slots=True)
class Summary:
    """Result of a run. `figures` are names and JSON values, in display order.

    `exit_code` is REFUSED when the pipeline's verdict is negative, NOTHING when it cannot tell.
    """

    title: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    exit_code: ExitCode = ExitCode.DONE

    def as_json(self) -> str:
        """Return everything as one JSON object."""
        sections = {
            section.title: [dict(zip(section.columns, row, strict=True)) for row in section.rows]
            for section in self.sections
        }
        content = {"title": self.title, "exitCode": self.exit_code, **self.figures, **sections}
        return json.dumps(content, default=str)

    def print_tables(self, console: "Console") -> None:
        """Print everything as tables."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self.title, show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, value in self.figures.items():
            table.add_row(Text(name), Text(_format_value(value)))
        console.print(table)
        for section in self.sections:
            below = Table(*section.columns, title=section.title, title_justify="left")
            for row in section.rows:
                below.add_row(*(Text(_format_value(cell)) for cell in row))
            console.print(below)


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return printable(str(value), LINES_AND_TABS)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


class QueryTotals:
    """Totals of a query's batches. A batch counts once, however often Spark reports it.

    `rows_by_batch` replaces Spark's counts, for queries whose rows are not messages.
    """

    def __init__(self, rows_by_batch: Mapping[int, int] | None = None) -> None:
        self._rows_by_batch = rows_by_batch
        self.batches = 0
        self.rows = 0
        self.rows_per_second = 0.0
        self.behind: int | None = None
        self._newest = -1
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the totals were created."""
        return time.monotonic() - self._began_s

    def add_progress(self, reports: Iterable[Any]) -> bool:
        """Add the batches that were not counted yet; return whether there were any."""
        new_reports = [report for report in reports if report["batchId"] > self._newest]
        for report in new_reports:
            self._newest = report["batchId"]
            rows = self._count_rows(report)
            self.batches += 1 if rows else 0
            self.rows += rows
            self.rows_per_second = 1000 * rows / max(1, report["durationMs"].get("triggerExecution", 1))
            self.behind = messages_behind(report["sources"])
        return bool(new_reports)

    def _count_rows(self, report: Any) -> int:
        if self._rows_by_batch is not None:
            return self._rows_by_batch.get(report["batchId"], 0)
        return sum(source["numInputRows"] for source in report["sources"])

    def status_line(self) -> str:
        """Return a one-line status."""
        line = f"batch {self._newest}, {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s"
        return line if self.behind is None else f"{line}, {self.behind:,} messages behind"


def messages_behind(sources: Iterable[Any]) -> int | None:
    """Return the messages between the sources' positions and their ends, or None if a source does not report them."""
    total = 0
    for source in sources:
        end, latest = _offsets_by_queue(source["endOffset"]), _offsets_by_queue(source["latestOffset"])
        if end is None or latest is None:
            return None
        total += sum(max(0, offset - end.get(queue, offset)) for queue, offset in latest.items())
    return total


def _offsets_by_queue(text: Any) -> dict[tuple[str, ...], int] | None:
    """Return offsets by queue from a source's JSON, however it is nested."""
    try:
        content = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    return dict(_iter_leaves(content, ())) if isinstance(content, Mapping) else None


def _iter_leaves(content: Any, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], int]]:
    if isinstance(content, Mapping):
        for key, below in content.items():
            yield from _iter_leaves(below, (*path, str(key)))
    elif isinstance(content, int):
        yield path, content


@dataclass(slots=True)
class Job:
    """One run of a pipeline. `console` shows progress on standard error; the summary goes elsewhere."""

    session: "SparkSession"
    settings: Config
    console: "Console"
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def config(self) -> Mapping[str, dict[str, Any]]:
        """Typed values by table and option."""
        return self.settings.values

    def option_texts(self, table: str) -> dict[str, str]:
        """Return the given options of a table, to be passed on: `.options(**job.option_texts("source"))`."""
        return dict(self.settings.texts[table])

    def tables_below(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return typed values of the tables `[prefix.<name>]`, by name."""
        return self.settings.tables_below(prefix)

    def print_progress(self, line: str) -> None:
        """Print a line of progress, with configured secrets replaced."""
        self.console.print(
            printable(self.settings.redact_secrets(line), LINES_AND_TABS), markup=False, highlight=False
        )

    @contextmanager
    def timed_step(self, what: str) -> Iterator[None]:
        """Show that a batch step is running, and print how long it took."""
        began_s = time.monotonic()
        with self.console.status(what):
            yield
        self.print_progress(f"{what}: {time.monotonic() - began_s:.1f} s")

    def follow_query(
        self, query: "StreamingQuery", what: str, rows: Mapping[int, int] | None = None
    ) -> QueryTotals:
        """Wait for a streaming query to end, showing its batches. SIGTERM and Ctrl-C stop it gracefully.

        `rows` replaces Spark's counts of each batch's rows. Raises the error that the query failed with.
        """
        totals = QueryTotals(rows)
        with self._stopped_by_signals(), self.console.status(what) as status:
            while not query.awaitTermination(POLL_INTERVAL_S):
                if self.stopping.is_set():
                    query.stop()
                if totals.add_progress(query.recentProgress):
                    status.update(f"{what}: {totals.status_line()}")
                    if not self.console.is_terminal:
                        self.print_progress(f"{what}: {totals.status_line()}")
        totals.add_progress(query.recentProgress)
        return totals

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        def stop(_number: int, _frame: Any) -> None:
            self.stopping.set()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
