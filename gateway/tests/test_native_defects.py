"""The planted defects of the C sources still fit them; `make planted-native` plants them all."""

import signal
from collections import Counter

import pytest

from codec.native import native_module
from gateway.tests.native_sends.planting.defects import NATIVE_DEFECTS, Subject
from storage.tests.planting.defect import Defect, change
from storage.tests.planting.planter import ROOT, Result, TestRun, judge, plant

MIN_DEFECTS = 34


@pytest.mark.parametrize("defect", NATIVE_DEFECTS.defects, ids=lambda defect: defect.name)
def test_a_planted_defect_fits_the_source(defect: Defect) -> None:
    for path, text in defect.changed_files(ROOT).items():
        assert text != path.read_text("utf-8")
        assert path.suffix in (".c", ".h")
        assert path.parent.name == "native"
    assert defect.tests
    for test in defect.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text("utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in text


def test_names_are_unique_and_every_subject_has_some() -> None:
    names = [defect.name for defect in NATIVE_DEFECTS.defects]
    assert len(set(names)) == len(names) >= MIN_DEFECTS
    assert set(Counter(defect.law for defect in NATIVE_DEFECTS.defects)) == set(Subject)


def test_the_page_has_the_table_of_the_defects() -> None:
    page = (ROOT / NATIVE_DEFECTS.page).read_text("utf-8")
    assert NATIVE_DEFECTS.render_table() in page, "python -m gateway.tests.native_sends.planting --table"


def test_a_test_process_that_crashes_has_noticed() -> None:
    output = "test_a.py::test_x PASSED   [ 50%]\ntest_a.py::test_y[a b] "
    assert judge(-signal.SIGSEGV, output) == TestRun(Result.CAUGHT, "test_a.py::test_y[a b]", output)
    assert judge(-signal.SIGKILL, output).result is Result.BROKEN


@pytest.mark.skipif(native_module() is None, reason="the extension rocketmq_native is not built")
def test_a_copy_that_does_not_compile_catches_nothing() -> None:
    defect = Defect("d", Subject.LENGTHS, change("native/module.c", "PyMODINIT_FUNC", "PyMODINIT"), ())
    outcome = plant(defect, ["storage/tests/test_planted_defects.py"])
    assert outcome.run.result is Result.BROKEN
    assert "PyMODINIT" in outcome.run.output
