"""The replicas of brokers under a controller: who is master, who is in sync, and who would be elected next, or why not.

The controller says which replicas are registered, alive and in sync; each replica says how far its log reaches. The
election itself is held by the controller. Its policy is applied here to the same facts, to tell its result beforehand
(`gateway/controller/election.py` has the policy of our controller).
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from codec.constants import ResponseCode
from gateway.admin.client import MASTER_ID, map_in_threads
from gateway.admin.cluster_health import REPLICATION_TROUBLE, HealthCheck
from gateway.admin.controllers import (
    LOWEST_PRIORITY,
    ControlledNames,
    ControllerGroup,
    find_controlled_names,
    read_election_settings,
)
from gateway.admin.errors import AdminError, NotFound, NotReached, Refused
from gateway.admin.settings import split_addresses
from remoting.bodies.ha import ReplicaIdentity, ReplicasInfo
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.controller import ControllerElectMaster, ControllerGetSyncStateData
from remoting.requests.ha import GetBrokerEpochCache
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.roles import GetBrokerRole, HandOverBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.admin.client import AdminClient

UNKNOWN: Final = -1
REGISTRATION_TIMEOUT_S: Final = 60.0
"""Longest time until a new master is registered: it opens its store in its new role first."""
HAND_OVER_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2


class ElectionRefused(AdminError):
    """A change of the master that the controller would refuse, or that it cannot bring about; the text says why."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica: what its controller knows of it, and what it says itself.

    ``epoch`` and ``log_end`` are `UNKNOWN` if it does not say them; ``problem`` is the reason, or another one why it
    is not well.
    """

    broker_id: int
    address: str
    is_master: bool = False
    is_alive: bool = True
    is_in_sync: bool = True
    epoch: int = UNKNOWN
    log_end: int = UNKNOWN
    priority: int = LOWEST_PRIORITY
    problem: str = ""

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The sort key of a candidate: the newest epoch, the longest log, the lowest priority, the lowest id."""
        return -self.epoch, -self.log_end, self.priority, self.broker_id


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The replicas of one broker name. ``may_be_unclean`` says whether one that is not in sync may be elected."""

    name: str
    cluster: str
    replicas: tuple[ReplicaState, ...] = ()
    master_epoch: int | None = None
    sync_set_epoch: int | None = None
    may_be_unclean: bool = False

    @property
    def master(self) -> ReplicaState | None:
        """The master, dead or alive."""
        return next((replica for replica in self.replicas if replica.is_master), None)

    @property
    def has_live_master(self) -> bool:
        """True if the controller gets heartbeats of the master."""
        return self.master is not None and self.master.is_alive

    @property
    def successor(self) -> ReplicaState | None:
        """The replica that is elected if the master dies now; None if nobody can be."""
        candidates = [replica for replica in self.replicas if replica.is_alive and not replica.is_master]
        in_sync = [replica for replica in candidates if replica.is_in_sync]
        if not in_sync and self.may_be_unclean:
            in_sync = candidates
        return min(in_sync, key=lambda replica: replica.rank, default=None)

    def explain(self, replica: ReplicaState) -> str:
        """Return why a replica would be the next master, or why not."""
        if not replica.is_alive:
            return (
                f"dead: the controller gets no heartbeats of {'this master' if replica.is_master else 'it'}"
            )
        if replica.is_master:
            return "is the master"
        successor = self.successor
        if replica is successor:
            if replica.is_in_sync:
                return "would be elected"
            return (
                "would be elected although it is not in sync (enableElectUncleanMaster): messages that it lacks would "
                "be lost"
            )
        if not replica.is_in_sync:
            return f"not in sync{self._distance_text(replica)}"
        assert successor is not None, "a replica that is alive and in sync is a candidate"
        return f"{successor.address} comes first: {compare_candidates(successor, replica)}"

    def _distance_text(self, replica: ReplicaState) -> str:
        master = self.master
        if master is None or UNKNOWN in (master.log_end, replica.log_end):
            return ""
        behind = master.log_end - replica.log_end
        return (
            f": {behind:,} bytes behind the master" if behind > 0 else ": the master has not reported it yet"
        )

    @property
    def trouble(self) -> str:
        """Why no election could replace the master, or that there is none; "" if neither is so."""
        if not self.replicas:
            return "its controller knows no replica of it: see the log of the broker"
        other_verdicts = "; ".join(
            f"{replica.address} is {self.explain(replica)}"
            for replica in self.replicas
            if not replica.is_master
        )
        if not self.has_live_master:
            return f"there is no live master{': ' if other_verdicts else ''}{other_verdicts}"
        if self.successor is None:
            return f"nobody could replace the master: {other_verdicts or 'it is the only replica'}"
        return ""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each replica."""
        master, successor = self.master, self.successor
        master_end = UNKNOWN if master is None else master.log_end
        return [
            {
                "broker": self.name,
                "cluster": self.cluster,
                "id": replica.broker_id,
                "address": replica.address,
                "role": "master" if replica.is_master else "slave",
                "alive": replica.is_alive,
                "inSync": replica.is_in_sync,
                "epoch": _known(replica.epoch),
                "logEnd": _known(replica.log_end),
                "behindBytes": None
                if replica.is_master or UNKNOWN in (master_end, replica.log_end)
                else max(0, master_end - replica.log_end),
                "priority": None if replica.priority == LOWEST_PRIORITY else replica.priority,
                "masterEpoch": self.master_epoch,
                "syncSetEpoch": self.sync_set_epoch,
                "next": replica is successor,
                "election": self.explain(replica),
                "problem": replica.problem or None,
            }
            for replica in self.replicas
        ]


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def compare_candidates(first: ReplicaState, other: ReplicaState) -> str:
    """Return why one candidate of an election ranks above another one."""
    if UNKNOWN in (other.epoch, other.log_end):
        return "how far the log of this one reaches is not known"
    if first.epoch != other.epoch:
        return f"its log has messages of epoch {first.epoch}, this one's ends with epoch {other.epoch}"
    if first.log_end != other.log_end:
        return f"its log is {first.log_end - other.log_end:,} bytes longer"
    if first.priority != other.priority:
        return f"its brokerElectionPriority is lower ({first.priority}, not {other.priority})"
    return "both are equal, and its id is lower"


