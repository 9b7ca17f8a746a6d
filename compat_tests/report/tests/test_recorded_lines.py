"""The lines of a recording."""

from typing import Any

import pytest

from compat_tests.report.recorded_lines import UNSTEADY, recorded_line


def line(area: str, outcome: str, reason: str) -> dict[str, Any]:
    return {"id": "a", "area": area, "feature": "f", "outcome": outcome, "reason": reason}


def recorded(version: str, *result: str) -> tuple[str, str]:
    kept = recorded_line(version, line(*result))
    return kept["outcome"], kept["reason"]


@pytest.mark.parametrize(
    "reason",
    ["CODE: 3  DESC:  request type 351 not supported", "assert (3, ' request...ot supported') == (16, 'x')"],
)
def test_a_refused_request_is_not_served_and_stays_in_the_reason(reason: str) -> None:
    outcome = ("not served", f"refused with code 3: {reason}")
    assert recorded("4.9.7", "admin", "failed", reason) == outcome
    assert recorded("5.3.3", "admin", "failed", reason) == outcome


def test_another_failure_is_what_the_version_does() -> None:
    assert recorded("4.9.7", "pull", "failed", "assert 1 == 29") == ("failed", "assert 1 == 29")
    answered = "assert (0, None) == (3, ' request...ot supported')"
    assert recorded("5.5.0", "admin", "failed", answered) == ("failed", answered)


def test_areas_that_are_younger_than_the_version() -> None:
    outcome, reason = recorded("4.9.7", "timer", "failed", "accepted")
    assert (outcome, reason) == (
        "not served",
        "4.x has no timer messages, and delivers them at once: accepted",
    )
    assert recorded("4.9.7", "timer", "passed", "") == ("passed", "")
    assert recorded("4.9.7", "timer", "skipped", "no node") == ("skipped", "no node")
    assert recorded("4.9.7", "grpc", "skipped", "none") == ("not served", "4.x has no Proxy, so no gRPC")
    assert recorded("5.4.0", "timer", "failed", "accepted") == ("failed", "accepted")
    assert recorded("ours", "pop", "failed", "late") == ("failed", "late")


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_a_case_that_changes_from_run_to_run_is_recorded_as_not_run(outcome: str) -> None:
    (version, case_id), reason = next(iter(UNSTEADY.items()))
    kept = recorded_line(version, {**line("ordered", outcome, "late"), "id": case_id})
    assert (kept["outcome"], kept["reason"]) == ("skipped", reason)
    assert recorded_line("5.4.0", {**line("ordered", outcome, "late"), "id": case_id})["outcome"] == outcome


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("no compat_07431c5d1c_202_group", "no compat_…_group"),
        ("127.0.0.1:15898 has not answered in time", "127.0.0.1:… has not answered in time"),
        ("assert 1795638046291 >= (1795638046290 + 2000)", "assert … >= (… + 2000)"),
        ("',' not in '7F000001000...00000081979D'", "',' not in '…...…'"),
        ("== ('00000000000...000009', None)", "== ('…...…', None)"),
        ("request DECADES of code 200050", "request DECADES of code 200050"),
    ],
)
def test_names_times_ports_and_ids_of_one_run_are_left_out(reason: str, kept: str) -> None:
    assert recorded("5.4.0", "send", "failed", reason) == ("failed", kept)
