"""The planted deviations fit the source, and some are planted; `make planted-deviations` plants all of them."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.areas import AREAS
from compat_tests.endpoints import MARKED_VERSION
from compat_tests.report import snapshots
from compat_tests.report.snapshots import write_snapshot
from compat_tests.tests.planting.deviations import ACCESS, CASES, PROTOCOL_DEVIATIONS
from storage.tests.planting.defect import Defect
from storage.tests.planting.planter import ROOT, copy_tree, plant
from toolkit.exit_codes import ExitCode

DEVIATIONS = {each.name: each for each in PROTOCOL_DEVIATIONS.defects}
MIN_DEVIATIONS = 30
MIN_AREAS = 19
PLANTED_HERE = (
    "upper-boundary-of-a-time-search-ignored",
    "lock-released-by-anybody",
    "write-permission-not-wiped",
)
"""Deviations of broker and namesrv whose cases take less than a second."""


def areas_of(path: str) -> Iterator[tuple[str, str | None]]:
    """Yield the cases of a file with their areas; None for one without a row in the table."""
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            marks = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
            areas = [
                ast.literal_eval(mark.args[0]) for mark in marks if getattr(mark.func, "id", "") == "case"
            ]
            yield node.name, areas[0] if areas else None


@pytest.mark.parametrize("deviation", DEVIATIONS.values(), ids=lambda each: each.name)
def test_a_deviation_fits_the_source_and_names_a_case_of_its_area(deviation: Defect) -> None:
    for path, text in deviation.changed_files(ROOT).items():
        assert text != path.read_text("utf-8")
        ast.parse(text)
    (test,) = deviation.tests
    file, _, name = test.partition("::")
    assert dict(areas_of(file))[name.partition("[")[0]] == (
        None if deviation.law == ACCESS else deviation.law
    )


def test_the_areas_of_the_protocol_that_need_no_java_have_deviations() -> None:
    assert len(DEVIATIONS) == len(PROTOCOL_DEVIATIONS.defects) >= MIN_DEVIATIONS
    assert len({each.law for each in DEVIATIONS.values()} & set(AREAS)) >= MIN_AREAS


def test_the_page_has_the_table_of_the_deviations() -> None:
    page = (ROOT / PROTOCOL_DEVIATIONS.page).read_text("utf-8")
    assert PROTOCOL_DEVIATIONS.render_table() in page, "python -m compat_tests.tests.planting --table"


@pytest.mark.parametrize("name", PLANTED_HERE)
def test_a_deviation_turns_its_case_red(name: str) -> None:
    deviation = DEVIATIONS[name]
    outcome = plant(deviation, deviation.tests)
    assert outcome.is_caught, outcome.run.output
    assert outcome.run.test.startswith(deviation.tests[0])


def test_the_command_names_a_planted_deviation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deviation = DEVIATIONS["lock-released-by-anybody"]
    (test,) = deviation.tests
    case = test.removeprefix(f"{CASES}/")
    copy_tree(tmp_path)
    for path, text in deviation.changed_files(tmp_path).items():
        path.write_text(text, "utf-8")
    monkeypatch.setattr(snapshots, "SNAPSHOTS", tmp_path / "compat_tests" / "snapshots")
    feature = "only the holder can unlock"
    result = {"id": case, "area": deviation.law, "feature": feature, "outcome": "passed", "reason": ""}
    write_snapshot(MARKED_VERSION, {case: result}, "2026-11-25")
    command = [sys.executable, "-m", "gateway.commands.cli", "compat", "--ours", "--snapshot", MARKED_VERSION]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [*command, "--area", deviation.law, "-k", case.rpartition("::")[2]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == ExitCode.REFUSED, run.stdout + run.stderr
    assert f"{feature} ({case})" in run.stdout
