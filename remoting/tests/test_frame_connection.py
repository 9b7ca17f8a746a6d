import gc
import logging
import weakref

import pytest
import trio

from codec.command import Command, encode_response
from codec.constants import ResponseCode
from codec.errors import FrameError
from remoting import frame_connection as connection_module
from remoting.connection import MAX_REMARK_CHARS, encode_failure
from remoting.connection_state import StateSlot
from remoting.declare import REQUESTS, Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.frame_connection import CROWDED_WATERMARK_BYTES, FrameConnection
from remoting.limits import ConnectionLimits
from remoting.tests.virtual import LONG_TURN_S, Bench, Kernel, counting_turns, frame, settle, virtual

ECHO, LATER, FAIL, REFUSE, BIG, TASK, CLOSE = range(1, 8)


class AskedReply(Header):
    word: str


class Asked(Request[AskedReply], code=9901):
    word: str


# Declared for these tests only.
del REQUESTS[Asked.code]


@pytest.fixture(autouse=True, params=["waits", "is called"])
def reading(request, monkeypatch):
    """Both ways in which a connection gets its bytes."""
    monkeypatch.setattr(Kernel, "reactive", request.param == "is called")


def echo(connection, command):
    return encode_response(command.opaque, 0, {"code": str(command.code)}, command.body)


def fail(connection, command):
    raise ZeroDivisionError("by hand")


def refuse(connection, command):
    raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")


def close(connection, command):
    connection.close("asked to")
    return encode_response(command.opaque, 0, None)


HANDLERS = {ECHO: echo, FAIL: fail, REFUSE: refuse, CLOSE: close}


def small(**limits):
    return ConnectionLimits(**{"max_turn_s": LONG_TURN_S, **limits})


@virtual
async def test_frames_split_at_every_byte():
    stream = frame(ECHO, 1, ext={"a": "ü"}, body=b"x", binary=True) + frame(ECHO, 2, body=b"y")
    for cut in range(len(stream) + 1):
        async with trio.open_nursery() as nursery:
            bench = Bench(nursery, HANDLERS)
            answers = await bench.feed(*filter(None, (stream[:cut], stream[cut:])))
            assert [(answer.opaque, answer.body) for answer in answers] == [(1, b"x"), (2, b"y")]
            assert bench.connection.input_bytes == 0
            nursery.cancel_scope.cancel()


@virtual
async def test_one_byte_at_a_time():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        stream = frame(ECHO, 1) + frame(ECHO, 2)
        answers = await bench.feed(*(stream[at : at + 1] for at in range(len(stream))))
        assert [answer.opaque for answer in answers] == [1, 2]
        nursery.cancel_scope.cancel()


@virtual
async def test_all_answers_of_one_read_leave_in_one_write():
    async with trio.open_nursery() as nursery:
        batches = []
        bench: Bench = Bench(nursery, HANDLERS, on_batch=lambda: batches.append(len(bench.kernel.sent)))
        answers = await bench.feed(b"".join(frame(ECHO, opaque) for opaque in range(100)))
        assert [answer.opaque for answer in answers] == list(range(100))
        assert bench.kernel.writes == 1
        assert batches == [len(bench.kernel.sent)], "the batch ends after its answers are written"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff" + bytes(8),
        b"\x80\x00\x00\x00" + bytes(8),
        bytes(8),
        b"\0\0\0\3" + bytes(8),
        b"\0\0\0\4" + bytes(4),
        b"\x00\x00\x10\x01" + bytes(4),
        b"\0\0\0\x0a\0\0\0\x06nojson",
        b"\0\0\0\x08\0\0\0\x10abcd",
        b"\0\0\0\x08\x02\0\0\x04abcd",
    ],
)
def test_garbage_closes_the_connection_and_only_it(garbage):
    async def main():
        async with trio.open_nursery() as nursery:
            bench = Bench(nursery, HANDLERS, small(max_frame_bytes=4096))
            other = Bench(nursery, HANDLERS)
            answers = await bench.feed(frame(ECHO, 5) + garbage)
            assert [answer.opaque for answer in answers] == [5], "what came before is answered"
            assert bench.connection.closed
            assert bench.kernel.closed
            assert len(await other.feed(frame(ECHO, 6))) == 1
            nursery.cancel_scope.cancel()

    trio.run(main)


