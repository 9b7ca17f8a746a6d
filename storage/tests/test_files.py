"""Files on disk: the durability of new folders, zeroing, files that vanish, and batches over several queue files."""

import errno
import os

import pytest

from codec.batch import encode_batch
from storage import files as files_module
from storage.append import NewMessage
from storage.errors import FlushFailed, StoreFull, StoreUnwritable
from storage.files import NEW_SUFFIX, DiskFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

PAGE = 4096


def test_folders_that_get_a_new_folder_are_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(DiskFiles, "_flush_directory", lambda self, directory: flushed.append(directory))
    files = DiskFiles()
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / "file").touch()
    path = f"{tmp_path}/store/consumequeue/topic/0/file"
    files.open_mapped(path, PAGE).close()
    files.flush(path)
    expected = [f"{tmp_path}/store{below}" for below in ("", "/consumequeue", "/consumequeue/topic")]
    assert sorted(flushed) == [*expected, f"{tmp_path}/store/consumequeue/topic/0"]
    flushed.clear()
    files.open_mapped(f"{tmp_path}/store/consumequeue/other/0/file", PAGE).close()
    files.flush(f"{tmp_path}/store/commitlog/file")
    assert flushed == []  # a flush of the commit log does not wait for the folders of new queues
    files.flush_many([path])
    assert sorted(flushed) == [
        f"{tmp_path}/store/consumequeue{below}" for below in ("", "/other", "/other/0")
    ]


@pytest.mark.parametrize("written", [[0], [0, PAGE - 1], [10, 5 * PAGE], [7 * PAGE]])
@pytest.mark.parametrize("start", [0, 11, PAGE, 5 * PAGE, 8 * PAGE])
def test_zeroing_the_end_of_a_file(tmp_path, written, start):
    file = DiskFiles().open_mapped(str(tmp_path / "file"), 8 * PAGE)
    for path in written:
        file.buffer[path] = 1
    file.zero_from(start)
    assert bytes(file.view) == bytes(1 if at in written and at < start else 0 for at in range(8 * PAGE))
    assert (tmp_path / "file").stat().st_size == 8 * PAGE
    file.close()


def test_zeroing_a_hole_needs_no_disk_space(tmp_path):
    file = DiskFiles().open_mapped(str(tmp_path / "file"), 8 * PAGE)
    file.zero_from(10)
    assert (tmp_path / "file").stat().st_blocks == 0
    file.close()


def test_many_files_one_of_which_was_deleted_meanwhile(tmp_path):
    files = DiskFiles()
    paths = [f"{tmp_path}/{number}" for number in range(files_module._MAX_SINGLE_FLUSHES + 1)]
    for path in paths[1:]:
        files.open_mapped(path, PAGE).close()
    files.flush_many(paths)
    for path in paths:
        files.delete(path)
    files.flush_many(paths)


def test_many_files_are_flushed_one_by_one_without_syncfs(tmp_path, monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda *args, **kwargs: None)
    flushed = []
    monkeypatch.setattr("os.fdatasync", flushed.append)
    files = DiskFiles()
    paths = [f"{tmp_path}/{number}" for number in range(files_module._MAX_SINGLE_FLUSHES + 1)]
    for path in paths:
        files.open_mapped(path, PAGE).close()
    files.flush_many(paths)
    assert len(flushed) == len(paths)


