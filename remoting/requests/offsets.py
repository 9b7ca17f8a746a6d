"""Requests about the offsets of queues and of consumer groups."""

from remoting.bodies.progress import (
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
)
from remoting.declare import Header, Request, RpcRequest, TopicRequest, i32, i64


class QueryConsumerOffsetReply(Header):
    """The answer to QUERY_CONSUMER_OFFSET."""

    offset: i64


class QueryConsumerOffset(TopicRequest[QueryConsumerOffsetReply], code=14):
    """Return a group's consumer offset in a queue. Source: ConsumerManageProcessor.queryConsumerOffset."""

    consumer_group: str
    topic: str
    queue_id: i32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(TopicRequest[None], code=15):
    """Commit a group's consumer offset. Source: ConsumerManageProcessor.updateConsumerOffset."""

    consumer_group: str
    topic: str
    queue_id: i32
    commit_offset: i64


class SearchOffsetByTimestampReply(Header):
    """The answer to SEARCH_OFFSET_BY_TIMESTAMP."""

    offset: i64


class SearchOffsetByTimestamp(TopicRequest[SearchOffsetByTimestampReply], code=29):
    """Return the offset of the first message stored at or after ``timestamp`` ms.

    ``boundary_type`` UPPER returns the last message at or before it instead; any other value is LOWER.

    Source: AdminBrokerProcessor.searchOffsetByTimestamp.
    """

    topic: str
    lite_topic: str | None = None
    queue_id: i32
    timestamp: i64
    boundary_type: str | None = None


class GetMaxOffsetReply(Header):
    """The next queue offset to be written, exclusive."""

    offset: i64


class GetMaxOffset(TopicRequest[GetMaxOffsetReply], code=30):
    """Return the end of a queue. Source: AdminBrokerProcessor.getMaxOffset."""

    topic: str
    queue_id: i32
    committed: bool = True


class GetMinOffsetReply(Header):
    """The first queue offset that can be read, inclusive."""

    offset: i64


class GetMinOffset(TopicRequest[GetMinOffsetReply], code=31):
    """Return the beginning of a queue. Source: AdminBrokerProcessor.getMinOffset."""

    topic: str
    queue_id: i32


class GetEarliestMsgStoretimeReply(Header):
    """Store timestamp in ms; -1 when the queue is empty."""

    timestamp: i64


class GetEarliestMsgStoretime(TopicRequest[GetEarliestMsgStoretimeReply], code=32):
    """Return the store timestamp of a queue's first message.

    Source: AdminBrokerProcessor.getEarliestMsgStoretime.
    """

    topic: str
    queue_id: i32


class GetAllConsumerOffsetReply(Header):
    """The answer to GET_ALL_CONSUMER_OFFSET."""

    data: ConsumerOffsetSerializeWrapper


class GetAllConsumerOffset(Request[GetAllConsumerOffsetReply], code=43):
    """Return every consumer offset of a broker, for its slave.

    Source: AdminBrokerProcessor.getAllConsumerOffset.
    """


class GetAllDelayOffset(Request[Header], code=45):
    """Return the text of delayOffset.json in the body, for the slave.

    Source: AdminBrokerProcessor.getAllDelayOffset.
    """


class GetConsumeStatsReply(Header):
    """The answer to GET_CONSUME_STATS."""

    data: ConsumeStats


class GetConsumeStats(TopicRequest[GetConsumeStatsReply], code=208):
    """Return a group's progress by queue. Source: AdminBrokerProcessor.getConsumeStats."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class InvokeBrokerToResetOffsetReply(Header):
    """The answer to INVOKE_BROKER_TO_RESET_OFFSET."""

    data: ResetOffsetBody | None = None


class InvokeBrokerToResetOffset(TopicRequest[InvokeBrokerToResetOffsetReply], code=222):
    """Move a group's consumer offsets, back or forward, to ``timestamp`` ms or ``offset``.

    Source: AdminBrokerProcessor.resetOffset.
    """

    group: str
    topic: str
    queue_id: i32 = -1
    offset: i64 | None = None
    timestamp: i64 = 0
    is_force: bool = False


class InvokeBrokerToGetConsumerStatusReply(Header):
    """The answer to INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    data: GetConsumerStatusBody


class InvokeBrokerToGetConsumerStatus(TopicRequest[InvokeBrokerToGetConsumerStatusReply], code=223):
    """Collect the offsets of a group's clients. Source: AdminBrokerProcessor.getConsumerStatus."""

    topic: str
    group: str
    client_addr: str | None = None


class QueryConsumeTimeSpanReply(Header):
    """The answer to QUERY_CONSUME_TIME_SPAN."""

    data: QueryConsumeTimeSpanBody


class QueryConsumeTimeSpan(TopicRequest[QueryConsumeTimeSpanReply], code=303):
    """Return the time span of each queue of a topic, as a group sees it.

    Source: AdminBrokerProcessor.queryConsumeTimeSpan.
    """

    topic: str
    group: str


class QueryCorrectionOffsetReply(Header):
    """The answer to QUERY_CORRECTION_OFFSET."""

    data: QueryCorrectionOffsetBody


class QueryCorrectionOffset(TopicRequest[QueryCorrectionOffsetReply], code=308):
    """Return the lowest consumer offsets among groups. Source: AdminBrokerProcessor.queryCorrectionOffset."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class CloneGroupOffset(RpcRequest[None], code=314):
    """Copy the consumer offsets of one group to another. Source: AdminBrokerProcessor.cloneGroupOffset."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class GetBrokerConsumeStatsReply(Header):
    """The answer to GET_BROKER_CONSUME_STATS."""

    data: ConsumeStatsList


class GetBrokerConsumeStats(Request[GetBrokerConsumeStatsReply], code=317):
    """Return the progress of every group of a broker. Source: AdminBrokerProcessor.fetchAllConsumeStatsInBroker."""

    is_order: bool = False
