"""Tables' files on a disk that refuses, and on one whose power is cut while it still works."""

import json
import random

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from gateway.runtime.config_file import ChangingTable, ConfigFile, SettingsTable
from remoting.errors import RequestError
from storage.crash_files import CrashFiles
from storage.errors import StoreFull
from storage.files import DiskFiles


class Disk:
    """Small files that can be refused."""

    def __init__(self):
        self.problem: Exception | None = None
        self.content: dict[str, bytes] = {}

    def read_small(self, path):
        return self.content.get(path)

    def write_small(self, path, data, backup=None):
        if self.problem is not None:
            raise self.problem
        self.content[path] = data


def test_a_refused_table_is_behind_until_it_is_written(caplog):
    disk = Disk()
    file = ConfigFile(disk, "/config/topics.json")
    file.try_save(b"1")
    assert not file.is_behind
    for problem in (StoreFull("no room"), OSError("read-only")):
        disk.problem = problem
        file.try_save(b"2")
        assert file.is_behind
    assert disk.content == {"/config/topics.json": b"1"}
    (record,) = caplog.records
    assert (record.path, record.reason) == ("/config/topics.json", "no room")
    disk.problem = None
    file.try_save(b"3")
    assert not file.is_behind
    assert disk.content == {"/config/topics.json": b"3"}
    disk.problem = StoreFull("again")
    file.try_save(b"4")
    assert [one.reason for one in caplog.records] == ["no room", "again"]


PATH = "/config/topics.json"


class Life:
    """A table that counts up, its file, and which of its contents may be found after a power cut."""

    def __init__(self, files, found=frozenset()):
        self.files = files
        self.file = ConfigFile(files, PATH)
        self.number = self.load()
        self.found = {self.number, *found}
        self.mark = None

    def load(self):
        return ConfigFile(self.files, PATH).load(lambda data: json.loads(data)[0])

    def replace(self):
        self.number = (self.number or 0) + 1
        self.file.replace(json.dumps([self.number]).encode())
        if self.file.unflushed_mark() is None:
            self.found.clear()
        self.found.add(self.number)

    def wait(self):
        self.mark = self.file.unflushed_mark()
        self.file.wait_for_disk()

    def settle(self):
        if self.mark is not None:
            self.file.mark_flushed(self.mark)
            self.mark = None
            if self.file.unflushed_mark() is None:
                self.found = {self.number}


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_after_a_power_cut_the_content_is_the_newest_or_what_was_settled(first_seed):
    for seed in range(first_seed, first_seed + 50):
        check_lives(random.Random(seed), f"seed {seed}")


def check_lives(randomness, name):
    files, found = CrashFiles(), set()
    for _ in range(4):
        life = Life(files, found)
        for _ in range(randomness.randint(0, 12)):
            randomness.choice([life.replace, life.replace, life.wait, life.settle])()
        lose = randomness.random() < 0.7
        files = files.crash(randomness, lose)
        life.files = files
        if lose:
            assert life.load() in life.found, name
        else:
            assert life.load() == life.number, name
        found = set() if lose else life.found


def test_who_replaces_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr("os.fsync", waits.append)
    path = tmp_path / "config" / "topics.json"
    file = ConfigFile(DiskFiles(), str(path))
    file.replace(b"1")
    assert waits  # there is nothing to fall back to
    waits.clear()
    for number in (b"2", b"3"):
        file.replace(number)
    assert (waits, path.read_bytes(), path.with_name("topics.json.bak").read_bytes()) == ([], b"3", b"1")
    mark = file.unflushed_mark()
    file.wait_for_disk()
    assert waits
    file.mark_flushed(mark)
    file.replace(b"4")
    assert (path.read_bytes(), path.with_name("topics.json.bak").read_bytes()) == (b"4", b"3")


def test_a_file_that_somebody_deleted_comes_back(tmp_path):
    path = tmp_path / "topics.json"
    file = ConfigFile(DiskFiles(), str(path))
    file.replace(b"1")
    path.unlink()
    file.wait_for_disk()
    file.replace(b"2")
    assert path.read_bytes() == b"2"


class Numbers(SettingsTable):
    """A table of one number."""

    def __init__(self, file):
        super().__init__(file)
        self.number = 0
        self.set_in_between = 0

    def set_number(self, number):
        self.number = number
        self._dirty = True

    def encode_slices(self):
        yield b"["
        if self.set_in_between:
            self.set_number(self.set_in_between)
        yield str(self.number).encode()
        yield b"]"


def written_and_not_flushed(path):
    """Return a table whose second content is in its file, but perhaps not on the disk."""
    table = Numbers(ConfigFile(DiskFiles(), str(path)))
    for number in (1, 2):
        table.set_number(number)
        trio.run(table.save_changes)
    return table


def refuse_flush(_):
    raise OSError("no room after all")


def test_a_disk_that_fails_later_is_told_and_the_table_written_again(tmp_path, monkeypatch, caplog):
    path = tmp_path / "topics.json"
    table = written_and_not_flushed(path)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse_flush)
        trio.run(table.settle)
        trio.run(table.settle)
    (record,) = caplog.records
    assert record.reason == f"a flush of {path} to the disk failed: no room after all"
    assert (table.file.is_behind, table.is_dirty) == (True, True)
    trio.run(table.save_changes)
    trio.run(table.settle)
    assert (table.file.is_behind, table.file.unflushed_mark(), table.is_dirty) == (False, None, False)
    assert path.read_bytes() == b"[2]"


