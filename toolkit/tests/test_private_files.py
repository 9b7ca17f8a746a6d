import os
import stat

import pytest

from toolkit.private_files import make_private_directories, open_private


def modes(*paths):
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


@pytest.mark.usefixtures("lenient_umask")
def test_new_files_and_all_missing_directories_are_private(tmp_path):
    tmp_path.chmod(0o755)
    make_private_directories(str(tmp_path / "a" / "b") + "/")
    make_private_directories(str(tmp_path / "a" / "b"))
    with open(tmp_path / "a" / "b" / "file", "wb", opener=open_private) as file:
        file.write(b"x")
    made = (tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "file")
    assert modes(*made) == [0o755, 0o700, 0o700, 0o600]


def test_a_relative_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_private_directories("a/b")
    assert os.path.isdir(tmp_path / "a" / "b")


def test_what_exists_keeps_its_mode(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    make_private_directories(str(tmp_path / "shared"))
    assert modes(tmp_path / "shared") == [0o750]


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "a"):
        with pytest.raises(FileExistsError):
            make_private_directories(str(path))
