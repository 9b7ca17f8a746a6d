"""Logs of a master and its slave are compared, whatever the master appends meanwhile."""

from pathlib import Path

from tools.pairings.members import absent_files, find_difference, is_prefix_of_master


def write_log(store: Path, files: dict[int, bytes]) -> Path:
    (store / "commitlog").mkdir(parents=True)
    for base, data in files.items():
        (store / "commitlog" / f"{base:020}").write_bytes(data)
    return store


def test_the_first_difference_is_found(tmp_path: Path) -> None:
    master = write_log(tmp_path / "master", {0: b"aaaa", 4: b"bbbb", 8: b"cc\0\0", 12: bytes(4)})
    slave = write_log(tmp_path / "slave", {4: b"bbxx", 8: b"c\0\0\0"})
    assert find_difference(master, slave, 5) == 6
    slave.joinpath("commitlog", f"{4:020}").write_bytes(b"bbbb")
    assert find_difference(master, slave, 9) is None  # the master has appended since
    assert find_difference(master, slave, 10) == 9
    slave.joinpath("commitlog", f"{8:020}").write_bytes(b"cc\0d")
    assert find_difference(master, slave, 10) == 11  # what a cut has left
    assert absent_files(master, slave) == [f"{0:020}"]


def test_a_log_with_less_is_a_prefix_and_one_with_other_bytes_is_not(tmp_path: Path) -> None:
    master = write_log(tmp_path / "master", {4: b"bbbb", 8: b"cc\0\0"})
    slave = write_log(tmp_path / "slave", {0: b"aaaa", 4: b"bbbb", 8: b"c\0\0\0"})
    assert is_prefix_of_master(master, slave)
    slave.joinpath("commitlog", f"{8:020}").write_bytes(b"ccc\0")
    assert not is_prefix_of_master(master, slave)
