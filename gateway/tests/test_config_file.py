"""Tables' files on a disk that refuses: said once, remembered, written when there is room."""

from gateway.broker.config_file import ConfigFile
from storage.errors import StoreFull


class Disk:
    """Small files that can be refused."""

    def __init__(self):
        self.problem: Exception | None = None
        self.content: dict[str, bytes] = {}

    def read_small(self, path):
        return self.content.get(path)

    def write_small(self, path, data):
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
