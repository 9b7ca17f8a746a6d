"""Sockets watched by one epoll: every reader is called, other tasks get their turn, ends and resets are noticed."""

import contextlib
import fcntl
import logging
import socket
import struct
import sys
import termios
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
import trio
import trio.testing

from codec.command import Command, encode_command
from codec.frames import FrameSplitter
from remoting.handler_table import HandlerTable
from remoting.limits import ConnectionLimits
from remoting.reactor import DEFAULT_SLICE_S, Reactor
from remoting.server import RemotingServer, open_listeners

pytestmark = pytest.mark.skipif(not Reactor.is_available(), reason="epoll is Linux only")


OPENED: list[trio.SocketStream] = []


class Served:
    """A server with a reactor on a free port, and plain sockets to it."""

    def __init__(self, nursery, handlers, limits=None):
        self.reactor = Reactor()
        self.server = RemotingServer(handlers.bind(None), limits, reactor=self.reactor)
        self.listeners = open_listeners("127.0.0.1", 0)
        self.address = self.listeners[0].getsockname()
        nursery.start_soon(self.reactor.run)
        nursery.start_soon(self.server.serve, self.listeners)

    async def connect(self):
        stream = await trio.open_tcp_stream(*self.address)
        OPENED.append(stream)
        return stream


def sockets_of(reactor):
    """Return the number of watched sockets, without trio's epoll."""
    return len(reactor._readers.keys() - {reactor._trio_fileno})


def echo_handlers(calls=None):
    handlers = HandlerTable()

    def echo(connection, command):
        if calls is not None:
            calls.append(command.opaque)
        return encode_command(Command(0, command.opaque, 1, body=command.body))

    handlers.register_raw(1)(lambda context: echo)
    return handlers


def request(opaque, body=b""):
    return encode_command(Command(1, opaque, body=body))


async def answers(stream, count):
    splitter, found = FrameSplitter(), []
    with trio.fail_after(20):
        while len(found) < count:
            found += splitter.feed(bytes(await stream.receive_some(65536)))
    return found


def run(test, *args):
    async def bounded():
        try:
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    await test(nursery, *args)
                    nursery.cancel_scope.cancel()
        finally:
            while OPENED:
                OPENED.pop().socket.close()

    trio.run(bounded)


def test_many_peers_are_answered_each_in_its_order():
    async def test(nursery):
        served = Served(nursery, echo_handlers())
        streams = [await served.connect() for _ in range(20)]
        for turn in range(5):
            for number, stream in enumerate(streams):
                await stream.send_all(request(turn * 100 + number) + request(turn * 100 + number + 50))
        for number, stream in enumerate(streams):
            opaques = [answer.opaque for answer in await answers(stream, 10)]
            assert opaques == [turn * 100 + number + extra for turn in range(5) for extra in (0, 50)]

    run(test)


def test_frames_in_pieces_are_put_together():
    async def test(nursery):
        served = Served(nursery, echo_handlers())
        stream = await served.connect()
        for byte in request(7, b"x" * 50):
            await stream.send_all(bytes([byte]))
        assert [answer.opaque for answer in await answers(stream, 1)] == [7]

    run(test)


