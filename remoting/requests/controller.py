"""Requests to the controller that elects masters."""

from typing import Final

from codec.constants import ResponseCode
from remoting.bodies.ha import BrokerReplicasInfo, ElectMasterResponseBody, SyncStateSet
from remoting.declare import Header, Request, i32, i64

MASTER_STILL_EXISTS: Final = ResponseCode.CONTROLLER_MASTER_STILL_EXIST.value


class ControllerAlterSyncStateSetReply(Header):
    """The answer to CONTROLLER_ALTER_SYNC_STATE_SET."""

    new_sync_state_set_epoch: i32 = 0
    data: SyncStateSet | None = None


class ControllerAlterSyncStateSet(Request[ControllerAlterSyncStateSetReply], code=1001):
    """Report the replicas in sync with the master. Source: ControllerRequestProcessor.handleAlterSyncStateSet."""

    broker_name: str | None = None
    master_broker_id: i64 | None = None
    master_epoch: i32 | None = None
    invoke_time: i64 = 0
    data: SyncStateSet


class ControllerElectMasterReply(Header):
    """The answer to CONTROLLER_ELECT_MASTER."""

    master_broker_id: i64 | None = None
    master_address: str | None = None
    master_epoch: i32 | None = None
    sync_state_set_epoch: i32 | None = None
    data: ElectMasterResponseBody | None = None


class ControllerElectMaster(
    Request[ControllerElectMasterReply], code=1002, accept_codes=(MASTER_STILL_EXISTS,)
):
    """Elect a master. Source: ControllerRequestProcessor.handleControllerElectMaster.

    An answer that the master still exists has the same content as that of an election. Source:
    BrokerOuterAPI.brokerElect.
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: i64 = -1
    designate_elect: bool = False
    invoke_time: i64 = 0


class ControllerRegisterBrokerReply(Header):
    """The answer to CONTROLLER_REGISTER_BROKER."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: i64 | None = None
    master_address: str | None = None
    master_epoch: i32 | None = None
    sync_state_set_epoch: i32 | None = None
    data: SyncStateSet | None = None


class ControllerRegisterBroker(Request[ControllerRegisterBrokerReply], code=1003):
    """Register a broker under its id. Source: ControllerRequestProcessor.handleRegisterBroker."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: i64 | None = None
    broker_address: str | None = None
    invoke_time: i64 = 0


class ControllerGetReplicaInfoReply(Header):
    """The answer to CONTROLLER_GET_REPLICA_INFO."""

    master_broker_id: i64 | None = None
    master_address: str | None = None
    master_epoch: i32 | None = None
    data: SyncStateSet | None = None


class ControllerGetReplicaInfo(Request[ControllerGetReplicaInfoReply], code=1004):
    """Return master and replicas of a broker name.

    Source: ControllerRequestProcessor.handleControllerGetReplicaInfo.
    """

    broker_name: str | None = None


class ControllerGetMetadataInfoReply(Header):
    """The answer to CONTROLLER_GET_METADATA_INFO."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class ControllerGetMetadataInfo(Request[ControllerGetMetadataInfoReply], code=1005):
    """Return the leading controller. Source: ControllerRequestProcessor.handleControllerGetMetadataInfo."""


class ControllerGetSyncStateDataReply(Header):
    """The answer to CONTROLLER_GET_SYNC_STATE_DATA."""

    data: BrokerReplicasInfo


class ControllerGetSyncStateData(Request[ControllerGetSyncStateDataReply], code=1006):
    """Return the replicas of several broker names; the body is a JSON array of the names.

    Source: ControllerRequestProcessor.handleControllerGetSyncStateData.
    """


class UpdateControllerConfig(Request[None], code=1009):
    """Change the controller's settings; the body is properties text.

    Source: ControllerRequestProcessor.handleUpdateControllerConfig.
    """


class GetControllerConfig(Request[Header], code=1010):
    """Return the controller's settings; the body is properties text.

    Source: ControllerRequestProcessor.handleGetControllerConfig.
    """


class CleanBrokerData(Request[None], code=1011):
    """Delete the controller's records of brokers. Source: ControllerRequestProcessor.handleCleanBrokerData."""

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: i64 = 0


class ControllerGetNextBrokerIdReply(Header):
    """The answer to CONTROLLER_GET_NEXT_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: i64 | None = None


class ControllerGetNextBrokerId(Request[ControllerGetNextBrokerIdReply], code=1012):
    """Return the next free broker id. Source: ControllerRequestProcessor.handleGetNextBrokerId."""

    cluster_name: str | None = None
    broker_name: str | None = None


class ControllerApplyBrokerIdReply(Header):
    """The answer to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None


class ControllerApplyBrokerId(Request[ControllerApplyBrokerIdReply], code=1013):
    """Claim a broker id. Source: ControllerRequestProcessor.handleApplyBrokerId."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: i64 | None = None
    register_check_code: str | None = None
