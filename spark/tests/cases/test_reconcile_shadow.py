"""`reconcile` and `readiness` on traffic that a shadow gateway mirrored from an official primary, partly wrong.

What has to be found is known from what was planted, and for lateness from the times both brokers stored.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from codec.message import Message
from spark import register
from spark.pipelines.config import load_config
from spark.pipelines.job import Job, Pipeline, Summary
from spark.pipelines.readiness import PIPELINE as READINESS
from spark.pipelines.reconcile import PIPELINE as RECONCILE
from spark.reconciling.pairs import KINDS
from spark.tests.cases.mirrored import BILLS, LATE_MS, MIXED, ORDERS, TOPICS, Mirrored

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

EVERY = 1000
HOUR_MS = 3_600_000


def run(spark: SparkSession, pipeline: Pipeline, **sets: Any) -> Summary:
    """Run a pipeline as its command does, with settings `table__key=value`."""
    register(spark)
    given = [f"{name.replace('__', '.')}={value}" for name, value in sets.items()]
    job = Job(spark, load_config(pipeline.tables, None, given), Console(quiet=True))
    return pipeline.run(job)


def reconcile(spark: SparkSession, **sets: Any) -> Summary:
    """Compare the newest messages as well, as everything has arrived."""
    return run(spark, RECONCILE, reconcile__settleMs=0, **sets)


def faults(path: Path) -> dict[tuple[str, str], list[str]]:
    """Ids of the table `faults`, by topic and kind."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in pq.read_table(path / "faults").to_pylist():
        found.setdefault((row["topic"], row["kind"]), []).append(row["msgId"])
    return {key: sorted(ids) for key, ids in found.items()}


def expected(traffic: Mirrored) -> dict[tuple[str, str], list[str]]:
    """Return the planted faults; on a busy machine more messages may be late by the brokers' own clocks."""
    planted = traffic.planted
    wrong = {
        "missing": planted.lost,
        "extra": planted.extra,
        "duplicated": planted.duplicated,
        "reordered": planted.reordered,
        "changedBody": planted.changed_body,
        "changedProperties": planted.changed_properties,
    }
    found = {(ORDERS, kind): sorted(ids) for kind, ids in wrong.items()}
    for topic in TOPICS:
        late = late_ones(traffic, topic)
        if late:
            found[topic, "late"] = late
    assert set(planted.late) <= set(found[ORDERS, "late"])
    return found


def late_ones(traffic: Mirrored, topic: str) -> list[str]:
    stored: dict[str, int] = {}
    for each in reversed(traffic.stored(traffic.target.broker, topic)):
        stored[key(each)] = each.store_timestamp
    primary = traffic.stored(traffic.primary.broker, topic)
    return sorted(key(each) for each in primary if stored.get(key(each), 0) - each.store_timestamp > LATE_MS)


def key(message: Message) -> str:
    assert message.unique_key is not None
    return message.unique_key


def test_exactly_what_was_planted_is_found_and_the_verdict_says_so(
    spark: SparkSession, traffic: Mirrored, tmp_path: Path
) -> None:
    result = tmp_path / "reconcile.json"
    summary = reconcile(
        spark,
        primary__nameServer=traffic.primary.namesrv,
        target__nameServer=traffic.target.namesrv,
        reconcile__lateAfterMs=LATE_MS,
        output__json=result,
        output__path=tmp_path,
        output__faults="true",
        output__samples=EVERY,
    )
    wrong = expected(traffic)
    assert faults(tmp_path) == wrong
    content = json.loads(result.read_text())
    assert set(content["topics"]) == set(TOPICS)
    for topic in TOPICS:
        counts = {kind: content["topics"][topic][kind] for kind in KINDS}
        assert counts == {kind: len(wrong.get((topic, kind), [])) for kind in KINDS}, topic
    by_hour(traffic, tmp_path, wrong)
    samples = {(each["topic"], each["kind"], each["msgId"]) for each in content["samples"]}
    assert samples == {(topic, kind, each) for (topic, kind), ids in wrong.items() for each in ids}
    names = {each["msgId"]: each["detail"] for each in content["samples"] if "detail" in each}
    assert names == dict(zip(traffic.planted.changed_properties, ("region", "added,region"), strict=True))
    assert summary.exit_code == 3
    assert "missing>0 (it is 8)" in content["failed"]
    summary.print_tables(Console(quiet=True))
    not_ready(spark, result)