@pytest.mark.parametrize("count", [5, 9, 10, 11, 24])
def test_a_batch_over_several_queue_files(tmp_path, count):
    """Room for its entries is made in all of these files, and none gets longer than a queue file."""
    config = small_config(root=str(tmp_path), message_index_enable=False)
    for opened in range(3):
        store = MessageStore.open(config, DiskFiles(), FakeClock())
        assert store.append_batch("t", 0, encode_batch([(0, b"", b"")] * count))[0] == opened * count
        store.close()
    sizes = {path.stat().st_size for path in (tmp_path / "consumequeue" / "t" / "0").iterdir()}
    assert sizes == {100}
    assert len(os.listdir(tmp_path / "consumequeue" / "t" / "0")) >= -(-3 * count // 5)


def test_a_small_file_is_durable_before_it_replaces_the_old_one(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def watch_fsync(fd):
        events.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def watch_replace(old, new):
        events.append("replaced")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    DiskFiles().write_small(f"{tmp_path}/file", b"content")
    assert events == [f"{tmp_path}/file.tmp", "replaced", str(tmp_path)]
    assert (tmp_path / "file").read_bytes() == b"content"


def refuse(*arguments):
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("function", ["fdatasync", "fsync"])
def test_a_flush_that_the_disk_refuses_names_the_file(tmp_path, monkeypatch, function):
    files = DiskFiles()
    path = f"{tmp_path}/folder/file"
    files.open_mapped(path, PAGE).close()
    monkeypatch.setattr(os, function, refuse)
    for flush in (files.flush, lambda path: files.flush_many([path])):
        with pytest.raises(
            FlushFailed, match=rf"a flush of {tmp_path}.* to the disk failed: Input/output error"
        ):
            flush(path)
    with pytest.raises(FlushFailed):
        files.reread_from_disk(str(tmp_path)) if function == "fsync" else files.flush(path)


def test_a_flush_that_cannot_be_tried_may_be_repeated(tmp_path, monkeypatch):
    files = DiskFiles()
    path = f"{tmp_path}/file"
    files.open_mapped(path, PAGE).close()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)  # as when no file descriptor is left
        with pytest.raises(OSError, match="Input/output"):
            files.flush(path)
    files.flush(path)


def counted_flushes(monkeypatch):
    """Return a list that gets the path and inode of every file at its fdatasync."""
    flushed, fdatasync = [], os.fdatasync

    def flush(fd):
        flushed.append((os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_ino))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", flush)
    return flushed


def open_descriptors(folder):
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sorted(
        os.readlink(name) for name in names if os.path.lexists(name) and str(folder) in os.readlink(name)
    )


def test_a_file_that_is_flushed_again_and_again_stays_open(tmp_path, monkeypatch):
    files = DiskFiles()
    paths = [f"{tmp_path}/{name}" for name in ("first", "second")]
    for path in paths:
        files.open_mapped(path, PAGE).close()
    files.flush_many(paths)
    flushed = counted_flushes(monkeypatch)
    files.flush_again(paths[0])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        for _ in range(3):
            files.flush_again(paths[0])
    assert [path for path, _ in flushed] == [paths[0]] * 4
    assert open_descriptors(tmp_path) == [paths[0]]
    files.flush(paths[1])
    assert open_descriptors(tmp_path) == [paths[0]], "other files are closed at once"
    files.flush_again(paths[1])
    assert open_descriptors(tmp_path) == [paths[1]], "one file at a time stays open"
    del files
    assert open_descriptors(tmp_path) == []


@pytest.mark.parametrize("delete", ["file", "folder"])
def test_a_new_file_of_the_same_name_is_flushed_itself(tmp_path, monkeypatch, delete):
    files = DiskFiles()
    path = f"{tmp_path}/folder/file"
    files.open_mapped(path, PAGE).close()
    files.flush_again(path)
    files.delete(path) if delete == "file" else files.delete_tree(f"{tmp_path}/folder")
    assert open_descriptors(tmp_path) == [], "the disk gets its space back"
    files.flush_again(path)
    (tmp_path / "folder").mkdir(exist_ok=True)
    (tmp_path / "other").write_bytes(b"takes the inode that became free")
    files.open_mapped(path, PAGE).close()
    flushed = counted_flushes(monkeypatch)
    files.flush_again(path)
    assert flushed == [(path, os.stat(path).st_ino)]


@pytest.mark.parametrize("call", ["fdatasync", "pread"])
def test_a_refused_flush_of_an_open_file_names_it(tmp_path, monkeypatch, call):
    """A file system that shut down while it flushed may report success, but its files cannot be read."""
    files = DiskFiles()
    path = f"{tmp_path}/file"
    files.open_mapped(path, PAGE).close()
    files.flush_again(path)
    monkeypatch.setattr(os, call, refuse)
    for _ in range(2):
        with pytest.raises(FlushFailed, match=f"a flush of {path} to the disk failed: Input/output error"):
            files.flush_again(path)


@pytest.mark.parametrize("other", ["same", "another", "deletion"])
def test_no_thread_closes_the_file_that_another_flushes(tmp_path, monkeypatch, other):
    files = DiskFiles()
    paths = [f"{tmp_path}/{name}" for name in ("file", "another")]
    for path in paths:
        files.open_mapped(path, PAGE).close()
    files.flush_many(paths)
    files.flush_again(paths[0])
    fdatasync, nested = os.fdatasync, []

    def flush(fd):
        if not nested:
            nested.append(fd)  # as other threads do meanwhile
            if other == "deletion":
                files.delete(paths[1])
            else:
                files.flush_again(paths[other == "another"])
        fdatasync(fd)  # fails with EBADF if it was closed

    monkeypatch.setattr(os, "fdatasync", flush)
    files.flush_again(paths[0])
    files.flush_again(paths[0])
    assert open_descriptors(tmp_path) == [paths[0]]


def test_a_file_that_is_deleted_while_it_is_flushed_is_closed(tmp_path, monkeypatch):
    files = DiskFiles()
    path = f"{tmp_path}/file"
    files.open_mapped(path, PAGE).close()
    files.flush_again(path)
    monkeypatch.setattr(os, "fdatasync", lambda fd: files.delete(path))
    files.flush_again(path)
    assert open_descriptors(tmp_path) == []
    monkeypatch.undo()
    files.open_mapped(path, PAGE).close()
    flushed = counted_flushes(monkeypatch)
    files.flush_again(path)
    assert flushed == [(path, os.stat(path).st_ino)]


def test_many_files_that_the_disk_refuses(tmp_path, monkeypatch):
    files = DiskFiles()
    paths = [f"{tmp_path}/{number}" for number in range(files_module._MAX_SINGLE_FLUSHES + 1)]
    for path in paths:
        files.open_mapped(path, PAGE).close()

    class Refusing:
        @staticmethod
        def syncfs(fd):
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **more: Refusing)
    with pytest.raises(FlushFailed, match=r"a flush of the file system of .*0 to the disk failed"):
        files.flush_many(paths)


