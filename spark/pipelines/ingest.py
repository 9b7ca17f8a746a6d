"""The pipeline `ingest`: write topics to tables, each message once, by topic and UTC day, with typed bodies.

Each micro-batch is appended to the table `messages`; topics of `[bodies.<topic>]` go to tables of their own, and rows
whose body does not match its schema go to `quarantine`, with the reason.

Theory of operation: the checkpoint fixes which offsets belong to a batch id, and a table accepts each (query id,
batch id) once. After a crash the same command is run again: Spark repeats the last batch under its old id, and tables
that already have that batch ignore it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spark.errors import OptionError, SparkRocketmqError
from spark.options import Option, boolean, choice, text
from spark.pipelines.body_schemas import BODY_OPTIONS, BodySchema, parse_bodies, schema_from_options
from spark.pipelines.config import Config
from spark.pipelines.job import Job, Pipeline, QueryTotals, Section, Summary
from spark.pull.read_spec import RANGES_SCHEMA, ReadSpec
from spark.source.options import OPTIONS as SOURCE_OPTIONS
from spark.source.options import SOURCE, read_spec, refuse_batch_options, source_options
from spark.tables import FORMATS, AppendResult, Table, open_table
from spark.tables.layout import by_day
from toolkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark.pull.unread import Unread

MESSAGES: Final = "messages"
QUARANTINE: Final = "quarantine"
REQUIRED_COLUMNS: Final = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
"""Columns that every table needs."""

MAX_START_ATTEMPTS: Final = 5
WORKER_NOT_STARTED: Final = "Python worker failed to connect back"

TABLE: Final = (
    Option("path", text, None, "Directory (or URI) below which the tables are."),
    Option(
        "format",
        choice(*FORMATS),
        "auto",
        "`delta`; `directory`: plain Parquet, one directory per batch; `auto`: the existing format, else Delta "
        "if it is installed, else directories.",
    ),
    Option(
        "checkpoint",
        text,
        None,
        "Directory of Spark's checkpoint. Default: `_checkpoint` below the path. It belongs to the tables: never "
        "delete one of them, or restore it to an older state, without the other.",
    ),
)
RUN: Final = (
    Option(
        "every",
        text,
        "30 seconds",
        "Interval between batches, in Spark's syntax; a longer one means fewer files.",
    ),
    Option(
        "availableNow",
        boolean,
        False,
        "Ingest what is available now, in as many batches as needed, and exit.",
    ),
    Option("failOnBadBodies", boolean, False, "Exit with code 3 if rows were quarantined."),
)


@dataclass(slots=True)
class IngestTally:
    """Totals of a run: rows by table and topic, and by batch."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)
    batches: Counter[int] = field(default_factory=Counter)
    files: int = 0
    size_bytes: int = 0
    already_present: int = 0

    def add_result(self, table: str, batch_id: int, result: AppendResult) -> None:
        self.batches[batch_id] += sum(result.rows.values())
        self.rows.setdefault(table, Counter()).update(result.rows)
        self.files += result.files
        self.size_bytes += result.size_bytes
        self.already_present += result.already_present


@dataclass(slots=True)
class Ingest:
    """Appends micro-batches to tables. Spark calls it in the driver, one batch after the other."""

    root: str
    format: str
    checkpoint: str
    bodies: Mapping[str, BodySchema]
    spec: ReadSpec
    tally: IngestTally = field(default_factory=IngestTally)
    app_id: str | None = None

    def __call__(self, frame: "DataFrame", batch_id: int) -> None:
        from spark.pull.unread import Unread

        if self.app_id is None:
            self.app_id = query_id(frame.sparkSession, self.checkpoint)
        unread = Unread(frame, self.spec)
        if not self.bodies:
            self._append_rows(MESSAGES, batch_id, unread)
            return
        # Persisted, since each table takes its part of the rows in a write of its own.
        parsed = parse_bodies(by_day(unread.messages()), self.bodies).persist()
        try:
            for name, part in split_by_table(parsed, self.bodies).items():
                self._append_rows(name, batch_id, part)
        finally:
            parsed.unpersist()

    def _append_rows(self, name: str, batch_id: int, rows: "DataFrame | Unread") -> None:
        assert self.app_id is not None
        result = self.open_table(name, rows.sparkSession).append(self.app_id, batch_id, rows)
        self.tally.add_result(name, batch_id, result)

    def open_table(self, name: str, session: "SparkSession") -> Table:
        """Open a table below the root."""
        return open_table(self.root, name, self.format, session)


def query_id(session: "SparkSession", checkpoint: str) -> str:
    """Return the id of a checkpoint's query: new with each new checkpoint, the same after each restart."""
    lines = session.read.text(f"{checkpoint}/metadata").collect()
    identifier: str = json.loads("".join(row[0] for row in lines))["id"]
    return identifier


def split_by_table(parsed: "DataFrame", bodies: Mapping[str, BodySchema]) -> dict[str, "DataFrame"]:
    """Return the rows of each table from the result of `parse_bodies`; each row goes to exactly one."""
    from pyspark.sql import functions as f

    values = {body.value_column for body in bodies.values()}
    matches = f.col("reason").isNull()
    has_own_table = f.col("topic").isin(list(bodies))
    rows_by_table = {
        QUARANTINE: parsed.where(~matches).drop(*values),
        MESSAGES: parsed.where(matches & ~has_own_table).drop("reason", *values),
    }
    for body in bodies.values():
        rows = parsed.where(matches & (f.col("topic") == body.topic))
        rows = rows.drop("reason", *(values - {body.value_column}), *(() if body.keep_body else ("body",)))
        rows_by_table[body.table] = rows.withColumnRenamed(body.value_column, "value")
    return rows_by_table


