import contextlib
import errno
import gc
import socket
import tracemalloc

import pytest
import trio
import trio.lowlevel

from codec.command import encode_response
from codec.frames import FrameSplitter
from remoting.limits import ConnectionLimits
from remoting.server import RemotingServer, ServerLimits, accept_connections, open_listeners
from remoting.tests.virtual import Kernel, frame, settle, virtual

ECHO = 1


def echo(connection, command):
    return encode_response(command.opaque, 0, None, command.body)


HANDLERS = {ECHO: echo}


async def ask(sock, request):
    """One request and its answer over a trio socket."""
    await sock.send_all(request)
    splitter = FrameSplitter()
    while True:
        answers = splitter.feed(await sock.receive_some())
        if answers:
            return answers[0]


def run_served(test, server, host="127.0.0.1"):
    """Runs ``test(dial)`` beside the server, stops it and waits for its end; ``dial`` opens a connection."""

    async def main():
        listeners = open_listeners(host, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, listeners)
            with trio.fail_after(20):
                port = listeners[0].getsockname()[1]
                async with contextlib.AsyncExitStack() as stack:

                    async def dial(address=host):
                        return await stack.enter_async_context(await trio.open_tcp_stream(address, port))

                    await test(dial)
                    await server.drain()
        assert all(listener.fileno() < 0 for listener in listeners)
        assert not server.connections

    trio.run(main)


def test_serves_and_ends_with_open_connections():
    server = RemotingServer(HANDLERS)

    async def test(dial):
        first, second = [await dial() for _ in range(2)]
        assert (await ask(first, frame(ECHO, 5, body=b"hi"))).body == b"hi"
        assert (await ask(second, frame(ECHO, 6))).opaque == 6
        assert len(server.connections) == 2
        await first.aclose()
        while len(server.connections) == 2:
            await trio.lowlevel.checkpoint()

    run_served(test, server)


def test_one_address_serves_both_families_when_no_host_is_named():
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    server = RemotingServer(HANDLERS)

    async def test(dial):
        for host in ("127.0.0.1", "::1"):
            stream = await dial(host)
            assert (await ask(stream, frame(ECHO, 1))).opaque == 1
            (connection,) = server.connections
            assert connection.remote[0] == connection.local[0] == host
            await stream.aclose()
            while server.connections:
                await trio.lowlevel.checkpoint()

    run_served(test, server, host=None)


def test_a_taken_port_is_an_os_error():
    (listener,) = open_listeners("127.0.0.1", 0)
    with listener, pytest.raises(OSError) as problem:  # noqa: PT011 - its number is checked
        open_listeners("127.0.0.1", listener.getsockname()[1])
    assert problem.value.errno == errno.EADDRINUSE


def test_more_connections_than_allowed_are_closed_at_once():
    server = RemotingServer(HANDLERS, server_limits=ServerLimits(max_connections=1))

    async def test(dial):
        first = await dial()
        assert (await ask(first, frame(ECHO, 1))).opaque == 1
        second = await dial()
        assert await second.receive_some() == b""
        assert (await ask(first, frame(ECHO, 2))).opaque == 2

    run_served(test, server)


class Gate:
    """Accepts a connection when it is opened; `error` is raised then."""

    def __init__(self, error=None):
        self.waiting = 0
        self.opened = trio.Event()
        self.error = error

    async def accept(self, transport):
        self.waiting += 1
        await self.opened.wait()
        if self.error is not None:
            raise self.error
        return transport


def test_connections_of_one_address_are_limited(caplog):
    caplog.set_level("INFO")
    server = RemotingServer(HANDLERS, server_limits=ServerLimits(max_connections_per_address=2))

    async def test(dial):
        first, second = [await dial() for _ in range(2)]
        for stream in (first, second):
            assert (await ask(stream, frame(ECHO, 1))).opaque == 1
        assert await (await dial()).receive_some() == b""
        await first.aclose()
        while server._open_by_address["127.0.0.1"] == 2:
            await trio.lowlevel.checkpoint()
        assert (await ask(await dial(), frame(ECHO, 3))).opaque == 3

    run_served(test, server)
    assert not server._open_by_address
    assert caplog.text.count("too many from this address") == 1


def test_connections_that_are_being_accepted_count():
    gate = Gate()
    server = RemotingServer(
        HANDLERS, server_limits=ServerLimits(max_connections=2), accept_transport=gate.accept
    )

    async def test(dial):
        first, second = [await dial() for _ in range(2)]
        while gate.waiting < 2:
            await trio.lowlevel.checkpoint()
        third = await dial()
        assert await third.receive_some() == b""
        gate.opened.set()
        for stream in (first, second):
            assert (await ask(stream, frame(ECHO, 1))).opaque == 1
        await first.aclose()
        while len(server.connections) == 2:
            await trio.lowlevel.checkpoint()
        assert (await ask(await dial(), frame(ECHO, 3))).opaque == 3

    run_served(test, server)