@virtual
async def test_a_connection_that_a_bad_frame_ended_is_freed_at_once():
    """Its buffers would otherwise wait for the garbage collector, of one peer after the other."""
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        await bench.feed(b"\0\0\0\3" + bytes(8))
        kept = bench.connection.state[StateSlot[trio.Event]("kept")] = trio.Event()
        is_kept = weakref.ref(kept)
        gc.disable()
        try:
            del bench, kept
            await settle()
            assert is_kept() is None
        finally:
            gc.enable()
        nursery.cancel_scope.cancel()


@virtual
async def test_a_frame_of_exactly_the_limit_is_served_and_one_byte_more_is_not():
    exact = frame(ECHO, 1, body=b"x" * 100)
    for excess, served in ((0, True), (1, False)):
        async with trio.open_nursery() as nursery:
            bench = Bench(nursery, HANDLERS, small(max_frame_bytes=len(exact)))
            answers = await bench.feed(frame(ECHO, 1, body=b"x" * (100 + excess))[:-1])
            assert bench.connection.closed is not served, "an oversize frame is refused before it is whole"
            answers = [] if bench.connection.closed else await bench.feed(b"x")
            assert bool(answers) is served
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("binary", [False, True])
def test_the_header_limit_is_the_configured_one(binary):
    async def main():
        for header_bytes, served in ((2000, True), (1000, False)):
            async with trio.open_nursery() as nursery:
                bench = Bench(nursery, HANDLERS, small(max_header_bytes=header_bytes))
                await bench.feed(frame(ECHO, 1, ext={"a": "x" * 1200}, binary=binary))
                assert bench.connection.closed is not served
                nursery.cancel_scope.cancel()

    trio.run(main)


@virtual
async def test_a_header_larger_than_the_codec_allows_by_itself_can_be_configured():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS, small(max_header_bytes=4 << 20))
        assert len(await bench.feed(frame(ECHO, 1, ext={"a": "x" * (2 << 20)}))) == 1
        nursery.cancel_scope.cancel()