# -- reading ---------------------------------------------------------------------------------------------------------


def read_replica_sets(
    client: "AdminClient", controlled: ControlledNames, controllers: ControllerGroup
) -> list[ReplicaSet]:
    """Ask controllers and replicas for the state of broker names; a name that the controller does not know is empty."""
    request = ControllerGetSyncStateData()
    request.body = orjson.dumps(list(controlled.names))
    table = controllers.ask(request).data.replicas_info_table
    may_be_unclean = controllers.may_be_unclean()
    identities = [
        (info, identity)
        for info in table.values()
        for identity in (*info.in_sync_replicas, *info.not_in_sync_replicas)
    ]
    states = map_in_threads(identities, lambda pair: _read_replica(client, *pair))
    by_name: dict[str, list[ReplicaState]] = {}
    for (_, identity), state in zip(identities, states, strict=True):
        by_name.setdefault(identity.broker_name or "", []).append(state)
    clusters = _clusters_by_name(client)
    return [
        ReplicaSet(
            name,
            clusters.get(name, ""),
            tuple(sorted(by_name.get(name, ()), key=lambda state: state.broker_id)),
            table[name].master_epoch if name in table else None,
            table[name].sync_state_set_epoch if name in table else None,
            may_be_unclean,
        )
        for name in controlled.names
    ]


def _clusters_by_name(client: "AdminClient") -> dict[str, str]:
    """Return the clusters of broker names; none if no namesrv answers, which the controllers do not need."""
    try:
        table = client.cluster.cluster_addr_table
    except NotReached:
        return {}
    return {name: cluster for cluster, names in table.items() for name in names}


def _read_replica(client: "AdminClient", info: ReplicasInfo, identity: ReplicaIdentity) -> ReplicaState:
    """Ask one replica how far its log reaches. What it does not say is unknown."""
    address, broker_id = identity.broker_address or "", identity.broker_id or 0
    epoch, log_end, priority, problem = UNKNOWN, UNKNOWN, LOWEST_PRIORITY, ""
    try:
        cache = client.ask(address, GetBrokerEpochCache()).data
        epoch = max((entry.epoch for entry in cache.epoch_list), default=0)
        log_end = cache.max_offset
        table = client.ask(address, GetBrokerRuntimeInfo()).data.table
        problem = table.get(REPLICATION_TROUBLE) or _read_reason(client, address)
        priority = read_election_settings(client, address).priority
    except NotReached as error:
        problem = f"{address}: {error.reason}" if error.reason else str(error)
    except Refused as refused:
        problem = str(refused)
    return ReplicaState(
        broker_id,
        address,
        is_master=broker_id == info.master_broker_id,
        is_alive=bool(identity.alive),
        is_in_sync=any(replica.broker_id == broker_id for replica in info.in_sync_replicas),
        epoch=epoch,
        log_end=log_end,
        priority=priority,
        problem=problem,
    )


