"""Requests of clients about themselves and their groups: heartbeat, unregister, check subscription, list members."""

from codec.command import Command
from codec.constants import ResponseCode
from codec.java_numbers import quoted
from codec.topics import retry_topic
from gateway.broker.client_registry import GroupMember
from gateway.broker.filter_cache import ExpressionTooLong
from gateway.broker.message_filter import is_tag_type
from gateway.broker.processors.broker import Broker
from gateway.broker.sql92 import SqlError
from gateway.broker.topic_table import unit_flags
from remoting.bodies.groups import GetConsumerListByGroupResponseBody
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.client import (
    CheckClientConfig,
    GetConsumerListByGroup,
    GetConsumerListByGroupReply,
    HeartBeat,
    HeartbeatReply,
    UnregisterClient,
)

routes: HandlerTable[Broker] = HandlerTable()


@HeartBeat.on(routes)
def heartbeat(broker: Broker, request: HeartBeat, call: Call) -> HeartbeatReply:
    """Record a client and its subscriptions.

    A fingerprint makes the heartbeat one of version 2, which may omit subscriptions. Expressions are not compiled here:
    a heartbeat may bring thousands.
    Source: ClientManageProcessor.heartBeat, 5.4.0. Deviation: a heartbeat of version 2 without
    subscriptions for a group that is unknown here (the broker restarted) is answered so that the client sends them.
    """
    beat = request.data
    for consumer in beat.consumer_data_set:
        for subscription in consumer.subscription_data_set:
            _check_subscription(broker, subscription)
    second_version = beat.heartbeat_fingerprint != 0
    changed = False
    for consumer in beat.consumer_data_set:
        if consumer.consume_type == "CONSUME_ACTIVELY" and broker.config.reject_pull_consumer_enable:
            continue
        changed = _unknown_without_subscriptions(broker, beat, consumer) or changed
        changed = (
            broker.clients.update_fingerprint(consumer.group_name, beat.heartbeat_fingerprint) or changed
        )
        _register_consumer(broker, beat, consumer, _member_of(call, beat.client_id))
    for producer in beat.producer_data_set:
        broker.clients.register_producer(producer.group_name, _member_of(call, beat.client_id))
    return HeartbeatReply(is_support_heart_beat_v2=True, is_sub_change=changed or not second_version)


def _check_subscription(broker: Broker, subscription: SubscriptionData) -> None:
    """Refuse an expression that is too long, with the tags and their hashes that the client found in it."""
    try:
        broker.filter_cache.check_subscription(subscription)
    except ExpressionTooLong as error:
        remark = f"the subscription to {quoted(subscription.topic)} is refused: {error}"
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from error


def _member_of(call: Call, client_id: str) -> GroupMember:
    command: Command = call.command
    return GroupMember(call.connection, client_id, command.language, command.version)


def _unknown_without_subscriptions(broker: Broker, beat: HeartbeatData, consumer: ConsumerData) -> bool:
    group = broker.clients.consumer_group(consumer.group_name)
    return beat.heartbeat_fingerprint != 0 and beat.without_sub and (group is None or not group.subscriptions)


def _register_consumer(
    broker: Broker, beat: HeartbeatData, consumer: ConsumerData, client: GroupMember
) -> None:
    config = broker.groups.find_or_create(consumer.group_name)
    if config is None:
        return
    ordered = any(broker.topics.is_ordered(each.topic) for each in consumer.subscription_data_set)
    broker.topics.create_for_send_back(
        retry_topic(consumer.group_name),
        config.retry_queue_nums,
        order=ordered,
        sys_flag=unit_flags(unit=False, subscribed=consumer.unit_mode),
    )
    with_subscriptions = beat.heartbeat_fingerprint == 0 or not beat.without_sub
    notify = config.notify_consumer_ids_changed_enable
    broker.clients.register_consumer(client, consumer, notify=notify, subscriptions=with_subscriptions)
    if with_subscriptions:
        broker.consumer_filters.register(consumer.group_name, consumer.subscription_data_set)


@UnregisterClient.on(routes)
def unregister_client(broker: Broker, request: UnregisterClient, call: Call) -> None:
    """Remove a stopping client from its groups. Source: ClientManageProcessor.unregisterClient, 5.4.0."""
    if request.producer_group is not None:
        broker.clients.unregister_producer(request.producer_group, call.connection)
    if request.consumer_group is not None:
        config = broker.groups.find_or_create(request.consumer_group)
        notify = config is None or config.notify_consumer_ids_changed_enable
        broker.clients.unregister_consumer(request.consumer_group, call.connection, notify=notify)


@CheckClientConfig.on(routes)
def check_client_config(broker: Broker, request: CheckClientConfig) -> None:
    """Refuse a subscription by which this broker cannot filter.

    Source: ClientManageProcessor.checkClientConfig, 5.4.0. Deviation: an unknown type of expression is
    refused by name; the official broker answers with a NullPointerException.
    """
    subscription = None if request.data is None else request.data.subscription_data
    if subscription is None:
        return
    _check_subscription(broker, subscription)
    if is_tag_type(subscription.expression_type):
        return
    if not broker.config.enable_property_filter:
        remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    try:
        broker.filter_cache.sql_filter(subscription.expression_type, subscription.sub_string)
    except (SqlError, ExpressionTooLong) as error:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


@GetConsumerListByGroup.on(routes)
def get_consumer_list_by_group(
    broker: Broker, request: GetConsumerListByGroup
) -> GetConsumerListByGroupReply:
    """Return the client ids of a group's online members.

    Source: ConsumerManageProcessor.getConsumerListByGroup, 5.4.0.
    """
    group = broker.clients.consumer_group(request.consumer_group)
    if group is None:
        remark = f"no consumer for this group, {request.consumer_group}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    return GetConsumerListByGroupReply(
        data=GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids())
    )
