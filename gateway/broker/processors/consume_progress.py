"""Consumption progress of groups: statistics, offset resets, clones."""

from collections.abc import Iterator

from codec import fastjson
from codec.constants import ResponseCode
from codec.java_numbers import I64
from gateway.broker.broker import Broker
from gateway.broker.processors.turns import check_listed_queues, end_turn
from gateway.broker.statistics.traffic_rates import GROUP_GET
from gateway.broker.topics.encoded_entries import encode_member, fill_empty
from gateway.broker.topics.name_validation import check_group_name, check_may_commit
from remoting.bodies.progress import (
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    ResetOffsetBody,
)
from remoting.bodies.queues import MessageQueue
from remoting.bodies.topics import TopicConfig
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.client import GetConsumerStatusFromClient
from remoting.requests.offsets import (
    CloneGroupOffset,
    GetBrokerConsumeStats,
    GetBrokerConsumeStatsReply,
    GetConsumeStats,
    GetConsumeStatsReply,
    InvokeBrokerToGetConsumerStatus,
    InvokeBrokerToGetConsumerStatusReply,
    InvokeBrokerToResetOffset,
    InvokeBrokerToResetOffsetReply,
    QueryConsumeTimeSpan,
    QueryConsumeTimeSpanReply,
    QueryCorrectionOffset,
    QueryCorrectionOffsetReply,
)
from storage.time_search import Boundary

handlers: HandlerTable[Broker] = HandlerTable()

LONG_MAX = 2**63 - 1
CLIENT_TIMEOUT_S = 5.0


def _message_queue(broker: Broker, topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker.config.broker_name, queue_id=queue_id)


def _queue_progress(broker: Broker, group: str, topic: str, queue_id: int) -> OffsetWrapper:
    consumed = max(0, broker.offsets.query_offset(group, topic, queue_id))
    stored_ms = broker.store.store_timestamp_at(topic, queue_id, consumed - 1) if consumed else 0
    return OffsetWrapper(
        broker_offset=broker.store.max_offset(topic, queue_id),
        consumer_offset=consumed,
        pull_offset=max(consumed, broker.offsets.query_pull(group, topic, queue_id)),
        last_timestamp=max(0, stored_ms),
    )


@GetConsumeStats.on(handlers)
async def get_consume_stats(broker: Broker, request: GetConsumeStats) -> GetConsumeStatsReply:
    """Return end offsets and consumer offsets by queue. Source: AdminBrokerProcessor.getConsumeStats, 5.4.0."""
    group = request.consumer_group
    progress = ListedProgress(broker)
    rate = 0.0
    for number, topic in enumerate(_requested_topics(broker, request)):
        config = broker.topics.get(topic)
        await progress.add_queues(group, topic, config.read_queue_nums if config else 0)
        rate += broker.rates.count(GROUP_GET, (group, topic)).per_second
        await end_turn(number)
    reply = GetConsumeStatsReply(data=ConsumeStats(consume_tps=rate))
    reply.body = fill_empty(reply.data, "offsetTable", progress.members)
    return reply


class ListedProgress:
    """The encoded progress of queues, for one answer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.members: list[bytes] = []
        self.total_diff = 0
        self.total_inflight_diff = 0

    async def add_queues(self, group: str, topic: str, queues: int) -> None:
        """Add the queues of a topic. Raises RequestError for too many in all."""
        broker = self._broker
        for queue_id in broker.topics.queue_ids(queues):
            progress = _queue_progress(broker, group, topic, queue_id)
            self.members.append(encode_member(_message_queue(broker, topic, queue_id), progress))
            self.total_diff += progress.broker_offset - progress.consumer_offset
            self.total_inflight_diff += progress.pull_offset - progress.consumer_offset
            # All topics of the answer share a turn: most have fewer queues than one turn lists.
            await end_turn(len(self.members))
        check_listed_queues(len(self.members))


def _requested_topics(broker: Broker, request: GetConsumeStats) -> list[str]:
    listed = dict.fromkeys(topic for topic in (request.topic_list or "").split(";") if topic.strip())
    if listed:
        return [topic for topic in listed if topic in broker.topics]
    group, topic = request.consumer_group, request.topic
    topics = [topic] if topic and topic.strip() else sorted(broker.offsets.topics_of_group(group))
    return [topic for topic in topics if broker.clients.may_consume(group, topic)]


@GetBrokerConsumeStats.on(handlers)
async def get_broker_consume_stats(
    broker: Broker, request: GetBrokerConsumeStats, call: Call
) -> GetBrokerConsumeStatsReply:
    """Return the progress of every group. Source: AdminBrokerProcessor.fetchAllConsumeStatsInBroker, 5.4.0."""
    host, port = broker.hosts.address_for(call.connection)
    progress, groups = ListedProgress(broker), []
    for number, group in enumerate(list(broker.groups.table)):
        stats = [
            await _encode_stats(progress, broker, group, topic)
            for topic in _consumed_topics(broker, group, request.is_order)
        ]
        groups.append(b"{%s:[%s]}" % (fastjson.dumps(group), b",".join(stats)))
        await end_turn(number)
    body = ConsumeStatsList(
        broker_addr=f"{host}:{port}",
        total_diff=_as_long(progress.total_diff),
        total_inflight_diff=_as_long(progress.total_inflight_diff),
    )
    reply = GetBrokerConsumeStatsReply(data=body)
    reply.body = fill_empty(body, "consumeStatsList", groups)
    return reply


def _as_long(total: int) -> int:
    """Return a total within Java's long: clients may commit offsets whose differences add up to more."""
    return min(max(total, I64.low), I64.high)


