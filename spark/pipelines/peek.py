"""The pipeline `peek`: show the first messages of topics."""

import json
from typing import Any

from spark.options import Option, integer
from spark.pipelines.config import Config
from spark.pipelines.job import Job, Pipeline, Section, Summary
from spark.source.options import OPTIONS, SOURCE, check_batch_options

COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body")

PEEK = (
    Option("rows", integer(1, 10_000), 10, "Number of messages."),
    Option("bodyChars", integer(1), 60, "Characters shown of a body."),
)


def run(job: Job) -> Summary:
    """Read a batch with the options of `[source]`, and show its first rows."""
    settings = job.config["peek"]
    frame = job.session.read.format(SOURCE).options(**job.option_texts("source")).load()
    columns = [name for name in COLUMNS if name in frame.columns] or frame.columns
    with job.timed_step("reading"):
        messages = frame.select(*columns).limit(settings["rows"]).collect()
    rows = [[_format_cell(value, settings["bodyChars"]) for value in row] for row in messages]
    return Summary("Messages", {"shown": len(rows)}, [Section("First", columns, rows)])


def _format_cell(value: Any, chars: int) -> str | int:
    """Format a column's value; a body as text if possible."""
    if isinstance(value, int):
        return value
    if isinstance(value, bytes | bytearray):
        value = bytes(value[: 4 * chars]).decode("utf-8", "backslashreplace")
    if isinstance(value, dict | list):
        value = json.dumps(value, default=str)
    content = "" if value is None else str(value)
    return content if len(content) <= chars else f"{content[:chars]}…"


def check(config: Config) -> None:
    """Check the options of `[source]`. Raises OptionError."""
    check_batch_options(config.texts["source"])


PIPELINE = Pipeline(
    "peek",
    "Show the first messages of topics.",
    {"source": OPTIONS, "peek": PEEK},
    run,
    check=check,
)
