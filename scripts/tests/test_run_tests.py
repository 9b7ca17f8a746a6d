"""The summary of the test matrix: cases that needed a second try, by name and with their causes."""

import sys
import tomllib
from pathlib import Path

import pytest
from run_tests import (
    ROOT,
    Matrix,
    Result,
    Run,
    _chosen,
    _list_runs,
    _runs,
    describe_results,
    describe_second_tries,
    failed_cases,
    read_causes,
)

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
    result = Result(Run("unit", "", [sys.executable]), passed, 2, 1.0, 2.0, b"", ("a.py::test_b", "c.py"))
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


BURN = """
import time
while time.process_time() < {seconds}:
    pass
"""


def test_a_second_try_waits_until_the_other_runs_are_over(tmp_path: Path) -> None:
    """Beside them, a case that is late on a busy machine would be late again."""
    marker = tmp_path / "over"
    waiting_program = f"import pathlib, time; time.sleep(0.5); pathlib.Path({str(marker)!r}).touch()"
    runs = [
        Run("fails", "", python("raise SystemExit(1)"), python(f"open({str(marker)!r})")),
        Run("waits", "", python(waiting_program)),
    ]
    failure, other = Matrix([]).run_all(runs, 2)
    assert (failure.passed, failure.attempts, other.passed, other.attempts) == (True, 2, True, 1)
    assert failure.seconds < other.seconds + 5


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_run_that_hangs_is_ended_and_its_output_shown() -> None:
    hanging = "import time; print('waits', flush=True); time.sleep(600)"
    (result,) = Matrix([], limit_s=2).run_all([Run("hangs", "", python(hanging))], 1)
    assert not result.passed
    assert result.output.startswith(b"waits")
    assert b"KeyboardInterrupt" in result.output
    assert b"ended: the run took more than 2 s" in result.output


def test_a_run_that_hung_has_no_second_try(tmp_path: Path) -> None:
    marker = tmp_path / "tried again"
    again = python(f"import pathlib; pathlib.Path({str(marker)!r}).touch()")
    hanging = python("import time; time.sleep(600)")
    (result,) = Matrix([], limit_s=1).run_all([Run("hangs", "", hanging, again)], 1)
    assert (result.passed, result.attempts) == (False, 1)
    assert not marker.exists()


def test_the_summary_has_the_processor_time_of_a_run_with_the_processes_it_started() -> None:
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN.format(seconds=0.4)!r}])"
    runs = [
        Run("burns", "", [sys.executable, "-c", inner]),
        Run("waits", "", [sys.executable, "-c", "import time; time.sleep(0.4)"]),
        Run("fails", "", [sys.executable, "-c", "raise SystemExit(3)"]),
    ]
    burns, waits, fails = Matrix([]).run_all(runs, 3)
    assert [result.passed for result in (burns, waits, fails)] == [True, True, False]
    assert 0.4 <= burns.processor_s < 5
    assert waits.processor_s < waits.seconds
    assert describe_results([Result(runs[0], True, 1, 75.4, 120.6, b"")]) == [
        "burns              passed                          75 s     121 s of processor time",
        "all                                                75 s     121 s of processor time",
    ]


def test_runs_that_prove_nothing_new_are_left_to_releases(capsys: pytest.CaptureFixture[str]) -> None:
    """Answers of the official server are recorded; it does not change between two commits."""
    runs = _runs()
    left_out = {run.name for run in runs if not run.in_all}
    assert left_out == {"restarts-official", "spark-official-rest"}
    assert {run.name for run in _chosen(["all"], runs, [])} == {run.name for run in runs} - left_out
    assert [run.name for run in _chosen(["restarts-official"], runs, [])] == ["restarts-official"]
    assert {run.name for run in _chosen(["release"], runs, [])} == left_out
    _list_runs(runs)
    listed = capsys.readouterr().out
    for page in (
        listed,
        (ROOT / "CONTRIBUTING.md").read_text(),
        (ROOT / "docs/how-to/release.md").read_text(),
    ):
        assert all(name in page for name in left_out)


def test_both_spark_runs_on_the_official_server_have_all_files_together() -> None:
    words = {run.name: run.command for run in _runs()}
    kept = {word for word in words["spark-official"] if word.endswith(".py")}
    rest = {
        word.removeprefix("--ignore=")
        for word in words["spark-official-rest"]
        if word.startswith("--ignore=")
    }
    assert kept == rest
    assert {path.rpartition("/")[2] for path in kept} >= {
        "test_source.py",
        "test_source_stream.py",
        "test_sink.py",
    }
    assert all((ROOT / path).is_file() for path in kept)