@pytest.mark.parametrize("error", [OSError("not served"), ZeroDivisionError("by hand")])
def test_a_connection_that_is_not_accepted_is_closed_and_ends_no_other(error, caplog):
    caplog.set_level("DEBUG")
    gate = Gate()
    gate.opened.set()
    server = RemotingServer(HANDLERS, accept_transport=gate.accept)

    async def test(dial):
        first = await dial()
        assert (await ask(first, frame(ECHO, 1))).opaque == 1
        gate.error = error
        assert await (await dial()).receive_some() == b""
        gate.error = None
        assert (await ask(first, frame(ECHO, 2))).opaque == 2

    run_served(test, server)
    assert "connection not accepted" in caplog.text
    assert ("Traceback" in caplog.text) == isinstance(error, ZeroDivisionError)


def test_a_stop_does_not_wait_for_connections_that_are_being_accepted():
    gate = Gate()
    server = RemotingServer(HANDLERS, accept_transport=gate.accept)

    async def test(dial):
        stream = await dial()
        while not gate.waiting:
            await trio.lowlevel.checkpoint()
        await server.drain()
        assert await stream.receive_some() == b""

    run_served(test, server)


@pytest.mark.parametrize("where", ["open", "task"])
def test_a_defect_of_one_connection_ends_no_other(where, caplog):
    opened = []

    async def fail_late():
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("by hand")

    def fail_once(connection):
        opened.append(connection)
        if len(opened) == 2:
            if where == "open":
                raise ZeroDivisionError("by hand")
            connection._nursery.start_soon(fail_late)

    server = RemotingServer(HANDLERS, on_open=fail_once)

    async def test(dial):
        first = await dial()
        assert (await ask(first, frame(ECHO, 1))).opaque == 1
        second = await dial()
        assert await second.receive_some() == b""
        assert opened[1].closed
        assert (await ask(first, frame(ECHO, 2))).opaque == 2
        assert len(server.connections) == 1

    run_served(test, server)
    assert "connection ended by a defect" in caplog.text


class FailingListener:
    """A listening socket whose accept fails a few times first."""

    def __init__(self, listener, errors):
        self._listener = listener
        self.errors = errors

    def accept(self):
        if self.errors:
            raise OSError(self.errors.pop(), "by hand")
        return self._listener.accept()

    def __getattr__(self, name):
        return getattr(self._listener, name)


def test_accepting_goes_on_after_errors(caplog):
    async def main():
        (listener,) = open_listeners("127.0.0.1", 0)
        errors = [errno.ECONNABORTED, errno.EMFILE, errno.EAGAIN]
        server = RemotingServer(HANDLERS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, [FailingListener(listener, errors)])
            with trio.fail_after(20):
                async with await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1]) as stream:
                    assert (await ask(stream, frame(ECHO, 1))).opaque == 1
            await server.drain()
        assert not errors
        assert caplog.text.count("cannot accept a connection") == 1

    trio.run(main)


def test_connections_that_wait_are_accepted_together():
    """A turn may be far away while sockets are busy: a thousand clients that come back must not take one each."""

    async def main():
        (listener,) = open_listeners("127.0.0.1", 0)
        peers = [socket.create_connection(listener.getsockname()) for _ in range(100)]
        accepted, turns = [], 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                accept_connections, listener, lambda sock, nursery: accepted.append(sock), nursery
            )
            with trio.fail_after(20):
                while len(accepted) < len(peers):
                    await trio.lowlevel.checkpoint()
                    turns += 1
            nursery.cancel_scope.cancel()
        assert turns < 10
        for sock in peers + accepted:
            sock.close()

    trio.run(main)


def test_a_connection_accepted_while_stopping_does_not_keep_the_server_alive():
    async def main():
        server = RemotingServer(HANDLERS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, [])
            await trio.testing.wait_all_tasks_blocked()
            await server.drain()
        late = Kernel()
        with trio.fail_after(5):
            await server.serve_transport(late)
        assert late.closed

    trio.run(main)


async def opened(nursery, server, count):
    """Open connections whose peers the test plays."""
    kernels = [Kernel() for _ in range(count)]
    for kernel in kernels:
        nursery.start_soon(server.serve_transport, kernel)
    await settle()
    return kernels


