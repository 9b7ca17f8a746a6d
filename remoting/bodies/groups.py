"""Bodies about consumer groups: settings, clients, subscriptions."""

from remoting.bodies.heartbeat import SubscriptionData
from remoting.bodies.queues import DataVersion
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class SimpleSubscriptionData(JsonBody):
    """A subscription that a group is bound to."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: i64 = 0


class ExponentialRetryPolicy(JsonBody):
    """Growing retry delays: first delay and maximum in ms, and the factor."""

    initial: i64 = 5000
    max: i64 = 7200000
    multiplier: i64 = 2


class CustomizedRetryPolicy(JsonBody):
    """A list of retry delays, in ms."""

    next: list[i64] = field(factory=list)


class GroupRetryPolicy(JsonBody):
    """The delays before a failed message is consumed again; ``type`` is CUSTOMIZED or EXPONENTIAL."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SubscriptionGroupConfig(JsonBody):
    """The settings of a consumer group on one broker."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: i32 = 1
    retry_max_times: i32 = 16
    group_retry_policy: GroupRetryPolicy = field(factory=GroupRetryPolicy)
    broker_id: i64 = 0
    which_broker_when_consume_slowly: i64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: i32 = 0
    consume_timeout_minute: i32 = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = field(factory=dict)


class SubscriptionGroupWrapper(JsonBody):
    """A broker's consumer groups; also the content of subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(factory=dict)
    forbidden_table: dict[str, dict[str, i32]] = field(factory=dict)
    data_version: DataVersion = field(factory=DataVersion)


class SubscriptionGroupList(JsonBody):
    """The groups to create with UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(factory=list)


class GroupList(JsonBody):
    """Names of consumer groups."""

    group_list: list[str] = field(factory=list)


class GroupForbidden(JsonBody):
    """The permission of a group to read a topic."""

    topic: str | None = None
    group: str | None = None
    readable: bool | None = None


class ConnectedClient(JsonBody):
    """A connected client (Java: Connection); ``version`` is an ordinal of the official version table.

    ``protocol`` is "remoting" or "grpc"; only brokers of this project say it.
    """

    client_id: str | None = None
    client_addr: str | None = None
    language: str | None = None
    version: i32 = 0
    protocol: str | None = None


class ProducerConnection(JsonBody):
    """The clients of a producer group."""

    connection_set: list[ConnectedClient] = field(factory=list)


class ConsumerConnection(JsonBody):
    """The clients of a consumer group and their subscriptions."""

    connection_set: list[ConnectedClient] = field(factory=list)
    subscription_table: dict[str, SubscriptionData] = field(factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerInfo(JsonBody):
    """A producer as one broker sees it; time in ms."""

    client_id: str | None = None
    remote_ip: str | None = field(wire="remoteIP", default=None)
    language: str | None = None
    version: i32 = 0
    last_update_timestamp: i64 = 0


class ProducerTableInfo(JsonBody):
    """Every producer group with its clients."""

    data: dict[str, list[ProducerInfo]] = field(factory=dict)


class QuerySubscriptionResponseBody(JsonBody):
    """A group's subscription of one topic."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class ConsumeByWho(JsonBody):
    """The groups that consumed a message, and those that did not."""

    consumed_group: list[str] = field(factory=list)
    not_consumed_group: list[str] = field(factory=list)
    topic: str | None = None
    queue_id: i32 = 0
    offset: i64 = 0


class GetConsumerListByGroupResponseBody(JsonBody):
    """The client ids of a consumer group."""

    consumer_id_list: list[str] = field(factory=list)