def run(job: Job) -> Summary:
    """Ingest until the query ends. Raises OptionError, and the error the query failed with."""
    ingest = prepare_ingest(job)
    session = job.session
    for body in ingest.bodies.values():
        body.check_schema()
    options = {
        key: value for key, value in job.option_texts("source").items() if key not in ("schema", "columns")
    }
    stream = session.readStream.format(SOURCE).options(**options, schema=RANGES_SCHEMA).load()
    settings = job.config["run"]
    trigger: dict[str, Any] = {"processingTime": settings["every"]}
    if settings["availableNow"]:
        trigger = {"availableNow": True}
    writer = stream.writeStream.queryName("ingest").option("checkpointLocation", ingest.checkpoint)
    writer = writer.foreachBatch(ingest).trigger(**trigger)
    totals = follow_with_restarts(job, writer.start, ingest.tally.batches)
    return build_summary(ingest, totals, session, settings["failOnBadBodies"])


def check_ingest(config: Config) -> tuple[dict[str, BodySchema], ReadSpec]:
    """Check the configuration without Spark; return body schemas and reading options. Raises OptionError."""
    table = config.values["table"]
    if not table["path"]:
        raise OptionError("[table]: path is required, the directory below which the tables are")
    bodies = {
        topic: schema_from_options(topic, values) for topic, values in config.tables_below("bodies").items()
    }
    names = Counter([MESSAGES, QUARANTINE, *(body.table for body in bodies.values())])
    duplicates = [name for name, count in names.items() if count > 1]
    if duplicates:
        raise OptionError(
            f"[bodies]: more than one table is named {duplicates[0]}: set table to another name"
        )
    values = source_options(config.texts["source"])
    refuse_batch_options(values)
    spec = read_spec(values)
    missing_columns = [
        name for name in REQUIRED_COLUMNS if name not in (column.name for column in spec.selected_columns())
    ]
    if missing_columns:
        raise OptionError(f"[source]: the table requires the columns {', '.join(missing_columns)}")
    return bodies, spec


def prepare_ingest(job: Job) -> Ingest:
    """Build the appending of batches from the configuration. Raises OptionError, TableError."""
    bodies, spec = check_ingest(job.settings)
    table = job.config["table"]
    checkpoint = table["checkpoint"] or f"{table['path'].rstrip('/')}/_checkpoint"
    ingest = Ingest(table["path"], table["format"], checkpoint, bodies, spec)
    ingest.open_table(MESSAGES, job.session)
    return ingest


def follow_with_restarts(
    job: Job, start: "Callable[[], StreamingQuery]", rows: Mapping[int, int]
) -> QueryTotals:
    """Wait for the query to end. Raises SparkRocketmqError if Spark's own process dies.

    Spark gives a source's Python process ten seconds to start, and has no option for it; on a busy machine another
    attempt helps.
    """
    from py4j.protocol import Py4JNetworkError
    from pyspark.errors import StreamingQueryException

    for _ in range(MAX_START_ATTEMPTS - 1):
        try:
            return job.follow_query(start(), "ingest", rows)
        except StreamingQueryException as error:
            if WORKER_NOT_STARTED not in str(error):
                raise
            job.print_progress(f"ingest: {WORKER_NOT_STARTED}, restarting")
        except (Py4JNetworkError, ConnectionError) as error:
            raise SparkRocketmqError(f"Spark's process died: {error}") from error
    return job.follow_query(start(), "ingest", rows)


def build_summary(ingest: Ingest, totals: QueryTotals, session: "SparkSession", fail_on_bad: bool) -> Summary:
    """Sum up the run, by topic and by table."""
    tally = ingest.tally
    bad = tally.rows.get(QUARANTINE, Counter[str]())
    good: Counter[str] = sum((rows for name, rows in tally.rows.items() if name != QUARANTINE), Counter())
    topics = [(topic, good[topic] + bad[topic], bad[topic]) for topic in sorted(good | bad)]
    tables = [
        (name, rows.total(), table.format, table.path)
        for name, rows in sorted(tally.rows.items())
        if (table := ingest.open_table(name, session))
    ]
    figures = {
        "rows": good.total() + bad.total(),
        "batches": totals.batches,
        "quarantined": bad.total(),
        "already in the table": tally.already_present,
        "files": tally.files,
        "MB": round(tally.size_bytes / 1e6, 3),
        "behind": totals.behind,
        "seconds": round(totals.elapsed_s, 1),
    }
    sections = (
        Section("topics", ("topic", "rows", "quarantined"), topics),
        Section("tables", ("table", "rows", "format", "path"), tables),
    )
    refused = fail_on_bad and bad.total() > 0
    return Summary("ingest", figures, sections, ExitCode.REFUSED if refused else ExitCode.DONE)


PIPELINE: Final = Pipeline(
    "ingest",
    "Write topics to tables, each message exactly once, even after crashes and for readers other than Spark.",
    {"source": SOURCE_OPTIONS, "table": TABLE, "run": RUN, "bodies.*": BODY_OPTIONS},
    run,
    check=check_ingest,
)
