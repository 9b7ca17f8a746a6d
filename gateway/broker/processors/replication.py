"""Requests of slaves, and about replication. What a slave copies of the log travels over the HA port instead.

Source: AdminBrokerProcessor, DefaultHAService.getRuntimeInfo, 5.4.0.
"""

import logging
from collections.abc import Mapping

import trio

from codec.constants import ResponseCode
from codec.hosts import format_host
from codec.topics import is_system_group
from gateway.broker.broker import Broker
from gateway.broker.messages.advertised_hosts import AUTO
from gateway.broker.replication.replica import Replica
from gateway.config.replication import Role
from gateway.namesrv.addresses import join_address
from remoting.bodies.ha import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.ha import (
    ExchangeBrokerHaInfo,
    ExchangeBrokerHaInfoReply,
    GetBrokerHaStatus,
    GetBrokerHaStatusReply,
    NotifyMinBrokerIdChange,
    ResetMasterFlushOffset,
)
from remoting.requests.pop import GetAllMessageRequestMode, GetAllMessageRequestModeReply
from remoting.requests.replication import OpenReplication, OpenReplicationReply, RaiseConsumerOffsets

log = logging.getLogger(__name__)

handlers: HandlerTable[Broker] = HandlerTable()


@GetAllMessageRequestMode.on(handlers)
def get_all_message_request_modes(
    broker: Broker, request: GetAllMessageRequestMode
) -> GetAllMessageRequestModeReply:
    """Return every request mode that was set."""
    return GetAllMessageRequestModeReply(data=broker.pop.request_modes.snapshot())


@RaiseConsumerOffsets.on(handlers)
def raise_consumer_offsets(broker: Broker, request: RaiseConsumerOffsets) -> None:
    """Take over the progress that consumers made at a slave. An offset never goes back by it, nor beyond its queue.

    That of pops, and of this broker's own groups, is left out: the slave has it from a broker, perhaps from another
    master. Slaves do not send it, but for those of earlier versions.
    At a limit of groups or offsets the new ones are left out: the others must not wait for them.
    """
    popped_keys = broker.pop.state.reviver.popped_keys
    for key, queues in request.data.offset_table.items():
        if key in popped_keys:
            continue
        try:
            _raise_offsets(broker, key, queues)
        except RequestError as error:
            log.warning("progress of a slave left out", extra={"key": key, "reason": error.remark})


def _raise_offsets(broker: Broker, key: str, queues: Mapping[int, int]) -> None:
    """Raise the offsets of one topic and group. Raises RequestError at a limit."""
    topic, _, group = key.partition("@")
    # A group may have begun to consume there. It is created as for its first pull here.
    if is_system_group(group) or topic not in broker.topics or broker.groups.find_or_create(group) is None:
        return
    for queue_id, offset in queues.items():
        # The messages beyond the end were lost with the log that had them, or will come again.
        progress = min(offset, broker.store.max_offset(topic, queue_id))
        is_reset = broker.offsets.has_reset(group, topic, queue_id)
        if progress > broker.offsets.query_offset(group, topic, queue_id) and not is_reset:
            broker.offsets.commit_of_client(group, topic, queue_id, progress)


@OpenReplication.on(handlers)
def open_replication(broker: Broker, request: OpenReplication) -> OpenReplicationReply:
    """Let a slave that access control has let through copy the log."""
    return OpenReplicationReply(ticket=broker.replication.server.access.issue_ticket(request.broker_id))


@ResetMasterFlushOffset.on(handlers)
def reset_master_flush_offset(broker: Broker, request: ResetMasterFlushOffset) -> None:
    """Answer with success and do nothing, as every official master does."""


@ExchangeBrokerHaInfo.on(handlers)
def exchange_ha_info(broker: Broker, request: ExchangeBrokerHaInfo, call: Call) -> ExchangeBrokerHaInfoReply:
    """Tell a slave where this master is reached. A broker that names itself as the master is refused.

    Deviation: the official broker follows whoever sends it an address.
    """
    config = broker.config
    if request.master_ha_address is not None or config.role is Role.SLAVE:
        raise RequestError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"{config.broker_name} with broker id {config.broker_id} looks its master up itself",
        )
    local = call.connection.local[0]
    host, ha_host = (local if host == AUTO else host for host in (config.broker_ip, config.ha_host))
    return ExchangeBrokerHaInfoReply(
        master_ha_address=join_address(ha_host, config.ha_address_port),
        master_flush_offset=broker.store.durable_offset,
        master_address=join_address(host, config.advertised_port or config.listen_port),
    )


@NotifyMinBrokerIdChange.on(handlers)
def notify_min_broker_id_change(broker: Broker, request: NotifyMinBrokerIdChange) -> None:
    """Answer with success. A namesrv says who has the lowest id now, and where it is reached.

    Deviation: nothing is taken over from the request, which anybody can send. With ``enableSlaveActingMaster`` the
    broker asks its namesrvs every second (`members.py`), so it knows within that time.
    """


@GetBrokerHaStatus.on(handlers)
def get_ha_status(broker: Broker, request: GetBrokerHaStatus) -> GetBrokerHaStatusReply:
    """Return how far each slave is; at a slave, its master and its own end.

    Under a controller the slaves of the set are in sync, connected or not. Source: AutoSwitchHAService.getRuntimeInfo.
    """
    if broker.config.role is Role.SLAVE:
        follower = broker.replication.follower
        client = HAClientRuntimeInfo(
            master_addr=None if follower is None else follower.master_address,
            max_offset=broker.store.max_physical_offset,
        )
        return GetBrokerHaStatusReply(data=HARuntimeInfo(master=False, ha_client_runtime_info=client))
    end, max_gap = broker.store.max_physical_offset, broker.config.replication.max_gap_not_in_sync_bytes
    slaves = [_slave_info(replica, end, max_gap) for replica in broker.replication.server.replicas]
    sync_state, in_sync_count = broker.replication.sync_state, sum(slave.in_sync for slave in slaves)
    if sync_state is not None:
        in_sync_count = len(sync_state.members) - 1
        for slave, replica in zip(slaves, broker.replication.server.replicas, strict=True):
            slave.in_sync = replica.broker_id in sync_state.members
    return GetBrokerHaStatusReply(
        data=HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=in_sync_count,
            ha_connection_info=slaves,
        )
    )


def _slave_info(replica: Replica, end: int, max_gap: int) -> HAConnectionRuntimeInfo:
    behind = replica.bytes_behind(end)
    return HAConnectionRuntimeInfo(
        addr=format_host(replica.remote),
        slave_ack_offset=replica.acknowledged,
        diff=behind,
        in_sync=behind < max_gap,
        transferred_byte_in_second=replica.transfer_rate.bytes_per_second(trio.current_time()),
        transfer_from_where=replica.sent,
    )
