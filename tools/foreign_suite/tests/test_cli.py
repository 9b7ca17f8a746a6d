"""The comparison of both servers."""

import pytest

from tools.foreign_suite.cli import OFFICIAL, OURS, show_differences
from tools.foreign_suite.suite import CaseOutcome, CaseResult

PASSED, FAILED = CaseOutcome(CaseResult.PASSED), CaseOutcome(CaseResult.FAILED, "why it failed")


@pytest.mark.parametrize(
    ("ours", "official", "ours_only"),
    [(PASSED, PASSED, 0), (FAILED, PASSED, 1), (FAILED, FAILED, 0), (PASSED, FAILED, 0)],
)
def test_what_fails_at_ours_alone_counts(capsys, ours, official, ours_only):
    assert show_differences({OURS: {"A.test": ours}, OFFICIAL: {"A.test": official}}) == ours_only
    assert ("why it failed" in capsys.readouterr().out) == (FAILED in (ours, official))


def test_without_the_official_server_every_failure_counts(capsys):
    assert show_differences({OURS: {"A.test": FAILED, "B.test": PASSED}}) == 1
    assert "B.test" not in capsys.readouterr().out
