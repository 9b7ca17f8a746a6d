"""Sessions over transports: frames pass both ways in bounded buffers, exchanges are published, ends are closed."""

import struct
from itertools import accumulate, pairwise

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.command import decode_frame
from gateway.shadow.proxy.session import MAX_FRAMES_PER_TURN
from gateway.shadow.tests.sessions import (
    GATEWAY_HOST,
    PRIMARY_ADDRESS,
    HoldingHolder,
    RecordingObserver,
    SessionBench,
    answer,
    request,
    run_with_nursery,
)
from gateway.shadow.traffic.exchange import Hub, Side
from remoting.requests.namesrv import GetRouteInfoByTopic, RegisterBroker
from remoting.tests.virtual import counting_turns, settle, virtual

ROUTE = b'{"brokerDatas":[{"brokerAddrs":{0:"10.1.0.1:10911",1:"10.1.0.2:10911"},"brokerName":"a"}]}'


@pytest.fixture(params=[True, False], ids=["reactor", "streams"])
def reactive(request):
    return request.param


def make_observed_bench(nursery, *codes, **settings):
    """A session and its observer."""
    hub, observer = Hub(), RecordingObserver(*codes)
    hub.add_observer(observer)
    return SessionBench(nursery, hub=hub, **settings), observer


def test_bytes_pass_untouched_one_write_for_one_read(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive)
        requests = request(binary=True) + request(11, 2) + request(99_999, 3) + request(opaque=4, flag=2)
        assert await bench.send_from_client(requests) == requests
        answers = answer() + answer(19, 2, binary=True) + request(40, 7, flag=2)
        assert await bench.send_from_upstream(answers) == answers
        assert (bench.upstream.writes, bench.client.writes) == (1, 1)
        assert (bench.counters.requests, bench.counters.answers) == (4, 3)

    run_with_nursery(test)


def test_frames_in_pieces_pass_when_complete(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive)
        frame = request(body=b"x" * 1000)
        assert await bench.send_from_client(frame[:3]) == b""
        assert await bench.send_from_client(frame[3:500]) == b""
        assert await bench.send_from_client(frame[500:] + frame[:9]) == frame
        assert await bench.send_from_client(frame[9:]) == frame * 2

    run_with_nursery(test)


def test_a_slow_client_stops_the_reading_of_its_upstream(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive, client_room=10, buffered_bytes=4096)
        frame = answer(body=b"x" * 5000)
        await bench.send_from_upstream(frame, frame, frame, frame)
        # Without a reactor, the reading task holds one more read.
        assert bench.session.client.buffered_bytes <= (1 if reactive else 2) * len(frame)
        assert bench.session.buffered_bytes >= len(frame) - 10
        bench.client.take()
        await settle()
        assert bytes(bench.client.sent) == frame * 4
        assert bench.session.client.buffered_bytes == 0

    run_with_nursery(test)


def test_a_slow_upstream_stops_the_reading_of_its_client(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive, upstream_room=0, buffered_bytes=4096)
        frame = request(body=b"x" * 5000)
        await bench.send_from_client(frame, frame, frame)
        assert bench.counters.requests <= (1 if reactive else 2)
        bench.upstream.take()
        await settle()
        assert bytes(bench.upstream.sent) == frame * 3

    run_with_nursery(test)


@pytest.mark.parametrize("end", [b"", ConnectionResetError("reset")])
def test_answers_received_are_delivered_when_the_upstream_ends(reactive, end):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive, client_room=10)
        frame = answer(body=b"x" * 500)
        await bench.send_from_upstream(frame)
        bench.upstream.arrive(end)
        await settle()
        assert bench.upstream.closed
        assert not bench.client.closed
        bench.client.take()
        await bench.ended.wait()
        assert bytes(bench.client.sent) == frame
        assert bench.client.closed

    run_with_nursery(test)


