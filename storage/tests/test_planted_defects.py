"""The planted defects still fit the source; `make planted` plants them and runs the tests that must notice."""

import ast
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from storage.tests.planting.defect import Defect, Edit, Law, TextChanged, change
from storage.tests.planting.planter import (
    ROOT,
    Outcome,
    Result,
    TestRun,
    describe,
    find_last_started,
    judge,
    run_tests,
    stop_tests,
    summarize,
)
from storage.tests.planting.store_catalogue import STORE_DEFECTS, STORIES

MIN_DEFECTS = 115
DEFECTS = STORE_DEFECTS.defects
CAUGHT = TestRun(Result.CAUGHT, "test_a.py::test_x[1 2]", "")


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_fits_the_source(defect: Defect) -> None:
    changed = defect.changed_files(ROOT)
    for path, text in changed.items():
        assert text != path.read_text("utf-8")
        ast.parse(text)
    assert defect.tests
    for test in defect.tests:
        assert (ROOT / test.partition("::")[0]).exists()
        assert not test.startswith(STORIES), "another seed may miss it"


def test_names_are_unique_and_there_are_enough() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names) >= MIN_DEFECTS


@pytest.mark.parametrize("old", ["missing", "a"])
def test_a_text_that_is_missing_or_ambiguous_is_refused(old: str) -> None:
    with pytest.raises(TextChanged, match=f"holds {2 if old == 'a' else 0} times"):
        Edit("file", old, "x").apply("an a")


def test_edits_of_one_file_follow_one_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one two")
    edits = (*change("file", "one", "1"), *change("file", "two", "2"))
    assert Defect("d", Law.KEYS, edits, ()).changed_files(tmp_path) == {tmp_path / "file": "1 2"}


@pytest.mark.parametrize(
    ("body", "result", "test"),
    [
        ("assert True", Result.MISSED, ""),
        ("assert False", Result.CAUGHT, "test_it.py::test_it[a b]"),
        (")", Result.BROKEN, ""),
    ],
)
def test_a_run_of_tests_that_ends_has_one_of_three_results(
    tmp_path: Path, body: str, result: Result, test: str
) -> None:
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(f"""\
            import pytest

            @pytest.mark.parametrize("value", ["a b"])
            def test_it(value):
                {body}
            """)
    )
    run = run_tests(tmp_path, ["test_it.py"])
    assert (run.result, run.test) == (result, test), run.output


def test_a_run_of_tests_that_does_not_end_catches_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import threading\n\ndef test_it():\n    threading.Event().wait()\n")
    run = run_tests(tmp_path, ["test_it.py"], timeout_s=0.1)
    assert run.result is Result.HUNG
    assert not Outcome("d", run, 0.1).is_caught


def test_tests_end_with_the_planter(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import threading\n\ndef test_it():\n    threading.Event().wait()\n")
    runs: list[TestRun] = []
    thread = threading.Thread(target=lambda: runs.append(run_tests(tmp_path, ["test_it.py"])))
    thread.start()
    while thread.is_alive():
        stop_tests()
        thread.join(0.01)
    assert [run.result for run in runs] == [Result.BROKEN]


def test_the_test_that_does_not_end_is_named() -> None:
    assert (
        find_last_started("test_a.py::test_x PASSED   [ 50%]\ntest_a.py::test_y[a b] ")
        == "test_a.py::test_y[a b]"
    )
    assert find_last_started("collecting ...") == ""


def test_a_test_that_pytest_cannot_set_up_catches_nothing() -> None:
    assert judge(1, "ERROR test_a.py::test_x - fixture 'y' not found\n").result is Result.BROKEN
    assert judge(2, "FAILED test_a.py::test_x - the run was interrupted\n").result is Result.BROKEN


def test_names_may_be_patterns() -> None:
    chosen = [
        defect.name for defect in STORE_DEFECTS.choose_defects(["index-*", "no-margin-of-three-seconds"])
    ]
    assert "no-margin-of-three-seconds" in chosen
    assert len(chosen) > 5
    assert all(name.startswith("index-") for name in chosen if name != "no-margin-of-three-seconds")
    assert STORE_DEFECTS.choose_defects([]) == list(DEFECTS)
    with pytest.raises(ValueError, match="no planted defect is called unknown; --list shows all"):
        STORE_DEFECTS.choose_defects(["index-*", "unknown"])


def test_the_report_counts_what_each_file_caught_and_what_nothing_did() -> None:
    outcomes = [
        Outcome("one", CAUGHT, 2.0),
        Outcome("two", CAUGHT, 1.0),
        Outcome("three", TestRun(Result.MISSED, "", ""), 1.0),
        Outcome("four", TestRun(Result.HUNG, "test_b.py::test_y", ""), 600.0),
    ]
    assert [outcome.is_caught for outcome in outcomes] == [True, True, False, False]
    assert describe(outcomes[0]).split() == ["one", "2", "s", "caught", "by", "test_a.py::test_x[1", "2]"]
    assert describe(outcomes[3]).split() == ["four", "600", "s", "HUNG", "test_b.py::test_y"]
    assert summarize(outcomes) == "   2  test_a.py\n2 of 4 planted defects are caught, 1 HUNG, 1 MISSED"


def test_every_law_is_broken_by_some_defect_and_the_page_names_them_all() -> None:
    page = (ROOT / "docs" / "explanation" / "store-laws.md").read_text("utf-8")
    assert STORE_DEFECTS.render_table() in page, "python -m storage.tests.planting --table prints it anew"
    assert f"{len(DEFECTS)} defects" in page
    for law in Law:
        assert any(defect.law is law for defect in DEFECTS)
        assert f"| {law} | " in page.partition("## The model")[0], "the law and its commands"


def test_the_command_lists_a_defect_with_its_law_and_tests() -> None:
    command = [sys.executable, "-m", "storage.tests.planting", "--list", "written-log-file-expires"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert listed[0] == "written-log-file-expires"
    assert listed[-1].startswith("storage/tests/test_")
