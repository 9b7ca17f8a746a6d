import pytest
import trio

from codec.command import Command, encode_response
from remoting.declare import REQUESTS, Header, JsonBody, Request, field, i32
from remoting.errors import RequestError
from remoting.handler_table import ANSWERS_LATER, Call, GuardedHandlers, HandlerTable
from remoting.limits import ConnectionLimits
from remoting.tests.virtual import Bench, frame, settle, virtual


class SumReply(Header):
    total: i32


class Sum(Request[SumReply], code=9911):
    left: i32
    right: i32


class Note(Request[None], code=9912):
    text: str


class NumberList(JsonBody):
    numbers: list[i32] = field(factory=list)


class NumbersReply(Header):
    data: NumberList


class Numbers(Request[NumbersReply], code=9913):
    data: NumberList


# Declared for these tests only.
del REQUESTS[Sum.code]
del REQUESTS[Note.code]
del REQUESTS[Numbers.code]


def ask(opaque, left=1, right=2, flag=0):
    return frame(Sum.code, opaque, flag=flag, ext={"left": str(left), "right": str(right)})


async def played(handlers, *pieces, context="context"):
    """The answers of a connection that serves these handlers."""
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, handlers.bind(context))
        answers = await bench.feed(*pieces)
        nursery.cancel_scope.cancel()
    return answers


@virtual
async def test_a_typed_handler_answers_with_fields_code_remark_and_body():
    handlers = HandlerTable()

    @Sum.on(handlers)
    def add(context, request):
        reply = SumReply(total=request.left + request.right)
        reply.code, reply.remark, reply.body = 5, context, b"body"
        return reply

    (answer,) = await played(handlers, ask(1))
    assert (answer.code, answer.remark, answer.ext, answer.body) == (5, "context", {"total": "3"}, b"body")


@virtual
async def test_a_handler_without_a_reply_answers_success():
    handlers = HandlerTable()
    seen = []
    Note.on(handlers)(lambda context, request: seen.append(request.text))
    (answer,) = await played(handlers, frame(Note.code, 3, ext={"text": "hi"}))
    assert (answer.opaque, answer.code, answer.ext, answer.body) == (3, 0, {}, b"")
    assert seen == ["hi"]


@virtual
async def test_fields_that_are_missing_or_wrong_are_refused():
    handlers = HandlerTable()
    Sum.on(handlers)(lambda context, request: SumReply(total=0))
    answers = await played(handlers, frame(Sum.code, 1, ext={"left": "1"}), ask(2, left="x"))
    assert [answer.code for answer in answers] == [1, 1]
    assert "<right>" in answers[0].remark
    assert "<left>" in answers[1].remark


@pytest.mark.parametrize("is_async", [False, True])
def test_json_bodies_are_limited_by_the_connection(is_async):
    handlers = HandlerTable()

    async def count_later(context, request):
        return SumReply(total=len(request.data.numbers))

    def count(context, request):
        return SumReply(total=len(request.data.numbers))

    Numbers.on(handlers)(count_later if is_async else count)

    async def main():
        async with trio.open_nursery() as nursery:
            bench = Bench(nursery, handlers.bind(None), ConnectionLimits(max_json_values=50))
            bodies = [b'{"numbers":[' + b"0," * count + b"0]}" for count in (40, 60)]
            answers = await bench.feed(*(frame(Numbers.code, 1, body=body) for body in bodies))
            assert [answer.code for answer in answers] == [0, 1]
            assert answers[0].ext == {"total": "41"}
            assert "maxJsonValues" in str(answers[1].remark)
            nursery.cancel_scope.cancel()

    trio.run(main)


@virtual
async def test_the_answer_of_a_client_is_limited_as_its_requests_are():
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, {}, ConnectionLimits(max_json_values=50))
        refused = []

        async def ask_client():
            with pytest.raises(RequestError, match="maxJsonValues") as error:
                await bench.connection.ask(Numbers(data=NumberList()))
            refused.append(error)

        nursery.start_soon(ask_client)
        await settle()
        (asked,) = bench.kernel.commands()
        await bench.feed(encode_response(asked.opaque, 0, None, b'{"numbers":[' + b"0," * 60 + b"0]}"))
        assert len(refused) == 1
        assert not bench.connection.closed
        nursery.cancel_scope.cancel()


