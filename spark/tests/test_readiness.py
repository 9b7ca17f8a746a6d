"""Verdicts on handwritten results."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark.errors import OptionError
from spark.options import read_options
from spark.pipelines.commands import spark
from spark.pipelines.readiness import (
    EXIT_CODES,
    NOT_READY,
    READINESS,
    READY,
    UNKNOWN,
    judge_files,
    judge_topics,
    overall_verdict,
)
from spark.reconciling.counts import COUNTED

MADE, NOW_MS = "2026-11-22T10:00:00.000Z", 1_795_341_660_000
CLEAN = {**dict.fromkeys(COUNTED, 0), "primary": 100, "target": 100, "same": 100}


def reconciled(late_after_ms: int | None = 60_000, **topics: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "reconcile",
        "version": 1,
        "made": MADE,
        "until": MADE,
        "lateAfterMs": late_after_ms,
        "topics": topics,
    }


def profiled(target_p99_us: int | None = 3000, **fates: int) -> dict[str, Any]:
    """Return the parts of a profile that are judged."""
    latency_us = {"primary": {"p99": 2000}, "target": {"p99": target_p99_us}}
    return {
        "format": 1,
        "messages": {
            "messages": 100,
            "until_ms": NOW_MS,
            "retries": {"retry": {"messages": 5}, "dead": {"messages": 0}},
        },
        "exchanges": {
            "until_ms": NOW_MS,
            "sends": {"count": 100, "latency_us": latency_us},
            "fates": {"mirrored": 100 - sum(fates.values()), **fates},
        },
    }


def traffic(profile: dict[str, Any], **given: str) -> tuple[str, list[str]]:
    """Return verdict and reasons of all traffic, with every topic ready."""
    topic, every = judge_topics(wanted(**given), reconciled(Orders=CLEAN), profile, NOW_MS)
    assert (topic.verdict, every.name) == (READY, "(all traffic)")
    return every.verdict, every.all_reasons


def wanted(**given: str) -> dict[str, Any]:
    return read_options(given, READINESS, "[readiness]")


def only(reconcile: dict[str, Any], **given: str) -> tuple[str, list[str]]:
    """Return verdict and reasons of the only topic."""
    (topic,) = judge_topics(wanted(**given), reconcile, None, NOW_MS)
    return topic.verdict, topic.all_reasons


def test_clean_traffic_is_ready() -> None:
    assert only(reconciled(Orders=CLEAN)) == (READY, ["100 messages compared, 100 the same"])
    limits = {"slowerMax": "2", "targetP99MsMax": "10", "retryShareMax": "0.1", "deadLetterShareMax": "0"}
    assert traffic(profiled(), **limits) == (READY, [])


@pytest.mark.parametrize("name", ["missing", "extra", "duplicated", "reordered", "misplaced", "changedBody"])
def test_a_single_fault_is_not(name: str) -> None:
    counts = {**CLEAN, name: 1}
    said, reasons = only(reconciled(Orders=counts))
    assert said == NOT_READY
    assert reasons[0].startswith("1 ")
    assert only(reconciled(Orders=counts), **{f"{name}Max": "1"})[0] == READY


def test_late_messages_are_a_share() -> None:
    counts = {**CLEAN, "primary": 1000, "late": 1}
    assert only(reconciled(Orders=counts))[0] == READY
    said, reasons = only(reconciled(Orders={**counts, "late": 2}))
    assert (said, reasons[0]) == (NOT_READY, "2 of 1,000 late at the target (at most 0.1000%)")
    assert only(reconciled(None, Orders={**counts, "late": 2}))[0] == READY


@pytest.mark.parametrize(
    ("given", "fates", "reason"),
    [
        ({}, {"dropped": 1}, "1 of 100 dropped by the mirror"),
        ({}, {"refused": 1}, "1 of 100 refused by the target"),
        ({"retryShareMax": "0.04"}, {}, "5 of 100 retries"),
        ({"targetP99MsMax": "2"}, {}, "the target takes 3 ms"),
        ({"slowerMax": "1.4"}, {}, "1.5 times as long"),
    ],
)
def test_what_the_profile_says_counts(given: dict[str, str], fates: dict[str, int], reason: str) -> None:
    said, reasons = traffic(profiled(**fates), **given)
    assert said == NOT_READY
    assert reason in reasons[0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topics": "Bills"}, "found this topic on neither side"),
        ({"minMessages": "101"}, "100 messages were compared, at least 101"),
        ({"maxAgeS": "1"}, "longer ago than 1 s"),
    ],
)
def test_what_is_not_known_of_a_topic_is_unknown(given: dict[str, str], reason: str) -> None:
    said, reasons = only(reconciled(Orders=CLEAN), **given)
    assert said == UNKNOWN
    assert reason in reasons[0]


def test_what_a_profile_did_not_see_is_unknown_or_noted() -> None:
    without = {"format": 1, "messages": None, "exchanges": None}
    said, reasons = traffic(without, maxAgeS=str(10**10), retryShareMax="1")
    assert (said, reasons) == (
        READY,
        [f"{each} is unknown" for each in ("mirrorRefused", "mirrorDropped", "retries")],
    )
    assert traffic(profiled(None), slowerMax="2")[0] == UNKNOWN
    assert traffic(profiled(None), targetP99MsMax="2")[0] == UNKNOWN
    old = profiled()
    old["messages"]["until_ms"] = old["exchanges"]["until_ms"] = 0
    assert traffic(old)[0] == UNKNOWN


def test_what_is_wrong_weighs_more_than_what_is_not_known() -> None:
    topics = judge_topics(
        wanted(topics="Orders,Bills"), reconciled(Orders={**CLEAN, "missing": 1}), None, NOW_MS
    )
    assert [topic.verdict for topic in topics] == [NOT_READY, UNKNOWN]
    assert overall_verdict(topics) == NOT_READY
    assert overall_verdict(topics[1:]) == UNKNOWN
    assert overall_verdict([]) == UNKNOWN
    assert EXIT_CODES == {READY: 0, NOT_READY: 3, UNKNOWN: 4}


def test_the_command_needs_no_spark(tmp_path: Path) -> None:
    source, result = tmp_path / "reconcile.json", tmp_path / "verdict.json"
    source.write_text(json.dumps(reconciled(Orders={**CLEAN, "missing": 3})))
    sets = {"reconcile": source, "json": result, "maxAgeS": 10**9}
    arguments = [word for key, value in sets.items() for word in ("--set", f"readiness.{key}={value}")]
    done = CliRunner().invoke(spark, ["readiness", *arguments])
    assert done.exit_code == 3, done.output
    assert "NOT READY" in done.output
    verdicts = json.loads(result.read_text())
    assert verdicts["verdict"] == verdicts["topics"]["Orders"]["verdict"] == NOT_READY
    assert verdicts["topics"]["Orders"]["reasons"][0] == "3 missing at the target (at most 0)"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting"),
        ("{}", "is not a result of reconcile"),
        ('{"kind": "reconcile", "version": 2}', "version 1"),
    ],
)
def test_files_that_are_no_results_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    source = tmp_path / "reconcile.json"
    source.write_text(content)
    with pytest.raises(OptionError, match=reason):
        judge_files(wanted(reconcile=str(source)), lambda: NOW_MS)
    with pytest.raises(OptionError, match="is required"):
        judge_files(wanted(), lambda: NOW_MS)
