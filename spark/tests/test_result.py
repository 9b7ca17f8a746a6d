"""The JSON and the verdict of a comparison's result."""

from datetime import datetime

from spark.options import parse_time_ms, read_options
from spark.pipelines.reconcile import OUTPUT, RECONCILE, build_summary
from spark.reconciling.counts import COUNTED
from spark.reconciling.result import ReconcileResult, iso_time

HOUR_MS = 1_795_341_600_000
CLEAN = {**dict.fromkeys(COUNTED, 0), "primary": 10, "target": 10, "same": 10}
FAIL_IF = read_options({}, OUTPUT, "[output]")["failIf"]


def result(**topics: dict[str, int]) -> ReconcileResult:
    found = ReconcileResult(HOUR_MS, HOUR_MS, HOUR_MS, None, False, 60_000, topics=topics)
    found.times = {topic: (HOUR_MS, None) for topic in topics}
    found.apply_conditions(FAIL_IF)
    return found


def test_nothing_wrong_is_success() -> None:
    found = build_summary(result(Orders=CLEAN, Bills=CLEAN))
    assert (found.exit_code, found.title, found.figures["same"]) == (0, "Primary and target are the same", 20)


def test_any_fault_fails_and_says_how_many() -> None:
    wrong = result(Orders=CLEAN, Bills={**CLEAN, "same": 8, "missing": 2, "target": 8, "late": 1})
    hour = datetime.fromtimestamp(HOUR_MS / 1000)
    wrong.hours = [{"topic": "Bills", "hour": hour, **wrong.topics["Bills"]}]
    wrong.samples = [
        {
            "topic": "Bills", "hour": hour, "kind": "missing", "msgId": "7F01", "orderKey": "queue",
            "primaryBroker": "broker-a", "primaryQueueId": 3, "primaryOffset": 17, "primaryTime": hour,
            "targetBroker": None, "targetQueueId": None, "targetOffset": None, "targetTime": None, "detail": None,
        }
    ]  # fmt: skip
    found = build_summary(wrong)
    assert (found.exit_code, found.title) == (3, "3 findings")
    assert found.figures["failed"] == "missing>0 (it is 2); late>0 (it is 1)"
    by_topic, hours, examples = found.sections
    assert by_topic.columns == ["topic", "primary", "target", "same", "missing", "late"]
    assert hours.rows == [["Bills", iso_time(HOUR_MS), 10, 8, 8, 2, 1]]
    assert examples.rows == [["Bills", "missing", "7F01", "primary broker-a 3:17"]]
    value = wrong.to_value()
    assert value["topics"]["Bills"]["first"] == iso_time(HOUR_MS) == "2026-11-22T10:00:00.000Z"
    assert "targetTime" not in value["samples"][0]


def test_nothing_to_compare_is_no_success() -> None:
    assert build_summary(result()).exit_code == 4


def test_times_are_read_in_utc() -> None:
    texts = ("1795341600000", "2026-11-22T10:00:00Z", "2026-11-22T10:00", "2026-11-22T11:00+01:00")
    assert {parse_time_ms(each) for each in texts} == {HOUR_MS}
    assert read_options({"from": texts[2]}, RECONCILE, "[reconcile]")["from"] == HOUR_MS
