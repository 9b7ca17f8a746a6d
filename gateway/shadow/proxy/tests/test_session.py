"""The session's protocol logic by itself: events in, bytes and actions out, no transports and no scheduler."""

from codec.command import Command, encode_command
from gateway.shadow.proxy.address_book import AddressBook
from gateway.shadow.proxy.exchange_tracker import ClientIdentity
from gateway.shadow.proxy.session import (
    AwaitDecision,
    CloseTarget,
    DialTarget,
    EndSession,
    PauseReading,
    Peer,
    ResumeReading,
    Send,
    Session,
    StartStallTimer,
    StopStallTimer,
)
from gateway.shadow.tests.sessions import (
    FREE_PORT,
    PRIMARY_ADDRESS,
    HoldingHolder,
    RecordingObserver,
    answer,
    make_context,
    request,
)
from gateway.shadow.traffic.exchange import Hub, Side

SEND, HEARTBEAT = 310, 34
TARGET_ADDRESS = "10.2.0.1:10911"


class ManualClock:
    """A clock that the test sets."""

    def __init__(self):
        self.now_s = 0.0

    def now_ms(self):
        return 1_700_000_000_000 + round(self.now_s * 1000)

    def monotonic(self):
        return self.now_s


class FixedDirector:
    """Directs every send to one side."""

    def __init__(self, side):
        self.side = side

    def codes(self):
        return {SEND}

    def choose_side(self, code, frame):
        return self.side


class LogicBench:
    """A session without a driver. `take_actions` does what a driver does after each event."""

    def __init__(self, hub=None, *, side=None, **settings):
        self.hub = hub or Hub()
        self.director = FixedDirector(side)
        if side is not None:
            self.hub.set_director(self.director)
        book = AddressBook("auto", lambda address: 0)
        book.add_listener(PRIMARY_ADDRESS, FREE_PORT)
        dial_target = None if side is None else self._never_called
        context = make_context(self.hub, book, dial_target=dial_target, **settings)
        self.clock = context.clock = ManualClock()
        self.wakes = 0
        view = book.view_for(("10.0.0.9", 1))
        self.session = Session(ClientIdentity(1, "10.0.0.1:50000"), view, context, self._count_wake)

    @staticmethod
    def _never_called(broker):
        raise AssertionError

    def _count_wake(self):
        self.wakes += 1

    def take_actions(self):
        actions = []
        while self.session.has_followup:
            actions += self.session.take_actions()
            self.session.complete_writes()
        return actions


def connected_bench(**settings):
    """A session whose first send goes to the target, which is connected."""
    bench = LogicBench(side=Side.TARGET, **settings)
    assert bench.session.receive_from_client(request(SEND)) == b""
    assert bench.take_actions() == [DialTarget()]
    bench.session.target_connected("broker-a", TARGET_ADDRESS)
    assert bench.take_actions() == [Send(Peer.TARGET, request(SEND)), ResumeReading(Peer.CLIENT)]
    return bench


def test_unobserved_frames_cause_no_actions():
    bench = LogicBench()
    for data in (request(), request() + request(11), request()):
        assert bench.session.receive_from_client(data) == data
        assert bench.session.receive_from_primary(answer()) == answer()
    assert not bench.session.has_followup


def test_an_exchange_is_published_after_the_driver_has_written_the_answer():
    hub, observer = Hub(), RecordingObserver({SEND})
    hub.add_observer(observer)
    bench = LogicBench(hub)
    assert bench.session.receive_from_client(request()) == request()
    bench.clock.now_s = 1.0
    assert bench.take_actions() == []
    bench.clock.now_s = 3.0
    assert bench.session.receive_from_primary(answer()) == answer()
    assert observer.seen == []
    assert bench.take_actions() == []
    (exchange,) = observer.seen
    assert (exchange.asked_s, exchange.forwarded_s, exchange.answered_s) == (0.0, 1.0, 3.0)


