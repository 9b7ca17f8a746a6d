"""Sessions with a target: directed and undecided requests, requests of the target, and its failures."""

import pytest
import trio

from codec.command import Command, decode_frame, encode_command
from gateway.shadow.proxy.listener_context import TargetConnection
from gateway.shadow.proxy.target_upstream import INTRODUCTION_CODES
from gateway.shadow.tests.sessions import (
    HoldingHolder,
    RecordingObserver,
    ScriptedPeer,
    SessionBench,
    answer,
    request,
    run_with_nursery,
)
from gateway.shadow.traffic.exchange import Side
from remoting.tests.virtual import settle

SEND, PULL, HEARTBEAT, UNREGISTER, CHECK, IDS_CHANGED = 310, 11, 34, 35, 307, 40
TARGET = "10.2.0.1:10911"


class TopicDirector:
    """Directs topics to the sides that the test sets."""

    def __init__(self):
        self.sides = {}

    def codes(self):
        return {SEND, PULL}

    def choose_side(self, code, frame):
        return self.sides.get(decode_frame(frame, 4, len(frame)).ext["b"], Side.PRIMARY)


class TargetBench(SessionBench):
    """A session with a scripted target; `targets` are the connections that were made to it."""

    def __init__(self, nursery, reactive=True, **more):
        self.targets, self.dialed_brokers = [], []
        self.dial_s, self.dial_error, self.target_room = 0.0, None, None
        self.director = TopicDirector()
        super().__init__(nursery, reactive=reactive, dial_target=self._dial, **more)
        self.hub.set_director(self.director)
        self.direct_topic("moved", Side.TARGET)

    name = "broker-a"

    async def _dial(self, broker):
        self.dialed_brokers.append(broker)
        await trio.sleep(self.dial_s)
        if self.dial_error:
            raise self.dial_error
        self.targets.append(ScriptedPeer(self.client.reactive, room=self.target_room))
        return TargetConnection(self.name, TARGET, self.targets[-1])

    def direct_topic(self, topic, side):
        self.director.sides[topic] = side
        self.hub.announce_decision()

    @property
    def target(self):
        return self.targets[-1]

    async def send_from_target(self, *frames):
        for frame in frames:
            self.target.arrive(frame)
        await settle()
        return bytes(self.client.sent)


def send(opaque=1, topic="moved", **more):
    return request(SEND, opaque, ext={"b": topic}, **more)


def heartbeat(opaque=100, body=b'{"clientID":"me"}'):
    return encode_command(Command(HEARTBEAT, opaque, 0, body=body))


def code_and_opaque_of(peer):
    return [(each.code, each.opaque) for each in peer.received_commands()]


@pytest.fixture(params=[True, False], ids=["reactor", "streams"])
def reactive(request):
    return request.param


