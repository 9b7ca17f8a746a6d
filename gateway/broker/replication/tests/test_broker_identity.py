"""The files with the id of a broker, as the official broker writes and reads them."""

import pytest

from gateway.broker.replication.broker_identity import Application, BrokerIdentity, UnusableIdentity
from storage.files import MemoryFiles

PATH, APPLICATION_PATH = "/store/brokerIdentity", "/store/brokerIdentity-temp"


def identity(files: MemoryFiles, name: str = "broker-a", cluster: str = "c") -> BrokerIdentity:
    return BrokerIdentity(files, "/store", cluster, name)


def test_a_new_broker_has_no_identity() -> None:
    files = MemoryFiles()
    assert identity(files).read() is None
    assert identity(files).read_application() is None
    files.write_small(PATH, b"\n")
    assert identity(files).read() is None


def test_the_files_are_those_of_the_official_broker() -> None:
    files = MemoryFiles()
    application = Application(3, "10.0.0.1:10911;1700000000000")
    identity(files).write_application(application)
    assert files.read_small(APPLICATION_PATH) == b"c#broker-a#3#10.0.0.1:10911;1700000000000"
    assert identity(files).read_application() == application
    assert identity(files).read() is None
    identity(files).write(3)
    assert files.read_small(PATH) == b"c#broker-a#3"
    assert files.read_small(APPLICATION_PATH) is None
    assert identity(files).read() == 3


def test_an_application_can_be_withdrawn() -> None:
    files = MemoryFiles()
    identity(files).write_application(Application(1, "code"))
    identity(files).withdraw_application()
    assert identity(files).read_application() is None


@pytest.mark.parametrize(
    "content", [b"c#broker-a", b"c#broker-a#1#code", b"\xff", b"c#broker-a#one", b"c#broker-a#0"]
)
def test_a_file_that_cannot_be_read_is_said(content: bytes) -> None:
    files = MemoryFiles()
    files.write_small(PATH, content)
    with pytest.raises(UnusableIdentity, match="/store/brokerIdentity"):
        identity(files).read()
    assert files.read_small(PATH) == content


@pytest.mark.parametrize(("name", "cluster"), [("broker-b", "c"), ("broker-a", "d")])
def test_a_store_of_another_broker_is_said(name: str, cluster: str) -> None:
    files = MemoryFiles()
    identity(files).write(2)
    identity(files).write_application(Application(2, "code"))
    other = identity(files, name, cluster)
    for read in (other.read, other.read_application):
        with pytest.raises(UnusableIdentity, match="is of the broker broker-a of the cluster c"):
            read()
