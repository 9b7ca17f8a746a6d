"""The lease of a master, and the guard that checks it."""

from collections.abc import Callable

import pytest

from codec.batch import encode_batch
from codec.command import Command
from codec.constants import ResponseCode
from gateway.broker.replication.fencing import (
    GUARDED,
    MAX_HELD_BYTES,
    Lease,
    LeaseGuard,
)
from remoting.errors import RequestError
from remoting.requests.pull import PullMessage
from remoting.requests.send import SendMessageV2
from remoting.requests.topics import UpdateAndCreateTopic
from storage.append import NewMessage
from storage.clock import SystemClock, clock_with_suspension
from storage.config import StoreConfig
from storage.confirmed_store import ConfirmedStore
from storage.errors import StoreFull
from storage.files import MemoryFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock


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
    lease.renew(98.0, lease.generation)
    assert lease.is_valid
    time.now_s = 104.9
    assert lease.is_valid
    time.now_s = 105.1
    assert not lease.is_valid
    assert lease.remaining_s == 0


def test_a_heartbeat_that_is_confirmed_late_does_not_shorten_the_lease() -> None:
    time = Time()
    lease = Lease(10, time)
    lease.renew(100.0, lease.generation)
    lease.renew(95.0, lease.generation)
    time.now_s = 106.0
    assert lease.is_valid


def test_a_confirmation_that_arrives_after_the_time_is_no_lease() -> None:
    """As after SIGSTOP: the answers were in the socket, and are read when the process goes on."""
    time = Time()
    lease = Lease(10, time)
    time.now_s = 130.0
    lease.renew(100.0, lease.generation)
    assert not lease.is_valid


def test_a_lease_is_not_longer_than_a_new_leader_waits_that_has_not_heard_the_master() -> None:
    time = Time()
    lease = Lease(60, time)
    lease.renew(100.0, lease.generation)
    time.now_s = 106.9
    assert lease.is_valid
    time.now_s = 107.1
    assert not lease.is_valid


def test_an_answer_to_a_question_from_before_an_end_or_a_suspension_renews_nothing() -> None:
    time = Time()
    lease = Lease(10, time)
    lease.renew(100.0, lease.generation)
    asked_in = lease.generation
    lease.end()
    lease.renew(100.0, asked_in)
    assert not lease.is_valid
    asked_in = lease.generation
    lease.renew(100.0, asked_in)
    assert lease.is_valid
    lease.suspend()
    lease.renew(100.0, asked_in)
    assert not lease.is_valid
    asked_in = lease.generation
    lease.suspend()
    lease.renew(100.0, asked_in)
    assert not lease.is_valid, "another connection has closed since"
    lease.resume()
    assert lease.is_valid


def test_a_suspended_lease_goes_on_where_it_was() -> None:
    time = Time()
    lease = Lease(10, time)
    lease.renew(100.0, lease.generation)
    lease.suspend()
    assert not lease.is_valid
    assert lease.remaining_s == 0
    lease.resume()
    assert lease.is_valid
    lease.suspend()
    lease.renew(100.0, lease.generation)
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
        lease.renew(time.now_s, lease.generation)
        assert guarded(connection, Command(code)) == b"stored"
        time.now_s += 20
        with pytest.raises(RequestError):
            guarded(connection, Command(code))
    assert guard.guard(PullMessage.code, handler) is handler
    is_master[0] = False
    assert all(guard.guard(code, handler) is handler for code in GUARDED)


@pytest.mark.parametrize("store_type", [MessageStore, ConfirmedStore])
def test_a_master_appends_nothing_without_a_lease_whatever_asks_for_it(
    store_type: type[MessageStore],
) -> None:
    time, is_master = Time(), [True]
    lease = Lease(10, time)
    store = store_type.open(StoreConfig("/s"), MemoryFiles(), FakeClock())
    store.check_append = LeaseGuard(lease, "broker-a", lambda: is_master[0]).check_append
    message, batch = NewMessage("t", 0, b"x", ""), encode_batch([(0, b"x", b"")])
    lease.renew(time.now_s, lease.generation)
    store.append(message)
    store.append_batch("t", 0, batch)
    end = store.max_physical_offset
    time.now_s += 9.1
    with pytest.raises(StoreFull, match="do not confirm"):
        store.append(message)
    with pytest.raises(StoreFull, match="do not confirm"):
        store.append_batch("t", 0, batch)
    assert (store.max_physical_offset, store.refusal) == (end, None)
    is_master[0] = False
    store.append(message)
    assert store.max_physical_offset > end