@virtual
async def test_a_defect_is_answered_and_logged_and_a_refusal_only_answered(caplog):
    caplog.set_level(logging.ERROR)
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        answers = await bench.feed(frame(FAIL, 1) + frame(REFUSE, 2) + frame(ECHO, 3) + frame(77, 4))
        assert [(answer.opaque, answer.code, answer.remark) for answer in answers] == [
            (1, ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: by hand"),
            (2, ResponseCode.TOPIC_NOT_EXIST, "no such topic"),
            (3, 0, None),
            (4, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 77 not supported"),
        ]
        assert all(answer.is_response for answer in answers)
        assert [record.message for record in caplog.records] == ["request failed"]
        assert not bench.connection.closed
        nursery.cancel_scope.cancel()


@virtual
async def test_oneway_requests_are_never_answered():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        stream = b"".join(frame(code, code, flag=2) for code in (ECHO, FAIL, REFUSE, 77))
        answers = await bench.feed(stream + frame(ECHO, 50))
        assert [answer.opaque for answer in answers] == [50]
        nursery.cancel_scope.cancel()


@virtual
async def test_answers_may_come_in_any_order_and_later():
    held = {}
    async with trio.open_nursery() as nursery:
        bench = Bench(
            nursery, {**HANDLERS, LATER: lambda connection, command: held.update({command.opaque: command})}
        )
        await bench.feed(frame(LATER, 1) + frame(ECHO, 2) + frame(LATER, 3) + frame(LATER, 4, flag=2))
        for opaque in (3, 4, 1):
            bench.connection.answer_late(held[opaque], lambda: encode_response(opaque, 0, None))  # noqa: B023
        bench.connection.answer_late(held[1], lambda: None)
        bench.connection.answer_late(held[1], lambda: bytes(1 // 0))
        await settle()
        codes = [(answer.opaque, answer.code) for answer in bench.kernel.commands()]
        assert codes == [(2, 0), (3, 0), (1, 0), (1, ResponseCode.SYSTEM_ERROR)]
        nursery.cancel_scope.cancel()


@virtual
async def test_opaques_of_both_directions_do_not_meet():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        replies = []

        async def ask():
            replies.append((await bench.connection.ask(Asked(word="?"))).word)

        nursery.start_soon(ask)
        await settle()
        (asked,) = bench.kernel.commands()
        assert not asked.is_response
        # The peer sends a request with the same opaque before it answers, and answers an opaque that was never used.
        answers = await bench.feed(
            frame(ECHO, asked.opaque),
            encode_response(asked.opaque + 1, 0, {"word": "stray"}),
            encode_response(asked.opaque, 0, {"word": "right"}),
            encode_response(asked.opaque, 0, {"word": "twice"}),
        )
        assert replies == ["right"]
        assert [command.is_response for command in answers] == [False, True]
        nursery.cancel_scope.cancel()


@virtual
async def test_answers_to_questions_are_matched_out_of_order():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        replies = {}

        async def ask(word):
            replies[word] = (await bench.connection.ask(Asked(word=word))).word

        for word in "abc":
            nursery.start_soon(ask, word)
        await settle()
        for command in reversed(bench.kernel.commands()):
            await bench.feed(encode_response(command.opaque, 0, {"word": command.ext["word"] * 2}))
        assert replies == {"a": "aa", "b": "bb", "c": "cc"}
        nursery.cancel_scope.cancel()


@virtual
async def test_a_request_without_an_answer_times_out_and_leaves_no_trace():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        before = trio.current_time()
        with pytest.raises(RemotingTimeout, match="within 2"):
            await bench.connection.ask(Asked(word="?"), timeout_s=2)
        assert trio.current_time() - before == pytest.approx(2)
        with trio.move_on_after(1):
            await bench.connection.ask(Asked(word="?"), timeout_s=2)
        assert not bench.connection._pending_requests
        assert await bench.feed(encode_response(1, 0, {"word": "late"}))
        assert not bench.connection.closed
        nursery.cancel_scope.cancel()


@virtual
async def test_a_request_that_cannot_be_encoded_leaves_no_trace():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        with pytest.raises(FrameError):
            await bench.connection.ask(Asked(word="x" * (17 << 20)))
        assert not bench.connection._pending_requests
        nursery.cancel_scope.cancel()


@virtual
async def test_a_refused_question_raises_its_code():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        raised = []

        async def ask():
            with pytest.raises(RequestError) as problem:
                await bench.connection.ask(Asked(word="?"))
            raised.append((problem.value.code, problem.value.remark))

        nursery.start_soon(ask)
        await settle()
        await bench.feed(encode_response(1, 17, None, b"", "no"))
        assert raised == [(17, "no")]
        nursery.cancel_scope.cancel()


@virtual
async def test_closing_ends_questions_tasks_and_tells_once():
    events = []
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        connection = bench.connection
        connection.on_close(lambda one: events.append(("first", one is connection)))
        connection.on_close(lambda one: 1 / 0)
        connection.on_close(lambda one: events.append(("last", one.closed)))

        async def work():
            try:
                await trio.sleep_forever()
            finally:
                events.append(("task", True))

        async def ask():
            with pytest.raises(RemotingClosed):
                await connection.ask(Asked(word="?"), timeout_s=60)
            events.append(("ask", True))

        connection.spawn(work)
        nursery.start_soon(ask)
        await settle()
        assert connection.is_busy
        connection.close("test")
        connection.close("again")
        await settle()
        assert events[:2] == [("first", True), ("last", True)]
        assert sorted(events[2:]) == [("ask", True), ("task", True)]
        assert connection.outstanding_requests == 0
        assert not connection.is_busy
        connection.on_close(lambda one: events.append("late"))
        assert events[-1] == "late", "a connection that is closed already tells at once"
        connection.spawn(work)
        connection.send_oneway(Asked(word="?"))
        connection.write(b"x")
        with pytest.raises(RemotingClosed):
            await connection.ask(Asked(word="?"))
        assert bench.kernel.sent.count(b"word") == 1


@virtual
async def test_the_peers_end_and_errors_of_the_stream_close():
    for end in (b"", OSError("reset")):
        async with trio.open_nursery() as nursery:
            bench = Bench(nursery, HANDLERS)
            await settle()
            bench.kernel.arrive(end)
            await settle()
            assert bench.connection.closed


@virtual
async def test_no_request_is_handled_after_a_handler_closed_the_connection():
    handled = []
    async with trio.open_nursery() as nursery:
        handlers = {**HANDLERS, LATER: lambda connection, command: handled.append(command)}
        bench = Bench(nursery, handlers)
        await bench.feed(frame(LATER, 1) + frame(CLOSE, 2) + frame(LATER, 3))
        assert [command.opaque for command in handled] == [1]
        assert bench.connection.closed


@virtual
async def test_a_write_that_fails_closes():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        bench.kernel.fail = BrokenPipeError("gone")
        await bench.feed(frame(ECHO, 1))
        assert bench.connection.closed


@virtual
async def test_a_batch_whose_end_fails_ends_no_connection(caplog):
    async def work():
        pass

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS, on_batch=lambda: 1 / 0)
        assert len(await bench.feed(frame(ECHO, 1), frame(ECHO, 2))) == 2
        bench.connection.spawn(work)
        await settle()
        assert bench.connection.outstanding_requests == 0
        assert not bench.connection.closed
        assert caplog.text.count("the end of a batch of requests failed") == 3
        nursery.cancel_scope.cancel()


@virtual
async def test_a_defect_outside_of_requests_ends_one_connection_only(caplog, monkeypatch):
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        other = Bench(nursery, HANDLERS)
        await settle()
        monkeypatch.setattr(FrameConnection, "_next_read_bytes", lambda connection: 1 / 0)
        await bench.feed(frame(ECHO, 1))
        assert bench.connection.closed
        monkeypatch.undo()
        assert "unexpected error outside of any request" in caplog.text
        assert len(await other.feed(frame(ECHO, 2))) == 1
        nursery.cancel_scope.cancel()


@virtual
async def test_answers_that_cannot_be_handled_end_no_connection_and_keep_no_other_waiting(caplog):
    told = []

    def fail_always(answer):
        told.append(answer)
        raise ValueError("by hand")

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        for _ in range(3):
            bench.connection.send_command(Command(ECHO), fail_always)
        await settle()
        await bench.feed(encode_response(1, 0, None))
        assert not bench.connection.closed
        bench.connection.on_close(told.append)
        bench.connection.close("test")
        assert told[1:] == [None, None, bench.connection]
        assert caplog.text.count("an answer could not be handled") == 3


class Turns:
    """A clock that handlers move, and the order of what happened."""

    def __init__(self, monkeypatch, request_s):
        self.now_s = 100.0
        self.request_s = request_s
        self.events = []
        monkeypatch.setattr(connection_module, "monotonic", lambda: self.now_s)

    def slow(self, connection, command):
        self.now_s += self.request_s
        self.events.append(command.opaque)
        return encode_response(command.opaque, 0, None)

    async def watch_passes(self):
        while True:
            await trio.lowlevel.checkpoint()
            if self.events[-1:] != ["pass"]:
                self.events.append("pass")


@virtual
async def test_slow_requests_of_one_read_are_handled_in_turns_and_in_order(monkeypatch):
    turns = Turns(monkeypatch, request_s=0.004)
    requests = [frame(1, opaque) for opaque in range(9)]
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {1: turns.slow}, small(max_turn_s=0.005))
        await settle()
        nursery.start_soon(turns.watch_passes)
        bench.kernel.arrive(b"".join(requests) + requests[0][:10])
        bench.kernel.arrive(requests[0][10:])
        with trio.fail_after(5):
            while len(bench.kernel.commands()) < 10:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert [answer.opaque for answer in bench.kernel.commands()] == [*range(9), 0]
    runs, run = [], []
    for event in [*turns.events, "pass"]:
        if event != "pass":
            run.append(event)
        elif run:
            runs.append(run)
            run = []
    # Tasks are shuffled in each pass of the loop, so that two turns may follow each other.
    assert max(map(len, runs)) <= 4, "other tasks have their turn after 5 ms of requests"
    assert bench.kernel.writes == 6


@virtual
async def test_a_bad_frame_after_a_turn_closes(monkeypatch):
    turns = Turns(monkeypatch, request_s=0.004)
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {1: turns.slow}, small(max_turn_s=0.005))
        answers = await bench.feed(b"".join(frame(1, opaque) for opaque in range(5)) + bytes(8))
        assert [answer.opaque for answer in answers] == [0, 1, 2, 3, 4]
        assert bench.connection.closed


@virtual
async def test_a_connection_closed_between_turns_handles_no_more(monkeypatch):
    turns = Turns(monkeypatch, request_s=0.004)
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {1: turns.slow}, small(max_turn_s=0.005))
        await settle()
        bench.kernel.arrive(b"".join(frame(1, opaque) for opaque in range(9)))
        with trio.fail_after(5):
            while not turns.events:
                await trio.lowlevel.checkpoint()
        bench.connection.close("test")
        await settle()
        assert turns.events in ([0, 1], [0, 1, 2, 3])


