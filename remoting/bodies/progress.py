"""Bodies about consumer progress: offsets, lag and time spans."""

from remoting.bodies.heartbeat import SubscriptionData
from remoting.bodies.queues import DataVersion, MessageQueue
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class OffsetWrapper(JsonBody):
    """The end of a queue, the consumer offset and the offset last pulled; time in ms."""

    broker_offset: i64 = 0
    consumer_offset: i64 = 0
    pull_offset: i64 = 0
    last_timestamp: i64 = 0


class ConsumeStats(JsonBody):
    """The answer to GET_CONSUME_STATS."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(factory=dict)
    consume_tps: float = 0.0


class ConsumeStatsList(JsonBody):
    """The answer to GET_BROKER_CONSUME_STATS."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(factory=list)
    broker_addr: str | None = None
    total_diff: i64 = 0
    total_inflight_diff: i64 = 0


class ConsumerOffsetSerializeWrapper(JsonBody):
    """Consumer offsets by ``topic@group`` and queue id; also the content of consumerOffset.json."""

    offset_table: dict[str, dict[i32, i64]] = field(factory=dict)
    data_version: DataVersion | None = None


class QueueTimeSpan(JsonBody):
    """The first and last store timestamps of a queue and the consumer's, all in ms."""

    message_queue: MessageQueue | None = None
    min_time_stamp: i64 = 0
    max_time_stamp: i64 = 0
    consume_time_stamp: i64 = 0
    delay_time: i64 = 0


class QueryConsumeTimeSpanBody(JsonBody):
    """The answer to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = field(factory=list)


class QueryCorrectionOffsetBody(JsonBody):
    """The answer to QUERY_CORRECTION_OFFSET: offsets by queue id."""

    correction_offsets: dict[i32, i64] = field(factory=dict)


class ResetOffsetBody(JsonBody):
    """The offsets at which a consumer must continue, by queue."""

    offset_table: dict[MessageQueue, i64] = field(factory=dict)


class GetConsumerStatusBody(JsonBody):
    """A consumer's offsets by queue, or by client and queue."""

    message_queue_table: dict[MessageQueue, i64] = field(factory=dict)
    consumer_table: dict[str, dict[MessageQueue, i64]] = field(factory=dict)


class RollbackStats(JsonBody):
    """The distance by which one queue was moved back; time in ms."""

    broker_name: str | None = None
    queue_id: i64 = 0
    broker_offset: i64 = 0
    consumer_offset: i64 = 0
    timestamp_offset: i64 = 0
    rollback_offset: i64 = 0


class OffsetMovedEvent(JsonBody):
    """Reports that a consumer pulled from an offset that does not exist."""

    consumer_group: str | None = None
    message_queue: MessageQueue | None = None
    offset_request: i64 = 0
    offset_new: i64 = 0


class ConsumeQueueData(JsonBody):
    """One entry of a consume queue."""

    physic_offset: i64 = 0
    physic_size: i32 = 0
    tags_code: i64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(JsonBody):
    """The answer to QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(factory=list)
    max_queue_index: i64 = 0
    min_queue_index: i64 = 0


class BrokerStatsItem(JsonBody):
    """One statistic over one span: sum, per second, average per call."""

    sum: i64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(JsonBody):
    """The answer to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class MessageQueueForC(JsonBody):
    """A queue with an offset in it, for clients other than Java."""

    topic: str | None = None
    broker_name: str | None = None
    queue_id: i32 = 0
    offset: i64 = 0


class ResetOffsetBodyForC(JsonBody):
    """The offsets at which a consumer other than Java must continue."""

    offset_table: list[MessageQueueForC] = field(factory=list)
