"""Requests that find messages by key, and that inspect queues and statistics."""

from remoting.bodies.progress import BrokerStatsData, QueryConsumeQueueResponseBody
from remoting.declare import Header, Request, TopicRequest, field, i32, i64


class QueryMessageReply(Header):
    """The progress of the index; the body holds messages."""

    index_last_update_timestamp: i64
    index_last_update_phyoffset: i64


class QueryMessage(TopicRequest[QueryMessageReply], code=12, null_texts={"topic": "", "key": ""}):
    """Find messages of a topic by key or unique key. Source: QueryMessageProcessor.queryMessage."""

    topic: str
    key: str
    max_num: i32
    begin_timestamp: i64
    end_timestamp: i64
    index_type: str | None = None
    last_key: str | None = None
    unique_key_query: bool | None = field(wire="_UNIQUE_KEY_QUERY", default=None)


class ViewMessageById(Request[Header], code=33):
    """Return the message at a physical offset. Source: QueryMessageProcessor.viewMessageById."""

    topic: str | None = None
    offset: i64


class QueryConsumeQueueReply(Header):
    """The answer to QUERY_CONSUME_QUEUE."""

    data: QueryConsumeQueueResponseBody


class QueryConsumeQueue(TopicRequest[QueryConsumeQueueReply], code=321):
    """Return entries of a consume queue. Source: AdminBrokerProcessor.queryConsumeQueue."""

    topic: str | None = None
    queue_id: i32 = 0
    index: i64 = 0
    count: i32 = 0
    consumer_group: str | None = None


class ViewBrokerStatsDataReply(Header):
    """The answer to VIEW_BROKER_STATS_DATA."""

    data: BrokerStatsData


class ViewBrokerStatsData(
    Request[ViewBrokerStatsDataReply], code=315, null_texts={"statsName": "null", "statsKey": "null"}
):
    """Return one statistic of a broker. Source: AdminBrokerProcessor.ViewBrokerStatsData."""

    stats_name: str
    stats_key: str


class CheckRocksdbCqWriteProgress(Request[Header], code=354, null_texts={"topic": ""}):
    """Compare consume queues in files with those in RocksDB.

    Source: AdminBrokerProcessor.checkRocksdbCqWriteProgress.
    """

    topic: str
    check_store_time: i64 = 0