@virtual
async def test_turns_wait_for_a_peer_that_does_not_read(monkeypatch):
    turns = Turns(monkeypatch, request_s=0.004)
    limits = small(max_turn_s=0.005, output_high_watermark_bytes=150)
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {1: turns.slow}, limits, room=0)
        await bench.feed(b"".join(frame(1, opaque) for opaque in range(9)))
        assert turns.events == [0, 1]
        bench.kernel.take()
        await settle()
        assert turns.events == list(range(9))
        nursery.cancel_scope.cancel()


@virtual
async def test_long_remarks_are_shortened(caplog):
    # The captured log would hold a lone surrogate, which no test runner can pass on.
    caplog.set_level(logging.CRITICAL, logger="remoting.connection")

    def quote(connection, command):
        raise RequestError(1, "official " + command.ext["a"])

    def fail_with(connection, command):
        raise ValueError(command.ext["a"] + "\ud800")

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {1: quote, 2: fail_with})
        answers = await bench.feed(
            frame(1, 1, ext={"a": "x" * 900_000}), frame(2, 2, ext={"a": "y" * 900_000})
        )
        assert all(len(answer.remark) < MAX_REMARK_CHARS + 40 for answer in answers)
        assert answers[0].remark.startswith("official xxx")
        assert answers[0].remark.endswith("x… (900009 characters)")
        short = await bench.feed(frame(2, 3, ext={"a": "\ufffd"}))
        assert short[-1].remark == "ValueError: \ufffd?"
        nursery.cancel_scope.cancel()


