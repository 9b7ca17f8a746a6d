"""A file whose content is always whole."""

from pathlib import Path

import pytest

from gateway.namesrv.text_file import AtomicTextFile


def test_the_previous_content_remains_as_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "made" / "kvConfig.json"
    file = AtomicTextFile(str(path))
    assert file.read() is None
    file.write(b"one")
    file.write(b"two")
    assert file.read() == b"two"
    assert (tmp_path / "made" / "kvConfig.json.bak").read_bytes() == b"one"
    assert sorted(each.name for each in path.parent.iterdir()) == ["kvConfig.json", "kvConfig.json.bak"]


@pytest.mark.parametrize("left", [None, b""])
def test_the_backup_stands_in(tmp_path: Path, left: bytes | None) -> None:
    """A crash between the two renames leaves only the backup."""
    (tmp_path / "f.bak").write_bytes(b"old")
    if left is not None:
        (tmp_path / "f").write_bytes(left)
    assert AtomicTextFile(str(tmp_path / "f")).read() == b"old"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file"):
        AtomicTextFile(str(tmp_path / "file" / "f")).write(b"x")