def test_replies_of_servers_may_be_larger_than_requests():
    body = b'{"numbers":[' + b"0," * 100_000 + b"0]}"
    reply = Numbers(data=NumberList()).read_reply(Command(0, 1, 1, body=body))
    assert len(reply.data.numbers) == 100_001


@virtual
async def test_an_asynchronous_handler_answers_in_its_own_time():
    handlers = HandlerTable()

    @Sum.on(handlers)
    async def add(context, request):
        await trio.sleep(request.left)
        if request.right < 0:
            raise RequestError(17, "negative")
        if request.right == 0:
            raise ZeroDivisionError("by hand")
        return SumReply(total=request.left + request.right)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, handlers.bind(None))
        await bench.feed(ask(1, 3) + ask(2, 1) + ask(3, 2, -1) + ask(4, 4, 0) + ask(5, 1, flag=2))
        await trio.sleep(5)
        answers = [(answer.opaque, answer.code, answer.remark) for answer in bench.kernel.commands()]
        assert answers == [
            (2, 0, None),
            (3, 17, "negative"),
            (1, 0, None),
            (4, 1, "ZeroDivisionError: by hand"),
        ]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_handler_that_takes_the_call_may_answer_later():
    handlers = HandlerTable()
    calls = []

    @Sum.on(handlers)
    def add(context, request, call: Call):
        calls.append(call)
        return ANSWERS_LATER

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, handlers.bind(None))
        assert not await bench.feed(ask(1) + ask(2) + ask(3, flag=2))
        assert calls[0].connection is bench.connection
        calls[1].reply(SumReply(total=2))
        calls[2].reply(SumReply(total=3))
        calls[2].fail(RequestError(1, "no"))
        calls[0].fail(RequestError(9, "no"))
        await settle()
        assert [(answer.opaque, answer.code) for answer in bench.kernel.commands()] == [(2, 0), (1, 9)]
        bench.connection.close()
        calls[0].reply(None)
        nursery.cancel_scope.cancel()


@virtual
async def test_a_reply_that_cannot_be_encoded_is_answered_and_raises_nowhere():
    handlers = HandlerTable()
    unwritable = SumReply(total=1)
    unwritable.remark = "x" * (17 << 20)
    calls = []

    @Sum.on(handlers)
    def later(context, request, call: Call):
        calls.append(call)
        return ANSWERS_LATER

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, handlers.bind(None))
        await bench.feed(ask(1))
        calls[0].reply(unwritable)
        await settle()
        assert [(answer.opaque, answer.code) for answer in bench.kernel.commands()] == [(1, 1)]
        nursery.cancel_scope.cancel()

    waiting = HandlerTable()

    @Sum.on(waiting)
    async def wait(context, request):
        await trio.lowlevel.checkpoint()
        return unwritable

    assert [(answer.opaque, answer.code) for answer in await played(waiting, ask(2))] == [(2, 1)]


@virtual
async def test_an_asynchronous_handler_that_takes_the_call():
    handlers = HandlerTable()

    @Sum.on(handlers)
    async def add(context, request, call):
        await trio.lowlevel.checkpoint()
        call.reply(SumReply(total=request.left))
        return ANSWERS_LATER

    assert [answer.ext for answer in await played(handlers, ask(1, 8))] == [{"total": "8"}]


@virtual
async def test_raw_handlers_get_the_command():
    handlers = HandlerTable()

    @handlers.register_raw(1, 2)
    def raw(context):
        return lambda connection, command: encode_response(
            command.opaque, 0, {"context": context, "code": str(command.code)}
        )

    answers = await played(handlers, frame(1, 1) + frame(2, 2), context="c")
    assert [answer.ext for answer in answers] == [
        {"context": "c", "code": "1"},
        {"context": "c", "code": "2"},
    ]


def test_a_code_has_one_handler():
    first, second = HandlerTable(), HandlerTable()
    first.register_raw(5)(lambda context: lambda connection, command: None)
    Sum.on(second)(lambda context, request: None)
    both = HandlerTable().include(first, second)
    assert both.request_codes() == {5, Sum.code}
    with pytest.raises(ValueError, match="code 5 has two handlers"):
        both.include(first)
    with pytest.raises(ValueError, match="two handlers"):
        Sum.on(second)(lambda context, request: None)
    with pytest.raises(ValueError, match="two handlers"):
        second.register_raw(Sum.code)(lambda context: lambda connection, command: None)


