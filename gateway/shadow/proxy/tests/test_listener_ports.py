"""The file of listener ports survives restarts; one that cannot be read is an error."""

import json

import pytest
import trio

from gateway.shadow.proxy.listener_ports import ListenerPorts
from storage.files import MemoryFiles
from toolkit.settings import SettingsError


def open_ports(files, broker_port=10911):
    return ListenerPorts(files, "ports", broker_port)


def assign_ports(ports, **given):
    """Assign ports to hosts by name, and save them."""
    for name, port in given.items():
        ports.assign_port(f"{name}:1", port)
    trio.run(ports.save)


def test_ports_survive_a_restart():
    files = MemoryFiles()
    first = open_ports(files)
    assign_ports(first, a=10911, b=10921)
    reopened = open_ports(files)
    assert (reopened.find_port("a:1"), reopened.find_port("b:1"), reopened.find_port("c:1")) == (
        10911,
        10921,
        None,
    )
    assert set(reopened.assigned_ports()) == {10911, 10921}


def test_a_port_stands_for_a_single_address():
    files = MemoryFiles()
    first = open_ports(files)
    assign_ports(first, a=10911)
    assign_ports(first, b=10911)
    assert open_ports(files).find_port("a:1") is None


def test_without_a_path_ports_are_lost_with_the_process():
    files = MemoryFiles()
    assign_ports(ListenerPorts(files, "", 1), a=1)
    assert ListenerPorts(files, "", 1).find_port("a:1") is None


def test_another_broker_port_discards_the_saved_ports(caplog):
    files = MemoryFiles()
    assign_ports(open_ports(files), a=10911)
    assert open_ports(files, 20911).find_port("a:1") is None
    assert "assigning all ports anew" in caplog.text


@pytest.mark.parametrize(
    "text", ["{", "[]", json.dumps({"format": 2}), json.dumps({"format": 1, "ports": {"a": "b"}})]
)
def test_an_unreadable_file_is_an_error(text):
    files = MemoryFiles()
    files.write_small("ports", text.encode())
    with pytest.raises(SettingsError, match="ports cannot be read"):
        open_ports(files)


class FullDisk(MemoryFiles):
    def write_small(self, path, data, backup=None):
        raise OSError("no space left")


def test_a_file_that_cannot_be_written_is_logged(caplog):
    ports = open_ports(FullDisk())
    assign_ports(ports, a=10911)
    assert ports.find_port("a:1") == 10911
    assert "cannot save listener ports" in caplog.text


def test_unchanged_ports_are_not_written_again():
    files = MemoryFiles()
    assign_ports(open_ports(files), a=10911)
    reopened = open_ports(files)
    files.delete("ports")
    assign_ports(reopened, a=10911)
    assert files.read_small("ports") is None
