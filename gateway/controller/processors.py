"""The handlers of a controller's requests.

Source: ControllerRequestProcessor, 5.4.0. Deviation: a request without a field that it needs is refused with a text
that names the field; the official controller answers with a NullPointerException.
"""

from functools import partial
from typing import Final

from codec.constants import ResponseCode
from codec.errors import JsonSizeError
from codec.fastjson import loads
from gateway.config import official_defaults
from gateway.config.live import ForbiddenKey, apply_update, list_values
from gateway.controller import rules
from gateway.controller.controller import Controller
from gateway.controller.liveness import (
    DEFAULT_TIMEOUT_S,
    LOWEST_PRIORITY,
    MAX_TIMEOUT_S,
    UNKNOWN,
    Heartbeat,
    ReplicaKey,
)
from remoting.connection_state import StateSlot
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests import controller as ask
from remoting.requests.namesrv import BrokerHeartbeat

handlers: HandlerTable[Controller] = HandlerTable()
UNCHANGEABLE_KEYS = frozenset({"configBlackList", "configStorePath", "rocketmqHome"})
MAX_REPLICAS_PER_ANSWER: Final = 10_000
"""Replicas in one answer about broker sets, which is built while no other task runs."""
_SENDS_HEARTBEATS = StateSlot[bool]("sends heartbeats to the controller")


# -- brokers ----------------------------------------------------------------------------------------------------------


@BrokerHeartbeat.on(handlers)
def broker_heartbeat(controller: Controller, request: BrokerHeartbeat, call: Call) -> Header:
    """Note a heartbeat. Every controller does, whether it leads or not."""
    if request.broker_id is None:
        raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
    key = ReplicaKey(
        rules.require(request.cluster_name, "clusterName"),
        rules.require(request.broker_name, "brokerName"),
        request.broker_id,
    )
    timeout_ms = request.heartbeat_timeout_mills
    heartbeat = Heartbeat(
        address=rules.require(request.broker_addr, "brokerAddr"),
        timeout_s=DEFAULT_TIMEOUT_S if timeout_ms is None else min(timeout_ms / 1000, MAX_TIMEOUT_S),
        epoch=_or(request.epoch, UNKNOWN),
        max_offset=_or(request.max_offset, UNKNOWN),
        confirm_offset=_or(request.confirm_offset, UNKNOWN),
        election_priority=_or(request.election_priority, LOWEST_PRIORITY),
    )
    controller.record_heartbeat(key, heartbeat, call.connection)
    if _SENDS_HEARTBEATS not in call.connection.state:
        call.connection.state[_SENDS_HEARTBEATS] = True
        call.connection.on_close(controller.forget_connection)
    reply = Header()
    reply.remark = "Heart beat success"
    return reply


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


@ask.ControllerGetNextBrokerId.on(handlers)
def get_next_broker_id(
    controller: Controller, request: ask.ControllerGetNextBrokerId
) -> ask.ControllerGetNextBrokerIdReply:
    return rules.next_broker_id(controller.broker_set(request.broker_name), request)


@ask.ControllerApplyBrokerId.on(handlers)
async def apply_broker_id(
    controller: Controller, request: ask.ControllerApplyBrokerId
) -> ask.ControllerApplyBrokerIdReply:
    name = rules.require(request.broker_name, "brokerName")
    return (await controller.change(name, partial(rules.apply_broker_id, request=request))).answer


@ask.ControllerRegisterBroker.on(handlers)
async def register_broker(
    controller: Controller, request: ask.ControllerRegisterBroker
) -> ask.ControllerRegisterBrokerReply:
    name = rules.require(request.broker_name, "brokerName")
    decide = partial(rules.register_broker, request=request, liveness=controller.liveness)
    return (await controller.change(name, decide)).answer


@ask.ControllerAlterSyncStateSet.on(handlers)
async def alter_sync_set(
    controller: Controller, request: ask.ControllerAlterSyncStateSet
) -> ask.ControllerAlterSyncStateSetReply:
    name = rules.require(request.broker_name, "brokerName")
    decide = partial(rules.alter_sync_set, request=request, liveness=controller.liveness)
    return (await controller.change(name, decide)).answer


