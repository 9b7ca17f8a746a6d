"""The pipeline `profile`: measure traffic with Spark, and write it as JSON and as an HTML page with plots."""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark.capture.options import NAME as CAPTURE
from spark.capture.options import OPTIONS as CAPTURE_OPTIONS
from spark.cluster import ClusterClient
from spark.errors import EndpointError, OptionError
from spark.options import Option, choice, integer, text
from spark.pipelines.config import Config
from spark.pipelines.ingest import MESSAGES
from spark.pipelines.job import Job, Pipeline, Section, Summary
from spark.source.options import OPTIONS as SOURCE_OPTIONS
from spark.source.options import SOURCE, check_batch_options, read_spec, source_options
from spark.tables import FORMATS, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT: Final = 1
"""Version of the JSON; it changes when the meaning of a field changes."""

TABLE: Final = (
    Option("path", text, None, "Directory below which the tables of `ingest` are."),
    Option("format", choice(*FORMATS), "auto", "Format of the tables, as `[table] format` of `ingest`."),
    Option("name", text, MESSAGES, "Name of the table."),
)
PROFILE: Final = (
    Option("title", text, "Traffic profile", "Title of the page."),
    Option("html", text, None, "File for the HTML page. Default: none is written."),
    Option("json", text, None, "File for the figures as JSON. Default: none is written."),
    Option(
        "key",
        text,
        "auto",
        "Key for the key skew: shardingKey, keys, the name of a property, or auto: the sharding key, else the keys.",
    ),
    Option(
        "topics",
        integer(1, 200),
        20,
        "Number of topics listed by name, the busiest first; all further topics are summed up as (others).",
    ),
    Option("keys", integer(1, 1000), 10, "Number of keys listed per topic."),
    Option("queues", integer(1, 1000), 64, "Number of queues listed per topic."),
    Option("clients", integer(1, 1000), 20, "Number of clients and groups listed."),
    Option("points", integer(2, 1000), 120, "Maximum number of points in time."),
)


def run(job: Job) -> Summary:
    """Measure the inputs of `[source]`, `[table]` and `[capture]`, and write the files of `[profile]`."""
    settings = job.config["profile"]
    profile = measure_traffic(job)
    if settings["json"]:
        _write_atomically(settings["json"], json.dumps(profile, indent=1))
        job.print_progress(f"figures: {settings['json']}")
    if settings["html"]:
        from spark.profiling.page import render_page

        _write_atomically(settings["html"], render_page(profile))
        job.print_progress(f"report: {settings['html']}")
    return build_summary(profile)


def measure_traffic(job: Job) -> dict[str, Any]:
    """Return the profile, as docs/how-to/spark/profile.md describes it."""
    from spark.profiling.exchange_profile import profile_exchanges
    from spark.profiling.message_profile import ProfileLimits, TimeAxis, profile_messages

    settings = job.config["profile"]
    bounds = ProfileLimits(*(settings[name] for name in ("topics", "keys", "queues", "clients", "points")))
    messages, exchanges = _read_messages(job, settings["key"]), _read_exchanges(job)
    profile: dict[str, Any] = {"format": FORMAT, "title": settings["title"], "inputs": _describe_inputs(job)}
    profile["messages"] = _profile_persisted(
        job,
        "messages",
        messages,
        lambda frame: profile_messages(frame, bounds, lambda topics: _count_queues(job, topics)),
    )
    # Messages and exchanges of the same capture share a time axis, so that their plots can be compared.
    time_axis = None
    if profile["messages"] is not None:
        time_axis = TimeAxis(*(profile["messages"][name] for name in ("from_ms", "until_ms", "step_s")))
    shared_axis = time_axis if not job.option_texts("source") and not job.config["table"]["path"] else None
    profile["exchanges"] = _profile_persisted(
        job, "exchanges", exchanges, lambda frame: profile_exchanges(frame, bounds, shared_axis)
    )
    return profile


def _count_queues(job: Job, topics: Sequence[str]) -> dict[str, int]:
    """Return the number of queues of each topic of a live cluster; nothing for other inputs."""
    if not job.option_texts("source"):
        return {}
    client = ClusterClient(read_spec(source_options(job.option_texts("source"))).endpoint)
    try:
        queues = client.find_queues(topics)
    except EndpointError:
        return {}  # a static topic, for instance; the messages were read already
    finally:
        client.close()
    return Counter(queue.topic for queue in queues)


