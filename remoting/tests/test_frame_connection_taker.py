"""Frames that a taker handles before they are decoded: their place among the others, turns and back-pressure."""

import pytest
import trio

from codec.command import encode_response
from remoting import frame_connection as connection_module
from remoting.frame_connection import FrameConnection, FrameTaker
from remoting.limits import ConnectionLimits
from remoting.tests.virtual import LONG_TURN_S, Bench, Kernel, frame, settle, virtual

TAKEN, ECHO = 1, 2


@pytest.fixture(autouse=True, params=["waits", "is called"])
def reading(request, monkeypatch):
    """Both ways in which a connection gets its bytes."""
    monkeypatch.setattr(Kernel, "reactive", request.param == "is called")


class Taker(FrameTaker):
    """Takes up to ``most`` frames of the code TAKEN a call, and answers each with its opaque in the code's place."""

    __slots__ = ("calls", "most")

    def __init__(self, most=64, answers=True):
        self.calls = []
        self.most = most
        self.take = self._take if answers else self._take_silently

    def _take(self, connection, buffer, position):
        start, answers = position, []
        while len(answers) < self.most and len(buffer) - position >= 8:
            end = position + 4 + int.from_bytes(buffer[position : position + 4], "big")
            if end > len(buffer) or b'"code":1,' not in buffer[position:end]:
                break
            opaque = int(bytes(buffer[position:end]).split(b'"opaque":')[1].split(b",")[0])
            answers.append(encode_response(opaque, TAKEN, None))
            position = end
        self.calls.append(len(answers))
        return (position, b"".join(answers)) if position > start else None

    def _take_silently(self, connection, buffer, position):
        taken = self._take(connection, buffer, position)
        return None if taken is None else (taken[0], None)


def echo(connection, command):
    return encode_response(command.opaque, ECHO, None)


def bench(nursery, taker, room=None, **limits):
    bench = Bench(nursery, {ECHO: echo}, ConnectionLimits(**{"max_turn_s": LONG_TURN_S, **limits}), room=room)
    bench.connection._frame_taker = taker
    return bench


def frames(codes, first=0):
    return b"".join(frame(code, opaque) for opaque, code in enumerate(codes, first))


@virtual
async def test_answers_keep_the_order_of_their_requests_wherever_reads_end():
    codes = [TAKEN, TAKEN, ECHO, TAKEN, ECHO, ECHO, TAKEN, TAKEN, TAKEN]
    stream = frames(codes)
    for cut in range(1, len(stream), 7):
        async with trio.open_nursery() as nursery:
            played = bench(nursery, Taker(most=2))
            answers = await played.feed(stream[:cut], stream[cut:])
            assert [(answer.opaque, answer.code) for answer in answers] == list(enumerate(codes))
            nursery.cancel_scope.cancel()


@virtual
async def test_frames_whose_answers_come_later_are_not_answered():
    async with trio.open_nursery() as nursery:
        played = bench(nursery, Taker(answers=False))
        answers = await played.feed(frames([TAKEN, ECHO, TAKEN]))
        assert [answer.opaque for answer in answers] == [1]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_bad_frame_after_those_that_were_taken_ends_the_connection_after_their_answers():
    async with trio.open_nursery() as nursery:
        played = bench(nursery, Taker())
        answers = await played.feed(frames([TAKEN, TAKEN]) + b"\xff" * 8)
        assert [answer.opaque for answer in answers] == [0, 1]
        assert played.connection.closed
        nursery.cancel_scope.cancel()


@virtual
async def test_a_turn_ends_between_two_calls(monkeypatch):
    now_s = 0.0

    class SlowTaker(Taker):
        def _take(self, connection, buffer, position):
            nonlocal now_s
            now_s += 1.0
            return super()._take(connection, buffer, position)

    monkeypatch.setattr(connection_module, "monotonic", lambda: now_s)
    taker = SlowTaker(most=2)
    async with trio.open_nursery() as nursery:
        played = bench(nursery, taker, max_turn_s=1.5)
        calls_at_writes = []
        send_now = played.kernel.send_now

        def send(data):
            calls_at_writes.append(sum(taker.calls))
            return send_now(data)

        played.kernel.send_now = send
        answers = await played.feed(frames([TAKEN] * 20))
        assert [answer.opaque for answer in answers] == list(range(20))
        assert len(calls_at_writes) > 2
        nursery.cancel_scope.cancel()


@virtual
async def test_nothing_is_taken_of_a_peer_that_does_not_read_its_answers():
    taker = Taker(most=4)
    async with trio.open_nursery() as nursery:
        played = bench(nursery, taker, room=0, output_high_watermark_bytes=100)
        await played.feed(frames([TAKEN] * 20))
        assert sum(taker.calls) == 4
        played.kernel.take(1 << 20)
        await settle()
        assert [answer.opaque for answer in played.kernel.commands()] == list(
            range(len(played.kernel.commands()))
        )
        assert sum(taker.calls) > 4
        nursery.cancel_scope.cancel()


def test_connections_share_an_empty_taker():
    assert connection_module.TAKES_NO_FRAMES.take is None
    assert "_frame_taker" in FrameConnection.__slots__