def test_directed_requests_and_their_answers_pass(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        data = send(1, "here") + send(2, binary=True) + send(3, "here") + send(4)
        assert await bench.send_from_client(data) == send(1, "here") + send(3, "here")
        assert bytes(bench.target.sent) == send(2, binary=True) + send(4)
        assert bench.dialed_brokers == ["broker-a"]
        assert await bench.send_from_target(answer(0, 4)) == answer(0, 4)
        assert await bench.send_from_upstream(answer(0, 1)) == answer(0, 4) + answer(0, 1)
        await bench.send_from_client(send(5))
        assert len(bench.targets) == 1
        assert bench.counters.directed == 3

    run_with_nursery(test)


def test_the_target_is_not_dialed_before_a_request_is_directed(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        data = heartbeat() + send(1, "here")
        assert await bench.send_from_client(data) == data
        assert not bench.dialed_brokers

    run_with_nursery(test)


def test_the_target_gets_the_last_heartbeat_before_the_first_request(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        gone = encode_command(Command(UNREGISTER, 102, 0, {"clientID": "me", "producerGroup": "old"}))
        short = heartbeat(103, b'{"clientID":"me","isWithoutSub":true}')
        await bench.send_from_client(heartbeat(100), heartbeat(101), gone, short, send(1))
        assert bytes(bench.target.sent) == heartbeat(101) + gone + send(1)
        assert code_and_opaque_of(bench.upstream) == [(34, 100), (34, 101), (35, 102), (34, 103)]
        await bench.send_from_client(heartbeat(104))
        assert code_and_opaque_of(bench.target)[-1] == code_and_opaque_of(bench.upstream)[-1] == (34, 104)

    run_with_nursery(test)


def test_only_the_primarys_answer_to_a_heartbeat_reaches_the_client(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        await bench.send_from_client(heartbeat(100), send(1), heartbeat(101))
        assert await bench.send_from_target(answer(1, 100), answer(0, 1), answer(1, 101)) == answer(0, 1)
        assert await bench.send_from_upstream(answer(0, 101)) == answer(0, 1) + answer(0, 101)

    run_with_nursery(test)


@pytest.mark.parametrize("binary", [False, True])
def test_requests_of_both_upstreams_with_the_same_opaque(reactive, binary):
    async def test(nursery):
        observer = RecordingObserver({CHECK})
        bench = TargetBench(nursery, reactive)
        bench.hub.add_observer(observer)
        await bench.send_from_client(send(1))
        target_request = request(CHECK, 7, ext={"x": "1"}, binary=binary)
        await bench.send_from_upstream(target_request)
        await bench.send_from_target(target_request)
        first, second = bench.client.received_commands()
        assert (first.opaque, first.ext, second.ext) == (7, second.ext, first.ext)
        assert second.opaque != 7
        await bench.send_from_client(answer(0, second.opaque, binary=binary), answer(0, 7, binary=binary))
        assert code_and_opaque_of(bench.target)[-1] == (0, 7)
        assert code_and_opaque_of(bench.upstream)[-1] == (0, 7)
        assert [(each.side, each.reverse, each.request_command.opaque) for each in observer.seen] == [
            (Side.TARGET, True, 7),
            (Side.PRIMARY, True, 7),
        ]
        assert len(bench.target.received_commands()) == 2

    run_with_nursery(test)


def test_oneway_requests_of_the_target_pass_unchanged(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        await bench.send_from_client(send(1))
        notice = request(IDS_CHANGED, 7, flag=2)
        assert await bench.send_from_target(notice) == notice

    run_with_nursery(test)


def test_exchanges_name_the_side_that_answered(reactive):
    async def test(nursery):
        observer = RecordingObserver({SEND})
        bench = TargetBench(nursery, reactive)
        bench.hub.add_observer(observer)
        await bench.send_from_client(send(1, "here"), send(2), send(3, flag=2))
        await bench.send_from_target(answer(0, 2))
        await bench.send_from_upstream(answer(0, 1))
        assert [(each.side, each.upstream, each.broker, each.answer) for each in observer.seen] == [
            (Side.TARGET, TARGET, "broker-a", None),
            (Side.TARGET, TARGET, "broker-a", answer(0, 2)),
            (Side.PRIMARY, "10.1.0.1:10911", "broker-a", answer(0, 1)),
        ]

    run_with_nursery(test)


def test_answers_of_the_target_may_be_held(reactive):
    async def test(nursery):
        holder = HoldingHolder({SEND})
        bench = TargetBench(nursery, reactive)
        bench.hub.set_holder(holder)
        await bench.send_from_client(send(1))
        assert await bench.send_from_target(answer(0, 1)) == b""
        holder.releases[0](answer(0, 1))
        assert bytes(bench.client.sent) == answer(0, 1)

    run_with_nursery(test)


def test_requests_queue_up_while_the_target_is_dialed(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive, buffered_bytes=4096)
        bench.dial_s = 1.0
        big = [send(number, body=b"x" * 1500) for number in range(1, 5)]
        await bench.send_from_client(*big, send(9, "here"))
        assert bench.session.buffered_bytes >= 4096
        assert not bench.upstream.sent
        await trio.sleep(1.1)
        assert bytes(bench.target.sent) == b"".join(big)
        assert bytes(bench.upstream.sent) == send(9, "here")
        assert len(bench.dialed_brokers) == 1

    run_with_nursery(test)


def test_a_slow_target_stops_the_reading_of_the_client(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive, buffered_bytes=4096)
        bench.target_room = 100
        frames = [send(number, body=b"x" * 5000) for number in range(1, 5)]
        await bench.send_from_client(*frames)
        assert bench.session.buffered_bytes < 3 * 5200
        bench.target.take()
        await settle()
        assert bytes(bench.target.sent) == b"".join(frames)

    run_with_nursery(test)


@pytest.mark.parametrize("recovers", [True, False])
def test_a_target_that_reads_nothing_ends_the_session_after_the_stall_time(reactive, recovers):
    async def test(nursery):
        bench = TargetBench(nursery, reactive, buffered_bytes=4096, stall_s=10.0, linger_s=1.0)
        bench.target_room = 100
        await bench.send_from_client(*(send(number, body=b"x" * 5000) for number in range(1, 4)))
        await trio.sleep(9)
        assert not bench.client.closed
        if recovers:
            bench.target.take()
        await trio.sleep(3)
        assert bench.client.closed != recovers

    run_with_nursery(test)


def test_a_slow_client_stops_the_reading_of_the_target(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive, buffered_bytes=4096, client_room=0)
        await bench.send_from_client(*(send(number) for number in range(1, 5)))
        answers = [answer(0, number, body=b"x" * 5000) for number in range(1, 5)]
        await bench.send_from_target(*answers)
        assert bench.session.client.buffered_bytes < 3 * 5200
        bench.client.take()
        await settle()
        assert bytes(bench.client.sent) == b"".join(answers)

    run_with_nursery(test)


@pytest.mark.parametrize("problem", [OSError("refused"), LookupError("no such broker"), None])
def test_an_unreachable_target_looks_like_a_dead_broker(reactive, problem):
    async def test(nursery):
        bench = TargetBench(nursery, reactive, connect_s=3.0)
        bench.dial_error, bench.dial_s = problem, 0.0 if problem else 60.0
        began = trio.current_time()
        await bench.send_from_client(send(1))
        await bench.ended.wait()
        assert trio.current_time() - began == (0 if problem else 3.0)
        assert bench.client.closed
        assert bench.upstream.closed
        assert bench.counters.target_unreachable == 1

    run_with_nursery(test)


def test_a_change_of_reachability_is_logged_once(caplog):
    async def test(nursery):
        bench = TargetBench(nursery)
        bench.dial_error = OSError("refused")
        await bench.send_from_client(send(1))
        again = TargetBench(nursery)
        again.context.target_reachable = False
        again.dial_error = OSError("refused")
        await again.send_from_client(send(1))
        back = TargetBench(nursery)
        back.context.target_reachable = False
        await back.send_from_client(send(1))
        assert back.context.target_reachable

    with caplog.at_level("INFO"):
        run_with_nursery(test)
    assert [each.getMessage()[:24] for each in caplog.records] == [
        "target cannot be reached",
        "target is reachable agai",
    ]


@pytest.mark.parametrize("end", [b"", ConnectionResetError("reset")])
def test_a_target_that_closes_while_it_owes_an_answer_looks_like_a_dead_broker(reactive, end):
    async def test(nursery):
        observer = RecordingObserver({SEND})
        bench = TargetBench(nursery, reactive)
        bench.hub.add_observer(observer)
        await bench.send_from_client(send(1))
        await bench.send_from_target(end)
        await bench.ended.wait()
        assert bench.client.closed
        assert [each.answer for each in observer.seen] == [None]

    run_with_nursery(test)


def test_a_target_that_closes_while_idle_is_dialed_again(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        await bench.send_from_client(heartbeat(100), send(1))
        await bench.send_from_target(answer(0, 1), b"")
        assert not bench.client.closed
        assert bench.targets[0].closed
        await bench.send_from_client(send(2))
        assert bytes(bench.targets[1].sent) == heartbeat(100) + send(2)
        assert await bench.send_from_target(answer(0, 2)) == answer(0, 1) + answer(0, 2)

    run_with_nursery(test)


@pytest.mark.parametrize("side", [Side.PRIMARY, Side.TARGET])
def test_undecided_requests_wait_in_order(reactive, side):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        bench.direct_topic("moving", Side.WAIT)
        before, after = send(1, "here"), [send(2, "moving"), send(3, "here"), send(4, "moving")]
        await bench.send_from_client(before + after[0] + after[1], after[2])
        assert bytes(bench.upstream.sent) == before
        bench.direct_topic("other", side)
        await settle()
        assert bytes(bench.upstream.sent) == before
        bench.direct_topic("moving", side)
        await settle()
        moved = [after[0], after[2]]
        if side is Side.TARGET:
            assert bytes(bench.upstream.sent) == before + after[1]
            assert bytes(bench.target.sent) == b"".join(moved)
        else:
            assert bytes(bench.upstream.sent) == before + b"".join(after)

    run_with_nursery(test)


def test_undecided_requests_are_bounded_and_answers_still_pass(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        bench.direct_topic("moving", Side.WAIT)
        await bench.send_from_client(send(1, "here"), send(2, "moving"))
        read = bench.session.buffered_bytes
        await bench.send_from_client(*(send(number, "moving", body=b"x" * 4000) for number in range(3, 30)))
        assert bench.session.buffered_bytes == read
        assert await bench.send_from_upstream(answer(0, 1)) == answer(0, 1)
        bench.direct_topic("moving", Side.PRIMARY)
        await settle()
        assert len(bench.upstream.received_commands()) == 29

    run_with_nursery(test)


def test_undecided_requests_of_an_ended_session_are_dropped(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        bench.direct_topic("moving", Side.WAIT)
        await bench.send_from_client(send(1, "moving"))
        bench.upstream.arrive(b"")
        await bench.ended.wait()
        bench.direct_topic("moving", Side.PRIMARY)
        assert not bench.upstream.sent

    run_with_nursery(test)


def test_answers_to_given_up_requests_are_dropped(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        await bench.send_from_client(send(1))
        bench.session.give_up_older_than(trio.current_time() + 1)
        assert await bench.send_from_target(answer(0, 1)) == b""
        await bench.send_from_target(b"")
        assert not bench.client.closed

    run_with_nursery(test)


def test_unanswered_requests_of_the_target_are_bounded(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive, remembered=3)
        await bench.send_from_client(send(1))
        await bench.send_from_target(*(request(CHECK, number) for number in range(1, 6)))
        opaques = [each.opaque for each in bench.client.received_commands()]
        await bench.send_from_client(*(answer(0, opaque) for opaque in opaques))
        assert code_and_opaque_of(bench.target)[1:] == [(0, 3), (0, 4), (0, 5)]

    run_with_nursery(test)


def test_introduction_codes():
    assert {HEARTBEAT, UNREGISTER} == INTRODUCTION_CODES


def test_a_former_master_of_the_target_is_left(reactive):
    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        await bench.send_from_client(send(1))
        await bench.send_from_target(answer(0, 1))
        bench.session.leave_former_target(TARGET)
        await settle()
        assert not bench.target.closed
        bench.session.leave_former_target("10.2.0.2:10911")
        await settle()
        assert bench.target.closed
        assert not bench.client.closed
        await bench.send_from_client(send(2))
        assert len(bench.targets) == 2

    run_with_nursery(test)


def test_a_client_that_waits_for_a_former_master_of_the_target_sees_a_dead_broker(reactive):
    """It may hang, and never answer."""

    async def test(nursery):
        bench = TargetBench(nursery, reactive)
        await bench.send_from_client(send(1))
        bench.session.leave_former_target("10.2.0.2:10911")
        await settle()
        assert bench.client.closed

    run_with_nursery(test)