def by_hour(traffic: Mirrored, path: Path, wrong: dict[tuple[str, str], list[str]]) -> None:
    """Missing messages count for the hour in which the primary stored them."""
    lost = set(wrong[ORDERS, "missing"])
    hours = Counter(
        each.store_timestamp // HOUR_MS * HOUR_MS
        for each in traffic.stored(traffic.primary.broker, ORDERS)
        if each.unique_key in lost
    )
    rows = [row for row in pq.read_table(path / "counts").to_pylist() if row["topic"] == ORDERS]
    assert {round(row["hour"].timestamp() * 1000): row["missing"] for row in rows if row["missing"]} == hours


def not_ready(spark: SparkSession, result: Path) -> None:
    """Expect NOT READY because of one topic, while the others are READY."""
    verdict = result.with_name("verdict.json")
    summary = run(
        spark, READINESS, readiness__reconcile=result, readiness__json=verdict, readiness__lateShareMax=1
    )
    assert (summary.title, summary.exit_code) == ("NOT READY", 3)
    topics = json.loads(verdict.read_text())["topics"]
    assert {name: each["verdict"] for name, each in topics.items()} == {
        ORDERS: "NOT READY",
        BILLS: "READY",
        MIXED: "READY",
    }
    reasons = topics[ORDERS]["reasons"]
    for said in (
        "8 missing at the target (at most 0)",
        "6 at the target only (at most 0)",
        "3 more often at the target than at the primary (at most 0)",
        "5 out of order at the target (at most 0)",
        "3 with another body (at most 0)",
        "2 with other properties (at most 0)",
    ):
        assert said in reasons
    clean = run(
        spark,
        READINESS,
        readiness__reconcile=result,
        readiness__topics=f"{BILLS},{MIXED}",
        readiness__lateShareMax=1,
    )
    assert (clean.title, clean.exit_code) == ("READY", 0)


def test_a_target_that_keeps_offsets_is_the_same_and_ready(
    spark: SparkSession, traffic: Mirrored, tmp_path: Path
) -> None:
    result = tmp_path / "reconcile.json"
    summary = reconcile(
        spark,
        primary__nameServer=traffic.primary.namesrv,
        target__nameServer=traffic.kept.namesrv,
        reconcile__offsetsPreserved="true",
        output__json=result,
    )
    content = json.loads(result.read_text())
    assert summary.exit_code == 0, content
    assert (content["totals"]["same"], content["totals"]["primary"], content["hours"]) == (494, 494, [])
    verdict = run(spark, READINESS, readiness__reconcile=result)
    assert (verdict.title, verdict.exit_code) == ("READY", 0)


def test_what_the_gateway_captured_is_a_side_as_well(
    spark: SparkSession, traffic: Mirrored, tmp_path: Path
) -> None:
    """Compare captured sends with the target, and the target's captured answers with the primary."""
    reconcile(
        spark,
        primary__kind="capture",
        primary__path=traffic.captures,
        target__nameServer=traffic.target.namesrv,
        output__path=tmp_path,
        output__faults="true",
    )
    wrong = expected(traffic)
    assert faults(tmp_path) == {place: ids for place, ids in wrong.items() if place[1] != "late"}
    summary = reconcile(
        spark,
        primary__nameServer=traffic.primary.namesrv,
        target__kind="capture",
        target__path=traffic.captures,
        reconcile__topics=f"{BILLS},{MIXED}",
    )
    # of Mixed only the batch is sent and stored at once
    figures = summary.figures
    assert (figures["failed"], figures["same"], figures["primary"]) == ("none", 248, 248), summary.as_json()


def test_an_ingested_table_is_a_side_as_well(spark: SparkSession, traffic: Mirrored, tmp_path: Path) -> None:
    register(spark)
    source = spark.read.format("rocketmq").option("nameServer", traffic.primary.namesrv)
    source.option("subscribe", ORDERS).load().write.parquet(str(tmp_path / "primary"))
    reconcile(
        spark,
        primary__kind="table",
        primary__format="parquet",
        primary__path=tmp_path / "primary",
        target__nameServer=traffic.target.namesrv,
        reconcile__topics=ORDERS,
        reconcile__lateAfterMs=LATE_MS,
        output__path=tmp_path,
        output__faults="true",
    )
    # The table ends with its newest message: what the target stored after that is too new to be judged.
    newest_ms = max(each.store_timestamp for each in traffic.stored(traffic.primary.broker, ORDERS))
    target = {key(each): each for each in traffic.stored(traffic.target.broker, ORDERS)}
    wrong = {place: ids for place, ids in expected(traffic).items() if place[0] == ORDERS}
    for place in ((ORDERS, "extra"), (ORDERS, "duplicated")):
        wrong[place] = [each for each in wrong[place] if target[each].store_timestamp <= newest_ms]
    assert faults(tmp_path) == {place: ids for place, ids in wrong.items() if ids}
