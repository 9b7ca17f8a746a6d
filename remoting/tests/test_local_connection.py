from types import SimpleNamespace

import pytest
import trio

from codec.command import Command, encode_response
from codec.constants import ResponseCode
from remoting.declare import REQUESTS, Header, Request, i32
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.handler_table import ANSWERS_LATER, HandlerTable
from remoting.limits import ConnectionLimits
from remoting.local_connection import LocalConnection
from remoting.tests.virtual import settle, virtual

REMOTE, LOCAL = ("10.0.0.1", 50000), ("10.0.0.9", 8081)


class SumReply(Header):
    total: i32


class Sum(Request[SumReply], code=9921, accept_codes=(5,)):
    left: i32
    right: i32


class Note(Request[None], code=9922):
    text: str


del REQUESTS[Sum.code]
del REQUESTS[Note.code]


class World:
    """A local connection to a table of handlers that a test fills."""

    def __init__(self, nursery, **limits):
        self.nursery = nursery
        self.table = HandlerTable()
        self.batches = 0
        self.notices = []
        self.limits = ConnectionLimits(**limits)

    def open(self):
        return LocalConnection(
            self.table.bind("context"),
            REMOTE,
            LOCAL,
            self.nursery,
            self.limits,
            on_batch=self.count_batch,
            on_request=self.notices.append,
        )

    def count_batch(self):
        self.batches += 1


def in_world(test):
    """Run a test with a `World`, in virtual time."""

    @virtual
    async def run():
        async with trio.open_nursery() as nursery:
            await test(World(nursery))
            nursery.cancel_scope.cancel()

    return run


@in_world
async def test_a_typed_handler_gets_the_request_itself_and_the_caller_its_reply(world):
    exchanged = []

    @Sum.on(world.table)
    def add(context, request):
        reply = SumReply(total=request.left + request.right)
        exchanged.extend((request, reply))
        return reply

    request = Sum(left=1, right=2)
    reply = await world.open().call(request)
    assert exchanged[0] is request
    assert exchanged[1] is reply
    assert world.batches == 1


@in_world
async def test_a_handler_sees_address_language_and_limits_of_the_caller(world):
    seen = []

    @Note.on(world.table)
    def note(context, request, call):
        seen.append((call.connection.remote, call.connection.local, call.command.language))

    assert await world.open().call(Note(text="x"), language="GO") is None
    assert seen == [(REMOTE, LOCAL, "GO")]


@in_world
async def test_a_raw_handler_reads_a_header_and_answers_with_a_frame(world):
    @world.table.register_raw(Sum.code)
    def choose(context):
        return lambda connection, command: encode_response(
            command.opaque, 0, {"total": command.ext["left"] + command.ext["right"]}, b"", None
        )

    assert (await world.open().call(Sum(left=1, right=2))).total == 12


@in_world
async def test_raw_handlers_may_answer_several_calls_with_one_write(world):
    waiting = []

    @world.table.register_raw(Sum.code)
    def choose(context):
        return lambda connection, command: waiting.append((connection, command))

    connection, totals = world.open(), []

    async def add(left):
        totals.append((await connection.call(Sum(left=left, right=0))).total)

    for left in (1, 2):
        world.nursery.start_soon(add, left)
    await settle()
    waiting[0][0].write(
        b"".join(
            encode_response(held.opaque, 0, {"total": held.ext["left"]}, b"", None) for _, held in waiting
        )
    )
    await settle()
    assert sorted(totals) == [1, 2]


@in_world
async def test_a_handler_answers_later(world):
    calls = []

    @Sum.on(world.table)
    def add(context, request, call):
        calls.append(call)
        return ANSWERS_LATER

    connection, replies = world.open(), []

    async def ask():
        replies.append(await connection.call(Sum(left=1, right=2)))

    world.nursery.start_soon(ask)
    await settle()
    assert not replies
    reply = SumReply(total=3)
    calls[0].reply(reply)
    calls[0].fail(ValueError("too late"))
    await settle()
    assert replies[0] is reply


@in_world
async def test_an_asynchronous_handler_answers(world):
    @Sum.on(world.table)
    async def add(context, request):
        await trio.sleep(1)
        return SumReply(total=request.left)

    connection = world.open()
    assert (await connection.call(Sum(left=1, right=2))).total == 1
    await settle()
    assert not connection.has_running_tasks
    assert world.batches == 2


