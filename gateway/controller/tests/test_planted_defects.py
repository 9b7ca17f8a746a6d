"""The planted defects of controllers still fit the source; `make planted-replication` plants them."""

import ast

import pytest

from gateway.controller.tests.planting.defects import CONTROLLER_DEFECTS, Law
from storage.tests.planting.defect import Defect
from storage.tests.planting.planter import ROOT

MIN_DEFECTS = 17


@pytest.mark.parametrize("defect", CONTROLLER_DEFECTS.defects, ids=lambda defect: defect.name)
def test_a_planted_defect_fits_the_source(defect: Defect) -> None:
    for path, text in defect.changed_files(ROOT).items():
        assert text != path.read_text("utf-8")
        ast.parse(text)


def test_the_page_names_the_laws_and_the_defects() -> None:
    page = (ROOT / "docs" / "explanation" / "controller-laws.md").read_text("utf-8")
    assert CONTROLLER_DEFECTS.render_table() in page, "the planting prints it anew with --table"
    defects = CONTROLLER_DEFECTS.defects
    assert f"{len(defects)} defects" in page
    assert len({defect.name for defect in defects}) == len(defects) >= MIN_DEFECTS
    for law in Law:
        assert any(defect.law is law for defect in defects)
        assert f"| {law} | " in page.partition("## How")[0]
