"""Requests about offsets of queues and consumer groups. Statistics and resets live in `consume_progress.py`."""

from typing import Final

from codec.constants import ResponseCode
from gateway.broker.broker import Broker
from gateway.broker.consumers.broadcast_offsets import is_first_message_in_memory
from gateway.broker.topics.name_validation import check_may_commit
from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import HandlerTable
from remoting.requests.offsets import (
    GetAllConsumerOffset,
    GetAllConsumerOffsetReply,
    GetAllDelayOffset,
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeReply,
    GetMaxOffset,
    GetMaxOffsetReply,
    GetMinOffset,
    GetMinOffsetReply,
    QueryConsumerOffset,
    QueryConsumerOffsetReply,
    SearchOffsetByTimestamp,
    SearchOffsetByTimestampReply,
    UpdateConsumerOffset,
)
from storage.time_search import Boundary

handlers: HandlerTable[Broker] = HandlerTable()

NEW_GROUP: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
NEW_GROUP_NOT_ZERO: Final = "Not found, do not set to zero, maybe this group boot first"


@QueryConsumerOffset.on(handlers)
def query_consumer_offset(broker: Broker, request: QueryConsumerOffset) -> QueryConsumerOffsetReply:
    """Return a group's consumer offset. A new group starts at 0 if the first message is still there and in memory.

    Source: ConsumerManageProcessor.queryConsumerOffset, 5.4.0.
    """
    topic, queue_id = request.topic, request.queue_id
    offset = broker.offsets.query_offset(request.consumer_group, topic, queue_id)
    if offset >= 0:
        return QueryConsumerOffsetReply(offset=offset)
    if request.set_zero_if_not_found is False:
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, NEW_GROUP_NOT_ZERO)
    if broker.store.min_offset(topic, queue_id) <= 0 and is_first_message_in_memory(
        broker.store, topic, queue_id
    ):
        return QueryConsumerOffsetReply(offset=0)
    raise RequestError(ResponseCode.QUERY_NOT_FOUND, NEW_GROUP)


@UpdateConsumerOffset.on(handlers)
def update_consumer_offset(broker: Broker, request: UpdateConsumerOffset) -> Header | None:
    """Commit a consumer offset. Source: ConsumerManageProcessor.updateConsumerOffset, 5.4.0."""
    group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
    if group not in broker.groups:
        raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    if topic not in broker.topics:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
    check_may_commit(group, topic)
    if broker.offsets.server_side_reset and broker.offsets.has_reset(group, topic, queue_id):
        reply = Header()
        reply.remark = "Offset has been previously reset"
        return reply
    broker.offsets.commit_of_client(group, topic, queue_id, request.commit_offset)
    return None


@GetMaxOffset.on(handlers)
def get_max_offset(broker: Broker, request: GetMaxOffset) -> GetMaxOffsetReply:
    """Return the end of a queue, exclusive. Source: AdminBrokerProcessor.getMaxOffset, 5.4.0."""
    return GetMaxOffsetReply(offset=broker.store.max_offset(request.topic, request.queue_id))


@GetMinOffset.on(handlers)
def get_min_offset(broker: Broker, request: GetMinOffset) -> GetMinOffsetReply:
    """Return the beginning of a queue, inclusive. Source: AdminBrokerProcessor.getMinOffset, 5.4.0."""
    return GetMinOffsetReply(offset=broker.store.min_offset(request.topic, request.queue_id))


@SearchOffsetByTimestamp.on(handlers)
def search_offset_by_timestamp(
    broker: Broker, request: SearchOffsetByTimestamp
) -> SearchOffsetByTimestampReply:
    """Return the queue offset that belongs to a store time.

    Source: AdminBrokerProcessor.searchOffsetByTimestamp, 5.4.0.
    """
    upper = (request.boundary_type or "").upper() == "UPPER"
    boundary = Boundary.UPPER if upper else Boundary.LOWER
    offset = broker.store.offset_by_time(request.topic, request.queue_id, request.timestamp, boundary)
    return SearchOffsetByTimestampReply(offset=offset)


@GetEarliestMsgStoretime.on(handlers)
def get_earliest_store_time(broker: Broker, request: GetEarliestMsgStoretime) -> GetEarliestMsgStoretimeReply:
    """Return the store time of a queue's first message.

    Source: AdminBrokerProcessor.getEarliestMsgStoretime, 5.4.0.
    """
    timestamp = broker.store.earliest_store_timestamp(request.topic, request.queue_id)
    return GetEarliestMsgStoretimeReply(timestamp=timestamp)


@GetAllConsumerOffset.on(handlers)
async def get_all_consumer_offset(broker: Broker, request: GetAllConsumerOffset) -> GetAllConsumerOffsetReply:
    """Return all groups' offsets. Source: AdminBrokerProcessor.getAllConsumerOffset, 5.4.0."""
    reply = GetAllConsumerOffsetReply(data=ConsumerOffsetSerializeWrapper())
    reply.body = await broker.offsets.encode()
    return reply


@GetAllDelayOffset.on(handlers)
def get_all_delay_offset(broker: Broker, request: GetAllDelayOffset) -> Header:
    """Return the delivered offset of each delay level. Source: AdminBrokerProcessor.getAllDelayOffset, 5.4.0."""
    reply = Header()
    reply.body = broker.delay_service.to_json()
    return reply
