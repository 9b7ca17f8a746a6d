"""The tables of docs/reference/compatibility.md: every row is a feature of the suite, and the totals add up."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from compat_tests.areas import AREAS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
ENDPOINTS = ("ours", "official")


@cache
def features() -> set[tuple[str, str]]:
    """Return area and feature of every `@case` in the source, without importing it."""
    found = set()
    for path in (ROOT / "compat_tests" / "cases").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "case":
                area, feature = (ast.literal_eval(argument) for argument in node.args)
                found.add((area, feature))
    return found


def rows_of(heading: str) -> Iterator[list[str]]:
    """Yield the cells of the table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in section.splitlines()[4:]:
        if line.startswith("| "):
            yield [cell.replace("\\|", "|") for cell in re.split(r" \| ", line.strip("| "))]


@pytest.mark.parametrize("area", AREAS)
def test_every_row_of_an_area_is_a_feature_of_the_suite(area: str) -> None:
    known = {feature for each, feature in features() if each == area}
    rows = [row[0] for row in rows_of(AREAS[area])]
    assert rows
    assert set(rows) <= known
    assert len(rows) == len(set(rows))


def test_the_totals_are_the_sums_of_the_areas() -> None:
    totals = {
        name: [int(number) for number in numbers.split(" | ")]
        for name, numbers in re.findall(r"^\| (ours|official) \| ([\d |]+) \|$", PAGE, re.M)
    }
    overview = re.findall(r"^\| \[[^]]+\]\(#[^)]+\) \| (.+) \| (.+) \|$", PAGE, re.M)
    assert len(overview) == len(AREAS)
    for column, name in enumerate(ENDPOINTS):
        passed, cases = (
            sum(map(int, numbers)) for numbers in zip(*(counts(row[column]) for row in overview), strict=True)
        )
        assert [cases, passed] == totals[name][:2]
        assert totals[name][0] == sum(totals[name][1:])


def counts(cell: str) -> tuple[str, str]:
    """Return the numbers of passed and of all cases of a cell such as "13 of 14, 1 differs"."""
    found = re.match(r"(\d+) of (\d+)", cell)
    assert found is not None
    return found[1], found[2]