def test_no_messages_with_the_offsets_of_another_cluster_are_appended_without_a_lease() -> None:
    store = MessageStore.open(StoreConfig("/s"), MemoryFiles(), FakeClock())
    store.check_append = LeaseGuard(Lease(10, Time()), "broker-a", lambda: True).check_append
    with pytest.raises(StoreFull, match="do not confirm"):
        store.append_preserving_offsets("t", 0, 0, memoryview(b""))


def test_plain_sends_are_counted_while_the_lease_is_valid() -> None:
    time = Time()
    lease = Lease(10, time)
    count = LeaseGuard(lease, "broker-a", lambda: True).limit_plain_sends(lambda connection: 7)
    connection: object = None
    assert count(connection) == 0
    lease.renew(time.now_s, lease.generation)
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


class Peer:
    """A connection that notes late answers."""

    def __init__(self) -> None:
        self.closed = False
        self.outstanding = 0
        self.answers: list[bytes | None] = []
        self.refusals: list[RequestError] = []

    def begin_request(self) -> None:
        self.outstanding += 1

    def end_request(self) -> None:
        self.outstanding -= 1

    def answer_late(self, command: Command, answer: Callable[[], bytes | None]) -> None:
        try:
            self.answers.append(answer())
        except RequestError as refusal:
            self.refusals.append(refusal)


def test_requests_wait_while_the_lease_is_suspended_for_a_moment() -> None:
    """The leader's connection has closed: it is not known yet whether the leader itself has ended."""
    time, peer, is_master = Time(), Peer(), [True]
    lease = Lease(10, time)
    guard = LeaseGuard(lease, "broker-a", lambda: is_master[0])
    stored: list[int] = []

    def handler(_: object, command: Command) -> bytes:
        stored.append(command.opaque)
        return b"%d" % command.opaque

    handle = guard.guard(SendMessageV2.code, handler)
    lease.renew(time.now_s, lease.generation)
    lease.suspend()
    assert handle(peer, Command(SendMessageV2.code, 1)) is None
    assert handle(peer, Command(SendMessageV2.code, 2)) is None
    assert (stored, peer.outstanding) == ([], 2)
    time.now_s += 0.2
    lease.notify()
    assert stored == []
    lease.resume()
    assert (stored, peer.answers, peer.outstanding) == ([1, 2], [b"1", b"2"], 0)
    assert handle(peer, Command(SendMessageV2.code, 3)) == b"3"

    lease.suspend()
    assert handle(peer, Command(SendMessageV2.code, 4)) is None
    time.now_s += 1.1
    with pytest.raises(RequestError):
        handle(peer, Command(SendMessageV2.code, 5))
    lease.notify()
    assert (stored, len(peer.refusals), peer.outstanding) == ([1, 2, 3], 1, 0)


def test_requests_that_waited_are_not_stored_by_a_slave() -> None:
    time, peer, is_master = Time(), Peer(), [True]
    lease = Lease(10, time)
    guard = LeaseGuard(lease, "broker-a", lambda: is_master[0])
    stored: list[Command] = []

    def handler(_: object, command: Command) -> None:
        stored.append(command)

    handle = guard.guard(SendMessageV2.code, handler)
    lease.renew(time.now_s, lease.generation)
    lease.suspend()
    assert handle(peer, Command(SendMessageV2.code, 1)) is None
    is_master[0] = False
    guard.guard(SendMessageV2.code, handler)
    lease.renew(time.now_s, lease.generation)
    assert (stored, len(peer.refusals)) == ([], 1)


def test_many_bytes_do_not_wait() -> None:
    time, peer = Time(), Peer()
    lease = Lease(10, time)
    handle = LeaseGuard(lease, "broker-a", lambda: True).guard(SendMessageV2.code, lambda _, command: b"")
    lease.renew(time.now_s, lease.generation)
    lease.suspend()
    assert handle(peer, Command(SendMessageV2.code, body=bytes(MAX_HELD_BYTES))) is None
    with pytest.raises(RequestError):
        handle(peer, Command(SendMessageV2.code, body=b"x"))
