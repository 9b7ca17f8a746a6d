"""The state machine: each function takes a broker set and a request, and returns the answer with the next broker set.

Nothing here waits, stores or sends. The caller stores the next set, if it is another one, before the answer leaves.
Codes and remarks are the official ones.

Source: ReplicasInfoManager, 5.4.0. Deviations:

- a first election asks for a registered replica; the official one makes any id the master
- removing all replicas in sync keeps the epochs (`BrokerSet.without_replicas`)
- an election that finds nobody changes nothing if there was no master; the official one begins an epoch each time, and
  a set that never had a master can then get none
- an election that designates the broker -1, which is nobody, keeps the master; the official one takes it away
- the next id is never one that is taken already, and the id of a removed replica is refused: the official controller
  gives it to a broker that was offered it before the removal
- no election is held while a replica that counts has not had the time for a heartbeat (`Liveness.is_unheard`), or the
  master may accept messages because the controller that led before has heard it (`Liveness.may_hold_lease`)
- a master that registers while it is not alive was started again, perhaps without the end of its log. It is a candidate
  like any other from then on, and leads in a new epoch if it is elected (`Liveness.was_restarted`); the official
  controller lets it go on in the old epoch, in which a replica may have messages that it lacks
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from codec.constants import ResponseCode
from codec.java_numbers import JavaNumberError, parse_java_integer
from gateway.controller.broker_set import FIRST_BROKER_ID, BrokerSet, parse_address
from gateway.controller.election import choose_master, key_of, master_was_restarted
from gateway.controller.liveness import Liveness, ReplicaKey
from remoting.bodies.ha import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from remoting.bodies.routes import BrokerMemberGroup
from remoting.declare import Header, missing_field
from remoting.errors import RequestError
from remoting.requests.controller import (
    CleanBrokerData,
    ControllerAlterSyncStateSet,
    ControllerAlterSyncStateSetReply,
    ControllerApplyBrokerId,
    ControllerApplyBrokerIdReply,
    ControllerElectMaster,
    ControllerElectMasterReply,
    ControllerGetNextBrokerId,
    ControllerGetNextBrokerIdReply,
    ControllerGetReplicaInfoReply,
    ControllerRegisterBroker,
    ControllerRegisterBrokerReply,
)

Answer = TypeVar("Answer", bound=Header)

MAX_FIELD_CHARS = 256
MAX_REPLICAS = 64
NO_BROKER = -1
"""The id of an election that no broker asked for."""


@dataclass(frozen=True, slots=True)
class Ruling(Generic[Answer]):
    """The answer to a request, and the broker set afterwards; None if there is no such set, or no longer."""

    answer: Answer
    broker_set: BrokerSet | None


def refused(answer: Answer, broker_set: BrokerSet | None, code: ResponseCode, remark: str) -> Ruling[Answer]:
    """Return the decision that answers with a code other than success."""
    answer.code, answer.remark = code.value, remark
    return Ruling(answer, broker_set)


def require(value: str | None, wire_name: str) -> str:
    """Return a header field that the request must have.

    Raises RequestError without it, if it is too long, or if it has half of a surrogate pair, which UTF-8 does not have.
    """
    if value is None:
        return missing_field(wire_name)
    if len(value) > MAX_FIELD_CHARS:
        remark = f"the field {wire_name} has more than {MAX_FIELD_CHARS} characters"
        raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
    try:
        value.encode()
    except UnicodeEncodeError:
        remark = f"the field {wire_name} is not valid Unicode"
        raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark) from None
    return value


def check_address(address: str, problem: str) -> None:
    """Raise RequestError with the problem unless a broker can be reached at the address."""
    try:
        parse_address(address)
    except ValueError:
        remark = f"{problem}, with labels of 1 to 63 characters and a port of 1 to 65535"
        raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark) from None


def require_id(value: int | None, wire_name: str) -> int:
    """Return a broker id that the request must have. Raises RequestError without it."""
    return missing_field(wire_name) if value is None else value


def _java_text(value: int | None) -> str:
    return "null" if value is None else str(value)


# -- registration: ids and addresses ---------------------------------------------------------------------------------


def next_broker_id(
    broker_set: BrokerSet | None, request: ControllerGetNextBrokerId
) -> ControllerGetNextBrokerIdReply:
    """Answer with an id that a new broker may apply for."""
    free_id = FIRST_BROKER_ID if broker_set is None else broker_set.next_broker_id
    return ControllerGetNextBrokerIdReply(
        cluster_name=request.cluster_name, broker_name=request.broker_name, next_broker_id=free_id
    )


def apply_broker_id(
    broker_set: BrokerSet | None, request: ControllerApplyBrokerId
) -> Ruling[ControllerApplyBrokerIdReply]:
    """Give a broker the id it applies for, unless another one has or had it. The same broker may apply again."""
    cluster = require(request.cluster_name, "clusterName")
    name = require(request.broker_name, "brokerName")
    broker_id = require_id(request.applied_broker_id, "appliedBrokerId")
    check_code = require(request.register_check_code, "registerCheckCode")
    address = check_code.partition(";")[0]
    check_address(address, "the field registerCheckCode does not begin with host:port")
    answer = ControllerApplyBrokerIdReply(cluster_name=cluster, broker_name=name)
    if broker_set is None:
        if broker_id != FIRST_BROKER_ID:
            remark = (
                f"Broker-set: {name} hasn't been registered in controller, but broker try to apply brokerId: "
                f"{broker_id}"
            )
            return refused(answer, None, ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark)
        broker_set = BrokerSet(cluster, name)
    replica = broker_set.replicas.get(broker_id)
    if replica is not None and replica.check_code == check_code:
        return Ruling(answer, broker_set)
    if replica is None and len(broker_set.replicas) >= MAX_REPLICAS:
        remark = f"broker-set {name} has {MAX_REPLICAS} replicas already"
        return refused(answer, broker_set, ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark)
    if replica is None and broker_id not in broker_set.removed_ids:
        return Ruling(answer, broker_set.with_replica(broker_id, address, check_code))
    # Official brokers and ours ask for another id then.
    remark = f"Fail to apply brokerId: {broker_id} in broker-set: {name}"
    return refused(answer, broker_set, ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark)


def register_broker(
    broker_set: BrokerSet | None, request: ControllerRegisterBroker, liveness: Liveness
) -> Ruling[ControllerRegisterBrokerReply]:
    """Note the address of a broker that has an id, and answer with the master if that is alive.

    A broker registers when it begins: a master that is not alive was started again.
    """
    cluster = require(request.cluster_name, "clusterName")
    name = require(request.broker_name, "brokerName")
    broker_id = require_id(request.broker_id, "brokerId")
    address = require(request.broker_address, "brokerAddress")
    check_address(address, "the field brokerAddress is not host:port")
    answer = ControllerRegisterBrokerReply(cluster_name=cluster, broker_name=name)
    if broker_set is None:
        remark = f"Broker-set: {name} hasn't been registered in controller"
        return refused(answer, None, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark)
    if broker_id not in broker_set.replicas:
        remark = f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}"
        return refused(answer, broker_set, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark)
    master_id = broker_set.master_id
    if broker_id == master_id and not liveness.is_alive(key_of(broker_set, broker_id)):
        liveness.note_restart(key_of(broker_set, broker_id), broker_set.master_epoch)
    if has_live_master(broker_set, liveness):
        answer.master_broker_id = master_id
        answer.master_address = broker_set.master_address
        answer.master_epoch = broker_set.master_epoch
        answer.sync_state_set_epoch = broker_set.sync_set_epoch
    answer.data = _sync_state_set(broker_set)
    if broker_set.address_of(broker_id) != address:
        broker_set = broker_set.with_address(broker_id, address)
    return Ruling(answer, broker_set)


def clean_brokers(
    broker_set: BrokerSet | None, request: CleanBrokerData, liveness: Liveness
) -> Ruling[Header]:
    """Forget a broker set, or some of its replicas. Only with isCleanLivingBroker may they be alive."""
    name, ids_text = request.broker_name, request.broker_controller_ids_to_clean or ""
    broker_ids: set[int] = set()

    def refuse(remark: str) -> Ruling[Header]:
        return refused(Header(), broker_set, ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)

    if not request.is_clean_living_broker:
        if not ids_text.strip():
            if broker_set is not None and broker_set.master_id is not None:
                return refuse(f"Broker {name} is still alive, clean up failure")
        else:
            try:
                broker_ids = {parse_java_integer(text) for text in ids_text.split(";")}
            except JavaNumberError as error:
                return refuse(
                    "Please set the option <brokerControllerIdsToClean> according to the format, exception: "
                    f"java.lang.NumberFormatException: {error}"
                )
            for broker_id in broker_ids:
                if liveness.is_alive(ReplicaKey(request.cluster_name or "", name, broker_id)):
                    return refuse(f"Broker [{name},  {broker_id}] is still alive, clean up failure")
    if broker_set is None:
        return refuse(f"Broker {name} is not existed,clean broker data failure.")
    return Ruling(Header(), broker_set.without_replicas(broker_ids or broker_set.replicas))


# -- replicas in sync ------------------------------------------------------------------------------------------------


def alter_sync_set(
    broker_set: BrokerSet | None, request: ControllerAlterSyncStateSet, liveness: Liveness
) -> Ruling[ControllerAlterSyncStateSetReply]:
    """Take over the replicas in sync that the master reports, if it still is the master and knew the last set."""
    answer = ControllerAlterSyncStateSetReply()
    if broker_set is None:
        code = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        return refused(answer, None, code, "Broker metadata is not existed")
    reported = frozenset(request.data.sync_state_set)
    refusal = _refusal_of_sync_set(broker_set, request, reported, liveness)
    if refusal is not None:
        return refused(answer, broker_set, *refusal)
    changed = broker_set.with_sync_set(reported)
    answer.new_sync_state_set_epoch = changed.sync_set_epoch
    answer.data = _sync_state_set(changed)
    return Ruling(answer, changed)


def _refusal_of_sync_set(
    broker_set: BrokerSet, request: ControllerAlterSyncStateSet, reported: frozenset[int], liveness: Liveness
) -> tuple[ResponseCode, str] | None:
    """Return why a report is refused, in the official order of the checks."""
    master_id = broker_set.master_id
    rejecting = "Rejecting alter syncStateSet request because the"
    if reported == broker_set.sync_set:
        return (
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        )
    if master_id is None or master_id != request.master_broker_id:
        current, asking = _java_text(master_id), _java_text(request.master_broker_id)
        return (
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"{rejecting} current leader is:{{{current}}}, not {{{asking}}}",
        )
    if request.master_epoch != broker_set.master_epoch:
        asking = _java_text(request.master_epoch)
        return (
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{rejecting} current master epoch is:{{{broker_set.master_epoch}}}, not {{{asking}}}",
        )
    if request.data.sync_state_set_epoch != broker_set.sync_set_epoch:
        current, asking = str(broker_set.sync_set_epoch), str(request.data.sync_state_set_epoch)
        return (
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"{rejecting} current syncStateSet epoch is:{{{current}}}, not {{{asking}}}",
        )
    for broker_id in sorted(reported):
        if broker_id not in broker_set.replicas:
            return (
                ResponseCode.CONTROLLER_INVALID_REPLICAS,
                f"{rejecting} replicas {{{broker_id}}} don't exist",
            )
        if not liveness.is_alive(key_of(broker_set, broker_id)):
            return (
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                f"{rejecting} replicas {{{broker_id}}} don't alive",
            )
    if master_id not in reported:
        return (
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"{rejecting} newSyncStateSet don't contains origin leader {{{master_id}}}",
        )
    return None


# -- elections -------------------------------------------------------------------------------------------------------


def elect_master(
    broker_set: BrokerSet | None,
    request: ControllerElectMaster,
    liveness: Liveness,
    *,
    may_be_unclean: bool,
) -> Ruling[ControllerElectMasterReply]:
    """Elect a master: the one that asks if there never was one, else by the policy of `election.py`.

    The request has `NO_BROKER` as its id if the controller holds the election by itself because it misses the master.
    If that election finds nobody, the set has no master from now on.
    """
    answer = ControllerElectMasterReply()
    if broker_set is None:
        code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        return refused(answer, None, code, "Broker hasn't been registered")
    is_too_early, is_restarted = False, master_was_restarted(broker_set, liveness)
    if not broker_set.had_master and request.broker_id in broker_set.replicas:
        elected_id: int | None = request.broker_id
    else:
        is_too_early = _is_too_early(broker_set, liveness)
        designated_id = request.broker_id if request.designate_elect else None
        elected_id = choose_master(broker_set, liveness, designated_id, may_be_unclean=may_be_unclean)
    if elected_id is not None and elected_id == broker_set.master_id and not is_restarted:
        _fill_elected(answer, broker_set)
        answer.data = ElectMasterResponseBody(sync_state_set=sorted(broker_set.sync_set))
        remark = (
            f"The old master {elected_id} is still alive, not need to elect new master for broker "
            f"{broker_set.name}"
        )
        return refused(answer, broker_set, ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark)
    if elected_id is not None and not is_too_early:
        changed = broker_set.with_master(elected_id)
        _fill_elected(answer, changed)
        answer.data = ElectMasterResponseBody(
            broker_member_group=_member_group(changed), sync_state_set=sorted(changed.sync_set)
        )
        return Ruling(answer, changed)
    if request.broker_id == NO_BROKER and not is_too_early:
        code = ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
        remark = "Old master has down and failed to elect a new broker master"
        # Only a master that is dead is lost. An operator's request that designates nobody changes nothing.
        if broker_set.master_id is None or request.designate_elect or has_live_master(broker_set, liveness):
            return refused(answer, broker_set, code, remark)
        return refused(answer, broker_set.without_master(), code, remark)
    code = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    return refused(answer, broker_set, code, "Failed to elect a new master")


def needs_election(broker_set: BrokerSet, liveness: Liveness, *, may_be_unclean: bool) -> bool:
    """Tell whether the controller should hold an election by itself.

    It should if the master is dead and any replica is alive, or if there is no master, but a candidate. Source:
    ReplicasInfoManager.scanNeedReelectBrokerSets, 5.4.0, which leaves out the second case.
    """
    if not broker_set.had_master or _is_too_early(broker_set, liveness):
        return False
    if broker_set.master_id is None:
        return choose_master(broker_set, liveness, None, may_be_unclean=may_be_unclean) is not None
    if has_live_master(broker_set, liveness):
        return False
    return any(liveness.is_alive(key_of(broker_set, broker_id)) for broker_id in broker_set.replicas)


def has_live_master(broker_set: BrokerSet, liveness: Liveness) -> bool:
    """Tell whether a broker set has a master that is alive, and was not started again since its election."""
    master_id = broker_set.master_id
    if master_id is None or master_was_restarted(broker_set, liveness):
        return False
    return liveness.is_alive(key_of(broker_set, master_id))


def master_may_hold_lease(broker_set: BrokerSet, liveness: Liveness) -> bool:
    """Tell whether the present master may accept messages although it is not heard here."""
    master_id = broker_set.master_id
    return master_id is not None and liveness.may_hold_lease(key_of(broker_set, master_id))


def _is_too_early(broker_set: BrokerSet, liveness: Liveness) -> bool:
    """Tell whether the present master, or one of the replicas in sync, may be alive without our knowledge."""
    if master_may_hold_lease(broker_set, liveness):
        return True
    broker_ids = broker_set.sync_set | ({broker_set.master_id} if broker_set.master_id is not None else set())
    return any(liveness.is_unheard(key_of(broker_set, broker_id)) for broker_id in broker_ids)


def _fill_elected(answer: ControllerElectMasterReply, broker_set: BrokerSet) -> None:
    answer.master_broker_id = broker_set.master_id
    answer.master_address = broker_set.master_address
    answer.master_epoch = broker_set.master_epoch
    answer.sync_state_set_epoch = broker_set.sync_set_epoch


def _member_group(broker_set: BrokerSet) -> BrokerMemberGroup:
    addresses = {broker_id: replica.address for broker_id, replica in sorted(broker_set.replicas.items())}
    return BrokerMemberGroup(cluster=broker_set.cluster, broker_name=broker_set.name, broker_addrs=addresses)


def _sync_state_set(broker_set: BrokerSet) -> SyncStateSet:
    return SyncStateSet(
        sync_state_set=sorted(broker_set.sync_set), sync_state_set_epoch=broker_set.sync_set_epoch
    )


# -- reading ---------------------------------------------------------------------------------------------------------


def replica_info(broker_set: BrokerSet | None, liveness: Liveness) -> ControllerGetReplicaInfoReply:
    """Answer with the master, dead or alive, and the replicas in sync.

    A master that was started again is to be elected like any other replica: until then there is none, or it would go on
    in its old epoch while another one is elected.
    """
    answer = ControllerGetReplicaInfoReply()
    if broker_set is None:
        answer.code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST.value
        answer.remark = "Broker metadata is not existed"
        return answer
    if not master_was_restarted(broker_set, liveness):
        answer.master_broker_id = broker_set.master_id
        answer.master_address = broker_set.master_address
    answer.master_epoch = broker_set.master_epoch
    answer.data = _sync_state_set(broker_set)
    return answer


def replicas_of(broker_sets: Mapping[str, BrokerSet], liveness: Liveness) -> BrokerReplicasInfo:
    """Return all replicas of several broker sets, those in sync and the others, each with whether it is alive."""
    return BrokerReplicasInfo(
        replicas_info_table={
            name: _replicas_info(broker_set, liveness) for name, broker_set in broker_sets.items()
        }
    )


def _replicas_info(broker_set: BrokerSet, liveness: Liveness) -> ReplicasInfo:
    info = ReplicasInfo(
        master_broker_id=broker_set.master_id,
        master_address=broker_set.master_address,
        master_epoch=broker_set.master_epoch,
        sync_state_set_epoch=broker_set.sync_set_epoch,
    )
    for broker_id, replica in sorted(broker_set.replicas.items()):
        identity = ReplicaIdentity(
            broker_name=broker_set.name,
            broker_id=broker_id,
            broker_address=replica.address,
            alive=liveness.is_alive(key_of(broker_set, broker_id)),
        )
        is_in_sync = broker_id in broker_set.sync_set
        (info.in_sync_replicas if is_in_sync else info.not_in_sync_replicas).append(identity)
    return info