def _consumed_topics(broker: Broker, group: str, ordered_only: bool) -> Iterator[TopicConfig]:
    for topic in sorted(broker.offsets.topics_of_group(group)):
        config = broker.topics.get(topic)
        if config is None or (ordered_only and not config.order):
            continue
        if broker.clients.may_consume(group, topic):
            yield config


async def _encode_stats(progress: ListedProgress, broker: Broker, group: str, config: TopicConfig) -> bytes:
    """Return the JSON of one group's progress in one topic, which is added to ``progress``."""
    before, topic = len(progress.members), config.topic_name
    await progress.add_queues(group, topic, config.write_queue_nums)
    stats = ConsumeStats(consume_tps=broker.rates.count(GROUP_GET, (group, topic)).per_second)
    return fill_empty(stats, "offsetTable", progress.members[before:])


@InvokeBrokerToResetOffset.on(handlers)
async def reset_offset(broker: Broker, request: InvokeBrokerToResetOffset) -> InvokeBrokerToResetOffsetReply:
    """Set a group's offsets to a time or a number. Its next pull of each queue starts there.

    Source: AdminBrokerProcessor.resetOffsetInner, 5.4.0. Deviation: even with useServerSideResetOffset=false the
    broker does not ask online members to reset themselves; they notice at their next pull.
    """
    topic, group = request.topic, request.group
    config = broker.topics.get(topic)
    if config is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
    if group not in broker.groups:
        raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
    check_may_commit(group, topic)
    if request.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
        remark = f"queueId[{request.queue_id}] is illegal, topic:[{topic}] has fewer queues"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
    if request.queue_id >= 0:
        offsets = {request.queue_id: _reset_target(broker, request)}
    else:
        offsets = {}
        for queue_id in broker.topics.queue_ids(config.read_queue_nums):
            offsets[queue_id] = _offset_at(broker, topic, queue_id, request.timestamp)
            await end_turn(queue_id)
    if not offsets:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    for queue_id, offset in offsets.items():
        broker.offsets.assign_reset(group, topic, queue_id, offset)
        # A waiting pull of the group is answered with the reset at once.
        broker.long_polls.try_pulls(topic, queue_id)
    table = {_message_queue(broker, topic, queue_id): offset for queue_id, offset in offsets.items()}
    return InvokeBrokerToResetOffsetReply(data=ResetOffsetBody(offset_table=table))


def _reset_target(broker: Broker, request: InvokeBrokerToResetOffset) -> int:
    topic, queue_id, offset = request.topic, request.queue_id, request.offset
    if offset is None or offset == -1:
        return _offset_at(broker, topic, queue_id, request.timestamp)
    low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
    if not low <= offset <= high + 1:
        remark = f"Target offset {offset} not in consume queue range [{low}-{high}]"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    return offset


def _offset_at(broker: Broker, topic: str, queue_id: int, timestamp_ms: int) -> int:
    if timestamp_ms < 0:
        return broker.store.max_offset(topic, queue_id)
    return broker.store.offset_by_time(topic, queue_id, timestamp_ms, Boundary.LOWER)


