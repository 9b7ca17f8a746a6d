"""A stalled loop of a shadow gateway is logged with the client's request that caused it."""

import sys
import time

import trio

from codec.command import Command, encode_command
from gateway.runtime import loop_watchdog
from gateway.runtime.loop_watchdog import LoopWatchdog, describe_stack
from gateway.shadow.proxy.session_driver import describe_session_frame
from gateway.shadow.tests.sessions import RecordingObserver, SessionBench
from gateway.shadow.traffic.exchange import Hub, Side
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.pull import PullMessage
from remoting.tests.virtual import virtual

GET_ROUTE = GetRouteInfoByTopic.code
ASKED = encode_command(Command(GET_ROUTE, 7, ext={"topic": "orders"}))
ANSWERED = encode_command(Command(0, 7, 1))


def describe_here():
    return describe_stack(sys._getframe(), (describe_session_frame,))


class Describing(RecordingObserver):
    """An observer, and a director, that describe the stack they are called from."""

    def __init__(self):
        super().__init__()
        self.found = []

    def observe(self, exchange):
        self.found.append(describe_here())

    def choose_side(self, code, frame):
        self.found.append(describe_here())
        return Side.PRIMARY


@virtual
async def test_the_exchange_that_is_observed():
    hub, observer = Hub(), Describing()
    hub.add_observer(observer)
    async with trio.open_nursery() as nursery:
        bench = SessionBench(nursery, hub=hub)
        await bench.send_from_client(ASKED)
        await bench.send_from_upstream(ANSWERED)
        nursery.cancel_scope.cancel()
    (found,) = observer.found
    assert (found["code"], found["request"]) == (GET_ROUTE, GetRouteInfoByTopic.NAME)
    assert found["request_bytes"] == len(ASKED)
    assert found["remote"]
    assert found["at"].startswith("gateway/shadow/proxy/tests/test_session_driver_stalls.py:")


@virtual
async def test_the_first_request_of_what_is_routed():
    hub, director = Hub(), Describing()
    hub.set_director(director)
    async with trio.open_nursery() as nursery:
        bench = SessionBench(nursery, hub=hub)
        await bench.send_from_client(ASKED + ASKED)
        client = bench.session.client.remote
        nursery.cancel_scope.cancel()
    assert [(found["code"], found["received_bytes"]) for found in director.found] == [
        (GET_ROUTE, 2 * len(ASKED))
    ] * 2
    assert {found["remote"] for found in director.found} == {client}


@virtual
async def test_the_request_whose_answer_is_edited(monkeypatch):
    seen = []

    def describe(code, frame, *_):
        seen.append(describe_here())
        return frame

    monkeypatch.setattr("gateway.shadow.proxy.primary_upstream.rewrite_answer", describe)
    async with trio.open_nursery() as nursery:
        bench = SessionBench(nursery)
        await bench.send_from_client(ASKED)
        await bench.send_from_upstream(ANSWERED)
        client = bench.session.client.remote
        nursery.cancel_scope.cancel()
    (found,) = seen
    assert (found["code"], found["answer_bytes"], found["remote"]) == (GET_ROUTE, len(ANSWERED), client)


def test_a_stalled_session_is_logged_with_its_request(caplog):
    """With the watching thread and real time, as in a running gateway."""
    watchdog = LoopWatchdog((describe_session_frame,))

    class Blocking(RecordingObserver):
        def observe(self, exchange):
            if exchange.code == PullMessage.code:
                began_s = time.monotonic()
                while time.monotonic() - began_s < 30:
                    if watchdog._sample and time.monotonic() - began_s > loop_watchdog.STALL_S:
                        return
                    time.sleep(0.01)

    async def main():
        hub = Hub()
        hub.add_observer(Blocking())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog.run)
            await trio.testing.wait_all_tasks_blocked()
            bench = SessionBench(nursery, hub=hub)
            bench.client.arrive(encode_command(Command(PullMessage.code, 7, ext={"topic": "orders"})))
            await trio.testing.wait_all_tasks_blocked()
            bench.upstream.arrive(ANSWERED)
            with trio.fail_after(60):
                while not watchdog.stalls:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)
    (record,) = [each for each in caplog.records if each.message.startswith("event loop was blocked")]
    assert (record.code, record.request) == (PullMessage.code, PullMessage.NAME)
    assert record.remote
    assert record.stalled_ms >= 200