def _read_messages(job: Job, key: str) -> "DataFrame":
    """Read messages from the live cluster, else the table, else the capture."""
    from spark.profiling.inputs import MESSAGE_COLUMNS, captured_messages, stored_messages

    reader, table = job.session.read, job.config["table"]
    if job.option_texts("source"):
        return stored_messages(reader.format(SOURCE).options(**job.option_texts("source")).load(), key)
    if table["path"]:
        opened = open_table(table["path"], table["name"], table["format"], job.session)
        return stored_messages(opened.read(job.session), key)
    options = {**job.option_texts("capture"), "rows": "messages", "columns": ",".join(MESSAGE_COLUMNS)}
    return captured_messages(reader.format(CAPTURE).options(**options).load(), key)


def _read_exchanges(job: Job) -> "DataFrame | None":
    from spark.profiling.inputs import EXCHANGE_COLUMNS

    if not job.option_texts("capture"):
        return None
    options = {**job.option_texts("capture"), "rows": "exchanges", "columns": ",".join(EXCHANGE_COLUMNS)}
    return job.session.read.format(CAPTURE).options(**options).load()


def _profile_persisted(
    job: Job, what: str, frame: "DataFrame | None", measure: "Callable[[DataFrame], dict[str, Any] | None]"
) -> dict[str, Any] | None:
    """Measure a frame whose narrow columns are persisted meanwhile, so that its source is read once."""
    from pyspark import StorageLevel

    if frame is None:
        return None
    persisted = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.timed_step(f"profile of {what}"):
            return measure(persisted)
    finally:
        persisted.unpersist()


def _describe_inputs(job: Job) -> dict[str, str]:
    """Describe the inputs without secrets."""
    texts = job.settings.redacted_texts()
    source, capture = texts["source"], texts["capture"]
    inputs = {
        "source": source.get("nameServer", ""),
        "table": job.config["table"]["path"] or "",
        "capture": capture.get("path", ""),
    }
    return {name: where for name, where in inputs.items() if where}


def _write_atomically(path: str, content: str) -> None:
    """Write a file completely or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_text(content)
    part.replace(target)


def build_summary(profile: dict[str, Any]) -> Summary:
    """Return the summary shown at the end."""
    messages, exchanges = profile["messages"], profile["exchanges"]
    figures: dict[str, Any] = {}
    sections = []
    if messages is not None:
        figures |= {
            "messages": messages["messages"],
            "bytes": messages["bytes"],
            "topics": messages["topics_seen"],
            "retry share": messages["retries"]["retry"]["share"],
            "dead-letter share": messages["retries"]["dead"]["share"],
        }
        columns = ("topic", "messages", "bytes", "size p99", "keys", "busiest key", "queues max/mean")
        rows = [
            (
                topic["topic"],
                topic["messages"],
                topic["bytes"],
                topic["size_bytes"]["p99"],
                topic["keys"]["distinct"],
                topic["keys"]["top_share"],
                topic["queues"]["max_over_mean"] if topic["queues"] else None,
            )
            for topic in messages["topics"]
        ]
        sections.append(Section("Topics", columns, rows))
    if exchanges is not None:
        sends = exchanges["sends"]
        figures |= {"exchanges": exchanges["exchanges"], "sends": sends["count"], "refused": sends["refused"]}
        rows_us = [(side, *quantiles.values()) for side, quantiles in sends["latency_us"].items()]
        sections.append(Section("Latency of sends, us", ("side", "p50", "p90", "p99", "max"), rows_us))
    return Summary(profile["title"], figures, sections)


def check(config: Config) -> None:
    """Check that there is an input, and its options. Raises OptionError."""
    if config.texts["source"]:
        check_batch_options(config.texts["source"])
    elif not config.values["table"]["path"] and not config.texts["capture"]:
        raise OptionError("profile: no input: configure [source], [table] or [capture]")


PIPELINE = Pipeline(
    "profile",
    "Describe traffic: rates, sizes, skew of keys and queues, latencies, retries, errors, clients.\n\n"
    "Messages come from [source], a live cluster, else from [table], a table of `ingest`, else from [capture], a "
    "shadow gateway's capture files; exchanges with their latencies come from [capture].",
    {"source": SOURCE_OPTIONS, "table": TABLE, "capture": CAPTURE_OPTIONS, "profile": PROFILE},
    run,
    check=check,
)