def test_tables_are_bound_apart():
    handlers = HandlerTable()
    handlers.register_raw(1)(lambda context: lambda connection, command: context)
    here, there = handlers.bind(b"here"), handlers.bind(b"there")
    assert (here[1](None, None), there[1](None, None)) == (b"here", b"there")


@virtual
async def test_observers_are_told_what_came_of_requests():
    table, told = HandlerTable(), []

    @Sum.on(table)
    def add(context, request):
        return SumReply(total=request.left + request.right)

    @Note.on(table)
    async def note(context, request, call):
        if request.text == "wait":
            await trio.sleep_forever()
        if request.text == "refuse":
            raise RequestError(1, "no")

    def observe(connection, command):
        begun = len(told)
        return lambda outcome: told.append((begun, command.code, outcome))

    asked = Sum(left=1, right=2), Note(text="refuse"), Note(text="store"), Note(text="wait")
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, table.bind(None, {Sum.code: observe, Note.code: observe, 4711: observe}))
        await bench.feed(*(frame(request.code, ext=request.to_ext()) for request in asked))
        assert [code for _, code, _ in told] == [Sum.code, Note.code, Note.code]
        bench.connection.close()
        await settle()
        nursery.cancel_scope.cancel()
    assert [begun for begun, _, _ in told] == [0, 1, 2, 3]
    outcomes = [outcome for _, _, outcome in told]
    assert isinstance(outcomes[0], SumReply)
    assert isinstance(outcomes[1], RequestError)
    assert outcomes[2] is None
    assert isinstance(outcomes[3], trio.Cancelled)


def test_handlers_of_raw_commands_cannot_be_observed():
    table = HandlerTable()
    table.register_raw(7)(lambda context: lambda connection, command: b"")
    with pytest.raises(ValueError, match="cannot be observed"):
        table.bind(None, {7: lambda connection, command: print})


# -- guards -----------------------------------------------------------------------------------------------------


def noting_guard(name, codes, passed):
    """A guard of some codes that notes each request in ``passed``."""

    def guard(code, handler):
        if code not in codes:
            return handler

        def handle(connection, command):
            passed.append(name)
            return handler(connection, command)

        return handle

    return guard


def test_a_request_passes_the_guards_of_its_code_in_their_order():
    passed = []
    outer, inner = noting_guard("outer", {1, 2}, passed), noting_guard("inner", {1}, passed)
    plain = dict.fromkeys((1, 2, 3), lambda connection, command: b"served")
    guarded = GuardedHandlers(plain, (outer, inner))
    assert guarded.by_code[1](None, None) == b"served"
    assert passed == ["outer", "inner"]
    assert guarded.by_code[2](None, None) == b"served"
    assert passed == ["outer", "inner", "outer"]
    assert guarded.by_code[3] is plain[3]
    assert [guarded.guards_of(code) for code in plain] == [[outer, inner], [outer], []]


def test_guards_are_applied_again_to_the_same_table():
    codes = {1}
    plain = {1: lambda connection, command: b"served"}
    guarded = GuardedHandlers(plain, (noting_guard("only", codes, []),))
    by_code = guarded.by_code
    assert by_code[1] is not plain[1]
    codes.clear()
    assert by_code[1] is not plain[1]
    guarded.apply_guards()
    assert guarded.by_code is by_code
    assert by_code == plain


def test_guards_are_asked_only_when_they_are_applied():
    asked, applied = [], []

    def guard(code, handler):
        asked.append(handler)
        return lambda connection, command: handler(connection, command)

    def serve(connection, command):
        return b"served"

    guarded = GuardedHandlers({1: serve}, (guard,), lambda handlers: applied.append(handlers.guards_of(1)))
    assert guarded.guards_of(1) == [guard]
    assert (asked, applied) == ([serve], [[guard]])
    guarded.replace({1: serve}, ())
    assert (asked, applied) == ([serve], [[guard], []])