@InvokeBrokerToGetConsumerStatus.on(handlers)
async def get_consumer_status(
    broker: Broker, request: InvokeBrokerToGetConsumerStatus
) -> InvokeBrokerToGetConsumerStatusReply:
    """Query online members for their current offsets. Source: Broker2Client.getConsumeStatus, 5.4.0."""
    members = broker.clients.consumer_group(request.group)
    if members is None:
        remark = f"No Any Consumer online in the consumer group: [{request.group}]"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    question = GetConsumerStatusFromClient(topic=request.topic, group=request.group)
    body = GetConsumerStatusBody()
    for client in list(members.clients.values()):
        if request.client_addr and request.client_addr != client.client_id:
            continue
        try:
            reply = await client.connection.ask(question, CLIENT_TIMEOUT_S)
        except (RemotingTimeout, RemotingClosed, RequestError):
            continue
        body.consumer_table[client.client_id] = reply.data.message_queue_table
    return InvokeBrokerToGetConsumerStatusReply(data=body)


@QueryConsumeTimeSpan.on(handlers)
async def get_time_span(broker: Broker, request: QueryConsumeTimeSpan) -> QueryConsumeTimeSpanReply:
    """Return the ages of a topic's queues and of the messages that a group has not consumed.

    Source: AdminBrokerProcessor.queryConsumeTimeSpan, 5.4.0.
    """
    config = broker.topics.get(request.topic)
    if config is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist")
    spans = []
    for queue_id in broker.topics.queue_ids(config.write_queue_nums):
        spans.append(_queue_time_span(broker, request, queue_id).to_json())
        await end_turn(queue_id)
    reply = QueryConsumeTimeSpanReply(data=QueryConsumeTimeSpanBody())
    reply.body = fill_empty(reply.data, "consumeTimeSpanSet", spans)
    return reply


def _queue_time_span(broker: Broker, request: QueryConsumeTimeSpan, queue_id: int) -> QueueTimeSpan:
    topic, store = request.topic, broker.store
    end = store.max_offset(topic, queue_id)
    consumed = broker.offsets.query_offset(request.group, topic, queue_id)
    oldest = store.earliest_store_timestamp(topic, queue_id)
    span = QueueTimeSpan(
        message_queue=_message_queue(broker, topic, queue_id),
        min_time_stamp=oldest,
        max_time_stamp=store.store_timestamp_at(topic, queue_id, end - 1),
        consume_time_stamp=store.store_timestamp_at(topic, queue_id, consumed - 1)
        if consumed > 0
        else oldest,
    )
    if consumed < end:
        span.delay_time = broker.clock.now_ms() - store.store_timestamp_at(topic, queue_id, consumed)
    return span


@QueryCorrectionOffset.on(handlers)
async def get_correction_offsets(
    broker: Broker, request: QueryCorrectionOffset
) -> QueryCorrectionOffsetReply:
    """Return the smallest offset of any group per queue, compared with one group's offsets.

    Source: AdminBrokerProcessor.queryCorrectionOffset, 5.4.0.
    """
    without = {group for group in (request.filter_groups or "").split(",") if group.strip()}
    smallest: dict[int, int] = {}
    for number, group in enumerate(broker.offsets.groups_of_topic(request.topic) - without):
        broker.offsets.lower_to_group(smallest, group, request.topic, broker.store.min_offset)
        await end_turn(number, 1)  # A group may have offsets of thousands of queues.
    compared = broker.offsets.queue_offsets(request.compare_group, request.topic) or {}
    for queue_id, offset in compared.items():
        if smallest.get(queue_id, LONG_MAX) > offset:
            smallest[queue_id] = LONG_MAX
    return QueryCorrectionOffsetReply(data=QueryCorrectionOffsetBody(correction_offsets=smallest))


@CloneGroupOffset.on(handlers)
async def clone_offsets(broker: Broker, request: CloneGroupOffset) -> None:
    """Copy one group's offsets to another, in one topic or all.

    Source: AdminBrokerProcessor.cloneGroupOffset, 5.4.0. Deviation: a request without a topic clones the offsets of
    all topics; the official broker then clones none.
    """
    source = request.src_group
    check_group_name(request.dest_group, broker.groups.table)
    topics = (
        {request.topic} if request.topic and request.topic.strip() else broker.offsets.topics_of_group(source)
    )
    for number, topic in enumerate(topics):
        await end_turn(number)
        check_may_commit(request.dest_group, topic)
        if topic in broker.topics and (request.offline or broker.clients.may_consume(source, topic)):
            broker.offsets.clone_offsets(source, request.dest_group, topic)