def test_a_full_output_pauses_the_other_side():
    bench = LogicBench()
    bench.session.output_full(Peer.PRIMARY)
    assert bench.take_actions() == [PauseReading(Peer.CLIENT)]
    bench.session.output_drained(Peer.PRIMARY)
    assert bench.take_actions() == [ResumeReading(Peer.CLIENT)]
    bench.session.output_full(Peer.CLIENT)
    assert bench.take_actions() == [PauseReading(Peer.PRIMARY), PauseReading(Peer.TARGET)]
    bench.session.output_drained(Peer.CLIENT)
    assert bench.take_actions() == [ResumeReading(Peer.PRIMARY), ResumeReading(Peer.TARGET)]


def test_undecided_requests_pause_the_client_until_the_decision():
    bench = LogicBench(side=Side.WAIT)
    waiting = request(SEND, 2) + request(11, 3)
    assert bench.session.receive_from_client(request(11) + waiting) == request(11)
    assert bench.take_actions() == [AwaitDecision(), PauseReading(Peer.CLIENT)]
    assert bench.session.buffered_bytes == len(waiting)
    assert bench.session.decision_made() == b""
    assert bench.take_actions() == [AwaitDecision(), PauseReading(Peer.CLIENT)]
    bench.director.side = Side.PRIMARY
    assert bench.session.decision_made() == waiting
    assert bench.take_actions() == [ResumeReading(Peer.CLIENT)]


def test_the_target_is_introduced_before_the_queued_requests():
    bench = LogicBench(side=Side.TARGET)
    heartbeat = encode_command(Command(HEARTBEAT, 7, 0, body=b"{}"))
    assert bench.session.receive_from_client(heartbeat + request(SEND)) == heartbeat
    assert bench.take_actions() == [DialTarget()]
    bench.session.target_connected("broker-a", TARGET_ADDRESS)
    expected = [Send(Peer.TARGET, heartbeat), Send(Peer.TARGET, request(SEND)), ResumeReading(Peer.CLIENT)]
    assert bench.take_actions() == expected
    assert bench.session.receive_from_target(answer()) == answer()


def test_a_full_target_pauses_the_client_for_a_limited_time():
    bench = connected_bench()
    bench.session.output_full(Peer.TARGET)
    assert bench.take_actions() == [StartStallTimer(), PauseReading(Peer.CLIENT)]
    bench.session.output_drained(Peer.TARGET)
    assert bench.take_actions() == [StopStallTimer(), ResumeReading(Peer.CLIENT)]
    bench.session.stall_timed_out()
    assert bench.take_actions() == []
    bench.session.output_full(Peer.TARGET)
    bench.take_actions()
    bench.session.stall_timed_out()
    assert bench.take_actions() == [EndSession()]


def test_a_full_target_that_closes_without_owing_an_answer_resumes_the_client():
    bench = connected_bench()
    bench.session.receive_from_target(answer())
    bench.session.output_full(Peer.TARGET)
    bench.take_actions()
    bench.session.connection_ended(Peer.TARGET, "closed by peer")
    assert bench.take_actions() == [CloseTarget(), StopStallTimer(), ResumeReading(Peer.CLIENT)]


def test_a_target_that_closes_while_it_owes_an_answer_ends_the_session():
    bench = connected_bench()
    bench.session.connection_ended(Peer.TARGET, "closed by peer")
    assert bench.take_actions() == [CloseTarget(), ResumeReading(Peer.CLIENT), EndSession()]


def test_a_released_answer_wakes_the_driver():
    hub, holder = Hub(), HoldingHolder({SEND})
    hub.set_holder(holder)
    bench = LogicBench(hub)
    bench.session.receive_from_client(request())
    bench.take_actions()
    assert bench.session.receive_from_primary(answer()) == b""
    assert bench.session.has_unsent_answers
    assert bench.take_actions() == []
    holder.releases[0](answer())
    assert bench.wakes == 1
    assert bench.take_actions() == [Send(Peer.CLIENT, answer())]
    assert not bench.session.has_unsent_answers


def test_a_bad_frame_ends_the_session_after_the_frames_before_it():
    bench = LogicBench()
    assert bench.session.receive_from_client(request() + b"GET / HTTP/1.1") == request()
    assert bench.take_actions() == [EndSession()]