def test_other_tasks_get_their_turn_while_there_is_traffic():
    async def test(nursery):
        served = Served(nursery, echo_handlers())
        stop = False

        async def talk():
            stream = await served.connect()
            number = 0
            while not stop:
                number += 1
                await stream.send_all(request(number))
                await answers(stream, 1)

        for _ in range(3):
            nursery.start_soon(talk)
        waits = []
        for _ in range(30):
            began = time.monotonic()
            await trio.sleep(0.01)
            waits.append(time.monotonic() - began)
        stop = True
        assert sorted(waits)[len(waits) // 2] < 0.01 + 20 * DEFAULT_SLICE_S

    run(test)


@contextmanager
def endless_traffic(reactor):
    """Two sockets that answer each other for ever; yields what sends the first byte."""
    near, far = socket.socketpair()
    with near, far:
        reactor.watch(near.fileno(), lambda: near.send(near.recv(1)))
        reactor.watch(far.fileno(), lambda: far.send(far.recv(1)))
        yield lambda: near.send(b"x")
        reactor.unwatch(near.fileno())
        reactor.unwatch(far.fileno())


def test_deadlines_are_met_with_any_slice():
    async def test(nursery):
        reactor = Reactor(slice_s=10)
        nursery.start_soon(reactor.run)
        await trio.testing.wait_all_tasks_blocked()
        with endless_traffic(reactor) as begin:
            begin()
            began = time.monotonic()
            await trio.sleep(0.01)
            assert time.monotonic() - began < 5

    run(test)


@pytest.mark.parametrize("attempt", range(8))  # trio shuffles the tasks of a pass.
def test_tasks_of_the_same_pass_do_not_wait_for_a_slice(attempt):
    async def test(nursery):
        reactor = Reactor(slice_s=4)
        nursery.start_soon(reactor.run)
        with endless_traffic(reactor) as begin:
            due = trio.current_time() + 0.001
            nursery.start_soon(trio.sleep_until, due)
            await trio.testing.wait_all_tasks_blocked()
            begin()
            began = time.monotonic()
            time.sleep(0.002)  # noqa: ASYNC251 - a busy machine: traffic and a deadline at once
            await trio.sleep_until(due)
            assert time.monotonic() - began < 2

    run(test)


def test_ends_and_resets_close_the_connection_without_leaks():
    async def test(nursery):
        served = Served(nursery, echo_handlers())
        ending, resetting, staying = [await served.connect() for _ in range(3)]
        for stream in (ending, resetting, staying):
            await stream.send_all(request(1))
            await answers(stream, 1)
        await ending.send_eof()
        resetting.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        resetting.socket.close()
        with trio.fail_after(5):
            while len(served.server.connections) > 1:
                await trio.sleep(0.005)
        assert sockets_of(served.reactor) == 1
        await staying.send_all(request(2))
        assert (await answers(staying, 1))[0].opaque == 2

    run(test)


def test_a_bad_frame_closes_its_connection_only(caplog):
    async def test(nursery):
        served = Served(nursery, echo_handlers())
        bad, good = await served.connect(), await served.connect()
        await bad.send_all(b"\x7f" * 16)
        with trio.fail_after(5):
            assert await bad.receive_some(10) == b""
        await good.send_all(request(3))
        assert (await answers(good, 1))[0].opaque == 3

    with caplog.at_level(logging.WARNING):
        run(test)
    assert [record.message for record in caplog.records] == ["connection closed: bad frame"]


def test_a_peer_that_does_not_read_waits_and_goes_on_when_it_reads():
    async def test(nursery):
        calls = []
        limits = ConnectionLimits(output_high_watermark_bytes=100_000)
        served = Served(nursery, echo_handlers(calls), limits)
        slow = await served.connect()
        count, body = 400, b"z" * 50_000

        async def send():
            for number in range(count):
                await slow.send_all(request(number, body))

        nursery.start_soon(send)
        with trio.fail_after(10):
            seen = -1
            while seen != len(calls):
                seen = len(calls)
                await trio.sleep(0.2)
        assert 0 < len(calls) < count
        assert sockets_of(served.reactor) == 0
        assert [answer.opaque for answer in await answers(slow, count)] == list(range(count))

    run(test)


def test_a_read_full_of_slow_requests_delays_no_other_peer():
    async def test(nursery):
        calls = []
        handlers = echo_handlers(calls)

        def slow(connection, command):
            time.sleep(0.002)
            calls.append(command.opaque)
            return encode_command(Command(0, command.opaque, 1))

        handlers.register_raw(2)(lambda context: slow)
        served = Served(nursery, handlers)
        greedy, modest = await served.connect(), await served.connect()
        await modest.send_all(request(7))
        await answers(modest, 1)
        count = 300
        await greedy.send_all(b"".join(encode_command(Command(2, opaque)) for opaque in range(count)))
        with trio.fail_after(5):
            while len(calls) < 2:
                await trio.lowlevel.checkpoint()
        await modest.send_all(request(8))
        assert [answer.opaque for answer in await answers(modest, 1)] == [8]
        assert len(calls) < count
        assert [answer.opaque for answer in await answers(greedy, count)] == list(range(count))
        assert calls.index(8) > 0

    run(test)


def test_a_reader_may_forget_another_one():
    async def test(nursery):
        reactor = Reactor()
        pairs = [socket.socketpair() for _ in range(2)]
        called = []

        def read(number):
            called.append(number)
            for one, _ in pairs:
                reactor.unwatch(one.fileno())

        for number, (one, other) in enumerate(pairs):
            reactor.watch(one.fileno(), partial(read, number))
            other.send(b"x")
        reactor.run_readers()
        assert len(called) == 1
        reactor.unwatch(pairs[0][0].fileno())
        for one, other in pairs:
            one.close()
            other.close()

    run(test)


def test_many_slow_readers_do_not_delay_other_tasks():
    async def test(nursery):
        reactor, calls = Reactor(slice_s=0.001), []
        pairs = [socket.socketpair() for _ in range(30)]

        def slow(sock):
            sock.recv(1)
            calls.append(sock)
            time.sleep(0.002)

        for ours, theirs in pairs:
            reactor.watch(ours.fileno(), partial(slow, ours))
            theirs.send(b"x")
        for number in range(1, 31):
            reactor.run_readers()
            assert len(calls) == number, "the slice ends after one of them"
        assert len(set(calls)) == 30
        for pair in pairs:
            for sock in pair:
                sock.close()

    run(test)


def test_a_deadline_that_has_come_ends_no_poll_after_its_first_reader():
    async def test(nursery):
        reactor, calls = Reactor(slice_s=60), []
        pairs = [socket.socketpair() for _ in range(30)]

        def read(sock):
            calls.append(sock.recv(1))

        for ours, theirs in pairs:
            reactor.watch(ours.fileno(), partial(read, ours))
            theirs.send(b"x")
        reactor.run_readers(0)
        assert len(calls) == 30
        for pair in pairs:
            for sock in pair:
                sock.close()

    run(test)


def test_traffic_does_not_delay_a_finished_thread():
    async def test(nursery):
        reactor = Reactor(slice_s=10)
        nursery.start_soon(reactor.run)
        with endless_traffic(reactor) as begin:
            begin()
            began = time.monotonic()
            await trio.to_thread.run_sync(time.sleep, 0.03)
            assert time.monotonic() - began < 5

    run(test)


@pytest.mark.parametrize("traffic", ["endless", "paused"])
def test_traffic_does_not_delay_sockets_that_trio_watches(traffic):
    async def test(nursery):
        reactor = Reactor(slice_s=10, linger_s=10)
        nursery.start_soon(reactor.run)
        here, there = trio.socket.socketpair()
        with here, there, endless_traffic(reactor) as begin:
            if traffic == "endless":
                begin()
            else:
                touch(reactor)
            plain = there._sock  # type: ignore[attr-defined]  # the plain socket, for use in a thread
            threading.Timer(0.03, plain.send, [b"x"]).start()
            began = time.monotonic()
            assert await here.recv(1) == b"x"
            assert time.monotonic() - began < 5

    run(test)


def touch(reactor):
    """Traffic of one byte."""
    near, far = socket.socketpair()
    near.send(b"x")

    def readable():
        reactor.unwatch(far.fileno())
        near.close()
        far.close()

    reactor.watch(far.fileno(), readable)


def test_the_process_waits_in_trio_again_when_traffic_has_paused():
    async def test(nursery):
        reactor = Reactor()
        nursery.start_soon(reactor.run)
        for _ in range(3):
            touch(reactor)
            with trio.fail_after(5):
                await trio.testing.wait_all_tasks_blocked()
                while (
                    trio.lowlevel.current_statistics().io_statistics.tasks_waiting_read < 2
                ):  # and trio's own
                    await trio.sleep(0.01)
        assert sockets_of(reactor) == 0

    run(test)


def test_without_a_way_to_find_the_epoll_of_trio_it_does_not_linger(monkeypatch):
    monkeypatch.setattr("remoting.reactor._epoll_that_watches", lambda fileno: -1)

    async def test(nursery):
        served = Served(nursery, echo_handlers())
        for number in range(3):
            stream = await served.connect()
            await stream.send_all(request(number))
            assert (await answers(stream, 1))[0].opaque == number
            assert not served.reactor.run_readers()

    run(test)


def test_a_socket_that_cannot_be_watched_can_be_forgotten():
    reactor = Reactor()
    with pytest.raises(OSError, match="file descriptor"):
        reactor.watch(1_000_000, lambda: None)
    reactor.unwatch(1_000_000)


def test_how_long_a_socket_has_waited_for_its_turn_is_known():
    reactor, waited_s = Reactor(), []
    pairs = [socket.socketpair() for _ in range(2)]

    def reader(sock):
        def readable():
            sock.recv(1)
            time.sleep(0.02)  # What keeps the next one waiting.
            waited_s.append(reactor.seconds_since_readable())

        return readable

    async def main():
        for _ in pairs:  # Each reader takes a whole slice.
            reactor.run_readers()

    for ours, theirs in pairs:
        theirs.send(b"x")
        reactor.watch(ours.fileno(), reader(ours))
    trio.run(main)
    for pair in pairs:
        for sock in pair:
            sock.close()
    assert len(waited_s) == 2
    assert waited_s[0] >= 0.02
    assert waited_s[1] >= 0.04


def wait_until_delivered(sock: socket.socket) -> None:
    """Wait until the other end's kernel has acknowledged all that was sent."""
    while int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
        time.sleep(0.001)


def test_a_new_client_does_not_wait_for_a_crowd_of_senders():
    """300 connections send 150 requests each at once; a client that comes behind them is answered early."""
    senders, requests_each = 300, 150
    calls, is_held, go_on, handlers = [], threading.Event(), threading.Event(), echo_handlers()

    def hold(connection, command):
        is_held.set()
        go_on.wait(20)

    def work(connection, command):
        calls.append(command.opaque)
        end_s = time.perf_counter() + 25e-6
        while time.perf_counter() < end_s:
            pass
        return encode_command(Command(0, command.opaque, 1))

    handlers.register_raw(2)(lambda context: hold)
    handlers.register_raw(3)(lambda context: work)

    def ask_all(address):
        """Fill every socket while the event loop is held, so that all of them are readable at once."""
        batch = encode_command(Command(3, 0)) * requests_each
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(socket.create_connection(address)) for _ in range(senders)]
            for sock in crowd:
                # Answered once: the server watches this socket from here on.
                sock.sendall(request(0))
                assert sock.recv(65536)
            crowd[0].sendall(encode_command(Command(2, 1)))
            assert is_held.wait(20)
            for sock in crowd[1:]:
                sock.sendall(batch)
            late = stack.enter_context(socket.create_connection(address))
            late.sendall(encode_command(Command(3, 7)))
            # On a busy machine the kernel may hand even a local packet over late: before that, nobody could be early.
            wait_until_delivered(late)
            go_on.set()
            assert late.recv(65536)

    async def test(nursery):
        # All requests of a sender fit into one turn.
        served = Served(nursery, handlers, ConnectionLimits(max_turn_s=0.02))
        await trio.to_thread.run_sync(ask_all, served.address)

    run(test)
    assert calls.index(7) < senders * requests_each / 4
