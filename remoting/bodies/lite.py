"""Bodies about lite topics (5.5.0)."""

from remoting.bodies.progress import OffsetWrapper
from remoting.bodies.topics import TopicOffset
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class OffsetOption(JsonBody):
    """The start position of a new lite subscription."""

    type: str | None = None
    value: i64 = 0


class LiteSubscriptionDTO(JsonBody):
    """Lite topics that a client adds to its subscription or removes from it."""

    action: str | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    lite_topic_set: list[str] = field(factory=list)
    offset_option: OffsetOption | None = None
    version: i64 = 0


class LiteSubscriptionCtlRequestBody(JsonBody):
    """The body of LITE_SUBSCRIPTION_CTL."""

    subscription_set: list[LiteSubscriptionDTO] = field(factory=list)


class GetBrokerLiteInfoResponseBody(JsonBody):
    """Lite topics of one broker."""

    store_type: str | None = None
    max_lmq_num: i32 = 0
    current_lmq_num: i32 = 0
    lite_subscription_count: i32 = 0
    order_info_count: i32 = 0
    cq_table_size: i32 = 0
    offset_table_size: i32 = 0
    event_map_size: i32 = 0
    topic_meta: dict[str, i32] = field(factory=dict)
    group_meta: dict[str, list[str]] = field(factory=dict)


class GetParentTopicInfoResponseBody(JsonBody):
    """Lite topics below one parent topic."""

    topic: str | None = None
    ttl: i32 = 0
    groups: list[str] = field(factory=list)
    lmq_num: i32 = 0
    lite_topic_count: i32 = 0


class GetLiteClientInfoResponseBody(JsonBody):
    """Lite topics of one client; times in ms."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: i64 = 0
    last_consume_time: i64 = 0
    lite_topic_count: i32 = 0
    lite_topic_set: list[str] = field(factory=list)


class LiteLagInfo(JsonBody):
    """The lag of one lite topic."""

    lite_topic: str | None = None
    lag_count: i64 = 0
    earliest_unconsumed_timestamp: i64 = -1


class GetLiteGroupInfoResponseBody(JsonBody):
    """The lag of a group."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: i64 = -1
    total_lag_count: i64 = 0
    lite_topic_offset_wrapper: OffsetWrapper | None = None
    lag_count_top_k: list[LiteLagInfo] = field(factory=list)
    lag_timestamp_top_k: list[LiteLagInfo] = field(factory=list)


class ClientGroup(JsonBody):
    """A client in a group."""

    client_id: str | None = None
    group: str | None = None


class GetLiteTopicInfoResponseBody(JsonBody):
    """The subscribers of a lite topic."""

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscriber: list[ClientGroup] = field(factory=list)
    topic_offset: TopicOffset | None = None
    sharding_to_broker: bool = False
