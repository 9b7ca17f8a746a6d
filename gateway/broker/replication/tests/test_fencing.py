"""The lease of a master, and the guard that checks it."""

import pytest

from codec.command import Command
from codec.constants import ResponseCode
from gateway.broker.replication.fencing import GUARDED, Lease, LeaseGuard, clock_with_suspension
from remoting.errors import RequestError
from remoting.requests.pull import PullMessage
from remoting.requests.send import SendMessageV2
from remoting.requests.topics import UpdateAndCreateTopic
from storage.clock import SystemClock


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_broker_begins_without_a_lease() -> None:
    assert not Lease(10, Time()).is_valid


def test_a_lease_ends_before_the_controller_can_elect_another_master() -> None:
    time = Time()
    lease = Lease(10, time)
    lease.renew(98.0)
    assert lease.is_valid
    time.now_s = 106.9
    assert lease.is_valid
    time.now_s = 107.1
    assert not lease.is_valid
    assert lease.remaining_s == 0


def test_a_heartbeat_that_is_confirmed_late_does_not_shorten_the_lease() -> None:
    time = Time()
    lease = Lease(10, time)
    lease.renew(100.0)
    lease.renew(95.0)
    time.now_s = 108.0
    assert lease.is_valid


def test_a_confirmation_that_arrives_after_the_time_is_no_lease() -> None:
    """As after SIGSTOP: the answers were in the socket, and are read when the process goes on."""
    time = Time()
    lease = Lease(10, time)
    time.now_s = 130.0
    lease.renew(100.0)
    assert not lease.is_valid


def test_a_suspended_lease_goes_on_where_it_was() -> None:
    time = Time()
    lease = Lease(10, time)
    lease.renew(100.0)
    lease.suspend()
    assert not lease.is_valid
    assert lease.remaining_s == 0
    lease.resume()
    assert lease.is_valid
    lease.suspend()
    lease.renew(100.0)
    assert lease.is_valid
    lease.end()
    lease.resume()
    assert not lease.is_valid


def test_the_guard_refuses_what_stores_or_changes_something() -> None:
    time, is_master = Time(), [True]
    lease = Lease(10, time)
    guard = LeaseGuard(lease, "broker-a", lambda: is_master[0])
    connection: object = None

    def handler(_: object, command: Command) -> bytes:
        return b"stored"

    for code in (SendMessageV2.code, UpdateAndCreateTopic.code):
        guarded = guard.guard(code, handler)
        with pytest.raises(RequestError, match="broker-a stores nothing: its controllers") as refused:
            guarded(connection, Command(code))
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        lease.renew(time.now_s)
        assert guarded(connection, Command(code)) == b"stored"
        time.now_s += 20
        with pytest.raises(RequestError):
            guarded(connection, Command(code))
    assert guard.guard(PullMessage.code, handler) is handler
    is_master[0] = False
    assert all(guard.guard(code, handler) is handler for code in GUARDED)


def test_plain_sends_are_counted_while_the_lease_is_valid() -> None:
    time = Time()
    lease = Lease(10, time)
    count = LeaseGuard(lease, "broker-a", lambda: True).limit_plain_sends(lambda connection: 7)
    connection: object = None
    assert count(connection) == 0
    lease.renew(time.now_s)
    assert count(connection) == 7
    time.now_s += 9.1
    assert count(connection) == 0


def test_the_clock_of_a_lease_counts_while_the_machine_sleeps() -> None:
    now = clock_with_suspension(SystemClock())
    assert now() <= now()

    class OwnClock:
        def now_ms(self) -> int:
            return 0

        def monotonic(self) -> float:
            return 7.0

    assert clock_with_suspension(OwnClock())() == 7.0