@ask.ControllerElectMaster.on(handlers)
async def elect_master(
    controller: Controller, request: ask.ControllerElectMaster
) -> ask.ControllerElectMasterReply:
    """Hold an election.

    Deviation: numbers that are keys come quoted, because the admin tool of 5.4.0 cannot read the official answer.
    """
    reply = await controller.elect(request)
    if reply.data is not None:
        reply.body = reply.data.to_json(standard=True)
    return reply


@ask.ControllerGetReplicaInfo.on(handlers)
async def get_replica_info(
    controller: Controller, request: ask.ControllerGetReplicaInfo
) -> ask.ControllerGetReplicaInfoReply:
    return rules.replica_info(await controller.settled_broker_set(request.broker_name), controller.liveness)


# -- operators --------------------------------------------------------------------------------------------------------


@ask.ControllerGetMetadataInfo.on(handlers)
def get_metadata_info(
    controller: Controller, request: ask.ControllerGetMetadataInfo
) -> ask.ControllerGetMetadataInfoReply:
    """Answer with the controller that leads, which brokers then ask. Every controller answers."""
    leader = controller.leadership.leader
    return ask.ControllerGetMetadataInfoReply(
        group=controller.config.group,
        controller_leader_id=None if leader is None else leader.member_id,
        controller_leader_address=None if leader is None else leader.address,
        is_leader=controller.leadership.term is not None,
        peers=controller.peers,
    )


@ask.ControllerGetSyncStateData.on(handlers)
def get_sync_state_data(
    controller: Controller, request: ask.ControllerGetSyncStateData, call: Call
) -> ask.ControllerGetSyncStateDataReply:
    """Answer with the replicas of those broker names that are known."""
    names = _read_names(request.body, call.connection.limits.max_json_values)
    if not names:
        # The official controller sends the answer that it has not filled in.
        raise RequestError(ResponseCode.SYSTEM_ERROR, "not set any response code")
    broker_sets = {name: controller.broker_set(name) for name in names}
    present = {name: broker_set for name, broker_set in broker_sets.items() if broker_set is not None}
    if sum(len(broker_set.replicas) for broker_set in present.values()) > MAX_REPLICAS_PER_ANSWER:
        remark = (
            f"the broker sets have more than {MAX_REPLICAS_PER_ANSWER} replicas: ask for fewer names at once"
        )
        raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
    return ask.ControllerGetSyncStateDataReply(data=rules.replicas_of(present, controller.liveness))


def _read_names(body: bytes, max_values: int) -> list[str]:
    if not body:
        return []
    try:
        names = loads(body, max_values)
    except (ValueError, JsonSizeError) as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the body is not a list of broker names: {error}"
        ) from error
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the body is not a list of broker names")
    return list(dict.fromkeys(names))


@ask.CleanBrokerData.on(handlers)
async def clean_broker_data(controller: Controller, request: ask.CleanBrokerData) -> Header:
    decide = partial(rules.clean_brokers, request=request, liveness=controller.liveness)
    return (await controller.change(request.broker_name, decide)).answer


@ask.UpdateControllerConfig.on(handlers)
def update_config(controller: Controller, request: ask.UpdateControllerConfig) -> None:
    """Change live settings until the end of the process.

    Deviation: an invalid value and a key that has no effect are refused; the official controller ignores them and
    answers with success.
    """
    black_list = UNCHANGEABLE_KEYS | set(controller.config.config_black_list.split(";"))
    try:
        change = apply_update(controller.config, request.body.decode(), black_list)
    except ForbiddenKey:
        raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config in black list.") from None
    except ValueError as problem:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {problem}") from problem
    if change.refusal:
        raise RequestError(ResponseCode.SYSTEM_ERROR, change.refusal)
    controller.config = change.config


@ask.GetControllerConfig.on(handlers)
def get_config(controller: Controller, request: ask.GetControllerConfig) -> Header:
    """Return all settings as properties text."""
    reply = Header()
    home = {"rocketmqHome": official_defaults.rocketmq_home()}
    reply.body = list_values(controller.config, {**official_defaults.CONTROLLER, **home}).encode()
    return reply
