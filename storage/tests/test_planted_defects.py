"""The planted defects still fit the source; `make planted` plants them and runs the tests that must notice."""

import ast

import pytest

from storage.tests.planting.defect import Defect, Edit, TextChanged, change
from storage.tests.planting.planter import DEFECTS, ROOT, Outcome

MIN_DEFECTS = 27


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_fits_the_source(defect: Defect) -> None:
    changed = defect.changed_files(ROOT)
    for path, text in changed.items():
        assert text != path.read_text("utf-8")
        ast.parse(text)
    for test in defect.tests:
        assert (ROOT / test.partition("::")[0]).exists()


def test_names_are_unique_and_there_are_enough() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names) >= MIN_DEFECTS


@pytest.mark.parametrize("old", ["missing", "a"])
def test_a_text_that_is_missing_or_ambiguous_is_refused(old: str) -> None:
    with pytest.raises(TextChanged, match=f"holds {2 if old == 'a' else 0} times"):
        Edit("file", old, "x").apply("an a")


def test_edits_of_one_file_follow_one_another(tmp_path) -> None:
    (tmp_path / "file").write_text("one two")
    edits = (*change("file", "one", "1"), *change("file", "two", "2"))
    assert Defect("d", "law", edits, ()).changed_files(tmp_path) == {tmp_path / "file": "1 2"}


def test_only_a_failed_test_counts_as_caught() -> None:
    assert Outcome("d", "test_x", 1.0, "").is_caught
    assert not Outcome("d", "", 1.0, "").is_caught
