"""The pipeline `reconcile`: find the differences between a primary and its mirror, by topic and hour.

docs/how-to/spark/reconcile.md defines the findings. Bodies and property values never leave the tasks that read them,
and only a bounded number of samples is collected on the driver. `readiness.py` turns the result into a verdict.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark.options import Option, boolean, choice, integer, names, parse_time_ms, text
from spark.pipelines.config import Config
from spark.pipelines.job import Job, Pipeline, Section, Summary
from spark.reconciling.counts import COUNTED, count_findings, list_findings, sample_findings
from spark.reconciling.digests import (
    ORDERS,
    digest_messages,
    ignored_properties,
    user_topics,
    waited_elsewhere,
)
from spark.reconciling.order_sequences import MAX_RUN_MESSAGES, find_reordered
from spark.reconciling.pairs import KINDS, ComparisonRules, classify_pairs, drop_expired, pair_messages
from spark.reconciling.result import ReconcileResult, conditions_parser, iso_time
from spark.reconciling.sides import SIDE, ComparisonSide, ReadWindow
from toolkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_TOPICS: Final = 10_000
MAX_HOURS: Final = 1_000
MAX_SAMPLES: Final = 1_000
"""Limits of the rows that the driver collects; the tables that a run writes are complete."""
MAX_ROWS_SHOWN: Final = 20


FAIL_IF: Final = ",".join(["primary<1", *(f"{kind}>0" for kind in KINDS)])

RECONCILE: Final = (
    Option("topics", names, (), "Topics to compare. Default: all user topics."),
    Option(
        "retryTopics",
        boolean,
        False,
        "Also compare retry and dead-letter topics, which an rmq-gateway target has as well.",
    ),
    Option(
        "offsetsPreserved",
        boolean,
        False,
        "The target preserves the primary's queue offsets (the gateway's `kind = \"ours\"`): report differing offsets.",
    ),
    Option(
        "from",
        parse_time_ms,
        None,
        "Judge what the primary stored at or after this time: ms since 1970, or ISO 8601.",
    ),
    Option("until", parse_time_ms, None, "Judge what the primary stored before this time."),
    Option(
        "asOf",
        parse_time_ms,
        None,
        "Time at which both sides were read. Default: now, or that of the newest message if the primary is a table.",
    ),
    Option(
        "settleMs",
        integer(0),
        10_000,
        "Messages stored within this time before `asOf` may still be in transit and are not judged, ms.",
    ),
    Option(
        "lateAfterMs",
        integer(0),
        60_000,
        "A message stored at the target later than this after the primary is late, ms.",
    ),
    Option(
        "orderBy",
        choice(*ORDERS),
        "auto",
        "Key by which messages are ordered; auto: sharding key, else first key, else queue.",
    ),
    Option("ignoreProperties", names, (), "Additional properties that may differ."),
    Option(
        "maxDisorderedRun",
        integer(1),
        MAX_RUN_MESSAGES,
        "Maximum length of a run of disordered messages that a worker holds in memory, messages.",
    ),
)
OUTPUT: Final = (
    Option("json", text, None, "File for the result as JSON, the input of `readiness`."),
    Option(
        "path", text, None, "Folder for the tables `counts` and `samples` (Parquet), replaced at each run."
    ),
    Option("faults", boolean, False, "Also write the table `faults`, with every finding."),
    Option("samples", integer(0, 1000), 10, "Number of samples of each topic, hour and kind."),
    Option(
        "failIf",
        conditions_parser(COUNTED),
        conditions_parser(COUNTED)(FAIL_IF),
        f"Conditions for exit code 3, separated by commas. Default: `{FAIL_IF}`.",
    ),
)


def run(job: Job) -> Summary:
    """Compare, write the findings, and sum them up."""
    result = compare_sides(job)
    result.apply_conditions(job.config["output"]["failIf"])
    file = job.config["output"]["json"]
    if file:
        Path(file).write_text(json.dumps(result.to_value(), indent=1) + "\n")
    return build_summary(result)


def compare_sides(job: Job) -> ReconcileResult:
    """Read both sides, find all differences, and write the configured tables."""
    output = job.config["output"]
    pairs, result = _classified_pairs(job)
    with job.timed_step("reading and pairing"):
        # Read once, so that all steps below see the same messages, and plans stay short.
        judged = drop_expired(pairs.localCheckpoint()).persist()
    out_of_order = find_reordered(judged, job.config["reconcile"]["maxDisorderedRun"]).persist()
    counts = count_findings(judged, out_of_order).persist()
    findings = list_findings(judged, out_of_order)
    examples = sample_findings(findings, output["samples"])
    try:
        with job.timed_step("comparing"):
            _collect_counts(counts, result)
        with job.timed_step("samples"):
            result.samples = _collect_rows(examples.orderBy("topic", "hour", "kind").limit(MAX_SAMPLES))
        if output["path"]:
            with job.timed_step("writing"):
                _write_tables(
                    output["path"], {"counts": counts.drop("firstMs", "lastMs"), "samples": examples}
                )
                if output["faults"]:
                    _write_tables(output["path"], {"faults": findings})
    finally:
        for frame in (counts, out_of_order, judged):
            frame.unpersist()
    return result


def _classified_pairs(job: Job) -> "tuple[DataFrame, ReconcileResult]":
    """Return classified pairs, and a result that has the settings and times of the comparison but no counts yet."""
    settings = job.config["reconcile"]
    sides = [ComparisonSide(name, job.config[name], job.option_texts(name)) for name in ("primary", "target")]
    captured = any(side.is_capture for side in sides)
    as_of_ms = settings["asOf"] or (None if sides[0].is_table else _now_ms())
    frames = [_read_side(job, side) for side in sides]
    if as_of_ms is None:
        as_of_ms = _newest_ms(frames[0])
    until_ms = min(as_of_ms - settings["settleMs"], settings["until"] or as_of_ms)
    offsets_preserved = settings["offsetsPreserved"]
    late_ms = None if offsets_preserved or captured else settings["lateAfterMs"]
    rules = ComparisonRules(until_ms, settings["from"] or 0, offsets_preserved, late_ms)
    ignored = ignored_properties(offsets_preserved, captured, settings["ignoreProperties"])
    digests = []
    for messages in frames:
        user_messages = user_topics(messages, settings["retryTopics"])
        user_messages = user_messages.where(~waited_elsewhere()) if captured else user_messages
        digests.append(
            digest_messages(
                user_messages,
                ignored,
                settings["orderBy"],
                offsets_preserved=offsets_preserved and not captured,
            )
        )
    return classify_pairs(pair_messages(*digests), rules), ReconcileResult(
        _now_ms(), as_of_ms, until_ms, settings["from"], offsets_preserved, late_ms
    )


def _read_side(job: Job, side: ComparisonSide) -> "DataFrame":
    return side.read_messages(job.session, _read_window(job.config["reconcile"]))


def _read_window(settings: Mapping[str, Any]) -> ReadWindow:
    """Return a window with a margin at both ends, since a message is not stored on both sides at the same time."""
    margin_ms = settings["settleMs"] + settings["lateAfterMs"]
    first, last = settings["from"], settings["until"]
    return ReadWindow(
        settings["topics"],
        None if first is None else max(0, first - margin_ms),
        None if last is None else last + margin_ms,
        settings["retryTopics"],
    )


def _newest_ms(messages: "DataFrame") -> int:
    from pyspark.sql import functions as f

    newest = messages.agg(f.max(f.unix_millis("storeTimestamp")).alias("newest")).first()
    return int(newest["newest"] or 0) + 1 if newest is not None else 0


def _now_ms() -> int:
    return round(time.time() * 1000)


def _collect_counts(counts: "DataFrame", result: ReconcileResult) -> None:
    from pyspark.sql import functions as f

    sums = [f.sum(name).alias(name) for name in COUNTED]
    times = [f.min("firstMs").alias("firstMs"), f.max("lastMs").alias("lastMs")]
    for row in counts.groupBy("topic").agg(*sums, *times).orderBy("topic").limit(MAX_TOPICS).collect():
        values = row.asDict()
        result.topics[row["topic"]] = {name: int(values[name]) for name in COUNTED}
        result.times[row["topic"]] = values["firstMs"], values["lastMs"]
    has_findings = sum((f.col(kind) for kind in KINDS[1:]), f.col(KINDS[0])) > 0
    hours = counts.where(has_findings).orderBy("topic", "hour").limit(MAX_HOURS)
    result.hours = _collect_rows(hours.select("topic", "hour", *COUNTED))


def _collect_rows(frame: "DataFrame") -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _write_tables(path: str, tables: "dict[str, DataFrame]") -> None:
    for name, table in tables.items():
        table.write.mode("overwrite").parquet(f"{path.rstrip('/')}/{name}")


def build_summary(result: ReconcileResult) -> Summary:
    """Return the summary: differences by topic and hour, and examples."""
    columns = [name for name in COUNTED if name in ("primary", "target", "same") or result.count_totals[name]]
    value = result.to_value()
    by_topic = [
        [topic, *(counts[name] for name in columns)] for topic, counts in sorted(result.topics.items())
    ]
    sections = [Section("By topic", ["topic", *columns], by_topic)]
    if value["hours"]:
        hours = [[hour["topic"], hour["hour"], *(hour[name] for name in columns)] for hour in value["hours"]]
        sections.append(
            Section("Hours with faults (UTC)", ["topic", "hour", *columns], hours[:MAX_ROWS_SHOWN])
        )
    if value["samples"]:
        sections.append(
            Section("Examples", ["topic", "kind", "message", "where"], _example_rows(value["samples"]))
        )
    figures = {
        "judged": f"{iso_time(result.from_ms) or 'everything'} to {iso_time(result.until_ms)}",
        **{name: result.count_totals[name] for name in COUNTED},
        "failed": "; ".join(result.failed) or "none",
    }
    if not result.count_totals["primary"] and not result.finding_count:
        return Summary("Nothing was compared", figures, sections, ExitCode.NOTHING)
    title = (
        "Primary and target are the same"
        if not result.finding_count
        else f"{result.finding_count:,} findings"
    )
    return Summary(title, figures, sections, ExitCode.REFUSED if result.failed else ExitCode.DONE)


def _example_rows(samples: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [sample["topic"], sample["kind"], sample["msgId"], _describe_positions(sample)]
        for sample in samples[:MAX_ROWS_SHOWN]
    ]


def _describe_positions(sample: dict[str, Any]) -> str:
    """Describe queue and offset on both sides, and the changed properties."""
    positions = [
        f"{side} {sample[f'{side}Broker']} {sample[f'{side}QueueId']}:{sample.get(f'{side}Offset', '?')}"
        for side in ("primary", "target")
        if f"{side}QueueId" in sample
    ]
    return ", ".join([*positions, *([sample["detail"]] if "detail" in sample else [])])


def check(config: Config) -> None:
    """Check both sides. Raises OptionError."""
    window = _read_window(config.values["reconcile"])
    for name in ("primary", "target"):
        ComparisonSide(name, config.values[name], config.texts[name]).check_options(window)


PIPELINE = Pipeline(
    "reconcile",
    "Find differences between a primary and its mirror: missing, extra, duplicated, reordered, changed, late messages.",
    {"primary": SIDE, "target": SIDE, "reconcile": RECONCILE, "output": OUTPUT},
    run,
    check=check,
)
