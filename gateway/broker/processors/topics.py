"""Requests about topics: create, change, list, delete."""

from functools import partial

import trio

from codec.constants import ResponseCode
from codec.topics import RETRY_PREFIX, is_system_topic
from gateway.broker.broker import Broker
from gateway.broker.processors.log_expiry import expire_messages
from gateway.broker.processors.turns import ITEMS_PER_TURN, end_turn, run_in_slices
from gateway.broker.statistics.traffic_rates import TOPIC_PUT
from gateway.broker.topics.attributes import MESSAGE_TYPE, UNSUPPORTED_ATTRIBUTES, parse_modification
from gateway.broker.topics.encoded_entries import encode_member, fill_empty, select_page
from gateway.broker.topics.name_validation import check_topic_name
from remoting.bodies.groups import GroupList
from remoting.bodies.queues import MessageQueue
from remoting.bodies.topics import (
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigAndQueueMapping,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.topics import (
    CleanExpiredConsumequeue,
    CleanUnusedTopic,
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetAllTopicConfigReply,
    GetSystemTopicListFromBroker,
    GetSystemTopicListFromBrokerReply,
    GetTopicConfig,
    GetTopicConfigReply,
    GetTopicStatsInfo,
    GetTopicStatsInfoReply,
    QueryTopicConsumeByWho,
    QueryTopicConsumeByWhoReply,
    QueryTopicsByConsumer,
    QueryTopicsByConsumerReply,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)
from storage.errors import StoreFull

handlers: HandlerTable[Broker] = HandlerTable()


@UpdateAndCreateTopic.on(handlers)
async def update_topic(broker: Broker, request: UpdateAndCreateTopic) -> None:
    """Create or change one topic. Source: AdminBrokerProcessor.updateAndCreateTopic, 5.4.0."""
    with broker.stats.topic_changes.measure(broker.clock, is_system_topic(request.topic)):
        await _update_topic(broker, request)


async def _update_topic(broker: Broker, request: UpdateAndCreateTopic) -> None:
    try:
        attributes = parse_modification(request.attributes)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
    config = TopicConfig(
        topic_name=request.topic,
        read_queue_nums=request.read_queue_nums,
        write_queue_nums=request.write_queue_nums,
        perm=request.perm,
        topic_filter_type=request.topic_filter_type,
        topic_sys_flag=request.topic_sys_flag or 0,
        order=request.order,
        attributes=attributes,
    )
    _check_update(broker, config)
    async with broker.topics.stored_change():
        _update_topics(broker, [config])


@UpdateAndCreateTopicList.on(handlers)
async def update_topics(broker: Broker, request: UpdateAndCreateTopicList) -> None:
    """Create or change several topics; none if the name or type of one is refused.

    Source: AdminBrokerProcessor.updateAndCreateTopicList, 5.4.0. Deviation: the official broker changes none if one
    topic of the list needs no change; this one changes the others. It changes them in slices, so that those before one
    with invalid attributes, or beyond a limit, are changed.
    """
    with broker.stats.topic_changes.measure(broker.clock):
        await _update_all(broker, request.data.topic_config_list)


async def _update_all(broker: Broker, configs: list[TopicConfig]) -> None:
    for number, config in enumerate(configs):
        _check_update(broker, config)
        await end_turn(number)
    async with broker.topics.stored_change():
        for start in range(0, len(configs), ITEMS_PER_TURN):
            _update_topics(broker, configs[start : start + ITEMS_PER_TURN])
            await trio.lowlevel.checkpoint()


def _check_update(broker: Broker, config: TopicConfig) -> None:
    check_topic_name(config.topic_name)
    _refuse_system_topic(broker, config.topic_name)
    if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        remark = f"topicFilterType = [{config.topic_filter_type}] value invalid"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    mixed = config.attributes.get("+" + MESSAGE_TYPE) == "MIXED"
    if mixed and not broker.config.enable_mixed_message_type:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
    for key, value in UNSUPPORTED_ATTRIBUTES.items():
        if config.attributes.get("+" + key) == value:
            remark = f"{key}={value} is not supported by this broker."
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)


def _refuse_system_topic(broker: Broker, topic: str) -> None:
    if broker.config.validate_system_topic_when_update_topic and broker.topics.is_system(topic):
        remark = f"The topic[{topic}] is conflict with system topic."
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)


def _update_topics(broker: Broker, configs: list[TopicConfig]) -> None:
    changed = [config for config in configs if broker.topics.get(config.topic_name) != config]
    if not changed:
        return
    try:
        broker.topics.update(changed)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error


