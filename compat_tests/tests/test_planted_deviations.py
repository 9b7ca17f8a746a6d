"""The planted deviations fit the source, and some are planted; `make planted-deviations` plants all of them."""

import ast
from collections.abc import Iterator

import pytest

from compat_tests.areas import AREAS
from compat_tests.tests.planting.deviations import ACCESS, PROTOCOL_DEVIATIONS
from storage.tests.planting.defect import Defect
from storage.tests.planting.planter import ROOT, plant

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