@virtual
async def test_bytes_the_kernel_does_not_take_are_sent_later_in_order():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS, room=100)
        for opaque in range(5):
            await bench.feed(frame(ECHO, opaque, body=b"x" * 200))
        assert len(bench.kernel.sent) == 100
        assert bench.connection.is_busy
        for _ in range(3):
            bench.kernel.take(150)
            await settle()
        drained = []

        async def drain():
            await bench.connection.drain()
            drained.append(True)

        nursery.start_soon(drain)
        await settle()
        assert not drained
        bench.kernel.take()
        await settle()
        assert [answer.opaque for answer in bench.kernel.commands()] == [0, 1, 2, 3, 4]
        assert drained
        assert not bench.connection.is_busy
        nursery.cancel_scope.cancel()


@virtual
async def test_requests_of_a_peer_that_does_not_read_wait_at_the_high_water_mark():
    handled = []

    def big(connection, command):
        handled.append(command.opaque)
        return encode_response(command.opaque, 0, None, b"x" * 1000)

    async with trio.open_nursery() as nursery:
        limits = small(output_high_watermark_bytes=10_000, max_output_bytes=50_000)
        bench = Bench(nursery, {BIG: big}, limits, room=0)
        await bench.feed(b"".join(frame(BIG, opaque) for opaque in range(100)))
        assert 8 <= len(handled) <= 11, "small answers count as large ones do"
        bench.kernel.arrive(frame(BIG, 100))
        await settle()
        assert len(handled) <= 11
        assert not bench.connection.closed
        bench.kernel.take()
        await settle()
        assert handled == list(range(101))
        assert [answer.opaque for answer in bench.kernel.commands()] == handled
        nursery.cancel_scope.cancel()