def _read_reason(client: "AdminClient", address: str) -> str:
    """Return why a broker of this project is not well, such as a master that no controller confirms; "" if it is."""
    try:
        return client.ask(address, GetBrokerRole()).data.reason
    except Refused:
        return ""  # an official broker, which has no such request


def list_replica_sets(
    client: "AdminClient", names: Sequence[str] = (), controllers: Iterable[str] = ()
) -> list[ReplicaSet]:
    """Return the replicas of broker names in controller mode, of all without ``names``.

    Raises NotFound if a name is not in controller mode, or none is.
    """
    groups = find_controlled_names(client, names, controllers)
    controlled = {name for group in groups for name in group.names}
    missing = [name for name in names if name not in controlled]
    if missing or not groups:
        raise NotFound(_not_controlled_text(missing))
    return sorted(
        (
            replica_set
            for group in groups
            for replica_set in read_replica_sets(client, group, ControllerGroup(client, group.controllers))
        ),
        key=lambda replica_set: replica_set.name,
    )


def _not_controlled_text(names: Sequence[str]) -> str:
    subject = f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} not" if names else "no broker is"
    return (
        f"{subject} in controller mode (enableControllerMode). Masters and slaves without a controller are shown by "
        '"rmq-gateway broker status"; --controller asks a controller that no broker names'
    )


def list_controllers(client: "AdminClient", controllers: Iterable[str] = ()) -> list[list[dict[str, Any]]]:
    """Return a row for each controller, by groups. Raises NotFound if no broker is in controller mode."""
    addresses = split_addresses(";".join(controllers))
    groups: list[Sequence[str]] = (
        [addresses] if addresses else [group.controllers for group in find_controlled_names(client)]
    )
    if not groups:
        raise NotFound(_not_controlled_text(()))
    return [ControllerGroup(client, group).rows() for group in groups]


# -- health ----------------------------------------------------------------------------------------------------------


def check_controllers(client: "AdminClient") -> "Iterator[HealthCheck]":
    """Yield the checks of controllers and of the replicas under them; none if no broker is in controller mode."""
    try:
        groups = find_controlled_names(client)
    except AdminError:
        return  # No broker tells its settings; that brokers do not answer is a check of their own.
    for group in groups:
        controllers = ControllerGroup(client, group.controllers)
        rows = controllers.rows()
        for row in rows:
            subject = f"controller {row['address']}"
            yield HealthCheck(subject, "answers", row["problem"] is None, row["problem"] or "")
        try:
            sets = read_replica_sets(client, group, controllers)
        except AdminError as problem:
            yield HealthCheck(f"controllers {controllers}", "one of them leads", False, str(problem))
            continue
        yield HealthCheck(f"controllers {controllers}", "one of them leads", True)
        for replica_set in sets:
            yield from _check_replica_set(replica_set)


def _check_replica_set(replica_set: ReplicaSet) -> "Iterator[HealthCheck]":
    subject = f"broker {replica_set.name}"
    outside = [
        f"{replica.address} is {replica_set.explain(replica)}"
        for replica in replica_set.replicas
        if not (replica.is_in_sync and replica.is_alive)
    ]
    yield HealthCheck(subject, "has all replicas alive and in sync", not outside, "; ".join(outside))
    trouble = replica_set.trouble
    yield HealthCheck(subject, "has a master that could be replaced", not trouble, trouble)


# -- changing the master ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlledTarget:
    """A broker name under a controller, of which one replica may have been named by its ``address``."""

    controllers: ControllerGroup
    replica_set: ReplicaSet
    address: str | None = None

    @property
    def replica(self) -> ReplicaState | None:
        """The replica that was named, None if none was. Raises NotFound if the controller does not know it."""
        if self.address is None:
            return None
        replicas = self.replica_set.replicas
        replica = next((replica for replica in replicas if replica.address == self.address), None)
        if replica is None:
            raise NotFound(
                f"{self.address} is not a replica of {self.replica_set.name} at its controller, which knows "
                f"{', '.join(replica.address for replica in replicas) or 'none'}: name one of these addresses"
            )
        return replica


