"""The policy of elections."""

import pytest

from gateway.controller.broker_set import BrokerSet
from gateway.controller.election import choose_master, choose_successor, key_of
from gateway.controller.liveness import Heartbeat, Liveness


def three_replicas() -> BrokerSet:
    broker_set = BrokerSet("C", "a")
    for broker_id in (1, 2, 3):
        broker_set = broker_set.with_replica(broker_id, f"h:{broker_id}", str(broker_id))
    return broker_set.with_master(1).with_sync_set((1, 2, 3))


def liveness_of(heartbeats: dict[int, Heartbeat]) -> Liveness:
    liveness = Liveness(lambda: 0.0)
    for broker_id, heartbeat in heartbeats.items():
        liveness.record(key_of(three_replicas(), broker_id), heartbeat)
    return liveness


def beat(epoch: int = 1, max_offset: int = 0, priority: int = 5) -> Heartbeat:
    return Heartbeat("h:1", epoch=epoch, max_offset=max_offset, election_priority=priority)


@pytest.mark.parametrize(
    ("heartbeats", "chosen"),
    [
        ({1: beat(), 2: beat(9, 9)}, 1),  # the present master, whatever others have
        ({2: beat(1, 900), 3: beat(2, 100)}, 3),  # the newest epoch
        ({2: beat(1, 100), 3: beat(1, 101)}, 3),  # the longest log
        ({2: beat(1, 0), 3: beat(1, 1 << 40)}, 3),  # also by more than 2 GiB
        ({2: beat(1, 7, 2), 3: beat(1, 7, 1)}, 3),  # the lowest priority
        ({2: beat(), 3: beat()}, 2),
        ({}, None),
    ],
)
def test_the_best_live_replica_in_sync_is_chosen(
    heartbeats: dict[int, Heartbeat], chosen: int | None
) -> None:
    liveness = liveness_of(heartbeats)
    assert choose_master(three_replicas(), liveness, None, may_be_unclean=False) == chosen


def test_a_designated_replica_is_chosen_or_nobody() -> None:
    liveness = liveness_of({1: beat(), 2: beat()})
    assert choose_master(three_replicas(), liveness, 2, may_be_unclean=True) == 2
    assert choose_master(three_replicas(), liveness, 3, may_be_unclean=True) is None
    assert choose_master(three_replicas(), liveness, 9, may_be_unclean=True) is None


def test_a_replica_that_is_not_in_sync_is_chosen_only_if_that_is_allowed() -> None:
    broker_set = three_replicas().with_sync_set((1,))
    liveness = liveness_of({2: beat(), 3: beat(1, 5)})
    assert choose_master(broker_set, liveness, None, may_be_unclean=False) is None
    assert choose_master(broker_set, liveness, None, may_be_unclean=True) == 3
    liveness = liveness_of({1: beat(), 3: beat(9, 9)})
    assert choose_master(broker_set, liveness, None, may_be_unclean=True) == 1


def test_the_successor_is_another_replica_than_the_master() -> None:
    liveness = liveness_of({1: beat(9, 9), 2: beat(1, 1), 3: beat(1, 2)})
    assert choose_successor(three_replicas(), liveness, may_be_unclean=False) == 3
    alone = three_replicas().with_sync_set((1,))
    assert choose_successor(alone, liveness, may_be_unclean=False) is None
    assert choose_successor(alone, liveness, may_be_unclean=True) == 3
    assert choose_successor(three_replicas().without_master(), liveness, may_be_unclean=False) == 1
