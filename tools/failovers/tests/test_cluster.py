"""Logs of two brokers are compared up to an offset."""

from pathlib import Path

from tools.failovers.cluster import first_difference
from tools.pairings.members import FILE_BYTES


def write_log(store: Path, *files: bytes) -> Path:
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    for number, data in enumerate(files):
        (folder / f"{number * FILE_BYTES:020}").write_bytes(data.ljust(FILE_BYTES, b"\0"))
    return store


def test_logs_are_compared_up_to_their_end(tmp_path: Path) -> None:
    full = b"x" * FILE_BYTES
    first = write_log(tmp_path / "a", full, b"message, and a tail")
    second = write_log(tmp_path / "b", full, b"message, old bytes")
    assert first_difference(first, second, FILE_BYTES + 9) is None
    assert first_difference(first, second, FILE_BYTES + 18) == FILE_BYTES + 9
    assert first_difference(second, first, FILE_BYTES + 18) == FILE_BYTES + 9


def test_files_that_only_one_broker_has_are_left_out(tmp_path: Path) -> None:
    first = write_log(tmp_path / "a", b"x", b"y")
    second = write_log(tmp_path / "b", b"x", b"z")
    (second / "commitlog" / f"{FILE_BYTES:020}").unlink()
    assert first_difference(first, second, 2 * FILE_BYTES) is None
