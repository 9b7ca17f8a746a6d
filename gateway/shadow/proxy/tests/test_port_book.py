import json

import pytest
import trio

from gateway.shadow.proxy.port_book import KeptPorts
from gateway.shadow.settings import SettingsError
from storage.files import MemoryFiles


def kept(files, broker_port=10911):
    return KeptPorts(files, "ports", broker_port)


def put(ports, **given):
    """Ports by names, written down."""
    for name, port in given.items():
        ports.put(f"{name}:1", port)
    trio.run(ports.save)


def test_ports_are_there_for_the_next_process():
    files = MemoryFiles()
    first = kept(files)
    put(first, a=10911, b=10921)
    again = kept(files)
    assert (again.get("a:1"), again.get("b:1"), again.get("c:1")) == (10911, 10921, None)
    assert set(again.taken()) == {10911, 10921}


def test_a_port_stands_for_one_address():
    files = MemoryFiles()
    first = kept(files)
    put(first, a=10911)
    put(first, b=10911)
    assert kept(files).get("a:1") is None


def test_without_a_path_they_end_with_the_process():
    files = MemoryFiles()
    put(KeptPorts(files, "", 1), a=1)
    assert KeptPorts(files, "", 1).get("a:1") is None


def test_another_row_of_ports_begins_anew(caplog):
    files = MemoryFiles()
    put(kept(files), a=10911)
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
    put(made, a=10911)
    assert made.get("a:1") == 10911
    assert "ports may be other ones after the next start" in caplog.text


def test_what_is_known_is_not_written_again():
    files = MemoryFiles()
    put(kept(files), a=10911)
    again = kept(files)
    files.delete("ports")
    put(again, a=10911)
    assert files.read_small("ports") is None
