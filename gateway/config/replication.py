"""Keys of replication: the broker's role, what its master promises, how slaves connect and what they serve.

Sources: MessageStoreConfig and BrokerConfig, 5.4.0; `haSlaveFallbehindMax` is of 4.9.8.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.config.keys import key

ADDRESS: Final = r"(\[[0-9A-Fa-f:.%]+\]|[^\s;:]+):[0-9]{1,5}"
MIB: Final = 1024 * 1024
ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
_ONE_SLAVE: Final = 2
"""The master itself and one slave, as `inSyncReplicas` counts."""


UNDECIDED_ID: Final = -1
"""The id of a broker that no controller has given one yet."""


class Role(Enum):
    """The part of a broker in a group of replicas: a master takes messages, a slave copies them from its master."""

    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class ControlledRole:
    """The part that a controller gave this broker: its id there, and the epoch of the master, itself or another one.

    ``sync_set`` has the replicas in sync when the epoch began here, ``sync_set_epoch`` is the version of that set.
    """

    broker_id: int = UNDECIDED_ID
    master_epoch: int = 0
    sync_set: frozenset[int] = frozenset()
    sync_set_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Settings of replication. Times in milliseconds, sizes in bytes."""

    broker_role: str = key(
        "brokerRole",
        ASYNC_MASTER,
        "role; an ASYNC_MASTER answers sends at once, a SYNC_MASTER when its slaves have the message",
        choices=(ASYNC_MASTER, SYNC_MASTER, SLAVE),
    )
    in_sync_replicas: int = key(
        "inSyncReplicas",
        0,
        "number of brokers that must have a message before a SYNC_MASTER answers its send, itself included; 1 waits "
        "for no slave, as the official default does; 0 is 2, but without a slave the answer is SLAVE_NOT_AVAILABLE at "
        "once",
        low=0,
        high=100,
    )
    min_in_sync_replicas: int = key(
        "minInSyncReplicas",
        1,
        "smallest number of brokers to which enableAutoInSyncReplicas may lower inSyncReplicas; under a controller, "
        "the number of replicas in sync, the master included, below which messages are refused",
        low=1,
        high=100,
    )
    enable_auto_in_sync_replicas: bool = key(
        "enableAutoInSyncReplicas",
        False,
        "whether inSyncReplicas adapts to the number of slaves that are in sync",
    )
    slave_timeout_ms: int = key(
        "slaveTimeout",
        3_000,
        "time after which a send that slaves have not acknowledged is answered FLUSH_SLAVE_TIMEOUT",
        low=1,
        high=600_000,
    )
    max_gap_not_in_sync_bytes: int = key(
        "haMaxGapNotInSync",
        256 * MIB,
        "bytes behind its master at which a slave no longer counts as in sync",
        low=1,
        high=2**31 - 1,
    )
    slave_fallbehind_max_bytes: int = key(
        "haSlaveFallbehindMax",
        256 * MIB,
        "bytes behind a SYNC_MASTER at which a slave counts as not available, unless inSyncReplicas is set (key of "
        "4.x)",
        low=1,
        high=2**31 - 1,
        unofficial=True,
    )
    ha_master_address: str = key(
        "haMasterAddress",
        "",
        "host:port that a slave copies from; empty: the one that its namesrv names",
        pattern=rf"|{ADDRESS}",
    )
    ha_allowed_addresses: str = key(
        "haAllowedAddresses",
        "",
        "addresses or networks (10.0.0.7;10.1.0.0/16) of slaves that may copy without credentials and TLS, as official "
        "ones must; empty: all if access control is off, none if it is on",
        pattern=r"|[0-9A-Fa-f:./]+(;[0-9A-Fa-f:./]+)*",
        unofficial=True,
    )
    ha_send_heartbeat_interval_ms: int = key(
        "haSendHeartbeatInterval",
        5_000,
        "time without a message after which master and slave send each other a sign of life",
        low=100,
        high=600_000,
        live=True,
    )
    ha_housekeeping_interval_ms: int = key(
        "haHousekeepingInterval",
        20_000,
        "time without a sign of life after which a replication connection is closed",
        low=100,
        high=3_600_000,
        live=True,
    )
    ha_transfer_batch_bytes: int = key(
        "haTransferBatchSize",
        MIB,
        "maximum number of bytes that a master sends to a slave in one piece (official default: 32768)",
        low=1024,
        high=4 * MIB - 12,
        live=True,
    )
    ha_flow_control_enable: bool = key(
        "haFlowControlEnable",
        False,
        "whether maxHaTransferByteInSecond limits the rate of replication",
        live=True,
    )
    max_ha_transfer_bytes_per_s: int = key(
        "maxHaTransferByteInSecond",
        100 * MIB,
        "maximum number of bytes a second that one slave is sent, with haFlowControlEnable",
        low=1024,
        high=2**63 - 1,
        live=True,
    )
    slave_read_enable: bool = key(
        "slaveReadEnable",
        False,
        "whether slaves serve pulls, and a master sends consumers that are far behind to them",
    )
    check_crc_in_slave: bool = key(
        "checkCRCInSlave",
        True,
        "whether a slave checks the bodies of messages before it acknowledges them, and fetches damaged ones again",
    )
    cut_copies_reserved_hours: int = key(
        "cutCopiesReservedHours",
        720,
        "hours after which a copy of messages that a slave cut off is deleted, in damaged/cut-*; 0: never",
        low=0,
        high=1_000_000,
    )
    offset_check_in_slave: bool = key(
        "offsetCheckInSlave",
        False,
        "whether a slave corrects a pull's offset that its queue does not have",
    )
    enable_slave_acting_master: bool = key(
        "enableSlaveActingMaster",
        False,
        "whether the slave with the lowest brokerId serves reads as master while there is none",
    )

    enable_controller_mode: bool = key(
        "enableControllerMode",
        False,
        "whether the controllers in controllerAddr decide which broker of this name is the master; brokerRole and "
        "brokerId have no effect then",
    )
    controller_addr: str = key(
        "controllerAddr",
        "",
        "host:port[;host:port] of every controller, for enableControllerMode",
        pattern=rf"|{ADDRESS}(;{ADDRESS})*",
    )
    fetch_controller_addr_by_dns_lookup: bool = key(
        "fetchControllerAddrByDnsLookup",
        False,
        "whether controllerAddr is one host name whose addresses are those of all controllers",
    )
    broker_heartbeat_interval_ms: int = key(
        "brokerHeartbeatInterval",
        1_000,
        "time between two heartbeats to each controller",
        low=100,
        high=60_000,
    )
    send_heartbeat_timeout_ms: int = key(
        "sendHeartbeatTimeoutMillis",
        1_000,
        "longest time that a controller may take to answer a heartbeat",
        low=100,
        high=60_000,
    )
    controller_heartbeat_timeout_ms: int = key(
        "controllerHeartBeatTimeoutMills",
        10_000,
        "time without a heartbeat after which controllers take this broker for dead, and after which a master that "
        "reaches no leading controller stores nothing",
        low=1_000,
        high=600_000,
    )
    sync_controller_metadata_period_ms: int = key(
        "syncControllerMetadataPeriod",
        10_000,
        "time between two questions for the leading controller",
        low=100,
        high=600_000,
    )
    sync_broker_metadata_period_ms: int = key(
        "syncBrokerMetadataPeriod",
        5_000,
        "time between two questions for the master of this name",
        low=100,
        high=600_000,
    )
    check_sync_state_set_period_ms: int = key(
        "checkSyncStateSetPeriod",
        5_000,
        "longest time between two checks of a master which slaves are in sync",
        low=100,
        high=600_000,
    )
    broker_election_priority: int = key(
        "brokerElectionPriority",
        2**31 - 1,
        "rank among replicas in sync with equally long logs when a master is elected: the lowest becomes it",
        low=0,
        high=2**31 - 1,
    )
    all_ack_in_sync_state_set: bool = key(
        "allAckInSyncStateSet",
        False,
        "whether a master under a controller answers a send only when all replicas in sync have the message",
    )
    ha_max_time_slave_not_catchup_ms: int = key(
        "haMaxTimeSlaveNotCatchup",
        15_000,
        "time without having caught up after which a slave no longer counts as in sync, under a controller",
        low=100,
        high=3_600_000,
    )
    sync_from_last_file: bool = key(
        "syncFromLastFile",
        False,
        "whether a slave without messages copies the last file of its master's log only, under a controller",
    )
    async_learner: bool = key(
        "asyncLearner",
        False,
        "whether this broker copies its master without ever counting as in sync, under a controller",
    )

    @property
    def role(self) -> Role:
        """The role with which the broker starts."""
        return Role.SLAVE if self.broker_role == SLAVE else Role.MASTER

    @property
    def is_sync_master(self) -> bool:
        """True if sends wait for slaves."""
        return self.broker_role == SYNC_MASTER

    @property
    def needed_replicas(self) -> int:
        """Number of brokers, the master included, that must have a message of a SYNC_MASTER.

        Deviation: one slave unless configured otherwise; the official default of 5.x waits for none.
        """
        return self.in_sync_replicas or _ONE_SLAVE
