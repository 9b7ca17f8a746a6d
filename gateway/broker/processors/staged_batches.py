"""Requests that stage messages and publish them as one batch (private codes, enabled by ``stagedPublish``).

Only plain messages of plain topics can be staged. The batches themselves live in
`gateway/broker/requests/staged_batches.py`.
"""

import re
from typing import Final

from codec.batch import split_batch
from codec.constants import FAQ, ResponseCode
from codec.errors import MessageFormatError
from codec.properties import (
    DELAY_TIME_LEVEL,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    find_property,
)
from codec.sysflag import COMPRESSED, COMPRESSION_MASK
from codec.topics import (
    PERM_WRITE,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
)
from gateway.broker.broker import Broker
from gateway.broker.messages.message_writer import store_refusal
from gateway.broker.processors.turns import end_turn
from gateway.broker.requests.send_handler import MAX_BATCH_TOPIC_LENGTH
from gateway.broker.requests.staged_batches import UNIQUE_KEY, BatchIncomplete, StagedBatches
from gateway.broker.topics.name_validation import closed_topic_refusal
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.staging import (
    GetStagingState,
    PublishStaged,
    PublishStagedReply,
    StageMessages,
    StagingStateReply,
)
from storage.append import check_message_parts
from storage.errors import MessageIllegal, StoreFull
from storage.staged_files import StagedPart

handlers: HandlerTable[Broker] = HandlerTable()

MESSAGES_PER_SLICE: Final = 512
"""Staged messages that are checked in one turn, which takes about 5 ms."""
_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_DELIVERED_LATER: Final = tuple(
    name.encode()
    for name in (DELAY_TIME_LEVEL, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TRANSACTION_PREPARED)
)


@GetStagingState.on(handlers)
def get_staging_state(broker: Broker, request: GetStagingState) -> StagingStateReply:
    """Return the number of the writer's last published batch."""
    return StagingStateReply(
        published=_require_staging(broker, request).last_published_batch(_check_name(request.writer))
    )


@StageMessages.on(handlers)
async def stage_messages(broker: Broker, request: StageMessages, call: Call) -> StagingStateReply:
    """Store a part of a batch. It is on disk before the request is answered."""
    staging = _require_staging(broker, request)
    published = staging.last_published_batch(_check_name(request.writer))
    if request.batch <= published:
        return StagingStateReply(published=published)
    _check_topic(broker, request)
    await _check_messages(broker, request)
    view = broker.hosts.view_of(call.connection)
    piece = StagedPart(
        request.topic,
        request.queue_id,
        request.sys_flag & (COMPRESSED | COMPRESSION_MASK),
        request.born_timestamp,
        view.born_host,
        view.store_host,
        bytes(request.body),
    )
    try:
        await staging.stage_part(
            request.writer, request.batch, _check_name(request.stage), request.number, piece
        )
    except StoreFull as error:
        raise store_refusal(error, broker.config.store.max_message_size_bytes) from error
    return StagingStateReply(published=published)


@PublishStaged.on(handlers)
async def publish_staged(broker: Broker, request: PublishStaged) -> PublishStagedReply:
    """Publish a batch; answer when all its messages are in their queues and on disk."""
    staging = _require_staging(broker, request)
    stages = [(_check_name(stage.name), stage.pieces) for stage in request.data.stages]
    try:
        count = await staging.publish_batch(
            _check_name(request.writer), request.batch, stages, stream=request.stream
        )
    except BatchIncomplete as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    except (MessageIllegal, StoreFull) as error:
        raise store_refusal(error, broker.config.store.max_message_size_bytes) from error
    return PublishStagedReply(messages=count)


def _require_staging(
    broker: Broker, request: GetStagingState | StageMessages | PublishStaged
) -> StagedBatches:
    if broker.staged_batches is None:
        remark = f" request type {request.code} not supported: stagedPublish is not set at this broker"
        raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
    return broker.staged_batches


def _check_name(name: str) -> str:
    """Return a name that becomes part of a file name. Raise RequestError for an unsuitable one."""
    if not _NAME.fullmatch(name):
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name!r} names no writer or stage")
    return name


def _check_topic(broker: Broker, request: StageMessages) -> None:
    topic, config = request.topic, broker.topics.get(request.topic)
    system = topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)
    if system or topic.startswith(RETRY_PREFIX) or len(topic) > MAX_BATCH_TOPIC_LENGTH:
        raise closed_topic_refusal(topic)
    if config is None:
        remark = f"topic[{topic}] not exist, apply first please!{FAQ}"
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
    if not config.perm & broker.config.broker_permission & PERM_WRITE:
        raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
    if not 0 <= request.queue_id < config.write_queue_nums:
        remark = f"request queueId[{request.queue_id}] is illegal, topic[{topic}] has fewer queues"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
    if request.batch < 0 or request.number < 0:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "batches and pieces are counted from 0")


async def _check_messages(broker: Broker, request: StageMessages) -> None:
    max_bytes = broker.config.store.max_message_size_bytes
    if not request.body or len(request.body) > max_bytes:
        raise store_refusal(MessageIllegal("too large, or nothing"), max_bytes)
    try:
        for number, (_, body, properties) in enumerate(split_batch(request.body)):
            await end_turn(number, MESSAGES_PER_SLICE)
            _check_message(broker, body, properties)
    except MessageFormatError as error:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _check_message(broker: Broker, body: bytes, properties: bytes) -> None:
    if not body or find_property(properties, UNIQUE_KEY) is None:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a staged message needs a body and a unique key")
    if any(find_property(properties, name) is not None for name in _DELIVERED_LATER):
        remark = "a staged message can be neither delayed nor transactional"
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)
    _check_properties(broker, properties)


def _check_properties(broker: Broker, properties: bytes) -> None:
    """Refuse properties with which the message could not be stored when its batch is published."""
    try:
        check_message_parts(
            0, 0, properties.removesuffix(b"\2") + b"\2" + broker.send_handler.own_properties_bytes
        )
    except MessageIllegal as error:
        raise store_refusal(error, broker.config.store.max_message_size_bytes) from error
