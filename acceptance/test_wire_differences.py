"""Rows of the table of differences about the wire, probed on our server and on the official one."""

import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from acceptance.secured import Server
from codec.command import encode_command
from compat_tests.cases.test_wire import is_closed, raw
from compat_tests.clients.typed import connect, topic_request
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from remoting.requests.offsets import GetMaxOffset
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

TOPIC = "wire-orders"
EMPTY_HEADER = struct.pack(">II", 4, 0)
WAIT_S = 3


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Gateway(tmp_path_factory.mktemp("ours"), "--memory") as process:
        yield process


@pytest.fixture(scope="module")
def official() -> Iterator[Server]:
    try:
        endpoint = OfficialEndpoint()
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with endpoint:
        yield endpoint


@pytest.fixture(params=["ours", "official"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: str) -> Server:
    server: Server = request.getfixturevalue(kind)
    with connect(server.broker) as broker:
        broker.ask(topic_request(TOPIC, 1))
    return server


PLACES = pytest.mark.parametrize("place", ["broker", "namesrv"])


@PLACES
def test_an_empty_header_closes_the_connection(server: Server, place: str) -> None:
    with closing(raw(getattr(server, place))) as connection:
        connection.sendall(encode_command(GetMaxOffset(topic=TOPIC, queue_id=0).to_command(7)))
        connection.settimeout(WAIT_S)
        assert b'"opaque":7' in connection.recv(65536)
        connection.sendall(EMPTY_HEADER)
        assert is_closed(connection, WAIT_S)


@PLACES
def test_less_than_twelve_bytes_at_the_beginning_of_a_connection(
    server: Server, kind: str, place: str
) -> None:
    """The official servers wait for twelve, in which they look for a header of the PROXY protocol."""
    for data, is_official_closed in ((EMPTY_HEADER, False), (EMPTY_HEADER * 2, True)):
        with closing(raw(getattr(server, place))) as connection:
            connection.sendall(data)
            assert is_closed(connection, WAIT_S) is (kind == "ours" or is_official_closed)


def test_the_language_of_answers(server: Server, kind: str) -> None:
    for address in (server.broker, server.namesrv):
        with connect(address) as client:
            client.send_bytes(encode_command(GetMaxOffset(topic=TOPIC, queue_id=0).to_command(8)))
            assert client.receive_command().language == {"ours": "OTHER", "official": "JAVA"}[kind]
