"""The upkeep benchmark's steps that need no server."""

import os
import subprocess
from pathlib import Path

import pytest

from tools.bench import upkeep
from tools.bench.figure_table import figure_table, percentile
from tools.bench.loads import LoadFailed


def test_files_are_dropped_from_the_page_cache_and_keep_their_content(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("one", "folder/two"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    upkeep.drop_from_page_cache(tmp_path)
    assert (tmp_path / "folder" / "two").read_bytes() == b"folder/two" * 1000


def test_without_a_small_disk_only_retention_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(upkeep, "_send_for", lambda name, seconds, disk: ([1.0], 0, 0))
    assert upkeep.measure_retention("ours", 1) == {}
    text = figure_table(upkeep.BARS, ["ours"], [{"first_query_ms": 1.0}])
    assert "| key query, p50 ms | - | - | - |" in text


def test_sends_amid_which_no_file_was_deleted_measure_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: None)
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: None)
    monkeypatch.setattr(upkeep, "_send_for", lambda name, seconds, disk: ([1.0], 0, 0))
    with pytest.raises(LoadFailed, match="no file was deleted"):
        upkeep.measure_retention("ours", 1)


def test_percentiles() -> None:
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (0, 50, 99, 100)] == [1.0, 2.0, 3.0, 3.0]
