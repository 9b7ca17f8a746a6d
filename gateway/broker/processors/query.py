"""Queries for messages: by key, by unique key, by id, by queue entry."""

from typing import Final

import trio

from codec.constants import ResponseCode
from codec.message import decode_message
from gateway.broker.broker import Broker
from gateway.broker.messages.stored_messages import find_stored
from gateway.broker.processors.turns import end_turn
from remoting.bodies.progress import ConsumeQueueData, QueryConsumeQueueResponseBody
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import HandlerTable
from remoting.requests.query import (
    QueryConsumeQueue,
    QueryConsumeQueueReply,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)

handlers: HandlerTable[Broker] = HandlerTable()

UNIQUE_KEY: Final = "U"
TAG: Final = "T"
MAX_QUEUE_ENTRIES: Final = 10_000
ENTRIES_PER_SLICE: Final = 100
INDEX_SLICE_MESSAGES: Final = 100
MAX_UNINDEXED_SEARCH_BYTES: Final = 512 * 1024 * 1024
"""Bytes of messages without index entries that a query searches, in about half a second of slices.

More than that waits for its index entries only after the index was lost or a load outran it.
"""
MAX_ANSWER_BYTES: Final = 15 * 1024 * 1024
"""Largest total size of the messages in an answer; a stock client reads no frame of more than 16 MiB."""


@QueryMessage.on(handlers)
async def query_message(broker: Broker, request: QueryMessage) -> QueryMessageReply:
    """Return the newest messages of a topic that carry a key, as stored, in the order of the log.

    Source: QueryMessageProcessor.queryMessage, DefaultMessageStore.queryMessage, 5.4.0. Deviation: the index knows
    hashes only; the official broker also answers with messages whose keys merely share the hash.
    """
    await _index_old_messages(broker)
    max_messages = broker.config.store.default_query_max if request.unique_key_query else request.max_num
    key_type = request.index_type or ""
    messages = await _find_messages(broker, request, key_type, max_messages)
    reply = QueryMessageReply(
        index_last_update_timestamp=broker.clock.now_ms(),
        index_last_update_phyoffset=broker.store.max_physical_offset,
    )
    if not messages:
        remark = "can not find message, maybe time range not correct"
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, remark, reply.to_ext())
    reply.body = b"".join(message for _, message in sorted(messages.items()))
    return reply


async def _index_old_messages(broker: Broker) -> None:
    """Index stored messages, in slices between which other tasks run, until at most MAX_UNINDEXED_SEARCH_BYTES are
    left.
    """
    index, target = broker.store.index, broker.store.max_physical_offset - MAX_UNINDEXED_SEARCH_BYTES
    while index.next_offset < target and broker.store.build_index(INDEX_SLICE_MESSAGES):
        await trio.lowlevel.checkpoint()


async def _find_messages(
    broker: Broker, request: QueryMessage, key_type: str, max_messages: int
) -> dict[int, memoryview]:
    """Return the newest messages by physical offset, as many as fit into one answer."""
    messages: dict[int, memoryview] = {}
    size = 0
    for physical_offset in broker.store.query_in_slices(
        request.topic,
        request.key,
        max_messages,
        request.begin_timestamp,
        request.end_timestamp,
        TAG if key_type == TAG else "",
    ):
        await trio.lowlevel.checkpoint()
        message = None if physical_offset is None else broker.store.message_at(physical_offset)
        if physical_offset is not None and message is not None and _has_key(message, request, key_type):
            size += len(message)
            if messages and size > MAX_ANSWER_BYTES:
                break
            messages[physical_offset] = message
    return messages


def _has_key(stored: memoryview, request: QueryMessage, key_type: str) -> bool:
    message = decode_message(stored, check_crc=False)
    if message.topic != request.topic:
        return False
    if key_type == TAG:
        return message.tags == request.key
    return message.unique_key == request.key or (key_type != UNIQUE_KEY and request.key in message.keys)


@ViewMessageById.on(handlers)
def view_message(broker: Broker, request: ViewMessageById) -> Header:
    """Return the message at a physical offset, as stored. Source: QueryMessageProcessor.viewMessageById, 5.4.0."""
    stored = find_stored(broker.store, request.offset)
    if stored is None:
        remark = f"can not find message by the offset, {request.offset}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    reply = Header()
    reply.body = bytes(stored)
    return reply


@QueryConsumeQueue.on(handlers)
async def query_consume_queue(broker: Broker, request: QueryConsumeQueue) -> QueryConsumeQueueReply:
    """Return entries of a queue. Source: AdminBrokerProcessor.queryConsumeQueue, 5.4.0."""
    topic, queue_id = request.topic or "", request.queue_id
    if not broker.store.has_queue(topic, queue_id):
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
    body = QueryConsumeQueueResponseBody(min_queue_index=low, max_queue_index=high)
    _add_subscription(broker, request, body)
    reply = QueryConsumeQueueReply(data=body)
    if low <= request.index < high:
        body.queue_data = await _queue_entries(
            broker, topic, queue_id, request.index, min(request.count, MAX_QUEUE_ENTRIES)
        )
    else:
        reply.remark = f"Index {request.index} of {queue_id}@{topic} is not exist!"
    return reply


def _add_subscription(
    broker: Broker, request: QueryConsumeQueue, body: QueryConsumeQueueResponseBody
) -> None:
    if request.consumer_group is None:
        return
    body.subscription_data = broker.clients.subscription(request.consumer_group, request.topic or "")
    if body.subscription_data is None:
        body.filter_data = f"{request.consumer_group}@{request.topic} is not online!"


async def _queue_entries(
    broker: Broker, topic: str, queue_id: int, first: int, count: int
) -> list[ConsumeQueueData]:
    """Return entries from ``first`` on, read in slices between which other tasks run: each takes about 15 us."""
    end = min(first + count, broker.store.max_offset(topic, queue_id))
    entries: list[ConsumeQueueData] = []
    for offset in range(first, end):
        entries.append(_queue_entry(broker, topic, queue_id, offset))
        await end_turn(offset - first, ENTRIES_PER_SLICE)
    return entries


def _queue_entry(broker: Broker, topic: str, queue_id: int, offset: int) -> ConsumeQueueData:
    physical_offset = broker.store.physical_offset_at(topic, queue_id, offset)
    message = broker.store.message_at(physical_offset)
    codes: list[int] = []

    def note(code: int) -> bool:
        codes.append(code)
        return True

    broker.store.read(topic, queue_id, offset, 1, predicate=note)
    size = 0 if message is None else len(message)
    return ConsumeQueueData(
        physic_offset=physical_offset, physic_size=size, tags_code=codes[0] if codes else 0
    )
