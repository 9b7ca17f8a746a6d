import pytest

from gateway.broker.consumers.queue_locks import LEASES_PER_SLICE, QueueLocks
from gateway.config.limits import BrokerLimits
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError


class Clock:
    ms = 1_000_000

    def now_ms(self):
        return self.ms


@pytest.fixture
def clock():
    return Clock()


Q0, Q1 = (MessageQueue(topic="t", broker_name="b", queue_id=queue_id) for queue_id in (0, 1))


def test_the_first_client_gets_the_lock_and_others_do_not(clock):
    locks = QueueLocks(clock)
    assert locks.lock("g", [Q0, Q1], "a") == {Q0, Q1}
    assert locks.lock("g", [Q0, Q1], "b") == set()
    assert locks.lock("other group", [Q0], "b") == {Q0}


def test_a_lease_runs_out_after_more_than_a_minute(clock):
    locks = QueueLocks(clock)
    locks.lock("g", [Q0], "a")
    clock.ms += 60_000
    assert locks.lock("g", [Q0], "b") == set()
    assert not locks.all_expired("g")
    clock.ms += 1
    assert locks.all_expired("g")
    assert locks.lock("g", [Q0], "b") == {Q0}
    assert locks.lock("g", [Q0], "a") == set()


def test_asking_again_renews(clock):
    locks = QueueLocks(clock)
    locks.lock("g", [Q0], "a")
    clock.ms += 50_000
    assert locks.lock("g", [Q0], "a") == {Q0}
    clock.ms += 50_000
    assert locks.lock("g", [Q0], "b") == set()


def test_only_the_holder_unlocks(clock):
    locks = QueueLocks(clock)
    locks.lock("g", [Q0, Q1], "a")
    locks.unlock("g", [Q0], "b")
    assert locks.lock("g", [Q0], "b") == set()
    locks.unlock("g", [Q0], "a")
    assert locks.lock("g", [Q0, Q1], "b") == {Q0}
    locks.unlock("nobody", [Q0], "a")


def test_a_group_without_locks_counts_as_run_out(clock):
    assert QueueLocks(clock).all_expired("g")


def test_expired_leases_are_removed_and_others_stay(clock):
    locks = QueueLocks(clock)
    many = [
        MessageQueue(topic="t", broker_name="b", queue_id=number) for number in range(2 * LEASES_PER_SLICE)
    ]
    locks.lock("g", many, "a")
    clock.ms += 30_000
    locks.lock("h", [Q0], "a")
    locks.lock("g", [Q1], "a")
    assert list(locks.remove_expired()) == []
    clock.ms += 30_001
    assert len(list(locks.remove_expired())) == 1, "others have their turn in between"
    assert len(locks._leases) == 2
    assert not locks.all_expired("g")
    locks.unlock("g", [Q1], "a")
    assert locks.all_expired("g")
    clock.ms += 60_000
    list(locks.remove_expired())
    assert not locks._leases
    assert not locks._groups


def test_locks_beyond_the_limit_are_refused_and_those_that_are_held_are_renewed(clock):
    locks = QueueLocks(clock, limits=BrokerLimits(max_queue_locks=2))
    assert locks.lock("g", [Q0, Q1], "a") == {Q0, Q1}
    with pytest.raises(RequestError, match="stop consumers or raise maxQueueLocks"):
        locks.lock("h", [Q0], "b")
    assert locks.lock("g", [Q0], "b") == set()
    clock.ms += 50_000
    other = MessageQueue(topic="t", broker_name="b", queue_id=2)
    assert locks.lock("g", [other, Q0], "a") == {Q0}
    clock.ms += 50_000
    assert locks.lock("h", [Q0], "b") == {Q0}, "in place of an expired one"
    assert locks.lock("g", [Q0], "a") == {Q0}