@DeleteTopicInBroker.on(handlers)
async def delete_topic(broker: Broker, request: DeleteTopicInBroker) -> None:
    """Delete a topic, its queues and its groups' offsets.

    Source: AdminBrokerProcessor.deleteTopic, 5.4.0.
    """
    topic = request.topic
    if not topic.strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    _refuse_system_topic(broker, topic)
    deleted_topics = [topic]
    if broker.config.clear_retry_topic_when_delete_topic:
        groups = broker.offsets.groups_of_topic(topic)
        pop_retry = (f"{RETRY_PREFIX}{group}{mark}{topic}" for group in groups for mark in "+_")
        deleted_topics += [name for name in pop_retry if name in broker.topics]
    with broker.topics.no_creation(deleted_topics):
        # The table first, and offsets and messages only once it is stored: they could not be brought back. If the
        # process is killed between the two, the announcement has the next start delete the messages.
        configs = {name: broker.topics.get(name) for name in deleted_topics}
        with trio.CancelScope(shield=True):
            await _announce_deletion(broker, deleted_topics)
            async with broker.topics.stored_change():
                for name in deleted_topics:
                    broker.topics.delete(name)
        try:
            for name in deleted_topics:
                if configs[name] is not None or name in broker.store.topics():
                    await _delete_messages(broker, name)
                configs[name] = None
        except RequestError:
            for config in filter(None, configs.values()):
                broker.topics.put_back(config)
            raise
        await save_offsets(broker, "topic")


async def _announce_deletion(broker: Broker, topics: list[str]) -> None:
    try:
        await broker.topics.file.run_blocking(partial(broker.store.announce_deletions, topics))
    except (StoreFull, OSError) as error:
        remark = f"the change was not stored and is undone: it cannot be announced ({_reason(error)})"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error


def _reason(error: StoreFull | OSError) -> str:
    return error.reason if isinstance(error, StoreFull) else error.strerror or str(error)


async def save_offsets(broker: Broker, kind: str) -> None:
    """Write the tables without the offsets of a deleted topic or group, before one of its name may be created.

    If the process were killed before the next save, the groups of a new topic would skip its first messages, and a new
    group would go on where the deleted one ended. ``kind`` is the one that was deleted. Raises RequestError.

    As in every save of offsets, that is after the table that says which of them pops have moved.
    """
    takeover = broker.replication.takeover
    try:
        with trio.CancelScope(shield=True):
            async with takeover.saving_progress:
                await takeover.save_with_offsets(broker.offsets)
            await broker.pop.state.ordered_pops.save_changes()
    except (StoreFull, OSError) as error:
        remark = (
            f"the {kind} is deleted, but its offsets are not yet: they cannot be written ({_reason(error)})"
        )
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error


async def _delete_messages(broker: Broker, topic: str) -> None:
    """Delete the queues of a topic and everything that refers to its messages. Raises RequestError if not noted.

    A topic of the same name may be created afterwards, and gives the same offsets to other messages: whatever
    remembered an offset of the old ones would skip, repeat or block new ones. Messages for the topic that wait in
    queues of other topics (delayed, for a timer, half messages) are dropped when they are due: `MessageStore` tells
    that they were stored before the deletion.
    """
    slices = broker.store.delete_topic_in_slices(topic)
    try:
        with trio.CancelScope(shield=True):
            await broker.topics.file.run_blocking(partial(next, slices, None))
    except (StoreFull, OSError) as error:
        remark = f"the topic was not deleted: that cannot be noted ({_reason(error)})"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error
    pops = broker.pop.state
    broker.offsets.remove_topic(topic)
    broker.queue_locks.forget_topic(topic)
    broker.broadcasts.forget_topic(topic)
    pops.ordered_pops.forget_topic(topic)
    dropped_pops = pops.reviver.forget_topic(topic)
    if broker.timer_delivery is not None:
        broker.timer_delivery.metrics.remove_topic(topic)
    broker.stats.forget_topic(topic)
    broker.long_polls.answer_topic(topic, pops.waiting_pops.waiting_requests(topic))
    await run_in_slices(dropped_pops)
    await run_in_slices(slices)


async def _delete_queues(broker: Broker, topic: str) -> None:
    """Delete the queues of a topic. The first slice waits for the disk, so it has a thread, and is not cancelled."""
    slices = broker.store.delete_topic_in_slices(topic)
    with trio.CancelScope(shield=True):
        await broker.topics.file.run_blocking(partial(next, slices, None))
    await run_in_slices(slices)


