import socket
from contextlib import suppress

import pytest
import trio

from remoting.tests.virtual import transports, virtual
from remoting.transport import SocketTransport, connect


def pair():
    """Two connected TCP sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    return here, there


def fill(transport, data):
    """Sends until the kernel takes no more; how much it took."""
    sent = 0
    with suppress(BlockingIOError):
        while sent < len(data):
            sent += transport.send_now(memoryview(data)[sent:])
    return sent


def test_bytes_and_addresses_over_tcp():
    async def main():
        here, there = pair()
        name, peer = here.getsockname(), here.getpeername()
        transport, other = SocketTransport(here), SocketTransport(there)
        assert (transport.local, transport.remote) == (name, peer) == (other.remote, other.local)
        assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert transport.send_now(b"abc") == 3
        assert await other.receive(2) == b"ab"
        assert await other.receive(2) == b"c"
        other.close()
        assert await transport.receive(10) == b""
        transport.close()
        transport.close()

    trio.run(main)


def test_bytes_that_do_not_fit_are_sent_while_the_peer_reads():
    async def main():
        here, there = pair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        transport, other = SocketTransport(here), SocketTransport(there)
        data = bytes(range(256)) * 6_000
        sent = fill(transport, data)
        assert 0 < sent < len(data)
        with pytest.raises(BlockingIOError):
            transport.send_now(b"x")
        received = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.send_all, data[sent:])
            while len(received) < len(data):
                received += await other.receive(1 << 20)
        assert received == data
        transport.close()
        other.close()

    trio.run(main)


def test_closing_wakes_tasks_that_wait_to_receive_or_send():
    async def main():
        here, there = pair()
        transport = SocketTransport(here)
        fill(transport, bytes(1 << 24))
        ended = []

        async def receive():
            ended.append(await transport.receive(10))

        async def send():
            with pytest.raises(OSError, match="closed"):
                await transport.send_all(b"x")
            ended.append("send")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            transport.close()
        assert sorted(map(str, ended)) == ["b''", "send"]
        with pytest.raises(OSError):  # noqa: PT011 - the kernel's own words
            transport.send_now(b"x")
        there.close()

    trio.run(main)


def test_an_ipv4_peer_of_a_dual_stack_listener_shows_as_ipv4():
    async def main():
        if not socket.has_dualstack_ipv6():
            pytest.skip("no IPv6 here")
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
            port = listener.getsockname()[1]
            for host in ("127.0.0.1", "::1"):
                there = socket.create_connection((host, port))
                here, _ = listener.accept()
                transport = SocketTransport(here)
                assert (transport.remote[0], transport.local) == (host, (host, port))
                transport.close()
                there.close()

    trio.run(main)


def test_a_local_socket_has_an_empty_address():
    async def main():
        here, there = socket.socketpair()
        transport = SocketTransport(here)
        assert transport.remote == ("", 0)
        transport.close()
        there.close()

    trio.run(main)


def test_connecting_to_a_closed_port():
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            transport = await connect("127.0.0.1", port)
            here, _ = listener.accept()
            assert transport.remote == ("127.0.0.1", port)
            here.sendall(b"hi")
            assert await transport.receive(10) == b"hi"
            transport.close()
            here.close()
        with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
            await connect("127.0.0.1", port)

    trio.run(main)


@pytest.mark.parametrize("host", ["a..b", ".x", "x" * 300, "\ud800", ""])
def test_connecting_to_a_host_that_has_no_valid_name(host):
    with pytest.raises(OSError):  # noqa: PT011 - the system's resolver refuses some of them
        trio.run(connect, host, 1)


@virtual
async def test_streams_never_send_without_waiting():
    here, there = transports()
    with pytest.raises(BlockingIOError):
        here.send_now(b"abc")
    with pytest.raises(BlockingIOError):
        there.receive_now(10)
    await here.send_all(memoryview(b"abc"))
    assert await there.receive(10) == b"abc"
    assert here.remote == there.local


@virtual
async def test_streams_that_are_closed_raise_or_end():
    here, there = transports()
    there.close()
    await trio.testing.wait_all_tasks_blocked()
    assert await here.receive(10) == b""
    with pytest.raises(OSError):  # noqa: PT011 - trio's own words
        await here.send_all(b"x")
    with pytest.raises(OSError):  # noqa: PT011 - trio's own words
        await there.receive(10)
    there.close()
    here.close()