def test_requests_received_are_delivered_when_the_client_ends(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive, upstream_room=10)
        frame = request(35, body=b"x" * 500)
        await bench.send_from_client(frame, b"")
        assert not bench.upstream.closed
        bench.upstream.take()
        await bench.ended.wait()
        assert bytes(bench.upstream.sent) == frame
        assert bench.upstream.closed

    run_with_nursery(test)


def test_an_end_that_reads_nothing_is_closed_after_the_linger_time(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive, client_room=0, linger_s=5.0)
        await bench.send_from_upstream(answer())
        bench.upstream.arrive(b"")
        began = trio.current_time()
        await bench.ended.wait()
        assert trio.current_time() - began == pytest.approx(5.0)
        assert bench.client.closed

    run_with_nursery(test)


def test_a_bad_frame_ends_the_session_after_the_frames_before_it(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive)
        await bench.send_from_client(request() + b"GET / HTTP/1.1\r\n\r\n")
        await bench.ended.wait()
        assert bytes(bench.upstream.sent) == request()
        assert bench.client.closed
        assert bench.counters.bad_frames == 1

    run_with_nursery(test)


def test_exchanges_have_the_frames_as_received():
    async def test(nursery):
        bench, observer = make_observed_bench(nursery, {310})
        observed, other = request(opaque=7, body=b"hi"), request(11, 8)
        its_answer = answer(opaque=7, ext={"msgId": "0A01000100002A9F0000000000000064"})
        await bench.send_from_client(other + observed)
        await trio.sleep(0.5)
        await bench.send_from_upstream(answer(opaque=8) + its_answer)
        (exchange,) = observer.seen
        assert (exchange.code, exchange.request, exchange.answer) == (310, observed, its_answer)
        assert (exchange.broker, exchange.upstream, exchange.client) == (
            "broker-a",
            PRIMARY_ADDRESS,
            "10.0.0.1:50000",
        )
        assert (exchange.connection, exchange.side, exchange.reverse) == (1, Side.PRIMARY, False)
        assert exchange.answered_s - exchange.forwarded_s == pytest.approx(0.5)
        assert exchange.asked_s == exchange.forwarded_s
        (_, sent) = bench.client.received_commands()
        assert sent.ext["msgId"] == "0A000009000051AF0000000000000064"

    run_with_nursery(test)


def test_oneway_requests_and_requests_of_the_broker_are_published():
    async def test(nursery):
        bench, observer = make_observed_bench(nursery)
        oneway, notice, question = request(flag=2), request(40, 5, flag=2), request(39, 6)
        await bench.send_from_client(oneway)
        assert await bench.send_from_upstream(notice + question) == notice + question
        reply = answer(opaque=6)
        await bench.send_from_client(reply)
        seen = [(each.code, each.request, each.answer, each.reverse) for each in observer.seen]
        assert seen == [(310, oneway, None, False), (40, notice, None, True), (39, question, reply, True)]
        assert bytes(bench.upstream.sent) == oneway + reply

    run_with_nursery(test)


def test_unanswered_requests_are_published_at_the_end():
    async def test(nursery):
        hub, observer = Hub(), RecordingObserver({310, 39})
        hub.add_observer(observer)
        bench = SessionBench(nursery, hub=hub)
        await bench.send_from_client(request())
        await bench.send_from_upstream(request(39, 2))
        await bench.send_from_client(b"")
        await bench.ended.wait()
        assert [(each.code, each.answer, each.reverse) for each in observer.seen] == [
            (310, None, False),
            (39, None, True),
        ]

    run_with_nursery(test)


def test_remembered_requests_are_bounded():
    async def test(nursery):
        bench, observer = make_observed_bench(nursery, {310}, remembered=2)
        await bench.send_from_client(*[request(opaque=number) for number in range(5)])
        assert [each.answer for each in observer.seen] == [None] * 3
        bench.session.give_up_older_than(trio.current_time() + 1)
        assert [each.request_command.opaque for each in observer.seen] == list(range(5))
        assert bench.counters.given_up == 5
        assert await bench.send_from_upstream(answer(opaque=4)) == answer(opaque=4)

    run_with_nursery(test)


