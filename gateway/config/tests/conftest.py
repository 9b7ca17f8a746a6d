"""No test of configuration looks at the real home directory."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
