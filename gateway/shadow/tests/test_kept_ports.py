import json

import pytest

from gateway.shadow.forward.kept_ports import KeptPorts
from gateway.shadow.settings import SettingsError
from storage.files import MemoryFiles


def kept(files, broker_port=10911):
    return KeptPorts(files, "ports", broker_port)


def test_ports_are_there_for_the_next_process():
    files = MemoryFiles()
    first = kept(files)
    first.put("a:1", 10911)
    first.put("b:1", 10921)
    again = kept(files)
    assert (again.get("a:1"), again.get("b:1"), again.get("c:1")) == (10911, 10921, None)
    assert set(again.taken()) == {10911, 10921}


def test_a_port_stands_for_one_address():
    files = MemoryFiles()
    first = kept(files)
    first.put("a:1", 10911)
    first.put("b:1", 10911)
    assert kept(files).get("a:1") is None


def test_without_a_path_they_end_with_the_process():
    files = MemoryFiles()
    KeptPorts(files, "", 1).put("a:1", 1)
    assert KeptPorts(files, "", 1).get("a:1") is None


def test_another_row_of_ports_begins_anew(caplog):
    files = MemoryFiles()
    kept(files).put("a:1", 10911)
    assert kept(files, 20911).get("a:1") is None
    assert "ports are given anew" in caplog.text


@pytest.mark.parametrize(
    "text", ["{", "[]", json.dumps({"format": 2}), json.dumps({"format": 1, "ports": {"a": "b"}})]
)
def test_a_file_that_cannot_be_read_is_told(text):
    files = MemoryFiles()
    files.write_small("ports", text.encode())
    with pytest.raises(SettingsError, match="ports cannot be read"):
        kept(files)


class Full(MemoryFiles):
    def write_small(self, path, data):
        raise OSError("no space left")


def test_a_file_that_cannot_be_written_is_told(caplog):
    made = kept(Full())
    made.put("a:1", 10911)
    assert made.get("a:1") == 10911
    assert "a port may be another one after the next start" in caplog.text
