"""Bodies about replicas and their controller."""

from remoting.bodies.routes import BrokerMemberGroup
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class SyncStateSet(JsonBody):
    """The broker ids in sync with the master."""

    sync_state_set: list[i64] = field(factory=list)
    sync_state_set_epoch: i32 = 0


class ReplicaIdentity(JsonBody):
    """One replica."""

    broker_name: str | None = None
    broker_id: i64 | None = None
    broker_address: str | None = None
    alive: bool | None = None


class ReplicasInfo(JsonBody):
    """The replicas of one broker name."""

    master_broker_id: i64 | None = None
    master_address: str | None = None
    master_epoch: i32 | None = None
    sync_state_set_epoch: i32 | None = None
    in_sync_replicas: list[ReplicaIdentity] = field(factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(factory=list)


class BrokerReplicasInfo(JsonBody):
    """Replicas by broker name."""

    replicas_info_table: dict[str, ReplicasInfo] = field(factory=dict)


class ElectMasterResponseBody(JsonBody):
    """The result of an election."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[i64] = field(factory=list)


class RoleChangeNotifyEntry(JsonBody):
    """A change of roles."""

    broker_member_group: BrokerMemberGroup | None = None
    master_address: str | None = None
    master_broker_id: i64 | None = None
    master_epoch: i32 = 0
    sync_state_set_epoch: i32 = 0
    sync_state_set: list[i64] = field(factory=list)


class HAConnectionRuntimeInfo(JsonBody):
    """A slave as the master sees it."""

    addr: str | None = None
    slave_ack_offset: i64 = 0
    diff: i64 = 0
    in_sync: bool = False
    transferred_byte_in_second: i64 = 0
    transfer_from_where: i64 = 0


class HAClientRuntimeInfo(JsonBody):
    """The master as a slave sees it."""

    master_addr: str | None = None
    transferred_byte_in_second: i64 = 0
    max_offset: i64 = 0
    last_read_timestamp: i64 = 0
    last_write_timestamp: i64 = 0
    master_flush_offset: i64 = 0


class HARuntimeInfo(JsonBody):
    """The answer to GET_BROKER_HA_STATUS."""

    master: bool = False
    master_commit_log_max_offset: i64 = 0
    in_sync_slave_nums: i32 = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(factory=HAClientRuntimeInfo)


class EpochEntry(JsonBody):
    """The range of a commit log that one master wrote: [start_offset, end_offset) in bytes."""

    epoch: i32 = 0
    start_offset: i64 = 0
    end_offset: i64 = 9223372036854775807


class EpochEntryCache(JsonBody):
    """The answer to GET_BROKER_EPOCH_CACHE."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: i64 = 0
    epoch_list: list[EpochEntry] = field(factory=list)
    max_offset: i64 = 0
