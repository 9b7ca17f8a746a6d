"""Broker sets: ids, epochs, and their form in a store."""

import json

import pytest

from gateway.controller.broker_set import MAX_REMOVED_IDS, BrokerSet, UnreadableState


def two_replicas() -> BrokerSet:
    return BrokerSet("C", "a").with_replica(1, "h:1", "h:1;7").with_replica(2, "h:2", "h:2;8")


def test_a_new_master_is_alone_in_sync_and_has_the_next_epoch() -> None:
    broker_set = two_replicas().with_master(1).with_sync_set((1, 2))
    assert (broker_set.master_address, broker_set.master_epoch, broker_set.sync_set_epoch) == ("h:1", 1, 2)
    changed = broker_set.with_master(2)
    assert (changed.master_id, changed.master_epoch) == (2, 2)
    assert (changed.sync_set, changed.sync_set_epoch) == (frozenset((2,)), 3)


def test_a_lost_master_leaves_the_replicas_in_sync() -> None:
    lost = two_replicas().with_master(1).with_sync_set((1, 2)).without_master()
    assert (lost.master_id, lost.master_address, lost.master_epoch) == (None, None, 2)
    assert lost.sync_set == frozenset((1, 2))


def test_the_next_id_skips_those_that_brokers_took_out_of_turn() -> None:
    broker_set = BrokerSet("C", "a").with_replica(1, "h:1", "x").with_replica(3, "h:3", "y")
    assert broker_set.next_broker_id == 4
    assert broker_set.with_replica(2, "h:2", "z").next_broker_id == 5


def test_ids_of_removed_replicas_are_not_given_again() -> None:
    rest = two_replicas().without_replicas((2,))
    assert rest is not None
    assert (list(rest.replicas), rest.next_broker_id) == ([1], 3)


def test_ids_that_removed_replicas_took_out_of_turn_are_not_given_again() -> None:
    rest = two_replicas().with_replica(5, "h:5", "z").without_replicas((5, 9))
    assert rest is not None
    assert (rest.removed_ids, rest.next_broker_id) == ({5}, 4)
    assert rest.with_replica(4, "h:4", "z").next_broker_id == 6


def test_a_set_forgets_the_lowest_ids_of_removed_replicas_in_the_end() -> None:
    broker_set: BrokerSet | None = two_replicas()
    for broker_id in range(3, MAX_REMOVED_IDS + 5):
        assert broker_set is not None
        broker_set = broker_set.with_replica(broker_id, "h:1", "z").without_replicas((broker_id,))
    assert broker_set is not None
    assert broker_set.removed_ids == set(range(5, MAX_REMOVED_IDS + 5))
    assert broker_set.next_broker_id == MAX_REMOVED_IDS + 5


def test_removing_the_master_keeps_the_epochs() -> None:
    rest = two_replicas().with_master(1).without_replicas((1,))
    assert rest is not None
    assert (rest.master_id, rest.master_epoch, rest.sync_set, rest.had_master) == (None, 2, frozenset(), True)


def test_removing_a_replica_in_sync_begins_another_epoch_of_the_set() -> None:
    broker_set = two_replicas().with_master(1)
    both = broker_set.with_sync_set((1, 2))
    rest, same = both.without_replicas((2,)), broker_set.without_replicas((2,))
    assert rest is not None
    assert same is not None
    assert (rest.sync_set, rest.sync_set_epoch) == (frozenset((1,)), both.sync_set_epoch + 1)
    assert (same.sync_set, same.sync_set_epoch) == (broker_set.sync_set, broker_set.sync_set_epoch)


def test_without_replicas_there_is_no_set() -> None:
    assert two_replicas().without_replicas((1, 2)) is None


def test_a_set_survives_a_store() -> None:
    broker_set = two_replicas().with_master(2).with_address(1, "h:9")
    assert BrokerSet.from_json(broker_set.to_json()) == broker_set
    rest = broker_set.without_replicas((1,))
    assert rest is not None
    assert BrokerSet.from_json(rest.to_json()) == rest


def test_a_set_of_a_version_that_noted_no_removed_ids_is_read() -> None:
    value = json.loads(two_replicas().to_json())
    del value["removedIds"]
    assert BrokerSet.from_json(json.dumps(value).encode()) == two_replicas()


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b'{"format": 1, "replicas": []}'])
def test_other_bytes_are_not_a_set(data: bytes) -> None:
    with pytest.raises(UnreadableState):
        BrokerSet.from_json(data)


def test_a_set_of_a_later_version_is_not_read() -> None:
    value = json.loads(two_replicas().to_json())
    value["format"] = 2
    with pytest.raises(UnreadableState, match="format 2, this version reads 1"):
        BrokerSet.from_json(json.dumps(value).encode())
