from remoting.file_watch import FileWatch


def test_each_change_is_told_once(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    watch = FileWatch([first, str(second)])
    assert not watch.has_changed()
    first.write_text("22")
    second.write_text("new")
    assert [watch.has_changed() for _ in range(2)] == [True, False]
    second.unlink()
    assert [watch.has_changed() for _ in range(2)] == [True, False]


def test_a_file_replaced_by_an_equal_one_has_changed(tmp_path):
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_text("same")
    copy.write_text("same")
    watch = FileWatch([file])
    copy.replace(file)
    assert watch.has_changed()


def test_no_files_never_change():
    assert not FileWatch([]).has_changed()