def test_an_answer_is_held_until_it_is_released():
    async def test(nursery):
        hub, holder = Hub(), HoldingHolder({310})
        hub.set_holder(holder)
        bench = SessionBench(nursery, hub=hub)
        await bench.send_from_client(request(opaque=1) + request(11, 2))
        held = answer(opaque=1, ext={"msgId": "0A01000100002A9F0000000000000064"})
        assert await bench.send_from_upstream(held + answer(opaque=2)) == answer(opaque=2)
        holder.releases[0](held)
        sent = bench.client.received_commands()
        assert [each.opaque for each in sent] == [2, 1]
        assert sent[1].ext["msgId"].startswith("0A000009000051AF")

    run_with_nursery(test)


def test_the_client_has_its_answer_before_observers_are_told():
    async def test(nursery):
        hub, sent_before = Hub(), []

        class TimingObserver(RecordingObserver):
            def observe(self, exchange):
                sent_before.append(bytes(bench.client.sent))

        hub.add_observer(TimingObserver())
        bench = SessionBench(nursery, hub=hub, reactive=True)
        await bench.send_from_client(request(10, 1) + request(10, 2))
        both = answer(0, 1) + answer(0, 2)
        assert await bench.send_from_upstream(both) == both
        assert sent_before == [both, both]

    run_with_nursery(test)


def test_exchanges_are_published_in_order_whether_or_not_their_answers_are_held():
    async def test(nursery):
        hub, observer, holder = Hub(), RecordingObserver(), HoldingHolder({310})
        hub.add_observer(observer)
        hub.set_holder(holder)
        bench = SessionBench(nursery, hub=hub, reactive=True)
        await bench.send_from_client(request(10, 1) + request(310, 2) + request(15, 3))
        assert await bench.send_from_upstream(answer(0, 1) + answer(0, 2) + answer(0, 3)) == answer(
            0, 1
        ) + answer(0, 3)
        assert [each.code for each in observer.seen] == [10, 310, 15]
        holder.releases[0](answer(0, 2))
        assert bytes(bench.client.sent) == answer(0, 1) + answer(0, 3) + answer(0, 2)

    run_with_nursery(test)


def test_a_held_answer_outlives_its_upstream():
    async def test(nursery):
        hub, holder = Hub(), HoldingHolder({310})
        hub.set_holder(holder)
        bench = SessionBench(nursery, hub=hub)
        await bench.send_from_client(request())
        await bench.send_from_upstream(answer(), b"")
        await trio.sleep(1)
        assert not bench.client.closed
        holder.releases[0](answer())
        await bench.ended.wait()
        assert bytes(bench.client.sent) == answer()

    run_with_nursery(test)


def test_routes_have_gateway_addresses_whose_listeners_are_open():
    async def test(nursery):
        bench = SessionBench(nursery)
        await bench.send_from_client(request(GetRouteInfoByTopic.code, 3))
        await bench.send_from_upstream(answer(opaque=3, body=ROUTE))
        (sent,) = bench.client.received_commands()
        expected = ROUTE.replace(b"10.1.0.1:10911", b"10.0.0.9:20911").replace(
            b"10.1.0.2:10911", b"10.0.0.9:20921"
        )
        assert sent.body == expected
        assert bench.opened == ["10.1.0.2:10911"]

    run_with_nursery(test)


def test_routes_of_a_topic_that_is_read_only_at_the_primary_are_writable():
    body = (
        b'{"brokerDatas":[],"queueDatas":[{"brokerName":"a","perm":4,"readQueueNums":1,"writeQueueNums":1}]}'
    )

    async def test(nursery):
        bench = SessionBench(nursery)
        bench.hub.writable_routes = {"orders": {"a"}}
        for opaque, topic in ((3, "orders"), (4, "others")):
            await bench.send_from_client(request(GetRouteInfoByTopic.code, opaque, ext={"topic": topic}))
            await bench.send_from_upstream(answer(opaque=opaque, body=body))
        ours, others = bench.client.received_commands()
        assert (ours.body, others.body) == (body.replace(b'"perm":4', b'"perm":6'), body)

    run_with_nursery(test)