def find_controlled_broker(client: "AdminClient", target: str) -> ControlledTarget | None:
    """Return the replicas of ``target``, an address or a broker name; None if it is not in controller mode.

    Raises NotFound for a name that is not registered, and NotReached if the broker, or its controller, does not answer.
    """
    address = target if ":" in target else None
    try:
        if address is None:
            groups = find_controlled_names(client, [target])
        else:
            settings = read_election_settings(client, address)
            groups = (
                [ControlledNames(settings.controllers, (settings.broker,))] if settings.controllers else []
            )
    except Refused:
        return None  # Then the broker itself decides about requests for its role, and refuses them under a controller.
    if not groups:
        return None
    controllers = ControllerGroup(client, groups[0].controllers)
    (replica_set,) = read_replica_sets(client, groups[0], controllers)
    return ControlledTarget(controllers, replica_set, address)


def choose_new_master(broker: ControlledTarget) -> ReplicaState:
    """Return the replica that is to become master: the one that was named, else the one that would be elected.

    Raises ElectionRefused for one that the controller would not elect, unless it is the master already.
    """
    replica_set = broker.replica_set
    replica = broker.replica or replica_set.successor
    if replica is None:
        raise ElectionRefused(f"{replica_set.name}: {replica_set.trouble}")
    is_candidate = replica.is_in_sync or replica_set.may_be_unclean
    if replica.is_alive and (replica.is_master or is_candidate):
        return replica
    advice = "Wait until it is in sync" if replica.is_alive else "Start it, and wait until it is in sync"
    raise ElectionRefused(
        f"{replica.address} cannot become master of {replica_set.name}: {replica_set.explain(replica)}. {advice}: "
        f'"rmq-gateway cluster replicas {replica_set.name}" shows it'
    )


def choose_successor(broker: ControlledTarget) -> ReplicaState | None:
    """Return the replica that replaces the named master; None if the named one is not the master.

    Raises ElectionRefused if nobody can replace it.
    """
    replica_set, replica = broker.replica_set, broker.replica
    if replica is not None and not replica.is_master:
        return None
    if replica_set.successor is None:
        raise ElectionRefused(
            f"{replica_set.name}: {replica_set.trouble}. Start, or wait for, another replica"
        )
    return replica_set.successor


def elect(
    client: "AdminClient",
    broker: ControlledTarget,
    replica: ReplicaState,
) -> None:
    """Have the controller elect a replica, and wait until it is registered as master. Raises ElectionRefused.

    A live master of this project is asked to hand over: it waits until the replica has everything, and then asks the
    controller itself. Another one learns the result of the election afterwards.
    """
    if replica.is_master and replica.is_alive:
        return
    name, master = broker.replica_set.name, broker.replica_set.master
    if master is None or not master.is_alive or not _hands_over(client, master, replica):
        _elect_at_controller(broker, replica)
    _wait_until_registered(client, name, replica.address)


def _hands_over(client: "AdminClient", master: ReplicaState, replica: ReplicaState) -> bool:
    """Have a master hand over; return False for one that cannot: an official one, or one that does not answer."""
    request = HandOverBroker(slave_address=replica.address)
    try:
        client.ask(master.address, request, timeout_s=HAND_OVER_TIMEOUT_S)
    except NotReached as error:
        if not error.reason:
            raise  # It was asked, and may hand over now.
        return False
    except Refused as refused:
        if refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ElectionRefused(f"{master.address} does not hand over: {refused.remark}") from refused
        return False
    return True


def _elect_at_controller(broker: ControlledTarget, replica: ReplicaState) -> None:
    """Ask the controller to elect a replica. Raises ElectionRefused."""
    name = broker.replica_set.name
    request = ControllerElectMaster(
        cluster_name=broker.replica_set.cluster,
        broker_name=name,
        broker_id=replica.broker_id,
        designate_elect=True,
    )
    reply = broker.controllers.ask(request)
    if reply.master_broker_id != replica.broker_id:
        raise ElectionRefused(
            f"the controller did not elect {replica.address}: {reply.remark or 'no reason given'}. Master is "
            f"{reply.master_address}"
        )


def _wait_until_registered(client: "AdminClient", name: str, address: str) -> None:
    """Wait until the namesrv names the new master, which clients learn there."""
    end_s = time.monotonic() + REGISTRATION_TIMEOUT_S
    while True:
        data = client.ask_namesrv(GetBrokerClusterInfo()).data.broker_addr_table.get(name)
        if data is not None and data.broker_addrs.get(MASTER_ID) == address:
            return
        if time.monotonic() >= end_s:
            raise ElectionRefused(
                f"the controller elected {address}, but the namesrv does not name it as master of {name} after "
                f"{REGISTRATION_TIMEOUT_S:.0f} s. See its log"
            )
        time.sleep(POLL_S)
