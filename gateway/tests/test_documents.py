"""The documents that promise to be short are."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "limit"), [("README.md", 600)])
def test_page_has_few_words(name: str, limit: int) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= limit
