"""Results of two endpoints, case by case."""

import pytest

from compat_tests.report.comparison import BETTER, DEVIATES, NOT_RECORDED, NOT_RUN, SAME, compare


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


def test_a_case_that_only_the_reference_has_was_not_run():
    assert verdicts({}, results(b="passed")) == {"b": NOT_RUN}


@pytest.mark.parametrize("outcome", ["passed", "failed", "not served"])
def test_a_case_that_the_reference_does_not_know_is_no_pass(outcome):
    comparison = compare(("mine", results(a=outcome)), ("other", {}))
    assert comparison.cases[0].verdict == NOT_RECORDED
    assert comparison.compared == 0


def test_a_deviation_says_why():
    (found,) = compare(("mine", results(a="failed")), ("other", results(a="passed"))).deviations
    assert (found.id, found.reason) == ("a", "why a")