def test_a_broker_that_registers_through_the_gateway_keeps_its_address():
    async def test(nursery):
        bench = SessionBench(nursery)
        await bench.send_from_client(request(RegisterBroker.code, 2, ext={"brokerAddr": "10.1.0.2:10911"}))
        await bench.send_from_client(request(GetRouteInfoByTopic.code, 3))
        await bench.send_from_upstream(answer(opaque=3, body=ROUTE))
        (sent,) = bench.client.received_commands()
        assert sent.body == ROUTE.replace(b"10.1.0.1:10911", f"{GATEWAY_HOST}:20911".encode())
        assert bench.opened == []

    run_with_nursery(test)


def test_message_ids_in_requests_are_those_of_the_primary():
    async def test(nursery):
        bench = SessionBench(nursery)
        gateway_id, primary_id = "0A000009000051AF0000000000000064", "0A01000100002A9F0000000000000064"
        sent = await bench.send_from_client(request(36, ext={"originMsgId": gateway_id, "offset": "100"}))
        assert decode_frame(sent, 4, len(sent)).ext["originMsgId"] == primary_id
        signed = request(36, ext={"originMsgId": gateway_id, "Signature": "x"})
        assert (await bench.send_from_client(signed)).endswith(signed)

    run_with_nursery(test)


def test_single_frames_take_the_fast_path_and_are_counted_and_rewritten(reactive):
    async def test(nursery):
        bench = SessionBench(nursery, reactive=reactive)
        theirs = "0A01000100002A9F0000000000000064"
        for number in range(3):
            await bench.send_from_client(request(opaque=number))
            await bench.send_from_upstream(answer(opaque=number, ext={"msgId": f"{theirs},{theirs}"}))
        assert bench.hub.plain_header_starts
        assert bytes(bench.upstream.sent) == b"".join(request(opaque=number) for number in range(3))
        ours = theirs.replace("0A01000100002A9F", "0A000009000051AF")
        assert [sent.ext["msgId"] for sent in bench.client.received_commands()] == [f"{ours},{ours}"] * 3
        counters = bench.counters
        assert (counters.requests, counters.request_bytes) == (3, len(bench.upstream.sent))
        assert (counters.answers, counters.answer_bytes) == (3, len(bench.client.sent))

    run_with_nursery(test)


def header_in_another_order():
    """A request whose header does not begin with the code, as Node clients write it."""
    header = b'{"opaque":1,"flag":0,"code":310,"language":"JAVA","version":0,"extFields":{"b":"orders"}}'
    return struct.pack(">II", 4 + len(header), len(header)) + header


KINDS = (
    request(),
    request(11, body=b"x" * 30),
    request(binary=True),
    request(flag=2),
    header_in_another_order(),
    answer(),
    answer(body=b"y" * 5),
)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_frames_pass_however_they_arrive(frames, data):
    whole = b"".join(frames)
    ends = accumulate(map(len, frames))
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=8))
    cuts += data.draw(st.lists(st.sampled_from([0, *ends])))
    pieces = [whole[begin:end] for begin, end in pairwise(sorted({0, *cuts, len(whole)}))]

    async def test(nursery):
        bench = SessionBench(nursery)
        assert await bench.send_from_client(*pieces) == whole
        assert await bench.send_from_upstream(*pieces) == whole
        assert (bench.counters.requests, bench.counters.answers) == (len(frames), len(frames))
        assert (bench.counters.request_bytes, bench.counters.answer_bytes) == (len(whole), len(whole))

    run_with_nursery(test)