def test_a_disk_that_fails_at_the_end_leaves_the_table_to_be_written_again(tmp_path, monkeypatch):
    path = tmp_path / "topics.json"
    table = written_and_not_flushed(path)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse_flush)
        table.persist()
    assert table.is_dirty
    written = []
    monkeypatch.setattr(DiskFiles, "replace_small", lambda self, path, data, backup: written.append(data))
    table.persist()
    assert written == [b"[2]"]


def test_many_changes_are_written_once(tmp_path, monkeypatch):
    written = []

    async def save_all():
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                table.set_number(number)
                nursery.start_soon(table.save_changes)

    table = Numbers(ConfigFile(DiskFiles(), str(tmp_path / "topics.json")))
    monkeypatch.setattr(table.file, "replace", written.append)
    trio.run(save_all)
    assert written == [b"[999]"]


def test_a_change_while_the_table_is_encoded_is_written_next(tmp_path):
    table = Numbers(ConfigFile(DiskFiles(), str(tmp_path / "topics.json")))
    table.set_number(1)
    table.set_in_between = 2
    trio.run(table.save_changes)
    assert table.is_dirty
    table.set_in_between = 0
    trio.run(table.save_changes)
    assert not table.is_dirty
    assert (tmp_path / "topics.json").read_bytes() == b"[2]"


def test_who_is_killed_while_replacing_left_the_new_content(tmp_path, monkeypatch):
    path = tmp_path / "topics.json"
    file = ConfigFile(DiskFiles(), str(path))
    for number in (b"1", b"2"):
        file.replace(number)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        file.replace(b"3")
    assert ConfigFile(DiskFiles(), str(path)).load(int) == 3


def test_a_first_save_that_was_cut_short_is_none(tmp_path):
    path = tmp_path / "topics.json"
    path.with_name("topics.json.tmp").write_text("{")
    assert ConfigFile(DiskFiles(), str(path)).load(json.loads) is None


def test_a_torn_file_does_not_replace_its_backup(tmp_path, monkeypatch):
    """A process killed between the two steps of a save would otherwise leave nothing that can be read."""
    path = tmp_path / "topics.json"
    backup = path.with_name("topics.json.bak")
    path.write_bytes(b"[")
    backup.write_bytes(b"[1]")
    file = ConfigFile(DiskFiles(), str(path))
    assert file.load(json.loads) == [1]
    file.save(b"[2]")
    assert (path.read_bytes(), backup.read_bytes()) == (b"[2]", b"[1]")
    file.save(b"[3]")
    assert (path.read_bytes(), backup.read_bytes()) == (b"[3]", b"[2]")


def test_a_table_that_a_killed_process_replaced_is_made_durable():
    """An administrator who repeats a change that is there already gets an answer that holds."""
    files = CrashFiles()
    file = ConfigFile(files, PATH)
    for number in (b"1", b"2"):
        file.replace(number)
    files = files.crash(random.Random(0), lose_unflushed=False)
    again = ConfigFile(files, PATH)
    assert again.load(int) == 2
    assert again.unflushed_mark() is not None
    assert again.flush()
    assert again.unflushed_mark() is None
    for seed in range(10):
        assert ConfigFile(files.crash(random.Random(seed)), PATH).load(int) == 2


def test_a_table_without_a_file_has_nothing_to_wait_for():
    file = ConfigFile(CrashFiles(), PATH)
    assert file.load(int) is None
    assert file.unflushed_mark() is None


def test_the_rest_of_a_change_is_not_undone_during_a_write(tmp_path):
    """The running write counts the undo steps of the changes that it covers; none may go meanwhile."""
    table = SettingsTable(ConfigFile(DiskFiles(), str(tmp_path / "topics.json")))
    events = []

    async def write():
        async with table._saving:
            await trio.sleep(2)
            events.append("written")

    async def change_in_two_parts():
        async with table.stored_change():
            table._undo_changes("no room")
            table.note_change(lambda: events.append("undone"))
            await trio.sleep(1)

    async def change():
        with pytest.raises(RequestError, match="is undone"):
            await change_in_two_parts()

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(change)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert events == ["written", "undone"]


class Progress(ChangingTable):
    """A table of one number, whose failed write at the end is an error."""

    number = 0

    def advance(self):
        self.number += 1
        self._dirty = True

    def to_json(self):
        return json.dumps(self.number).encode()


async def run_here(function):
    return function()


def test_a_first_save_that_fails_leaves_nothing_that_a_stop_could_lose():
    """A broker that nobody uses may be stopped on a full disk, before and after it tried to write its tables."""
    disk = Disk()
    table = Progress(ConfigFile(disk, PATH, run_here))
    table.file.load(json.loads)
    disk.problem = StoreFull("no room")
    for _ in range(2):
        with pytest.raises(StoreFull):
            trio.run(table.save_changes)
        assert not table.is_dirty
        table.persist()
    table.advance()
    for _ in range(2):
        with pytest.raises(StoreFull):
            trio.run(table.save_changes)
        assert table.is_dirty
        with pytest.raises(StoreFull):
            table.persist()
    disk.problem = None
    trio.run(table.save_changes)
    assert (disk.content, table.is_dirty) == ({PATH: b"1"}, False)
