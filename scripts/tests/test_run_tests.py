"""The summary of the test matrix: cases that needed a second try, by name and with their causes."""

import sys
import tomllib

import pytest
from run_tests import ROOT, Result, Run, _chosen, _runs, describe_second_tries, failed_cases, read_causes

OUTPUT = b"""
\x1b[31mFAILED\x1b[0m storage/tests/test_files.py::test_a[x - y] - AssertionError: assert 1 == 2
FAILED storage/tests/test_files.py::test_b
ERROR gateway/tests/test_server.py - ImportError: no such module
FAILED storage/tests/test_files.py::test_b
FAILED is a word that a log may begin with
"""


def test_failed_cases_are_read_from_the_short_summary() -> None:
    assert failed_cases(OUTPUT) == (
        "storage/tests/test_files.py::test_a[x - y]",
        "storage/tests/test_files.py::test_b",
        "gateway/tests/test_server.py",
    )


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        (True, ["unit: a.py::test_b: a real clock", "unit: c.py: cause unknown"]),
        (False, []),
    ],
)
def test_the_summary_names_the_cases_that_passed_at_their_second_try(
    passed: bool, expected: list[str]
) -> None:
    result = Result(Run("unit", "", [sys.executable]), passed, 2, 1.0, b"", ("a.py::test_b", "c.py"))
    lines = describe_second_tries([result], {"a.py::": "a real clock"})
    assert [line.partition(": find it")[0] for line in lines] == expected


def test_known_causes_are_of_cases_that_exist() -> None:
    for case, cause in read_causes().items():
        assert (ROOT / case.partition("::")[0]).is_file()
        assert cause


def test_no_unit_test_needs_a_second_try() -> None:
    assert [case for case in read_causes() if "/tests/" in case and "/tests/cases/" not in case] == []


def test_check_needs_no_spark() -> None:
    """Its installation alone took 456 MB, for whoever changed a line of the server."""
    runs = _runs()
    check = {run.name: list(run.command) for run in _chosen(["check"], runs, [])}
    assert check.keys() == {"format", "lint", "types", "readability", "links", "unit"}
    assert "spark" not in [*check["unit"], *check["types"]]
    chosen = {run.name: list(run.command) for run in _chosen(["all"], runs, [])}
    assert "spark" in chosen["unit-spark"]
    assert "spark" in chosen["types-spark"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert "spark" not in " ".join(extras["check"])
    assert "[check,spark" in extras["dev"][0]
