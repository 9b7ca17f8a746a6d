"""The documents that promise to be short are."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_changelog_says_what_the_version_is_in_a_page() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()) <= 80


def test_differences_are_one_table() -> None:
    """Rows: area and request, official server, this server, setting or case."""
    page = (ROOT / "docs" / "reference" / "differences.md").read_text("utf-8")
    rows = page.split("\n## ")[1].split("\n|---|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    cells = [row[1:-1].split("|") for row in rows]
    assert len(rows) > 60
    assert all(len(row) == 4 and all(cell.strip() for cell in row[:3]) for row in cells)


@pytest.mark.parametrize(("name", "limit"), [("README.md", 600)])
def test_page_has_few_words(name: str, limit: int) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= limit