@virtual
async def test_idle_connections_are_closed_and_busy_ones_stay():
    server = RemotingServer(HANDLERS, ConnectionLimits(idle_close_s=80))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, [])
        idle, busy = await opened(nursery, server, 2)
        for _ in range(12):
            await trio.sleep(7)
            assert not idle.closed or trio.current_time() > 80
            busy.arrive(frame(ECHO, 1))
        await trio.sleep(10)
        assert idle.closed
        assert not busy.closed
        await trio.sleep(95)
        assert busy.closed
        nursery.cancel_scope.cancel()


@virtual
async def test_the_largest_unfinished_frames_are_shed_when_all_are_too_much():
    server = RemotingServer(
        HANDLERS, ConnectionLimits(idle_close_s=float("inf")), ServerLimits(max_input_bytes=5000)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, [])
        kernels = await opened(nursery, server, 3)
        whole = frame(ECHO, 1, body=bytes(9000))
        for kernel, size in zip(kernels, (1000, 4000, 2500), strict=True):
            kernel.arrive(whole[:size])
        await trio.sleep(1.5)
        assert [kernel.closed for kernel in kernels] == [False, True, False]
        nursery.cancel_scope.cancel()


@virtual
async def test_peers_with_the_most_unread_answers_are_shed_when_all_are_too_much(caplog):
    server = RemotingServer(HANDLERS, server_limits=ServerLimits(max_output_bytes=5000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, [])
        kernels = await opened(nursery, server, 3)
        for kernel, size in zip(kernels, (1000, 4000, 2500), strict=True):
            kernel.room = 0
            kernel.arrive(frame(ECHO, 1, body=bytes(size)))
        await trio.sleep(1.5)
        assert [kernel.closed for kernel in kernels] == [False, True, False]
        assert [(record.what, record.closed) for record in caplog.records] == [("unread answers", 1)]
        nursery.cancel_scope.cancel()


@virtual
async def test_large_unfinished_frames_are_shed_as_they_grow(caplog):
    server = RemotingServer(HANDLERS, server_limits=ServerLimits(max_input_bytes=2_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, [])
        kernels = await opened(nursery, server, 8)
        part = frame(ECHO, 1, body=bytes(2_000_000))[:300_000]
        start = trio.current_time()
        for kernel in kernels:
            kernel.arrive(part)
            await settle()
        # at once, not at the next turn of the clock
        assert trio.current_time() == start
        assert sum(not kernel.closed for kernel in kernels) == 6
        assert {record.closed for record in caplog.records} == {1}
        nursery.cancel_scope.cancel()


@virtual
async def test_unread_answers_are_shed_as_they_grow(caplog):
    server = RemotingServer(HANDLERS, server_limits=ServerLimits(max_output_bytes=2_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, [])
        kernels = await opened(nursery, server, 8)
        start = trio.current_time()
        for kernel in kernels:
            kernel.room = 0
            kernel.arrive(frame(ECHO, 1, body=bytes(300_000)))
            await settle()
        # at once, not at the next turn of the clock
        assert trio.current_time() == start
        assert sum(not kernel.closed for kernel in kernels) == 6
        assert {record.what for record in caplog.records} == {"unread answers"}
        nursery.cancel_scope.cancel()


@virtual
async def test_drain_lets_running_requests_finish_and_does_not_wait_for_more():
    async def work(connection, command):
        await trio.sleep(command.opaque)
        connection.write(encode_response(command.opaque, 0, None))

    handlers = {ECHO: lambda connection, command: connection.spawn(work, connection, command)}
    for seconds, answered in ((2, [2]), (9, [])):
        server = RemotingServer(handlers, server_limits=ServerLimits(max_drain_s=5))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, [])
            async with trio.open_nursery() as peers:
                (kernel,) = await opened(peers, server, 1)
                kernel.arrive(frame(ECHO, seconds))
                await settle()
                start = trio.current_time()
                await server.drain()
                assert trio.current_time() - start == pytest.approx(min(seconds, 5), abs=0.02)
            assert [answer.opaque for answer in kernel.commands()] == answered
            assert kernel.closed


@virtual
async def test_opened_connections_are_reported():
    told = []
    server = RemotingServer(HANDLERS, on_open=told.append)
    async with trio.open_nursery() as nursery:
        await opened(nursery, server, 2)
        assert set(told) == server.connections
        nursery.cancel_scope.cancel()
    assert not server.connections
    assert all(connection.closed for connection in told)


def test_a_connection_costs_little_memory():
    async def main():
        server = RemotingServer(HANDLERS)
        async with trio.open_nursery() as nursery:
            gc.collect()
            tracemalloc.start()
            for kernel in await opened(nursery, server, 300):
                kernel.arrive(frame(ECHO, 1))
            await settle()
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(server.connections) == 300
            assert size < 300 * 12_000, f"{size // 300} bytes a connection, the played peers included"
            nursery.cancel_scope.cancel()

    trio.run(main)
