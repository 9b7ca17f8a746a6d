"""Requests between brokers of one name, and about their replicas."""

from remoting.bodies.ha import EpochEntryCache, HARuntimeInfo, SyncStateSet
from remoting.declare import Header, Request, i32, i64


class NotifyMinBrokerIdChange(Request[None], code=905):
    """Tell a broker which replica acts as master. Sent by the namesrv.

    Source: AdminBrokerProcessor.notifyMinBrokerIdChange.
    """

    min_broker_id: i64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ExchangeBrokerHaInfoReply(Header):
    """The answer to EXCHANGE_BROKER_HA_INFO."""

    master_ha_address: str | None = None
    master_flush_offset: i64 | None = None
    master_address: str | None = None


class ExchangeBrokerHaInfo(Request[ExchangeBrokerHaInfoReply], code=906):
    """Exchange addresses and flush offset with the master. Source: AdminBrokerProcessor.updateBrokerHaInfo."""

    master_ha_address: str | None = None
    master_flush_offset: i64 | None = None
    master_address: str | None = None


class GetBrokerHaStatusReply(Header):
    """The answer to GET_BROKER_HA_STATUS."""

    data: HARuntimeInfo


class GetBrokerHaStatus(Request[GetBrokerHaStatusReply], code=907):
    """Return the replication progress of the slaves. Source: AdminBrokerProcessor.getBrokerHaStatus."""


class ResetMasterFlushOffset(Request[None], code=908):
    """Set the master's flush offset that a slave remembers.

    Source: AdminBrokerProcessor.resetMasterFlushOffset.
    """

    master_flush_offset: i64


class GetBrokerEpochCacheReply(Header):
    """The answer to GET_BROKER_EPOCH_CACHE."""

    data: EpochEntryCache


class GetBrokerEpochCache(Request[GetBrokerEpochCacheReply], code=1007):
    """Return the commit log ranges that each master wrote, by epoch.

    Source: AdminBrokerProcessor.getBrokerEpochCache.
    """


class NotifyBrokerRoleChanged(Request[None], code=1008):
    """Tell a broker its role. Sent by the controller. Source: AdminBrokerProcessor.notifyBrokerRoleChanged."""

    master_address: str | None = None
    master_epoch: i32 | None = None
    sync_state_set_epoch: i32 | None = None
    master_broker_id: i64 | None = None
    data: SyncStateSet | None = None


class AddBroker(Request[None], code=902):
    """Start one more broker in a broker container. Source: BrokerContainerProcessor.addBroker."""

    config_path: str | None = None


class RemoveBroker(Request[None], code=903):
    """Stop a broker of a broker container. Source: BrokerContainerProcessor.removeBroker."""

    broker_name: str
    broker_cluster_name: str
    broker_id: i64