def test_a_file_read_from_the_disk_again_is_the_same(tmp_path):
    files = DiskFiles()
    file = files.open_mapped(f"{tmp_path}/folder/file", PAGE)
    file.buffer[7] = 7
    file.close()
    files.reread_from_disk(str(tmp_path))
    assert files.open_mapped(f"{tmp_path}/folder/file", PAGE).buffer[7] == 7


@pytest.mark.parametrize("reason", [errno.EIO, errno.ENOSPC])
def test_a_small_file_that_cannot_be_flushed_leaves_the_old_one_and_is_written_anew(
    tmp_path, monkeypatch, reason
):
    files, path = DiskFiles(), f"{tmp_path}/table.json"
    files.write_small(path, b"old")

    def fail(fd):
        raise OSError(reason, "the disk refuses")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises((OSError, StoreFull)):
            files.write_small(path, b"new")
    assert files.read_small(path) == b"old"
    assert files.read_small(path + NEW_SUFFIX) is None, "the next try has pages of its own"
    files.write_small(path, b"new")
    assert files.read_small(path) == b"new"


def test_the_flush_of_a_deleted_file_makes_its_deletion_durable(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(DiskFiles, "_flush_directory", lambda self, directory: flushed.append(directory))
    files = DiskFiles()
    path = f"{tmp_path}/consumequeue/topic/0/file"
    files.open_mapped(path, PAGE).close()
    files.flush(path)
    flushed.clear()
    files.delete(path)
    files.flush(path)
    assert flushed == [f"{tmp_path}/consumequeue/topic/0"]
    monkeypatch.undo()
    files.delete_tree(f"{tmp_path}/consumequeue/topic")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    files.flush(path)
    assert synced == [f"{tmp_path}/consumequeue"]


def test_a_replaced_file_is_durable_with_its_folder_once_it_was_flushed(tmp_path, monkeypatch):
    synced = []
    files = DiskFiles()
    files.replace_small(f"{tmp_path}/file", b"content", None)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    files.flush_small(f"{tmp_path}/file")
    assert synced == [f"{tmp_path}/file", str(tmp_path)]


def test_a_folder_that_gets_a_file_while_it_is_flushed_is_flushed_again(tmp_path, monkeypatch):
    files = DiskFiles()
    flushed = []

    def flush_directory(self, directory):
        if directory == f"{tmp_path}/store" and directory not in flushed:
            files.open_mapped(f"{tmp_path}/store/other", PAGE).close()
        flushed.append(directory)

    monkeypatch.setattr(DiskFiles, "_flush_directory", flush_directory)
    files.open_mapped(f"{tmp_path}/store/file", PAGE).close()
    files.flush(f"{tmp_path}/store/file")
    flushed.append("again")
    files.flush(f"{tmp_path}/store/other")
    assert f"{tmp_path}/store" in flushed[flushed.index("again") :]


def fill_log(store, queue_id):
    while True:
        store.append(NewMessage("t", queue_id, bytes(3000), b""))


def make_read_only(monkeypatch):
    """Let every opening of a file for writing fail, as after an error that made the file system read-only."""
    opened = os.open

    def open_for_reading(path, flags, *mode):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_for_reading)


@pytest.mark.parametrize("flush_failed", [True, False])
def test_a_read_only_file_system_refuses_messages_without_naming_a_file(tmp_path, monkeypatch, flush_failed):
    store = MessageStore.open(small_config(root=str(tmp_path)), DiskFiles(), FakeClock())
    store.append(NewMessage("t", 0, b"first", b""))

    def fail(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if flush_failed:
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(FlushFailed):
            store.flush()
    make_read_only(monkeypatch)
    for number in range(3):
        with pytest.raises(FlushFailed if flush_failed else StoreUnwritable) as refusal:
            fill_log(store, number)
        assert str(tmp_path) not in refusal.value.reason
    assert str(tmp_path) not in (store.trouble or str(tmp_path))
    with pytest.raises(StoreUnwritable) as refusal:
        DiskFiles().write_small(str(tmp_path / "table.json"), b"{}")
    assert refusal.value.reason == "the disk cannot be written: Read-only file system"


def test_messages_of_a_read_only_file_system_are_read(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    files = DiskFiles()
    mapped = files.open_mapped(path, 4096)
    mapped.buffer[:5] = b"bytes"
    mapped.close()
    make_read_only(monkeypatch)
    assert bytes(files.open_mapped(path, 4096).view[:5]) == b"bytes"
    with pytest.raises(StoreUnwritable):
        files.open_mapped(path + "new", 4096)


def test_a_flush_of_a_read_only_file_system_is_tried(tmp_path, monkeypatch):
    """A flush that could not be tried would be repeated without end, and its answers wait for nothing."""
    path = str(tmp_path / "file")
    files = DiskFiles()
    files.open_mapped(path, 4096)

    def fail(fd):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    make_read_only(monkeypatch)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(FlushFailed):
        files.flush(path)