@GetAllTopicConfig.on(handlers)
def get_all_topics(broker: Broker, request: GetAllTopicConfig) -> GetAllTopicConfigReply:
    """Return all topics, or one page of them by name. Source: AdminBrokerProcessor.getAllTopicConfig, 5.4.0."""
    topics = broker.topics
    page = select_page(
        topics.encoded, topics.version, request.data_version, request.topic_seq, request.max_topic_num
    )
    body = TopicConfigAndMappingSerializeWrapper(data_version=topics.version)
    reply = GetAllTopicConfigReply(total_topic_num=len(topics.table), data=body)
    reply.body = topics.encoded.fill(body, "topicConfigTable", page)
    return reply


@GetTopicConfig.on(handlers)
def get_topic(broker: Broker, request: GetTopicConfig) -> GetTopicConfigReply:
    """Return one topic. Source: AdminBrokerProcessor.getTopicConfig, 5.4.0."""
    config = broker.topics.get(request.topic)
    if config is None:
        remark = f"No topic in this broker. topic: {request.topic}"
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
    return GetTopicConfigReply(data=TopicConfigAndQueueMapping.from_value(config.to_value()))


@GetTopicStatsInfo.on(handlers)
async def get_topic_stats(broker: Broker, request: GetTopicStatsInfo) -> GetTopicStatsInfoReply:
    """Return the beginning and end of each queue. Source: AdminBrokerProcessor.getTopicStatsInfo, 5.4.0."""
    topic = request.topic
    config = broker.topics.get(topic)
    if config is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    members = []
    for queue_id in broker.topics.queue_ids(max(config.write_queue_nums, config.read_queue_nums)):
        queue = MessageQueue(topic=topic, broker_name=broker.config.broker_name, queue_id=queue_id)
        members.append(encode_member(queue, _topic_offset(broker, topic, queue_id)))
        await end_turn(queue_id)
    reply = GetTopicStatsInfoReply(
        data=TopicStatsTable(topic_put_tps=broker.rates.count(TOPIC_PUT, topic).per_second)
    )
    reply.body = fill_empty(reply.data, "offsetTable", members)
    return reply


def _topic_offset(broker: Broker, topic: str, queue_id: int) -> TopicOffset:
    end = broker.store.max_offset(topic, queue_id)
    return TopicOffset(
        min_offset=broker.store.min_offset(topic, queue_id),
        max_offset=end,
        last_update_timestamp=broker.store.store_timestamp_at(topic, queue_id, end - 1) if end > 0 else 0,
    )


@QueryTopicConsumeByWho.on(handlers)
def groups_of_topic(broker: Broker, request: QueryTopicConsumeByWho) -> QueryTopicConsumeByWhoReply:
    """Return groups that are online or have offsets in a topic.

    Source: AdminBrokerProcessor.queryTopicConsumeByWho, 5.4.0.
    """
    groups = broker.clients.groups_of_topic(request.topic) | broker.offsets.groups_of_topic(request.topic)
    return QueryTopicConsumeByWhoReply(data=GroupList(group_list=sorted(groups)))


@QueryTopicsByConsumer.on(handlers)
def topics_of_group(broker: Broker, request: QueryTopicsByConsumer, call: Call) -> QueryTopicsByConsumerReply:
    """Return topics in which a group has offsets. Source: AdminBrokerProcessor.queryTopicsByConsumer, 5.4.0."""
    host, port = broker.hosts.address_for(call.connection)
    topics = sorted(broker.offsets.topics_of_group(request.group))
    return QueryTopicsByConsumerReply(data=TopicList(topic_list=topics, broker_addr=f"{host}:{port}"))


@GetSystemTopicListFromBroker.on(handlers)
def system_topics(broker: Broker, request: GetSystemTopicListFromBroker) -> GetSystemTopicListFromBrokerReply:
    """Return the broker's own topics. Source: AdminBrokerProcessor.getSystemTopicListFromBroker, 5.4.0."""
    return GetSystemTopicListFromBrokerReply(data=TopicList(topic_list=sorted(broker.topics.system_topics)))


@CleanUnusedTopic.on(handlers)
async def clean_unused_topics(broker: Broker, request: CleanUnusedTopic) -> None:
    """Delete the queues of topics that no longer exist, except those of the broker's own topics.
    Source: DefaultMessageStore.cleanUnusedTopic.
    """
    for number, topic in enumerate(broker.store.topics()):
        if topic not in broker.topics and not broker.topics.is_system(topic):
            await _delete_queues(broker, topic)
        await end_turn(number)


@CleanExpiredConsumequeue.on(handlers)
async def clean_expired_queues(broker: Broker, request: CleanExpiredConsumequeue) -> None:
    """Delete queue files whose messages have expired.

    Source: AdminBrokerProcessor.cleanExpiredConsumeQueue, 5.4.0.
    """
    max_files = broker.config.store.delete_files_max
    await expire_messages(broker.store, broker.topics.file.run_blocking, max_files)
