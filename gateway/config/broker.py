"""Keys of one broker under their official names, with official defaults.

The concerns with many keys have a dataclass each: the store, flow control, pop consumption and limits.
"""

from dataclasses import dataclass, field

from codec.constants import MASTER_ID
from gateway.config.flow import FlowSettings
from gateway.config.keys import key
from gateway.config.limits import BrokerLimits
from gateway.config.namesrv_list import NamesrvListSettings
from gateway.config.pop import PopSettings
from gateway.config.replication import ADDRESS, UNDECIDED_ID, ControlledRole, ReplicationSettings, Role
from gateway.config.store import StoreSettings

READ_WRITE = 6
BROKER_PORT = 10911
AUTO = "auto"
NAME = r"[A-Za-z0-9%|_.-]{1,255}"
HOST = r"[^\s;/]+"
ADDRESSES = rf"|{ADDRESS}(;{ADDRESS})*"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Source: BrokerConfig and BrokerIdentity, 5.4.0. Times in milliseconds unless named otherwise."""

    store: StoreSettings = field(default_factory=StoreSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    pop: PopSettings = field(default_factory=PopSettings)
    namesrv_list: NamesrvListSettings = field(default_factory=NamesrvListSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)

    broker_name: str = key(
        "brokerName",
        "broker-a",
        "name of the broker (official default: the host name)",
        pattern=NAME,
    )
    broker_cluster_name: str = key(
        "brokerClusterName", "DefaultCluster", "cluster the broker belongs to", pattern=NAME
    )
    broker_id: int = key(
        "brokerId",
        MASTER_ID,
        "0 for a master; 1 and more for a slave; -1 only with enableControllerMode, where a controller gives the id",
        low=UNDECIDED_ID,
    )
    listen_port: int = key(
        "listenPort",
        BROKER_PORT,
        "port P for clients; P-2 is served, too; 0 for a free one",
        low=0,
        high=65535,
    )
    namesrv_addr: str = key(
        "namesrvAddr", "", "host:port[;host:port] of every namesrv to register with", pattern=ADDRESSES
    )
    takes_over_name: bool = key(
        "takeOverBrokerName",
        False,
        "whether to register with a namesrv elsewhere even if another live broker has this broker's name there",
        unofficial=True,
    )
    broker_ip: str = key(
        "brokerIP1",
        AUTO,
        "address that clients are told to use; auto: the one each client connected to (official: first NIC)",
        pattern=HOST,
        live=True,
    )
    ha_ip: str = key(
        "brokerIP2",
        AUTO,
        "address that slaves are told to copy from; auto: as brokerIP1",
        pattern=HOST,
    )
    advertised_port: int = key(
        "advertisedPort",
        0,
        "port that clients are told to use, where another one leads to listenPort; 0 means listenPort",
        low=0,
        high=65535,
        live=True,
        unofficial=True,
    )
    ha_listen_port: int = key(
        "haListenPort",
        0,
        "port on which a master serves its slaves; 0 means listenPort + 1, or a free one if that is taken",
        low=0,
        high=65535,
    )
    broker_permission: int = key(
        "brokerPermission", READ_WRITE, "4 read, 2 write, 6 both", low=0, high=7, live=True
    )
    default_topic_queue_nums: int = key(
        "defaultTopicQueueNums",
        8,
        "maximum number of queues of a topic created by its first send, at the first start",
        low=1,
        high=65535,
    )
    auto_create_topic_enable: bool = key(
        "autoCreateTopicEnable", True, "whether a send creates its topic (through TBW102)", live=True
    )
    cluster_topic_enable: bool = key("clusterTopicEnable", True, "whether the cluster's name is a topic")
    broker_topic_enable: bool = key("brokerTopicEnable", True, "whether the broker's name is a topic")
    auto_create_subscription_group: bool = key(
        "autoCreateSubscriptionGroup", True, "whether a consumer creates its group", live=True
    )
    enable_create_sys_group: bool = key(
        "enableCreateSysGroup", True, "whether the groups of official tools exist", live=True
    )
    validate_system_topic_when_update_topic: bool = key(
        "validateSystemTopicWhenUpdateTopic",
        True,
        "whether changing system topics is refused",
        live=True,
    )
    clear_retry_topic_when_delete_topic: bool = key(
        "clearRetryTopicWhenDeleteTopic",
        True,
        "whether deleting a topic deletes its pop retry topics",
        live=True,
    )
    enable_mixed_message_type: bool = key(
        "enableMixedMessageType", False, "whether new topics may mix message types", live=True
    )
    trace_on: bool = key("traceOn", True, "TRACE_ON in every answer to a producer", live=True)
    trace_topic_enable: bool = key("traceTopicEnable", False, "whether the trace topic exists from the start")
    msg_trace_topic_name: str = key("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "name of the trace topic")
    region_id: str = key("regionId", "DefaultRegion", "MSG_REGION in every answer to a producer", live=True)
    long_polling_enable: bool = key(
        "longPollingEnable", True, "whether a pull without messages waits as long as it asks", live=True
    )
    short_polling_time_ms: int = key(
        "shortPollingTimeMills",
        1_000,
        "time such a pull waits if long polling is off",
        low=1,
        high=60_000,
        live=True,
    )
    reject_pull_consumer_enable: bool = key(
        "rejectPullConsumerEnable",
        False,
        "whether consumers that use pull (not push) clients are refused",
        live=True,
    )
    lite_pull_message_enable: bool = key(
        "litePullMessageEnable", True, "whether code 361 is served", live=True
    )
    notify_consumer_ids_changed_enable: bool = key(
        "notifyConsumerIdsChangedEnable",
        True,
        "whether consumers are notified at once when a group member joins or leaves",
        live=True,
    )
    enable_register_producer: bool = key(
        "enableRegisterProducer", True, "whether producers' heartbeats are recorded"
    )
    enable_property_filter: bool = key(
        "enablePropertyFilter",
        True,
        "whether SQL92 filters on message properties are served (official default: false)",
        live=True,
    )
    filter_support_retry: bool = key(
        "filterSupportRetry", False, "whether SQL92 filters apply to retry topics", live=True
    )
    store_reply_message_enable: bool = key(
        "storeReplyMessageEnable", True, "whether request-reply answers are stored", live=True
    )
    use_server_side_reset_offset: bool = key(
        "useServerSideResetOffset",
        True,
        "whether the broker stores an offset reset until the consumer asks",
        live=True,
    )
    enable_broadcast_offset_store: bool = key(
        "enableBroadcastOffsetStore",
        True,
        "whether broadcasting clients continue at their offset when they move to or from a proxy",
        live=True,
    )
    broadcast_offset_expire_s: int = key(
        "broadcastOffsetExpireSecond",
        120,
        "time after which a disconnected broadcasting client is forgotten",
        low=1,
        high=86_400,
        live=True,
    )
    broadcast_offset_expire_max_s: int = key(
        "broadcastOffsetExpireMaxSecond",
        300,
        "time after which a connected broadcasting client that does not pull is forgotten",
        low=1,
        high=86_400,
        live=True,
    )
    channel_expired_timeout_ms: int = key(
        "channelExpiredTimeout",
        120_000,
        "time without a heartbeat after which a client is forgotten",
        low=1_000,
        high=86_400_000,
    )
    subscription_expired_timeout_ms: int = key(
        "subscriptionExpiredTimeout",
        600_000,
        "time after which a subscription ends if no consumer renews it",
        low=1_000,
        high=86_400_000,
    )
    flush_consumer_offset_interval_ms: int = key(
        "flushConsumerOffsetInterval",
        5_000,
        "time between writes of consumerOffset.json",
        low=100,
        high=600_000,
    )
    start_accept_send_timestamp_ms: int = key(
        "startAcceptSendRequestTimeStamp",
        0,
        "sends before this time (ms since 1970) are refused",
        low=0,
        live=True,
    )
    reject_transaction_message: bool = key(
        "rejectTransactionMessage", False, "whether half messages are refused", live=True
    )
    transaction_timeout_ms: int = key(
        "transactionTimeOut",
        6_000,
        "age of a half message at its first check-back",
        low=1,
        high=86_400_000,
        live=True,
    )
    transaction_check_max: int = key(
        "transactionCheckMax",
        15,
        "maximum number of check-backs before a half message is dropped",
        low=1,
        high=10_000,
        live=True,
    )
    transaction_check_interval_ms: int = key(
        "transactionCheckInterval", 30_000, "time between check-backs", low=100, high=86_400_000, live=True
    )
    transaction_op_msg_max_bytes: int = key(
        "transactionOpMsgMaxSize",
        4_096,
        "size of an op message that is written at once, in bytes",
        low=1,
        high=1_048_576,
        live=True,
    )
    transaction_op_batch_interval_ms: int = key(
        "transactionOpBatchInterval",
        3_000,
        "longest time until a smaller op message is written",
        low=1,
        high=600_000,
        live=True,
    )
    recall_message_enable: bool = key(
        "recallMessageEnable", False, "whether a delayed message can be recalled", live=True
    )
    allow_recall_when_broker_not_writeable: bool = key(
        "allowRecallWhenBrokerNotWriteable",
        True,
        "whether recalls are allowed without write permission",
        live=True,
    )
    force_register: bool = key("forceRegister", True, "register each time, not only when topics changed")
    compressed_register: bool = key("compressedRegister", False, "whether registrations are deflated")
    register_nameserver_period_ms: int = key(
        "registerNameServerPeriod", 30_000, "time between registrations", low=10_000, high=60_000
    )
    register_broker_timeout_ms: int = key(
        "registerBrokerTimeoutMills",
        24_000,
        "timeout of one registration",
        low=100,
        high=600_000,
        live=True,
    )
    broker_not_active_timeout_ms: int = key(
        "brokerNotActiveTimeoutMillis",
        10_000,
        "heartbeat timeout announced to namesrvs",
        low=1_000,
        high=600_000,
    )
    config_black_list: str = key(
        "configBlackList",
        "configBlackList;brokerConfigPath",
        "keys that cannot be changed by request, separated by ;",
    )
    limits: BrokerLimits = field(default_factory=BrokerLimits)
    controlled: ControlledRole | None = None
    """The part that a controller gave this broker, not a setting; None outside of controller mode."""

    @property
    def role(self) -> Role:
        """The role with which the broker starts."""
        return self.replication.role

    @property
    def is_undecided(self) -> bool:
        """True under a controller until that has given the broker its first role."""
        return self.controlled is not None and self.controlled.master_epoch == 0

    @property
    def replica_name(self) -> str:
        """The name of this replica for people: that of the broker, and for a slave its id as well."""
        return self.broker_name if self.broker_id == MASTER_ID else f"{self.broker_name}/{self.broker_id}"

    @property
    def address_server(self) -> str:
        """The URL at which the broker asks for its namesrvs; empty if the configuration names them."""
        return "" if self.namesrv_addr else self.namesrv_list.url

    @property
    def vip_port(self) -> int | None:
        """The second port that stock clients may use, listenPort - 2; None if that is not a valid port."""
        return self.listen_port - 2 if self.listen_port > 2 else None

    @property
    def ha_host(self) -> str:
        """The host of the announced HA address; "auto" for the one that each peer connected to."""
        return self.broker_ip if self.ha_ip == AUTO else self.ha_ip

    @property
    def ha_address_port(self) -> int:
        """The port of the announced HA address. Source: BrokerStartup.buildBrokerController sets listenPort + 1."""
        return self.ha_listen_port or self.listen_port + 1
