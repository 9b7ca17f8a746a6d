"""`reconcile` finds exactly the faults planted in generated messages."""

from collections import Counter
from dataclasses import replace

from pyspark.sql import DataFrame, Row, SparkSession

from spark.reconciling.counts import COUNTED, count_findings, list_findings, sample_findings
from spark.reconciling.digests import digest_messages, ignored_properties, user_topics
from spark.reconciling.order_sequences import find_reordered
from spark.reconciling.pairs import KINDS, ComparisonRules, classify_pairs, drop_expired, pair_messages
from spark.tests.streams import BEGIN_MS, LATE_MS, SETTLED_MS, offsets, stream, table
from spark.tests.streams import Row as Stored

STREAMS = 60


def found(
    spark: SparkSession,
    primary: list[Stored],
    target: list[Stored],
    *,
    kept: bool = False,
    longest: int = 1000,
) -> tuple[DataFrame, DataFrame]:
    """Return classified pairs, and those out of order."""
    ignored = ignored_properties(kept, captured=False)
    sides = [
        digest_messages(
            user_topics(spark.createDataFrame(table(rows))), ignored, "auto", offsets_preserved=kept
        )
        for rows in (primary, target)
    ]
    rules = ComparisonRules(SETTLED_MS, offsets_preserved=kept, late_after_ms=None if kept else LATE_MS)
    judged = drop_expired(classify_pairs(pair_messages(*sides), rules).localCheckpoint()).persist()
    return judged, find_reordered(judged, longest).persist()


def named(rows: list[Row]) -> dict[str, list[tuple[str, str]]]:
    """Kinds and ids by topic."""
    by_topic: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        by_topic.setdefault(row["topic"], []).append((row["kind"], row["msgId"]))
    return {topic: sorted(each) for topic, each in by_topic.items()}


def test_in_random_streams_exactly_what_was_planted_is_found(spark: SparkSession) -> None:
    streams = [stream(seed) for seed in range(STREAMS)]
    planted = {each.primary[0].topic: each.found for each in streams}
    kinds = Counter(kind for each in streams for kind, _ in each.found)
    assert set(kinds) == set(KINDS) - {"misplaced"}
    judged, moved = found(
        spark,
        [row for each in streams for row in each.primary],
        [row for each in streams for row in each.target],
    )
    every = list_findings(judged, moved).persist()
    seen = named(every.collect())
    for topic, expected in planted.items():
        assert seen.get(topic, []) == expected, topic
    totals = Counter()
    for row in count_findings(judged, moved).collect():
        totals.update({name: row[name] for name in COUNTED})
        assert row["primary"] == row["same"] + row["changed"] + row["missing"]
        assert row["target"] == row["same"] + row["changed"] + row["extra"] + row["duplicated"]
    assert {name: totals[name] for name in kinds} == kinds
    assert totals["unsettled"]
    examples = sample_findings(every, 1).collect()
    groups = {(row["topic"], row["hour"], row["kind"]) for row in every.collect()}
    assert {(row["topic"], row["hour"], row["kind"]) for row in examples} == groups
    assert len(examples) == len(groups)


def test_places_that_matter_and_those_that_do_not(spark: SparkSession) -> None:
    """Another queue, other offsets, copies in other queues, system topics, and a run that is too long."""

    def stored(topic: str, name: str, queue: int = 0) -> Stored:
        return Stored(topic, f"{topic}-{name}", None, queue, b"body", BEGIN_MS + 1000)

    def several(topic: str, names: str) -> list[Stored]:
        return offsets([stored(topic, name) for name in names], 0)

    retried = [stored("retried", "a", 0), stored("retried", "a", 1), stored("retried", "b", 1)]
    primary = [
        *several("moved", "abc"),
        *offsets(retried, 0),
        *several("%RETRY%group", "a"),
        *several("rmq_sys_own", "a"),
        *several("RMQ_SYS_TRANS_HALF_TOPIC", "a"),
        *several("long", "abcdefgh"),
    ]
    target = [
        *offsets([stored("moved", "a"), stored("moved", "b", 1), stored("moved", "c")], 7),
        *offsets(retried[1:], 0),
        *several("long", "bhcdefga"),
    ]
    judged, moved = found(spark, primary, target, longest=3)
    seen = named(list_findings(judged, moved).collect())
    assert seen["moved"] == [("misplaced", "moved-b")]
    assert seen["retried"] == [("missing", "retried-a")]
    (lost,) = [row for row in list_findings(judged, moved).collect() if row["topic"] == "retried"]
    assert (lost["primaryQueueId"], lost["primaryOffset"]) == (0, 0)
    # a went to the end and h came early; the fewest are both, what comes too late is all that h and a crossed
    assert ("reordered", "long-a") in seen["long"]
    assert set(seen) == {"moved", "retried", "long"}


def test_a_target_that_keeps_offsets_must_keep_them(spark: SparkSession) -> None:
    rows = [Stored("kept", f"kept-{number}", None, 0, b"body", BEGIN_MS + number) for number in range(5)]
    primary, target = offsets(rows, 3), offsets(rows, 3)
    target[2] = replace(target[2], offset=9)
    target[4] = replace(target[4], properties={"CLUSTER": "another"})
    judged, moved = found(spark, primary, target, kept=True)
    seen = named(list_findings(judged, moved).collect())["kept"]
    assert seen == [("changedProperties", "kept-4"), ("misplaced", "kept-2"), ("reordered", "kept-2")]
    (changed,) = [row for row in list_findings(judged, moved).collect() if row["kind"] == "changedProperties"]
    assert changed["detail"] == "CLUSTER"
