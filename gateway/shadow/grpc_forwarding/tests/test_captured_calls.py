"""Forwarded sends and acknowledgements as exchanges."""

import trio

from codec.constants import ResponseCode
from codec.properties import decode_properties
from gateway.grpc_front import messages as m
from gateway.grpc_front.framing import frame_message
from gateway.grpc_front.tests.world import message, send_request
from gateway.shadow.grpc_forwarding.captured_calls import ENTRIES_PER_TURN, CallCapture
from gateway.shadow.grpc_forwarding.tests.fake_proxy import PROXY_HOST, PROXY_PORT, Call, opened, simulated
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.subject import subject_of
from remoting.requests.pop import AckMessage
from remoting.requests.send import SendMessageV2
from storage.clock import SystemClock

OK = m.Status(code=m.OK)
RECEIPT = "100 1790000000000 60000 3 0 broker-a 2 107 5000"


def capture(codes=None, max_bytes: int = 1 << 20) -> tuple[CallCapture, list[Exchange]]:
    exchanges: list[Exchange] = []
    address = f"{PROXY_HOST}:{PROXY_PORT}"
    return CallCapture(lambda: codes, exchanges.append, SystemClock(), address, max_bytes), exchanges


async def answer_sends(call: Call) -> None:
    entries = [
        m.SendResultEntry(status=OK, message_id=entry.system_properties.message_id, offset=40 + number)
        for number, entry in enumerate(call.request.messages)
    ]
    await call.answer(m.SendMessageResponse(status=OK, entries=entries))


@simulated
async def test_a_send():
    recording, exchanges = capture()
    async with opened(recording) as world:
        world.proxy.answer = answer_sends
        client = world.client(authorization="MQv2-HMAC-SHA1 Credential=clerk, Signature=secret")
        greeting = message(body=b"hello", tag="red", keys=["k1"])
        await client.call("SendMessage", send_request(greeting))
    (exchange,) = exchanges
    assert (exchange.code, exchange.upstream, exchange.broker) == (SendMessageV2.code, "10.9.9.9:8081", "")
    assert exchange.client == "10.1.0.7:40007"
    command = exchange.request_command
    assert bytes(command.body) == b"hello"
    assert "secret" not in str(command.ext)
    properties = decode_properties(command.ext["i"])
    assert (properties["TAGS"], properties["KEYS"]) == ("red", "k1")
    answer = exchange.answer_command
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (
        ResponseCode.SUCCESS,
        greeting.system_properties.message_id,
        "40",
    )
    subject = subject_of(exchange)
    assert (subject.topic, subject.queue_id, subject.offset) == ("orders", -1, 40)
    assert exchange.asked_s <= exchange.forwarded_s <= exchange.answered_s


@simulated
async def test_messages_of_one_call_are_exchanges_each():
    recording, exchanges = capture()
    count = 2 * ENTRIES_PER_TURN + 3
    async with opened(recording) as world:
        world.proxy.answer = answer_sends
        request = send_request(*(message(body=b"%d" % number) for number in range(count)))
        await world.client().call("SendMessage", request)
        await trio.testing.wait_all_tasks_blocked()
    assert [bytes(exchange.request_command.body) for exchange in exchanges] == [
        b"%d" % number for number in range(count)
    ]
    assert [exchange.answer_command.ext["queueOffset"] for exchange in exchanges] == [
        str(40 + number) for number in range(count)
    ]


@simulated
async def test_a_refused_send_has_the_reason():
    recording, exchanges = capture()
    async with opened(recording) as world:

        async def refuse(call: Call) -> None:
            await call.answer(
                m.SendMessageResponse(status=m.Status(code=m.UNAUTHORIZED, message="no such user"))
            )

        world.proxy.answer = refuse
        await world.client().call("SendMessage", send_request(message()))
    answer = exchanges[0].answer_command
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "40100: no such user")


@simulated
async def test_acknowledgements_name_the_queue_of_their_receipt():
    recording, exchanges = capture()
    async with opened(recording) as world:

        async def answer(call: Call) -> None:
            entries = [m.AckMessageResultEntry(status=m.Status(code=code)) for code in (m.OK, m.NOT_FOUND)]
            await call.answer(m.AckMessageResponse(status=m.Status(code=m.MULTIPLE_RESULTS), entries=entries))

        world.proxy.answer = answer
        entries = [m.AckMessageEntry(receipt_handle=RECEIPT)] * 2
        request = m.AckMessageRequest(
            group=m.Resource(name="GID"),
            topic=m.Resource(name="orders"),
            entries=[*entries, m.AckMessageEntry(receipt_handle="?")],
        )
        await world.client().call("AckMessage", request)
        assert world.metrics()["grpc_forward_not_captured_total",] == 1
    assert [exchange.broker for exchange in exchanges] == ["broker-a"] * 2
    assert exchanges[0].code == AckMessage.code
    ext = exchanges[0].request_command.ext
    assert (ext["consumerGroup"], ext["topic"], ext["queueId"], ext["offset"]) == (
        "GID",
        "orders",
        "2",
        "107",
    )
    assert [exchange.answer_command.code for exchange in exchanges] == [
        ResponseCode.SUCCESS,
        ResponseCode.SYSTEM_ERROR,
    ]


@simulated
async def test_only_what_a_rule_selects_is_copied():
    recording, exchanges = capture(codes=frozenset({AckMessage.code}))
    async with opened(recording) as world:
        world.proxy.answer = answer_sends
        await world.client().call("SendMessage", send_request(message()))
    assert not exchanges


@simulated
async def test_calls_that_are_too_large_to_copy_are_served_and_counted():
    recording, exchanges = capture(max_bytes=1000)
    async with opened(recording) as world:
        world.proxy.answer = answer_sends
        answer = await world.client().call("SendMessage", send_request(message(body=bytes(2000))))
        assert answer.status == OK
        assert world.metrics()["grpc_forward_not_captured_total",] == 1
    assert not exchanges


@simulated
async def test_a_copy_that_takes_too_much_memory_is_given_up_and_the_call_goes_on():
    recording, exchanges = capture(max_bytes=1 << 30)
    async with opened(recording, frame_bytes=100_000) as world:
        client = world.client()
        world.proxy.answer = answer_sends
        assert (await client.call("SendMessage", send_request(message(body=bytes(300_000))))).status == OK
        assert world.metrics()["grpc_forward_not_captured_total",] == 1
    assert not exchanges


@simulated
async def test_what_is_not_a_message_is_left_to_the_proxy():
    recording, exchanges = capture()
    async with opened(recording) as world:
        client = world.client()
        number = await client.begin("SendMessage", m.SendMessageResponse)
        await client.send(number, frame_message(b"\xff\xff"), end=True)
        call = await world.proxy.call()
        while not call.is_complete:
            await trio.sleep(0.01)
        await call.answer(m.SendMessageResponse(status=m.Status(code=m.BAD_REQUEST)))
        await client.streams[number].ended.wait()
        assert client.streams[number].answers[0].status.code == m.BAD_REQUEST
        assert world.metrics()["grpc_forward_not_captured_total",] == 1
    assert not exchanges