@in_world
async def test_a_refusal_is_raised(world):
    @Sum.on(world.table)
    async def fail_later(context, request):
        if request.left:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "later")
        raise ValueError("broken")

    @Note.on(world.table)
    def refuse(context, request):
        raise RequestError(ResponseCode.NO_PERMISSION, "no")

    connection = world.open()
    with pytest.raises(RequestError, match="later"):
        await connection.call(Sum(left=1, right=2))
    with pytest.raises(RequestError) as unexpected:
        await connection.call(Sum(left=0, right=2))
    assert (unexpected.value.code, unexpected.value.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "ValueError: broken",
    )
    with pytest.raises(RequestError) as refusal:
        await connection.call(Note(text="x"))
    assert refusal.value.code == ResponseCode.NO_PERMISSION


@in_world
async def test_a_reply_with_a_code_that_the_request_does_not_accept_is_a_refusal(world):
    @Sum.on(world.table)
    def add(context, request):
        reply = SumReply(total=0)
        reply.code, reply.remark = request.left, "why"
        return reply

    connection = world.open()
    assert (await connection.call(Sum(left=5, right=0))).code == 5
    with pytest.raises(RequestError) as refusal:
        await connection.call(Sum(left=6, right=0))
    assert (refusal.value.code, refusal.value.remark) == (6, "why")


@in_world
async def test_a_request_without_handler_is_refused(world):
    with pytest.raises(RequestError) as refusal:
        await world.open().call(Note(text="x"))
    assert refusal.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@in_world
async def test_no_answer_in_time(world):
    Sum.on(world.table)(lambda context, request, call: ANSWERS_LATER)
    connection = world.open()
    with pytest.raises(RemotingTimeout):
        await connection.call(Sum(left=1, right=2), timeout_s=2)
    connection.write(encode_response(1, 0, {"total": "1"}, b"", None))  # Nobody waits for it any more.


@in_world
async def test_a_reply_that_arrives_while_its_caller_is_cancelled_is_handed_over(world):
    calls = []

    @Sum.on(world.table)
    def add(context, request, call):
        calls.append(call)
        return ANSWERS_LATER

    connection, unclaimed, scope = world.open(), [], trio.CancelScope()

    async def ask():
        with scope:
            await connection.call(Sum(left=1, right=2), on_unclaimed=unclaimed.append)

    world.nursery.start_soon(ask)
    await settle()
    scope.cancel()
    calls[0].reply(SumReply(total=3))
    await settle()
    assert [reply.total for reply in unclaimed] == [3]


@in_world
async def test_a_posted_request_is_not_waited_for(world):
    notes = []

    @Note.on(world.table)
    def note(context, request, call):
        notes.append((request.text, call.command.is_oneway))
        raise RequestError(ResponseCode.SYSTEM_BUSY, "ignored")

    world.open().post(Note(text="x"))
    assert notes == [("x", True)]


@in_world
async def test_notices_of_the_server_reach_the_client(world):
    connection, notice = world.open(), Note(text="x")
    connection.send_oneway(notice)
    assert world.notices == [notice]
    connection.close()
    connection.send_oneway(notice)
    assert world.notices == [notice]


@in_world
async def test_a_question_to_the_client_ends_without_an_answer(world):
    connection, answers = world.open(), []
    with pytest.raises(RemotingTimeout):
        await connection.ask(Note(text="x"), 1)
    connection.send_command(Command(Note.code), answers.append)
    connection.close()
    assert answers == [None]
    assert not world.notices
    with pytest.raises(RemotingClosed):
        connection.send_command(Command(Note.code), answers.append)


@in_world
async def test_the_end_of_the_connection(world):
    Sum.on(world.table)(lambda context, request, call: ANSWERS_LATER)
    connection, ended = world.open(), SimpleNamespace(connections=[], errors=[])
    connection.on_close(ended.connections.append)

    async def ask():
        try:
            await connection.call(Sum(left=1, right=2))
        except RemotingClosed as error:
            ended.errors.append(error)

    world.nursery.start_soon(ask)
    await settle()
    connection.close("done")
    await settle()
    assert ended.connections == [connection]
    assert len(ended.errors) == 1
    with pytest.raises(RemotingClosed):
        await connection.call(Sum(left=1, right=2))
