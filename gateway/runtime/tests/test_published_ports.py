"""Clients on the host of a container are shown 127.0.0.1."""

import pytest
from trio.testing import memory_stream_pair

from gateway.runtime.published_ports import find_default_gateway, show_loopback_to_host
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.tests.virtual import virtual
from remoting.transport import StreamTransport

TABLE = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth1	0000A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
eth0	00000000	010011AC	0003	0	0	0	00000000	0	0	0
eth0	000011AC	00000000	0001	0	0	0	0000FFFF	0	0	0
"""


def test_default_gateway_is_read_from_the_routes(tmp_path):
    routes = tmp_path / "route"
    assert find_default_gateway(routes) is None
    routes.write_text(TABLE)
    assert find_default_gateway(routes) == "172.17.0.1"
    routes.write_text("\n".join(TABLE.splitlines()[:2]))
    assert find_default_gateway(routes) is None


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("172.17.0.1", "127.0.0.1"),
        ("172.17.0.2", "127.0.0.1"),
        ("172.17.0.9", "172.17.0.2"),
        ("10.0.0.1", "172.17.0.2"),
    ],
)
def test_only_clients_on_the_host_are_shown_loopback(remote, shown):
    @virtual
    async def check():
        stream, _ = memory_stream_pair()
        transport = StreamTransport(stream, remote=(remote, 40_000), local=("172.17.0.2", 9876))
        build = show_loopback_to_host("172.17.0.1")
        connection = build(transport, {}, None, ConnectionLimits())
        assert isinstance(connection, FrameConnection)
        assert connection.local == (shown, 9876)

    check()
