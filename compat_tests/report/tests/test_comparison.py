"""Results of two endpoints, case by case."""

import json

import pytest

from compat_tests.report import comparison
from compat_tests.report.comparison import (
    BETTER,
    DEVIATES,
    NOT_RUN,
    SAME,
    compare,
    read_snapshot,
    snapshot_versions,
)


def results(**outcomes):
    return {
        name: {"id": name, "area": "pull", "feature": name, "outcome": outcome, "reason": f"why {name}"}
        for name, outcome in outcomes.items()
    }


def verdicts(found, expected):
    return {each.id: each.verdict for each in compare(("mine", found), ("other", expected)).cases}


@pytest.mark.parametrize(
    ("outcome", "expected", "verdict"),
    [
        ("passed", "passed", SAME),
        ("failed", "passed", DEVIATES),
        ("not served", "passed", DEVIATES),
        ("missing", "passed", DEVIATES),
        ("passed", "differs", BETTER),
        ("differs", "differs", SAME),
        ("failed", "failed", SAME),
        ("skipped", "passed", NOT_RUN),
        ("passed", "skipped", NOT_RUN),
    ],
)
def test_verdicts(outcome, expected, verdict):
    assert verdicts(results(a=outcome), results(a=expected)) == {"a": verdict}


def test_cases_of_one_side_are_not_run():
    assert verdicts(results(a="passed"), results(b="passed")) == {"a": NOT_RUN, "b": NOT_RUN}


def test_a_deviation_says_why():
    (found,) = compare(("mine", results(a="failed")), ("other", results(a="passed"))).deviations
    assert (found.id, found.reason) == ("a", "why a")


def test_the_newest_snapshot_is_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "SNAPSHOTS", tmp_path)
    for version in ("5.10.0", "5.4.0", "4.9.8"):
        line = {"endpoint": "official", "id": "a", "outcome": "passed"}
        (tmp_path / f"official-{version}.jsonl").write_text(json.dumps(line) + "\n")
    assert snapshot_versions() == ["4.9.8", "5.4.0", "5.10.0"]
    assert read_snapshot("5.10.0") == ("official 5.10.0", {"a": line})
