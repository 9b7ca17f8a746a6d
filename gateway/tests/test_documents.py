"""The documents that promise to be short are, and the map of the source names everything that is there."""

import re
from pathlib import Path

import pytest

from gateway.tests.test_rooms import PACKAGES, ROOMS

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


@pytest.mark.parametrize(("name", "limit"), [("README.md", 600), ("docs/explanation/architecture.md", 1_800)])
def test_page_has_few_words(name: str, limit: int) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= limit


PARENTS = ("gateway.broker", "gateway.shadow", "gateway", "spark")


def mapped_names(heading: str) -> set[str]:
    """Return the names in the section of the architecture with this heading: the first cells of its table, or all."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    section = re.split(r"^##+ ", page.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    text = "\n".join(row.split("|")[1] for row in section.splitlines() if row.startswith("|")) or section
    return set(re.findall(r"`([\w.]+)`", text))


def test_architecture_names_every_package() -> None:
    assert mapped_names("Packages and rooms") == set(PACKAGES)


@pytest.mark.parametrize("parent", PARENTS)
def test_architecture_names_every_room(parent: str) -> None:
    """Rooms of the broker and of the shadow gateway have tables of their own."""
    rooms = set()
    for room in ROOMS:
        nearest = next(each for each in PARENTS if f"{room}.".startswith(f"{each}."))
        if room == nearest:
            nearest = room.rpartition(".")[0]
        if nearest == parent:
            rooms.add(room.removeprefix(f"{parent}."))
    assert mapped_names(f"Rooms of `{parent.replace('.', '/')}`") == rooms