@virtual
async def test_a_peer_that_never_reads_is_closed_at_the_limit():
    async with trio.open_nursery() as nursery:
        limits = small(output_high_watermark_bytes=1000, max_output_bytes=5000)
        bench = Bench(nursery, HANDLERS, limits, room=0)
        for _ in range(4):
            bench.connection.write(b"x" * 1200)
        await settle()
        assert not bench.connection.closed
        bench.connection.write(b"x" * 1200)
        assert bench.connection.closed
        assert not bench.connection._output


@virtual
async def test_two_hundred_peers_that_never_read_hold_little_together(monkeypatch):
    """Each of them held 4 MB and more, up to the limit of a single peer."""
    monkeypatch.setattr(FrameConnection, "unread_bytes", 0)
    answer_bytes, requests = 10_000, 100

    def big(connection, command):
        return encode_response(command.opaque, 0, None, bytes(answer_bytes))

    async with trio.open_nursery() as nursery:
        limits = small(crowded_output_bytes=1_000_000)
        benches = [Bench(nursery, {BIG: big}, limits, room=0) for _ in range(200)]
        reader = Bench(nursery, {BIG: big}, limits)
        for bench in benches:
            await bench.feed(b"".join(frame(BIG, opaque) for opaque in range(requests)))
        unread = sum(bench.connection.output_bytes for bench in benches)
        assert unread == FrameConnection.unread_bytes
        assert 1_000_000 < unread < 1_000_000 + 200 * (CROWDED_WATERMARK_BYTES + 2 * answer_bytes)
        assert not any(bench.connection.closed for bench in benches)
        answers = await reader.feed(b"".join(frame(BIG, opaque) for opaque in range(requests)))
        assert len(answers) == requests, "whoever reads is served"
        for bench in benches:
            bench.kernel.take()
        await settle()
        assert FrameConnection.unread_bytes == 0
        assert [answer.opaque for answer in benches[7].kernel.commands()] == list(range(requests))
        nursery.cancel_scope.cancel()


@virtual
async def test_unread_answers_of_a_closed_peer_are_no_longer_counted(monkeypatch):
    monkeypatch.setattr(FrameConnection, "unread_bytes", 0)
    async with trio.open_nursery() as nursery:
        benches = [Bench(nursery, HANDLERS, room=0) for _ in range(2)]
        for bench in benches:
            bench.connection.write(bytes(1200))
        await settle()
        assert FrameConnection.unread_bytes == 2400
        benches[0].connection.close("gone")
        assert FrameConnection.unread_bytes == 1200
        benches[1].kernel.fail = OSError("reset")
        benches[1].kernel.take()
        await settle()
        assert FrameConnection.unread_bytes == 0
        nursery.cancel_scope.cancel()


