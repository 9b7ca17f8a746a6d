"""The pipeline `compact`: merge the small files of an ingest's tables into larger ones, while the ingest runs.

Takes the same file as `ingest`, and ignores its `[source]`, `[run]` and `[bodies.…]`.
"""

from typing import Final

from spark.errors import OptionError
from spark.options import Option, integer, names
from spark.pipelines.body_schemas import BODY_OPTIONS
from spark.pipelines.ingest import MESSAGES, QUARANTINE, RUN, TABLE, check_ingest, prepare_ingest
from spark.pipelines.job import Job, Pipeline, Section, Summary
from spark.source.options import OPTIONS as SOURCE_OPTIONS
from spark.tables.table import DEFAULT_KEEP_HOURS, DEFAULT_TARGET_BYTES

COMPACT: Final = (
    Option("tables", names, None, "Tables to compact, separated by commas. Default: all."),
    Option("targetMB", integer(1), DEFAULT_TARGET_BYTES >> 20, "Maximum size of a file, MiB."),
    Option(
        "keepHours",
        integer(0),
        int(DEFAULT_KEEP_HOURS),
        "Delta: how long replaced files are kept for running readers and for older versions, h.",
    ),
)


def run(job: Job) -> Summary:
    """Compact the tables. Raises OptionError for an unknown table, TableError if another process compacts one."""
    ingest = prepare_ingest(job)
    all_tables = [MESSAGES, QUARANTINE, *(body.table for body in ingest.bodies.values())]
    settings = job.config["compact"]
    selected = settings["tables"] or all_tables
    for name in selected:
        if name not in all_tables:
            raise OptionError(f"[compact]: there is no table {name}; tables: {', '.join(all_tables)}")
    rows = []
    for name in selected:
        table = ingest.open_table(name, job.session)
        with job.timed_step(f"compacting {name}"):
            result = table.compact(settings["targetMB"] << 20, settings["keepHours"])
        rows.append((name, table.format, result.files_before, result.files_after))
    files = {"files before": sum(row[2] for row in rows), "files after": sum(row[3] for row in rows)}
    return Summary("compact", files, (Section("tables", ("table", "format", "before", "after"), rows),))


PIPELINE: Final = Pipeline(
    "compact",
    "Merge the small files of ingested tables into larger ones. Takes the configuration file of the ingest.",
    {
        "compact": COMPACT,
        "source": SOURCE_OPTIONS,
        "table": TABLE,
        "run": RUN,
        "bodies.*": BODY_OPTIONS,
    },
    run,
    check=check_ingest,
)
