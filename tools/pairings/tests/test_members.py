"""Logs of a master and its slave are compared up to an end, whatever either appends meanwhile."""

from pathlib import Path

from tools.pairings.members import absent_files, find_difference


def write_log(store: Path, files: dict[int, bytes]) -> Path:
    (store / "commitlog").mkdir(parents=True)
    for base, data in files.items():
        (store / "commitlog" / f"{base:020}").write_bytes(data)
    return store


def test_the_first_difference_below_the_end_is_found(tmp_path: Path) -> None:
    master = write_log(tmp_path / "master", {0: b"aaaa", 4: b"bbbb", 8: b"cc\0\0", 12: bytes(4)})
    slave = write_log(tmp_path / "slave", {4: b"bbxx", 8: b"cccd"})
    assert find_difference(master, slave, 6) is None
    assert find_difference(master, slave, 7) == 6
    slave.joinpath("commitlog", f"{4:020}").write_bytes(b"bbbb")
    assert find_difference(master, slave, 10) is None
    assert find_difference(master, slave, 11) == 10
    assert absent_files(master, slave) == [f"{0:020}"]