def test_a_new_observer_sees_the_next_single_frame():
    async def test(nursery):
        bench = SessionBench(nursery)
        for number in range(2):
            await bench.send_from_client(request(opaque=number))
            await bench.send_from_upstream(answer(opaque=number))
        assert bench.hub.plain_header_starts
        observer = RecordingObserver({310})
        bench.hub.add_observer(observer)
        await bench.send_from_client(request(opaque=7))
        await bench.send_from_upstream(answer(opaque=7))
        assert [(each.request, each.answer) for each in observer.seen] == [
            (request(opaque=7), answer(opaque=7))
        ]

    run_with_nursery(test)


def test_a_clients_answer_is_observed_after_others_took_the_fast_path():
    async def test(nursery):
        bench, observer = make_observed_bench(nursery, {39})
        for number in range(2):
            await bench.send_from_client(answer(opaque=number))
        assert bench.hub.plain_header_starts
        await bench.send_from_upstream(request(39, 6))
        await bench.send_from_client(answer(opaque=6))
        assert [(each.code, each.answer) for each in observer.seen] == [(39, answer(opaque=6))]

    run_with_nursery(test)


def test_a_single_frame_that_is_too_long_ends_the_session():
    async def test(nursery):
        limits = {"frame_bytes": 400, "read_bytes": 4096}
        bench = SessionBench(nursery, **limits)
        assert await bench.send_from_client(request(), request()) == request() * 2
        await bench.send_from_client(request(body=b"x" * 400))
        await bench.ended.wait()
        assert bytes(bench.upstream.sent) == request() * 2
        other = SessionBench(nursery, **limits)
        await other.send_from_upstream(answer(ext={"remark": "x" * 400}))
        await other.ended.wait()
        assert (other.counters.answers, other.counters.bad_frames) == (0, 1)

    run_with_nursery(test)


@virtual
async def test_a_defect_ends_the_session_and_not_the_process():
    async with trio.open_nursery() as nursery:
        bench = SessionBench(nursery)
        bench.hub.interests = {}
        await bench.send_from_client(request())
        await bench.ended.wait()
        assert bench.client.closed


@pytest.mark.parametrize("reactive", [True, False])
def test_many_frames_in_one_read_let_others_run(reactive):
    """A single client with 770 frames per read made all others wait for a quarter of a second."""

    async def main(nursery):
        observer = RecordingObserver()
        hub = Hub()
        hub.add_observer(observer)
        bench = SessionBench(nursery, hub=hub, reactive=reactive)
        frames = [request(310, opaque) for opaque in range(10 * MAX_FRAMES_PER_TURN + 3)]
        answers = [answer(0, opaque) for opaque in range(len(frames))]
        await settle()
        bench.client.arrive(b"".join(frames) + request(310, 9999)[:20])
        async with counting_turns() as turns:
            while len(bench.upstream.sent) < len(b"".join(frames)):
                await trio.lowlevel.checkpoint()
        assert turns.count >= 10
        assert bytes(bench.upstream.sent) == b"".join(frames)
        await bench.send_from_client(request(310, 9999)[20:])
        assert bytes(bench.upstream.sent) == b"".join(frames) + request(310, 9999)
        seen = len(observer.seen)
        bench.upstream.arrive(b"".join(answers))
        await trio.lowlevel.checkpoint()
        assert len(observer.seen) - seen <= 2 * MAX_FRAMES_PER_TURN
        assert await bench.send_from_upstream() == b"".join(answers)
        assert [each.request for each in observer.seen] == frames

    run_with_nursery(main)


@pytest.mark.parametrize("reactive", [True, False])
def test_frames_that_wait_for_their_turn_are_delivered_before_the_end(reactive):
    async def main(nursery):
        hub = Hub()
        hub.add_observer(RecordingObserver())
        bench = SessionBench(nursery, hub=hub, reactive=reactive)
        frames = [request(310, opaque, flag=2) for opaque in range(5 * MAX_FRAMES_PER_TURN)]
        await settle()
        bench.client.arrive(b"".join(frames))
        bench.client.arrive(b"")
        await bench.ended.wait()
        assert bytes(bench.upstream.sent) == b"".join(frames)

    run_with_nursery(main)
