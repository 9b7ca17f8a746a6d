"""Requests between brokers of one name, and about their replicas; copying is not here."""

from remoting.bodies.ha import EpochEntryCache, HARuntimeInfo, SyncStateSet
from remoting.declare import Header, Request, i32, i64


class NotifyMinBrokerIdChange(Request[None], code=905):
    """Namesrv to broker: who acts as master. Source: AdminBrokerProcessor.notifyMinBrokerIdChange."""

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
    """Addresses and flush offset of the master. Source: AdminBrokerProcessor.updateBrokerHaInfo."""

    master_ha_address: str | None = None
    master_flush_offset: i64 | None = None
    master_address: str | None = None


class GetBrokerHaStatusReply(Header):
    """The answer to GET_BROKER_HA_STATUS."""

    data: HARuntimeInfo


class GetBrokerHaStatus(Request[GetBrokerHaStatusReply], code=907):
    """How far slaves are. Source: AdminBrokerProcessor.getBrokerHaStatus."""


class ResetMasterFlushOffset(Request[None], code=908):
    """The master's flush offset as its slave shall know it.

    Source: AdminBrokerProcessor.resetMasterFlushOffset.
    """

    master_flush_offset: i64


class GetBrokerEpochCacheReply(Header):
    """The answer to GET_BROKER_EPOCH_CACHE."""

    data: EpochEntryCache


class GetBrokerEpochCache(Request[GetBrokerEpochCacheReply], code=1007):
    """Which master wrote which stretch of the commit log.

    Source: AdminBrokerProcessor.getBrokerEpochCache.
    """


class NotifyBrokerRoleChanged(Request[None], code=1008):
    """Controller to broker: your role. Source: AdminBrokerProcessor.notifyBrokerRoleChanged."""

    master_address: str | None = None
    master_epoch: i32 | None = None
    sync_state_set_epoch: i32 | None = None
    master_broker_id: i64 | None = None
    data: SyncStateSet | None = None


class AddBroker(Request[None], code=902):
    """To a broker container: run one more broker. Source: BrokerContainerProcessor.addBroker."""

    config_path: str | None = None


class RemoveBroker(Request[None], code=903):
    """To a broker container: stop a broker. Source: BrokerContainerProcessor.removeBroker."""

    broker_name: str
    broker_cluster_name: str
    broker_id: i64