@virtual
async def test_buffered_answers_leave_in_turns():
    """Two hundred peers that begin to read at once took a second of copying in one pass."""
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS, room=0)
        for _ in range(40):
            bench.connection.write(bytes(100_000))
        bench.connection.write(bytes(1_000_000))
        await settle()
        async with counting_turns() as turns:
            bench.kernel.take()
            await bench.connection.drain()
        assert len(bench.kernel.sent) == 5_000_000
        assert turns.count > 10
        nursery.cancel_scope.cancel()


@virtual
async def test_tasks_count_up_to_the_limit_and_then_the_server_is_busy():
    release = trio.Event()
    batches = []

    async def work(connection, command):
        await release.wait()
        connection.write(encode_response(command.opaque, 0, None))

    def task(connection, command):
        connection.spawn(work, connection, command)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {TASK: task}, small(max_outstanding_requests=3), lambda: batches.append(1))
        answers = await bench.feed(b"".join(frame(TASK, opaque) for opaque in range(5)))
        assert [(answer.opaque, answer.code) for answer in answers] == [(3, 2), (4, 2)]
        assert answers[0].remark == "[OVERLOAD]system busy, start flow control for a while"
        batches.clear()
        release.set()
        await settle()
        assert sorted(answer.opaque for answer in bench.kernel.commands()) == [0, 1, 2, 3, 4]
        assert len(batches) == 3, "what a task stored wakes waiting pulls as well"
        assert bench.connection.outstanding_requests == 0
        assert len(await bench.feed(frame(TASK, 9))) == 6
        nursery.cancel_scope.cancel()


@virtual
async def test_a_task_that_fails_is_logged_and_forgotten(caplog):
    async def work():
        raise ValueError("by hand")

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        bench.connection.spawn(work)
        await settle()
        assert "task of a connection failed" in caplog.text
        assert bench.connection.outstanding_requests == 0
        assert len(await bench.feed(frame(ECHO, 1))) == 1
        nursery.cancel_scope.cancel()


@virtual
async def test_tell_is_oneway_and_numbers_go_on():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        bench.connection.send_oneway(Asked(word="a"))
        bench.connection.send_oneway(Asked(word="b"))
        first, second = bench.kernel.commands()
        assert first.is_oneway
        assert second.is_oneway
        assert second.opaque == first.opaque + 1
        bench.connection._next_opaque = 0x7FFFFFFF
        bench.connection.send_oneway(Asked(word="c"))
        assert bench.kernel.commands()[-1].opaque == 0, "numbers stay within a Java int"
        nursery.cancel_scope.cancel()


@virtual
async def test_cancelling_the_nursery_closes():
    told = []
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        bench.connection.on_close(told.append)
        await settle()
        nursery.cancel_scope.cancel()
    assert told == [bench.connection]
    assert isinstance(bench.connection, FrameConnection)


@virtual
async def test_unfinished_input_is_reported():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS)
        whole = frame(ECHO, 1, body=b"x" * 5000)
        await bench.feed(frame(ECHO, 0) + whole[:3000])
        assert bench.connection.input_bytes == 3000
        await bench.feed(whole[3000:])
        assert bench.connection.input_bytes == 0
        nursery.cancel_scope.cancel()


@virtual
async def test_the_rest_of_a_large_frame_is_read_in_small_pieces():
    limits = ConnectionLimits()
    whole = frame(ECHO, 1, body=b"x" * 600_000)
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, HANDLERS, limits)
        answers = await bench.feed(whole[:1000], whole[1000:300_000], whole[300_000:], frame(ECHO, 2))
        nursery.cancel_scope.cancel()
    assert [answer.opaque for answer in answers] == [1, 2]
    usual = limits.read_bytes
    assert bench.kernel.read_sizes[:4] == [usual, usual, limits.large_read_bytes, usual]


