"""Requests about consumer groups: create, change, list, delete."""

import trio.lowlevel

from codec.constants import ResponseCode
from gateway.broker.broker import Broker
from gateway.broker.processors.topics import save_offsets
from gateway.broker.processors.turns import ITEMS_PER_TURN, end_turn
from gateway.broker.topics.encoded_entries import select_page
from gateway.broker.topics.name_validation import check_group_name, check_topic_name
from remoting.bodies.groups import (
    GroupForbidden,
    QuerySubscriptionResponseBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from remoting.errors import RequestError
from remoting.handler_table import HandlerTable
from remoting.requests.groups import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetAllSubscriptionGroupConfigReply,
    GetSubscriptionGroupConfig,
    GetSubscriptionGroupConfigReply,
    QuerySubscriptionByConsumer,
    QuerySubscriptionByConsumerReply,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
    UpdateAndGetGroupForbiddenReply,
)

handlers: HandlerTable[Broker] = HandlerTable()


@UpdateAndCreateSubscriptionGroup.on(handlers)
async def update_group(broker: Broker, request: UpdateAndCreateSubscriptionGroup) -> None:
    """Create or change a group. Source: AdminBrokerProcessor.updateAndCreateSubscriptionGroup, 5.4.0."""
    with broker.stats.group_changes.measure(broker.clock):
        check_group_name(request.data.group_name)
        async with broker.groups.stored_change():
            _update_groups(broker, [request.data])


@UpdateAndCreateSubscriptionGroupList.on(handlers)
async def update_groups(broker: Broker, request: UpdateAndCreateSubscriptionGroupList) -> None:
    """Create or change several groups; none if the name of one is refused.

    Source: AdminBrokerProcessor.updateAndCreateSubscriptionGroupList, 5.4.0. Deviation: they are changed in slices, so
    that those before one with invalid attributes, or beyond a limit, are changed.
    """
    with broker.stats.group_changes.measure(broker.clock):
        await _update_all(broker, request.data.group_config_list)


async def _update_all(broker: Broker, configs: list[SubscriptionGroupConfig]) -> None:
    for number, config in enumerate(configs):
        check_group_name(config.group_name)
        await end_turn(number)
    async with broker.groups.stored_change():
        for start in range(0, len(configs), ITEMS_PER_TURN):
            _update_groups(broker, configs[start : start + ITEMS_PER_TURN])
            await trio.lowlevel.checkpoint()


def _update_groups(broker: Broker, configs: list[SubscriptionGroupConfig]) -> None:
    try:
        broker.groups.update(configs)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error


@GetAllSubscriptionGroupConfig.on(handlers)
def get_all_groups(
    broker: Broker, request: GetAllSubscriptionGroupConfig
) -> GetAllSubscriptionGroupConfigReply:
    """Return all groups, or one page of them by name.

    Source: AdminBrokerProcessor.getAllSubscriptionGroup, 5.4.0.
    """
    groups = broker.groups
    page = select_page(
        groups.encoded, groups.version, request.data_version, request.group_seq, request.max_group_num
    )
    chosen = groups.table if page is None else page
    forbidden = {group: groups.forbidden[group] for group in chosen if group in groups.forbidden}
    body = SubscriptionGroupWrapper(forbidden_table=forbidden, data_version=groups.version)
    reply = GetAllSubscriptionGroupConfigReply(total_group_num=len(groups.table), data=body)
    reply.body = groups.encoded.fill(body, "subscriptionGroupTable", page)
    return reply


@GetSubscriptionGroupConfig.on(handlers)
def get_group(broker: Broker, request: GetSubscriptionGroupConfig) -> GetSubscriptionGroupConfigReply:
    """Return one group, created when groups may be created automatically.

    Source: AdminBrokerProcessor.getSubscriptionGroup, 5.4.0.
    """
    config = broker.groups.find_or_create(request.group)
    if config is None:
        raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return GetSubscriptionGroupConfigReply(data=config)


@DeleteSubscriptionGroup.on(handlers)
async def delete_group(broker: Broker, request: DeleteSubscriptionGroup) -> None:
    """Delete a group, and its offsets if requested.

    Source: AdminBrokerProcessor.deleteSubscriptionGroup, 5.4.0.
    """
    async with broker.groups.stored_change():
        broker.groups.delete(request.group_name)
    broker.stats.forget_group(request.group_name)
    if request.clean_offset:
        for topic in broker.offsets.topics_of_group(request.group_name):
            broker.pop.state.ordered_pops.forget_group(topic, request.group_name)
        broker.offsets.remove_group(request.group_name)
        await save_offsets(broker, "group")


@QuerySubscriptionByConsumer.on(handlers)
def get_subscription(
    broker: Broker, request: QuerySubscriptionByConsumer
) -> QuerySubscriptionByConsumerReply:
    """Return a group's subscription to a topic.

    Source: AdminBrokerProcessor.querySubscriptionByConsumer, 5.4.0.
    """
    subscription = broker.clients.subscription(request.group, request.topic or "")
    body = QuerySubscriptionResponseBody(
        subscription_data=subscription, group=request.group, topic=request.topic
    )
    return QuerySubscriptionByConsumerReply(data=body)


@UpdateAndGetGroupForbidden.on(handlers)
async def forbid_group(
    broker: Broker, request: UpdateAndGetGroupForbidden
) -> UpdateAndGetGroupForbiddenReply:
    """Return whether a group may read a topic, after changing it if requested.

    Source: AdminBrokerProcessor.updateAndGetGroupForbidden, 5.4.0.
    """
    group, topic = request.group, request.topic
    if request.readable is not None:
        check_group_name(group, broker.groups.table)
        check_topic_name(topic, broker.topics.table)
        async with broker.groups.stored_change():
            broker.groups.set_forbidden(group, topic, not request.readable)
    readable = not broker.groups.is_forbidden(group, topic)
    reply = UpdateAndGetGroupForbiddenReply(data=GroupForbidden(topic=topic, group=group, readable=readable))
    reply.remark = ""
    return reply
