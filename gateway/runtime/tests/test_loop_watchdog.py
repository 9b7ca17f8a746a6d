"""Stalls of the event loop are measured, and logged with the request that caused them."""

import threading
import time

import trio
from trio.testing import memory_stream_pair

from codec.command import Command
from gateway.runtime import loop_watchdog
from gateway.runtime.loop_watchdog import LoopWatchdog
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.transport import StreamTransport

GET_ROUTE = GetRouteInfoByTopic.code


async def run_with(handlers, ask, watchdog):
    """Run a server with these handlers, and ``ask(client)`` beside it."""
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog.run)
        await trio.testing.wait_all_tasks_blocked()
        for stream, table in ((near, handlers), (far, {})):
            connection = FrameConnection(StreamTransport(stream), table, nursery, ConnectionLimits())
            nursery.start_soon(connection.run)
        with trio.fail_after(60):
            await ask(connection)
        nursery.cancel_scope.cancel()


def test_a_blocking_request_is_named(caplog):
    watchdog = LoopWatchdog()

    def block(connection, command):
        wait_for_sample(watchdog)
        return None

    async def ask(client):
        client.send_command(Command(GET_ROUTE, body=b"x" * 7))
        while not watchdog.stalls:
            await trio.sleep(0.01)

    trio.run(run_with, {GET_ROUTE: block}, ask, watchdog)
    (record,) = [each for each in caplog.records if each.message.startswith("event loop was blocked")]
    assert (record.code, record.request, record.body_bytes) == (GET_ROUTE, GetRouteInfoByTopic.NAME, 7)
    assert record.at.startswith("gateway/runtime/tests/test_loop_watchdog.py:")
    assert record.stalled_ms >= 200
    metrics = {metric.name: metric.value for metric in watchdog.metrics()}
    assert metrics["loop_stalls_total"] == 1
    assert metrics["loop_longest_stall_seconds"] == metrics["loop_stalled_seconds_total"] >= 0.2


def wait_for_sample(watchdog):
    """Block until the pass is a stall and the watching thread has looked at it."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < 30:
        sample = watchdog._sample
        if sample is not None and time.monotonic() - began_s > loop_watchdog.STALL_S:
            return
        time.sleep(0.01)


def test_a_pass_that_does_not_end_is_logged_while_it_lasts(caplog, monkeypatch):
    monkeypatch.setattr(loop_watchdog, "MIN_HANG_S", 0.3)
    watchdog = LoopWatchdog()

    def is_logged():
        return any(record.message.startswith("event loop is blocked") for record in caplog.records)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog.run)
            await trio.sleep(0.01)
            give_up_s = time.monotonic() + 30
            while not is_logged() and time.monotonic() < give_up_s:
                time.sleep(0.01)  # noqa: ASYNC251 - blocks the loop on purpose
            assert is_logged()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_short_passes_are_not_logged_and_the_thread_ends(caplog):
    watchdog = LoopWatchdog()
    before = threading.enumerate()

    async def main():
        with trio.move_on_after(0.3):
            await watchdog.run()

    trio.run(main)
    assert watchdog.stalls == 0
    assert not caplog.records
    for thread in threading.enumerate():
        if thread.name == "loop watchdog" and thread not in before:
            thread.join(30)
            assert not thread.is_alive()


def test_stalls_in_a_row_are_counted_and_logged_once(caplog):
    watchdog = LoopWatchdog()
    for began_s in (100.0, 100.3, 100.6):
        watchdog._record_stall(began_s, 0.25)
    assert watchdog.stalls == 3
    assert len(caplog.records) == 1
    watchdog._record_stall(200.0, 0.25)
    assert caplog.records[-1].not_logged == 2