@virtual
async def test_connections_with_a_rest_share_one_turn(monkeypatch):
    """With fifty of them, each handles a fiftieth of a turn before the others are served."""
    monkeypatch.setattr(FrameConnection, "_sharing_turns", 49)
    now_s = 0.0
    handled = []

    def handle(connection, command):
        nonlocal now_s
        now_s += 0.001
        handled.append(command.opaque)
        return encode_response(command.opaque, 0, None)

    monkeypatch.setattr("remoting.frame_connection.monotonic", lambda: now_s)
    async with trio.open_nursery() as nursery:
        bench: Bench = Bench(nursery, {ECHO: handle}, small(max_turn_s=0.1))
        assert not bench.connection._feed(b"".join(frame(ECHO, opaque) for opaque in range(20)))
        assert len(handled) <= 3
        nursery.cancel_scope.cancel()


def test_a_failure_names_no_file_of_this_machine():
    error = FileNotFoundError(2, "No such file or directory", "/var/lib/secret/commitlog")
    answer = encode_failure(Command(10, 7, 0), error)
    assert b"FileNotFoundError: No such file or directory" in answer
    assert b"secret" not in answer


@virtual
async def test_a_long_request_holds_up_the_later_ones_of_its_peer_and_no_others():
    release, handled = trio.Event(), []

    async def work(connection, command):
        await release.wait()
        connection.write(encode_response(command.opaque, 0, None))

    def long(connection, command):
        connection.spawn_alone(work, connection, command)

    def note(connection, command):
        handled.append(command.opaque)
        return encode_response(command.opaque, 0, None)

    handlers = {TASK: long, ECHO: note}
    async with trio.open_nursery() as nursery:
        bench, other = Bench(nursery, handlers), Bench(nursery, handlers)
        answers = await bench.feed(frame(ECHO, 1) + frame(TASK, 2, body=bytes(1000)) + frame(ECHO, 3))
        bench.kernel.arrive(frame(ECHO, 4))
        await settle()
        assert [answer.opaque for answer in answers] == [1]
        assert bench.connection.input_bytes > 1000, "its body is held, and counts"
        assert len(await other.feed(frame(ECHO, 9))) == 1
        release.set()
        await settle()
        assert [answer.opaque for answer in bench.kernel.commands()] == [1, 2, 3, 4]
        assert handled == [1, 9, 3, 4]
        assert bench.connection.input_bytes == 0
        nursery.cancel_scope.cancel()


@virtual
async def test_long_requests_that_were_held_follow_one_another_and_later_ones_follow_them():
    """They begin together, and not when they are read."""
    releases, events = {}, []

    async def work(name):
        events.append(f"{name} begins")
        releases[name] = trio.Event()
        await releases[name].wait()
        events.append(f"{name} ends")

    def note(connection, command):
        events.append(command.opaque)
        return encode_response(command.opaque, 0, None)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {ECHO: note})
        await settle()
        for name in "ab":
            bench.connection.spawn_alone(work, name)
        await bench.feed(frame(ECHO, 1), frame(ECHO, 2))
        assert events == ["a begins"]
        releases["a"].set()
        await settle()
        assert events == ["a begins", "a ends", "b begins"]
        releases["b"].set()
        await settle()
        assert events == ["a begins", "a ends", "b begins", "b ends", 1, 2]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_long_request_beyond_the_limit_is_refused_and_holds_up_nobody():
    def long(connection, command):
        connection.spawn_alone(trio.sleep_forever)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {TASK: long, ECHO: echo}, small(max_outstanding_requests=0))
        answers = await bench.feed(frame(TASK, 1) + frame(ECHO, 2))
        assert [(answer.opaque, answer.code) for answer in answers] == [(1, 2), (2, 0)]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_long_request_ends_with_its_connection():
    ended = []

    async def work():
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    def long(connection, command):
        connection.spawn_alone(work)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {TASK: long})
        await bench.feed(frame(TASK, 1))
        bench.connection.close("gone")
        await settle()
        assert ended
        nursery.cancel_scope.cancel()
