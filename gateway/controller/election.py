"""The policy by which a master is chosen.

Source: DefaultElectPolicy, 5.4.0. Deviations: the offsets of two logs that differ by more than 2 GiB are compared
correctly, and of equal candidates the one with the lowest id wins, whichever was looked at first.
"""

from collections.abc import Iterable
from dataclasses import replace

from gateway.controller.broker_set import BrokerSet
from gateway.controller.liveness import LiveBroker, Liveness, ReplicaKey


def key_of(broker_set: BrokerSet, broker_id: int) -> ReplicaKey:
    """Return the key under which the heartbeats of a replica are noted."""
    return ReplicaKey(broker_set.cluster, broker_set.name, broker_id)


def master_was_restarted(broker_set: BrokerSet, liveness: Liveness) -> bool:
    """Tell whether the present master was started again since its election, so that its log may lack its end."""
    master_id = broker_set.master_id
    return master_id is not None and liveness.was_restarted(
        key_of(broker_set, master_id), broker_set.master_epoch
    )


def choose_master(
    broker_set: BrokerSet, liveness: Liveness, designated_id: int | None, *, may_be_unclean: bool
) -> int | None:
    """Return the id of the replica that is to be master, perhaps the present one; None if there is no candidate.

    Candidates are alive and in sync. Only if none of them can be chosen, and with ``may_be_unclean``, all replicas that
    are alive are candidates. Of ``designated_id`` it is that replica or nobody.
    """
    chosen = _choose(broker_set, liveness, broker_set.sync_set, designated_id)
    if chosen is None and may_be_unclean:
        chosen = _choose(broker_set, liveness, broker_set.replicas, designated_id)
    return chosen


def choose_successor(broker_set: BrokerSet, liveness: Liveness, *, may_be_unclean: bool) -> int | None:
    """Return the id of the replica that would be master if the present master died now; None if nobody would."""
    master_id = broker_set.master_id
    others = {
        broker_id: replica for broker_id, replica in broker_set.replicas.items() if broker_id != master_id
    }
    without_master = replace(broker_set, replicas=others, master_id=None)
    return choose_master(without_master, liveness, None, may_be_unclean=may_be_unclean)


def _choose(
    broker_set: BrokerSet, liveness: Liveness, broker_ids: Iterable[int], designated_id: int | None
) -> int | None:
    candidates = {
        broker_id: live
        for broker_id in broker_ids
        if broker_id in broker_set.replicas
        and (live := liveness.live_broker(key_of(broker_set, broker_id))) is not None
    }
    if designated_id is not None:
        return designated_id if designated_id in candidates else None
    if broker_set.master_id in candidates and not master_was_restarted(broker_set, liveness):
        return broker_set.master_id
    return min(candidates, key=lambda broker_id: _rank(broker_id, candidates[broker_id]), default=None)


def _rank(broker_id: int, live: LiveBroker) -> tuple[int, int, int, int]:
    """Return the sort key of a candidate: the newest epoch, the longest log, the lowest priority, the lowest id."""
    heartbeat = live.heartbeat
    return -heartbeat.epoch, -heartbeat.max_offset, heartbeat.election_priority, broker_id
