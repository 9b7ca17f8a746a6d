"""docs/reference/compatibility.md is what the recorded runs say, and its totals add up."""

import re

from compat_tests.areas import AREAS
from compat_tests.endpoints import MARKED_VERSION
from compat_tests.report.page import PAGE, render_compatibility
from compat_tests.report.snapshots import OURS, PROXIES, read_snapshot


def test_the_page_is_what_the_recordings_say() -> None:
    assert PAGE.read_text() == render_compatibility(), "run: python -m compat_tests page"


def test_the_totals_are_the_sums_of_the_areas() -> None:
    page = PAGE.read_text()
    totals = [
        [int(number) for number in numbers.split(" | ")]
        for numbers in re.findall(r"^\| (?:ours|official [\d.]+) \| ([\d |]+) \|$", page, re.M)
    ]
    overview = re.findall(r"^\| \[[^]]+\]\(#[^)]+\) \| (.+) \|$", page, re.M)
    assert len(overview) == len(AREAS)
    for column, numbers in enumerate(totals):
        passed, cases = (
            sum(map(int, found))
            for found in zip(*(counts(row.split(" | ")[column]) for row in overview), strict=True)
        )
        assert [cases, passed] == numbers[:2]
        assert numbers[0] == sum(numbers[1:])


def counts(cell: str) -> tuple[str, str]:
    """Return the numbers of passed and of all cases of a cell such as "13 of 14, 1 differs"."""
    found = re.match(r"(\d+) of (\d+)", cell)
    assert found is not None
    return found[1], found[2]


def test_every_deviation_of_a_whole_case_is_listed_with_its_reason() -> None:
    page = PAGE.read_text()
    for name in (OURS, MARKED_VERSION, *PROXIES):
        for line in read_snapshot(name).results.values():
            if line["outcome"] != "passed":
                assert f"- {line['outcome']}: `{line['id']}`: {line['reason']}" in page


def test_every_excused_answer_is_listed_with_its_reason() -> None:
    page = PAGE.read_text()
    for reason in (
        "A request that lacks a field is refused by the field's name; in the official server a later check refuses it.",
        "Static topics are not served.",
        "Flow control refuses sends on a slow disk only where it is asked to.",
    ):
        assert reason in page
