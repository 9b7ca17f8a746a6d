from codec.command import Command, decode_frame
from codec.constants import ResponseCode
from gateway.broker.limits.request_pause import MAX_HELD_BYTES, RequestPause
from gateway.tests.broker_fakes import FakeConnection
from remoting.errors import RequestError

SEND, STATUS = 10, 999


class CountingConnection(FakeConnection):
    """A connection that counts the requests in progress."""

    outstanding_requests = 0

    def begin_request(self):
        self.outstanding_requests += 1

    def end_request(self):
        self.outstanding_requests -= 1


def answer_for(code):
    return lambda connection, command: b"%d of %d" % (command.opaque, code)


def refusal(handler, connection, command):
    try:
        handler(connection, command)
    except RequestError as error:
        return error
    raise AssertionError("not refused")


def test_a_broker_that_does_not_change_pays_nothing():
    handler = answer_for(SEND)
    assert RequestPause().guard(SEND, handler) is handler


def test_requests_are_held_and_passed_on_in_order_to_the_new_handlers():
    pause, connection = RequestPause(), CountingConnection()
    pause.hold()
    handler = pause.guard(SEND, answer_for(SEND))
    for opaque in range(3):
        assert handler(connection, Command(SEND, opaque)) is None
    assert pause.held_count == connection.outstanding_requests == 3
    pause.lift()
    pause.guard(SEND, lambda connection, command: b"new %d" % command.opaque)
    pause.settle_held()
    assert connection.written == [b"new 0", b"new 1", b"new 2"]
    assert pause.held_count == connection.outstanding_requests == 0


def test_exempt_requests_pass():
    pause = RequestPause(frozenset({STATUS}))
    handler = answer_for(STATUS)
    for change in (pause.hold, lambda: pause.fence("no store")):
        change()
        assert pause.guard(STATUS, handler) is handler


def test_a_fenced_broker_refuses_with_the_reason():
    pause, connection = RequestPause(), CountingConnection()
    pause.hold()
    held = pause.guard(SEND, answer_for(SEND))
    held(connection, Command(SEND, 7))
    pause.fence("no store")
    error = refusal(pause.guard(SEND, answer_for(SEND)), connection, Command(SEND, 8))
    assert (error.code, error.remark) == (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]no store")
    pause.settle_held()
    answer = decode_frame(connection.written[0], 4, len(connection.written[0]))
    assert (answer.opaque, answer.code, answer.remark) == (7, ResponseCode.SYSTEM_BUSY, error.remark)


def test_requests_of_closed_connections_are_forgotten():
    pause, connection = RequestPause(), CountingConnection()
    pause.hold()
    pause.guard(SEND, answer_for(SEND))(connection, Command(SEND, 7))
    connection.closed = "gone"
    pause.lift()
    pause.guard(SEND, answer_for(SEND))
    pause.settle_held()
    assert connection.written == []


def test_held_requests_are_bounded_in_bytes():
    pause, connection = RequestPause(), CountingConnection()
    pause.hold()
    handler = pause.guard(SEND, answer_for(SEND))
    handler(connection, Command(SEND, 1, body=b"x" * MAX_HELD_BYTES))
    assert "too many requests wait" in str(refusal(handler, connection, Command(SEND, 2, body=b"x")).remark)
